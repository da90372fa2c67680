"""Commands in processes that are forked from a warm one, so that a try costs no imports.

A `Fault` strikes at the n-th step of a command: steps are what it does to files below a folder
(open them for writing, append a line, synchronise, rename, remove, make and remove directories), as
Python's audit events tell them. Which steps there are depends on the command alone, so a fault can
be tried at every one.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from ..forking import CONTEXT

PATIENCE = 600.0
"""The seconds of sleep or of processor time after which a process counts as hanging."""

_CHANGES = {
    *("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate"),
    *("bertworks.append", "bertworks.fsync"),
}
_FREES = {"os.remove", "os.rmdir", "os.rename", "os.truncate"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT

Prepare = Callable[[], None]


@dataclass(frozen=True)
class Fault:
    """What strikes at a step.

    Attributes:
        step: the step, from 1; 0 never comes.
        kind: a signal, or the number of an error, which then comes at every later step too (on a
            full disk: but for those that need no room).
        folder: the folder whose files count.
    """

    step: int
    kind: signal.Signals | int
    folder: Path


@dataclass(frozen=True)
class Outcome:
    """How a command ended.

    Attributes:
        status: its exit status, or the signal that ended it, negative.
        stderr: its standard error.
        steps: how many steps it did, if it came to an end.
    """

    status: int
    stderr: str
    steps: int

    def is_one_line(self) -> bool:
        """Whether it failed, or was stopped, with one line for people, but for warnings."""
        lines = [
            line for line in self.stderr.splitlines() if not line.startswith(("warning: ", "bertw"))
        ]
        errors = [line for line in lines if line.startswith(("error: ", "stopped "))]
        return self.status > 0 and errors == lines[-1:] and "Traceback" not in self.stderr


class Command:
    """A command line that runs in a process of its own."""

    def __init__(
        self,
        words: Sequence[object],
        folder: Path,
        fault: Fault | None = None,
        prepare: Prepare | None = None,
    ) -> None:
        self._steps = folder / "steps"
        folder.mkdir(parents=True, exist_ok=True)
        self._steps.write_text("0")
        # A file would be bounded as all others are.
        self._stderr, writer = CONTEXT.Pipe(duplex=False)
        args = ([str(word) for word in words], writer, self._steps, fault, prepare)
        self.process = CONTEXT.Process(target=_main, args=args)
        self.process.start()
        writer.close()

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal, if it still runs."""
        if self.process.is_alive():
            assert self.process.pid is not None
            os.kill(self.process.pid, number)

    def wait(self) -> Outcome:
        """Wait for its end."""
        if not is_over(self.process):
            pytest.fail(f"it hung: {self._read()}")
        assert self.process.exitcode is not None
        return Outcome(self.process.exitcode, self._read(), int(self._steps.read_text() or 0))

    def _read(self) -> str:
        """What is in the pipe."""
        os.set_blocking(self._stderr.fileno(), False)
        output = b""
        with self._stderr, suppress(BlockingIOError):  # a worker that ends later may hold it open
            while more := os.read(self._stderr.fileno(), 1 << 16):
                output += more
        return output.decode(errors="replace")


def is_over(process: BaseProcess) -> bool:
    """Wait for the end of a process; one that hangs is killed.

    The time in which it waits for a processor does not count: others may need them.
    """
    asleep = busy = 0.0
    while process.is_alive() and max(asleep, busy) < PATIENCE:
        process.join(1)
        try:
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        except FileNotFoundError:
            continue
        asleep += fields[0] == "S"
        busy = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    is_dead = not process.is_alive()
    process.kill()
    process.join()
    return is_dead


def run(words: Sequence[object], folder: Path, *more: Any) -> Outcome:
    """Run a command line to its end; the arguments are those of `Command`."""
    return Command(words, folder, *more).wait()


def processor_seconds() -> float:
    """The processor time of this process, and of all that have ended, in seconds."""
    seconds = sum(os.times()[:4])
    if (server := forkserver._forkserver._forkserver_pid) is not None:  # type: ignore[attr-defined]
        fields = Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()
        seconds += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return seconds


def call(function: Callable[..., None], *args: Any) -> int:
    """Call a function in a process of its own; its exit status."""
    process = CONTEXT.Process(target=function, args=args)
    process.start()
    if not is_over(process):
        pytest.fail(f"{function.__name__}{args} hung")
    assert process.exitcode is not None
    return process.exitcode


def _main(
    words: list[str], stderr: Connection, steps: Path, fault: Fault | None, prepare: Prepare | None
) -> None:
    """The process: the command line, with its outputs in a file."""
    os.setpgrp()
    warnings.resetwarnings()
    warnings.simplefilter("ignore", DeprecationWarning)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else 0)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.dup2(stderr.fileno(), 2)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115

    from bertworks.cli import main
    from bertworks.reports import charts

    charts.can_draw = lambda: False  # they take longer than everything else
    count = [0] if fault is None else _watch(fault)
    if prepare is not None:
        prepare()
    sys.argv = ["bertworks", *words]
    try:
        main()
    finally:
        sys.stdout.flush()
        if fault is not None:
            steps.write_text(str(count[0]))


def _watch(fault: Fault) -> list[int]:
    """Count the steps from now on, and have the fault strike; the list holds the count."""
    from bertworks.utils.atomic_writes import writing
    from bertworks.utils.line_files import LineFile

    prefix, steps = str(fault.folder), [0]

    def step(event: str, path: str) -> None:
        steps[0] += 1
        count = steps[0]
        if isinstance(fault.kind, signal.Signals):
            if count == fault.step:
                os.kill(os.getpid(), fault.kind)
        elif 0 < fault.step <= count and not (fault.kind == errno.ENOSPC and event in _FREES):
            named = () if event == "bertworks.fsync" else (path,)  # a descriptor has no name
            raise OSError(fault.kind, os.strerror(fault.kind), *named)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            if not args[2] & _WRITES:
                return
        elif event not in _CHANGES:
            return
        if isinstance(args[0], str | os.PathLike) and os.fspath(args[0]).startswith(prefix):
            step(event, os.fspath(args[0]))

    append, fsync = LineFile.append, os.fsync

    def watched_append(self: LineFile, line: bytes) -> None:
        with writing(self.path):
            sys.audit("bertworks.append", str(self.path))
        append(self, line)

    def watched_fsync(descriptor: int) -> None:
        sys.audit("bertworks.fsync", os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    LineFile.append = watched_append  # type: ignore[method-assign]
    os.fsync = watched_fsync
    sys.addaudithook(hook)
    return steps

"""The runs of a grid: one after the other here, or several at a time in processes of their own.

A process does one run and ends, so that whatever becomes of it (a GPU's memory is full, the kernel
kills it) is the end of that run alone.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch

from ...corpus.workers import end_with_parent, without_main
from ...errors import CheckpointError, DataError, OutputError, SettingsError, TrainingError
from ..finetune import FinetuneResult
from ..progress import Progress
from ..signals import Interrupted, stop_request


@dataclass(frozen=True)
class Job:
    """A run that is to be done.

    Attributes:
        directory: the run directory.
        finetune: does it, told the progress; other processes can be sent it.
        reading: the settings of its point that decide how the tables are read, in words; "" if
            there are none.
    """

    directory: Path
    finetune: Callable[..., FinetuneResult]
    reading: str = ""


@dataclass(frozen=True)
class Slot:
    """A place where one run at a time can go on.

    Attributes:
        environment: the variables its processes have beside the parent's.
        threads: how many a process may use.
    """

    environment: Mapping[str, str]
    threads: int


def slots(device: torch.device, jobs: int | None) -> list[Slot]:
    """Where runs can go on side by side.

    Args:
        device: where they compute; of CUDA without a number, all devices are meant.
        jobs: how many at a time; one for each device, if left out.
    """
    threads = torch.get_num_threads()
    if device.type != "cuda":
        count = jobs or 1
        return [Slot({}, max(1, threads // count))] * count
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if names == [""]:
        names = [str(number) for number in range(torch.cuda.device_count())]
    if device.index is not None:
        names = [names[device.index]]
    count = jobs or len(names)
    share = max(1, threads // count)
    return [
        Slot({"CUDA_VISIBLE_DEVICES": names[number % len(names)]}, share) for number in range(count)
    ]


def do_here(job: Job, progress: Progress | None) -> str | None:
    """Do a run in this process.

    Returns:
        Why it failed; None if it did not.

    Raises:
        Interrupted: it was asked to stop, and can go on.
        DataError, BertworksError: a table is wrong, or a package is not there: every other run
            would fail of it too, unless `reading` differs, which is named.
    """
    try:
        job.finetune(progress=progress)
    except Interrupted:
        raise
    except TrainingError as error:
        return error.what
    except (SettingsError, CheckpointError, OutputError) as error:
        return str(error)
    except DataError as error:
        what = f"{error.what}, with {job.reading}" if job.reading else error.what
        raise DataError(what, where=error.where, fix=error.fix) from None
    except RuntimeError as error:
        if not _is_memory_short(error):
            raise
        return str(error).partition("\n")[0]
    return None


def do_in_processes(
    jobs: Sequence[Job], places: Sequence[Slot]
) -> Iterator[tuple[Job, str | None]]:
    """Do runs in processes of their own; each with why it failed, in the order of their ends.

    Raises:
        Interrupted: SIGTERM or Ctrl-C came; the runs that went on have saved themselves.
        DataError, BertworksError: as `do_here` does; the runs that went on are stopped.
    """
    waiting, free = list(reversed(jobs)), list(places)
    running: dict[Connection[Any, Any], tuple[Job, Slot, SpawnProcess]] = {}
    with stop_request() as request:
        try:
            while waiting or running:
                while waiting and free:
                    job, slot = waiting.pop(), free.pop()
                    connection, process = _start(job, slot)
                    running[connection] = job, slot, process
                for ready in wait(list(running), timeout=0.2):
                    assert isinstance(ready, Connection)
                    job, slot, process = running.pop(ready)
                    free.append(slot)
                    yield job, _end(ready, process)
                if request.signal_number:
                    raise Interrupted(
                        "stopped; the runs have saved themselves",
                        fix="Run the same command again to resume.",
                        signal_number=request.signal_number,
                    )
        finally:
            for _, _, process in running.values():
                process.terminate()
            for _, _, process in running.values():
                process.join()


def _start(job: Job, slot: Slot) -> tuple[Connection[Any, Any], SpawnProcess]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, job, slot))
    with without_main():
        process.start()
    theirs.close()
    return ours, process


def _work(connection: Connection[Any, Any], job: Job, slot: Slot) -> None:
    """What a process does: one run, and an answer."""
    os.setpgrp()  # Ctrl-C is the parent's to handle: it sends SIGTERM
    threading.Thread(target=end_with_parent, daemon=True).start()
    os.environ.update(slot.environment)  # before CUDA is first used
    os.environ["RAYON_NUM_THREADS"] = str(slot.threads)
    torch.set_num_threads(slot.threads)
    try:
        answer: str | Exception | None = do_here(job, None)
    except Exception as error:  # not hidden: the parent raises it
        if not isinstance(error, TrainingError):
            error.add_note(f"In the process of {job.directory}:\n{traceback.format_exc()}")
        answer = error
    connection.send(answer)


def _end(connection: Connection[Any, Any], process: SpawnProcess) -> str | None:
    """What a process that is at its end says."""
    try:
        answer = connection.recv()
    except (EOFError, OSError):
        process.join()
        code = process.exitcode or 0
        how = f"signal {-code}" if code < 0 else f"exit status {code}"
        return f"its process died ({how})"
    process.join()
    connection.close()
    if isinstance(answer, Exception):
        raise answer
    return None if answer is None else str(answer)


def _is_memory_short(error: RuntimeError) -> bool:
    """Whether memory is what a run failed of; PyTorch has a class of its own for a GPU's alone."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)

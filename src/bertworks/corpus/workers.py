"""Worker processes for `prepare`: one pipe each, one batch at a time in each.

A pool of the standard library would wait for ever, or leave workers behind, when one side is
killed. Here a worker whose parent is gone ends at once, and a worker that dies is an error.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import ModuleType
from typing import Any, Generic, TypeVar

from ..errors import BertworksError

TaskT = TypeVar("TaskT")
ResultT = TypeVar("ResultT")


class Workers(Generic[TaskT, ResultT]):
    """Processes that each build a function once, and then apply it to tasks.

    Args:
        count: how many processes.
        build: called with `arguments` in each process; gives the function. Both are pickled, and
            neither may come from a script's main module.
        arguments: of `build`.
    """

    def __init__(
        self, count: int, build: Callable[..., Callable[[TaskT], ResultT]], *arguments: Any
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._processes: dict[Connection[Any, Any], SpawnProcess] = {}
        with without_main():
            for _ in range(count):
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=_work, args=(theirs, build, arguments), daemon=True
                )
                process.start()
                theirs.close()
                self._processes[ours] = process

    def map(self, tasks: Iterable[TaskT]) -> Iterator[ResultT]:
        """Results as they are finished, in any order.

        At most one task more than there are workers exists at a time.

        Raises:
            BertworksError: a worker died.
            Exception: what a task raised, with the worker's traceback as a note.
        """
        idle = list(self._processes)
        busy: list[Connection[Any, Any]] = []
        for task in tasks:
            while not idle:
                for connection in wait(busy):
                    assert isinstance(connection, Connection)
                    yield self._receive(connection)
                    busy.remove(connection)
                    idle.append(connection)
            connection = idle.pop()
            try:
                connection.send(task)
            except OSError:
                raise self._death(connection) from None
            busy.append(connection)
        while busy:
            for connection in wait(busy):
                assert isinstance(connection, Connection)
                yield self._receive(connection)
                busy.remove(connection)

    def close(self) -> None:
        """End the processes, whatever they are doing."""
        for connection, process in self._processes.items():
            connection.close()
            process.terminate()
            process.join()

    def _receive(self, connection: Connection[Any, Any]) -> ResultT:
        try:
            ok, result = connection.recv()
        except (EOFError, OSError):
            raise self._death(connection) from None
        if not ok:
            raise result
        value: ResultT = result
        return value

    def _death(self, connection: Connection[Any, Any]) -> BertworksError:
        process = self._processes[connection]
        process.join(timeout=10)
        code = process.exitcode
        how = f"signal {-code}" if code is not None and code < 0 else f"exit status {code}"
        return BertworksError(
            f"a worker process died ({how})", fix="If memory was short, use fewer workers."
        )


@contextmanager
def without_main() -> Iterator[None]:
    """Hide the program's main module from processes that start now.

    They would run it again, for things that it may define and these workers do not need: so a
    script must not be written with care (`if __name__ == "__main__":`) to use workers.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _work(
    connection: Connection[Any, Any], build: Callable[..., Callable[[Any], Any]], arguments: Any
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=end_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers are the parallelism
    function: Callable[[Any], Any] | None = None
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        try:
            function = function or build(*arguments)
            answer = (True, function(task))
        except Exception as error:  # not hidden: the parent raises it
            if not isinstance(error, BertworksError):
                error.add_note(f"In a worker process:\n{traceback.format_exc()}")
            answer = (False, error)
        connection.send(answer)


def end_with_parent() -> None:
    """Wait for the parent's end, and end too: for a thread of its own."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)

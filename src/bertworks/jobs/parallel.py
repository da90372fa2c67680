"""Apply a function to parts of a job: in this process, in other processes, or on Ray.

Results are in the order of the parts, no matter where and how often a part was computed, so that
outputs do not depend on this. Few parts are in progress at a time, so that memory is bounded: parts
are read as results are taken.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
import sys
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.reduction import ForkingPickler
from multiprocessing.util import Finalize
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any, Generic, TypeVar

from ..errors import BertworksError, SettingsError, first_line, import_optional
from ..utils.memory import is_memory_short, start_thread
from ..utils.threads import count_usable_cpus, num_threads, set_num_threads

_HEAD_SECONDS = 10.0
"""Seconds after which a waiting command asks whether the head of Ray's cluster is still there."""

PartT = TypeVar("PartT")
ResultT = TypeVar("ResultT")


MAX_WORKERS = 1024
"""Maximum number of processes on one machine."""

CONTEXT = multiprocessing.get_context("spawn")
"""How processes start: anew, since a fork of a process with threads may hang."""


@dataclass(frozen=True)
class Workers:
    """The processes that apply a function to parts.

    Attributes:
        count: number of processes, 1: only this process; on Ray, number of tasks at a time. None:
            the number of cores that this process may use, or of the cluster.
        cluster: "ray" (the cluster that `RAY_ADDRESS` names or that runs on this machine, or else a
            new one on this machine) or `ray://HOST:PORT`; None: this machine.
        gpus: number of GPUs per task on Ray.
        is_separate: whether a single worker is a process too, while this one does other work.
    """

    count: int | None = 1
    cluster: str | None = None
    gpus: int = 0
    is_separate: bool = False

    def map(
        self, function: Callable[[PartT], ResultT], parts: Iterable[PartT]
    ) -> Generator[ResultT]:
        """Apply a function to parts; yield the results in the order of the parts.

        Function, parts and results are pickled, except in this process. A worker receives the
        function only once (it may hold a model), and no worker is started before there is a part.
        Close the generator if not all results are taken, so that no worker is left.

        Args:
            function: the function to apply.
            parts: any number; at most twice as many as there are workers are in progress.

        Raises:
            SettingsError: `cluster` is not valid, or there are too many workers for one machine.
            WorkerError: a worker died.
            BertworksError: Ray is not installed, cannot be reached, or gave up a task.
            Exception: what the function raised, with the worker's traceback as a note.
        """
        if self.cluster is not None:
            yield from _on_ray(function, parts, self.cluster, self.count, self.gpus)
            return
        count = self.count or count_usable_cpus()
        if count > MAX_WORKERS:
            raise SettingsError(
                f"workers={count}: at most {MAX_WORKERS:,} processes are started on a machine"
            )
        if count == 1 and not self.is_separate:
            for part in parts:
                yield function(part)
            return
        with closing(_Pool(count, function)) as pool:
            yield from pool.map(parts)


HERE = Workers()
"""Only this process."""


class WorkerError(BertworksError):
    """A worker process died."""


class _Pool(Generic[PartT, ResultT]):
    """Worker processes, each with one pipe and one part at a time.

    A pool of the standard library would wait forever, or leave workers behind, when one side is
    killed. Here a worker ends as soon as its parent has ended, and the death of a worker is an
    error.
    """

    def __init__(self, count: int, function: Callable[[PartT], ResultT]) -> None:
        self._count, self._function = count, function
        self._threads = max(1, num_threads() // count)  # of each process
        self._processes: dict[Connection[Any, Any], SpawnProcess] = {}
        # An unclosed generator must not block the exit, which waits for all processes.
        self.close = Finalize(None, self._end, exitpriority=0)

    def map(self, parts: Iterable[PartT]) -> Iterator[ResultT]:
        """Yield results in the order of the parts, none before all workers are busy."""
        parts = iter(parts)
        next_part: list[PartT] = []  # the next part, read while all workers are busy
        idle: list[Connection[Any, Any]] = []
        busy: dict[Connection[Any, Any], int] = {}
        results: dict[int, ResultT] = {}
        num_sent = num_yielded = 0
        while True:
            while num_sent - num_yielded < 2 * self._count and (
                next_part := next_part or list(islice(parts, 1))
            ):
                if not idle and len(self._processes) == self._count:
                    break
                connection = idle.pop() if idle else self._start()
                try:
                    connection.send(next_part.pop())
                except OSError:
                    raise self._death(connection) from None
                busy[connection] = num_sent
                num_sent += 1
            if num_yielded in results:
                yield results.pop(num_yielded)
                num_yielded += 1
            elif busy:
                ready = wait(list(busy))
                for connection in [one for one in busy if one in ready]:
                    results[busy.pop(connection)] = self._receive(connection)
                    idle.append(connection)
            else:
                return

    def _start(self) -> Connection[Any, Any]:
        ours, process = start(_work, (self._function, self._threads), daemon=True)
        self._processes[ours] = process
        return ours

    def _end(self) -> None:
        """Kill the processes."""
        for connection, process in self._processes.items():
            connection.close()
            process.kill()
            process.join()

    def _receive(self, connection: Connection[Any, Any]) -> ResultT:
        try:
            answer = connection.recv()
        except (EOFError, OSError):
            raise self._death(connection) from None
        value: ResultT = _value(answer)
        return value

    def _death(self, connection: Connection[Any, Any]) -> WorkerError:
        process = self._processes[connection]
        process.join(timeout=10)
        code = process.exitcode
        how = f"signal {-code}" if code is not None and code < 0 else f"exit status {code}"
        return WorkerError(
            f"a worker process died ({how})", fix="If memory was short, use fewer workers."
        )


def start(
    target: Callable[[Connection[Any, Any]], None], first_object: Any, *, daemon: bool
) -> tuple[Connection[Any, Any], SpawnProcess]:
    """Start a process that calls a function with one end of a pipe.

    Args:
        target: the function.
        first_object: is sent through the pipe; if it refers to definitions in the user's script,
            the process runs the script again, to find them.
        daemon: whether the process ends with this one, and cannot start processes.

    Returns:
        The other end of the pipe, and the process. If the process has died, receiving from the pipe
        raises an error.
    """
    hidden: Callable[[], AbstractContextManager[None]] = _without_main
    try:
        with hidden():
            payload = ForkingPickler.dumps(first_object)
    except (pickle.PicklingError, AttributeError):
        hidden = nullcontext
        payload = ForkingPickler.dumps(first_object)
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=target, args=(theirs,), daemon=daemon)
    with hidden():
        process.start()
    theirs.close()
    # Not an argument of the process: `process.start` would wait forever if the process were killed
    # before reading an argument larger than the pipe's buffer, since both ends are open here.
    with suppress(OSError):
        ours.send_bytes(payload)
    return ours, process


_main_lock = Lock()


@contextmanager
def _without_main() -> Iterator[None]:
    """Hide the program's main module from processes that start now.

    Otherwise they would run it again, to find definitions that these workers do not need. So a
    script that uses workers needs no `if __name__ == "__main__":`.
    """
    with _main_lock:  # else another thread could take the empty module for the main one
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


def end_with_parent() -> None:
    """Wait in a thread for the parent to end, then exit: a killed parent does not end workers."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(connection: Connection[Any, Any]) -> None:
    # A signal to all processes is for the parent, which may still need results.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        start_thread(end_with_parent)
        with suppress(EOFError, ConnectionError):  # the parent has ended
            function, threads = connection.recv()  # unpickling imports what it needs
            set_num_threads(threads)
            while True:
                connection.send(_answer(function, connection.recv()))
    except BaseException as error:
        if not is_memory_short(error):
            raise
        connection.send((False, _no_memory(error)))


def _answer(function: Callable[[Any], Any], part: Any) -> tuple[bool, Any]:
    """Apply a function to a part; return True and its value, or False and its exception."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers already run in parallel
    try:
        return True, function(part)
    except BaseException as error:  # not hidden: `_value` raises it
        if is_memory_short(error):  # its class may not support pickling
            return False, _no_memory(error)
        if not isinstance(error, Exception):
            raise
        if not isinstance(error, BertworksError):
            error.add_note(f"In a worker process:\n{traceback.format_exc()}")
        return False, error


def _no_memory(error: BaseException) -> MemoryError:
    """Return the error that the waiting process raises for a worker's lack of memory."""
    return MemoryError(f"in a worker process: {error}")


def _value(answer: tuple[bool, Any]) -> Any:
    is_value, value = answer
    if not is_value:
        raise value
    return value


def _connect_to_ray(cluster: str) -> Any:
    """Return the module `ray`, connected to a cluster.

    Raises:
        BertworksError: Ray is not installed, or the cluster cannot be reached.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # if a cluster is started here
    if "RAY_AUTH_MODE" not in os.environ and _has_ray_token():
        # A head that is started where there is a token asks for it; a client sends none by itself.
        os.environ["RAY_AUTH_MODE"] = "token"
    ray: Any = import_optional("ray", "ray", f"on={cluster}")
    try:
        if not ray.is_initialized():
            address = None if cluster == "ray" else cluster
            ray.init(address=address, log_to_driver=False, logging_level="warning")
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise BertworksError(
            f"Ray cannot be reached ({first_line(error)})",
            where=cluster,
            fix="Does its head ask for a token? Set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, or put "
            "it into ~/.ray/auth_token. Ray's log is on its head, in "
            "/tmp/ray/session_latest/logs: ray_client_server.err of ray://, gcs_server.err.",
        ) from None
    return ray


def _has_ray_token() -> bool:
    """Whether there is a token where Ray looks for it."""
    file = os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token"
    return bool(os.environ.get("RAY_AUTH_TOKEN")) or Path(file).is_file()


def _on_ray(
    function: Callable[[PartT], ResultT],
    parts: Iterable[PartT],
    cluster: str,
    workers: int | None,
    gpus: int,
) -> Iterator[ResultT]:
    """Apply a function on Ray, which handles placement, lost nodes and the cluster's size."""
    if cluster != "ray" and not cluster.startswith("ray://"):
        raise SettingsError(f"on={cluster!r} is not valid", fix="Give ray, or ray://HOST:PORT.")
    ray = _connect_to_ray(cluster)
    missing = "Install on each node what this process imports."
    try:
        reference = [
            ray.put(function)
        ]  # a list, so that a worker fetches it once, not for every part
    except ImportError as error:  # on the server
        raise BertworksError(
            f"Ray cannot run the work ({error})", where=cluster, fix=missing
        ) from None
    call = ray.remote(_call).options(num_cpus=1, num_gpus=gpus)
    pending: deque[Any] = deque()
    try:
        for part in parts:
            # All pending tasks run at a time if the cluster has cores for them.
            limit = workers or 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
            while len(pending) >= limit:
                yield _value(_wait_for_task(ray, pending.popleft()))
            pending.append(call.remote(reference, part))
        while pending:
            yield _value(_wait_for_task(ray, pending.popleft()))
    except ray.exceptions.RayError as error:
        is_traceback = isinstance(error, ray.exceptions.RayTaskError)  # the reason is last
        what = str(error).splitlines()[-1] if is_traceback else first_line(error)
        fix = missing if "No module named" in what else "Run the same command again."
        if isinstance(error, ray.exceptions.OwnerDiedError):
            what = "its nodes cannot ask this process for data"
            fix = "If the cluster asks for no token, set RAY_AUTH_MODE=disabled."
        raise BertworksError(f"Ray gave up a task ({what})", where=cluster, fix=fix) from None
    except ConnectionError as error:
        pending.clear()  # a call of Ray's would start another cluster
        raise BertworksError(
            f"the connection to Ray is lost ({first_line(error)})",
            where=cluster,
            fix="Run the same command again when the cluster is back.",
        ) from None
    finally:
        with suppress(ConnectionError):  # another error was raised before
            for one in pending:
                ray.cancel(one)


def _wait_for_task(ray: Any, task: Any) -> Any:
    """Return the result of a task.

    Raises:
        ConnectionError: the cluster's head does not answer any more. After a minute Ray itself
            would end this process.
        RayError: Ray gave up the task.
    """
    while True:
        try:
            return ray.get(task, timeout=_HEAD_SECONDS)
        except ray.exceptions.GetTimeoutError:
            if not ray.util.client.ray.is_connected():  # `ray://` notices it without our help
                host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
                try:
                    socket.create_connection((host, int(port)), _HEAD_SECONDS).close()
                except OSError as error:
                    raise ConnectionError(f"its head does not answer: {error}") from None


_functions: dict[str, Callable[[Any], Any]] = {}


def _call(holder: list[Any], part: Any) -> tuple[bool, Any]:
    """Apply a function to a part in a Ray worker, which caches the last function."""
    import ray

    (reference,) = holder
    if reference.hex() not in _functions:
        _functions.clear()
        _functions[reference.hex()] = ray.get(reference)
    return _answer(_functions[reference.hex()], part)

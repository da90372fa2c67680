"""Lack of memory: the errors that mean it, and threads that cannot start."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from bertworks.utils import memory
from bertworks.utils.memory import is_memory_short, start_thread

PanicException = type("PanicException", (BaseException,), {})  # as Rust's libraries raise it


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), "a file"),
        RuntimeError("[enforce] DefaultCPUAllocator: can't allocate memory: you tried 9 bytes"),
        RuntimeError("std::bad_alloc"),
        RuntimeError("CUDA out of memory. Tried to allocate 20 MiB"),
    ],
)
def test_errors_about_memory_are_recognized(error: BaseException) -> None:
    assert is_memory_short(error)


NEEDS_A_LOOK = [
    RuntimeError("could not create a primitive"),
    RuntimeError("can't start new thread"),
    ImportError("a.so: failed to map segment from shared object"),
    SystemError("error return without exception set"),
    PanicException("The global thread pool has not been initialized."),
]


@pytest.mark.parametrize("error", NEEDS_A_LOOK)
def test_unclear_errors_count_where_little_memory_is_left(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not is_memory_short(error)
    monkeypatch.setattr(memory, "is_little_left", lambda: True)
    assert is_memory_short(error)


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "No such file", "a file"),
        ModuleNotFoundError("No module named 'sacrebleu'"),
        NotImplementedError("no kernel"),
        AssertionError("a fault of ours"),
        ValueError("the text 'out of memory' is no label"),
        KeyboardInterrupt(),
    ],
)
def test_other_errors_do_not_count(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "is_little_left", lambda: True)
    assert not is_memory_short(error)


def run_with_limit(mebibytes: int, code: str) -> str:
    """What a process prints that may have so much more memory than it has, and then runs code."""
    begin = f"""
import resource
from bertworks.utils.memory import *
pages = int(open("/proc/self/statm").read().split()[0])
most = pages * resource.getpagesize() + ({mebibytes} << 20)
resource.setrlimit(resource.RLIMIT_AS, (most, most))
"""
    process = subprocess.run(
        [sys.executable, "-c", begin + code], capture_output=True, text=True, timeout=60, check=True
    )
    return process.stdout.strip()


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_a_limit_of_the_process_is_seen() -> None:
    assert run_with_limit(64, "print(is_little_left())") == "True"
    assert run_with_limit(1024, "print(is_little_left())") == "False"


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_a_thread_that_finds_no_memory_is_an_error() -> None:
    code = """
try:
    start_thread(print, "begun")
except (RuntimeError, MemoryError) as error:
    print(is_memory_short(error))
"""
    assert [run_with_limit(mebibytes, code) for mebibytes in (1, 6)] == ["True", "True"]


def test_a_thread_is_waited_for() -> None:
    numbers: list[int] = []
    go = threading.Event()

    def work(number: int) -> None:
        go.wait()
        numbers.append(number)

    await_end = start_thread(work, 3)
    assert not numbers
    go.set()
    await_end()
    assert numbers == [3]


def test_a_thread_that_never_begins_is_waited_for_while_there_is_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = iter([False, False, False, True])
    monkeypatch.setattr(memory, "_START_SECONDS", 0.01)
    monkeypatch.setattr(memory, "is_little_left", lambda size=0: next(looks))

    def vanish(function: Callable[[], None], args: tuple[()]) -> None: ...

    monkeypatch.setattr(memory._thread, "start_new_thread", vanish)
    with pytest.raises(MemoryError, match="has found no memory"):
        start_thread(print)
    assert not list(looks)


_MEASURE = """
from bertworks.utils import memory

memory.return_free_memory()
sizes = [memory.measure_resident_bytes()]
blocks = [b"x" * (100_000 + size) for size in range(500)]  # in the heap
sizes.append(memory.measure_resident_bytes())
del blocks
memory.return_free_memory()
sizes.append(memory.measure_resident_bytes())
print(*sizes)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="Linux tells what is resident")
def test_memory_is_measured_and_returned() -> None:
    # In a process of its own: others keep freed memory, for training.
    output = subprocess.run([sys.executable, "-c", _MEASURE], capture_output=True, check=True)
    start_bytes, full_bytes, left_bytes = map(int, output.stdout.split())
    assert full_bytes - start_bytes == pytest.approx(50_000_000, rel=0.1)
    assert left_bytes - start_bytes < 10_000_000

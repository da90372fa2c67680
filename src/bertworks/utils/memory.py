"""A process's memory; lack of it: detecting it, and starting threads when there is too little."""

from __future__ import annotations

import _thread
import ctypes
import errno
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

_STATM = Path("/proc/self/statm")

_MAY_LACK_MEMORY = {
    *("ImportError", "OSError", "RuntimeError", "SystemError"),
    *("ArrowException", "OutOfMemoryError", "PanicException", "SafetensorError"),
}
"""Names of the exceptions that libraries raise when memory is short; subclasses do not count."""

_LACKS_MEMORY = {
    *("allocate memory", "not enough memory", "out of memory", "bad_alloc", "cpuallocator"),
}

LITTLE_MEMORY = 256 << 20
"""Bytes; if less is available, little is left. A thread's stack and heap, or a large extension
module, need a part of it."""

_THREAD_BYTES = 4 << 20
"""Bytes that the interpreter may need to start a thread; without them it fails in various ways."""

_START_SECONDS = 5.0
"""Seconds to wait for a thread to start before checking whether it lacks memory."""


def is_memory_short(error: BaseException) -> bool:
    """Whether lack of memory caused an error.

    Few libraries raise a `MemoryError`. Others have different messages; and when there is no memory
    for a thread, a kernel or an extension module, the message can be anything. Such an error counts
    as lack of memory if little is left now.
    """
    if isinstance(error, MemoryError):
        return True
    if type(error).__name__ not in _MAY_LACK_MEMORY:
        return False
    number, message = getattr(error, "errno", None), str(error).lower()
    if number == errno.ENOMEM or any(words in message for words in _LACKS_MEMORY):
        return True
    return number is None and is_little_left()


def is_little_left(size: int = LITTLE_MEMORY) -> bool:
    """Whether the system refuses to give this process `size` more bytes.

    Systems refuse memory because of a limit of the process (`ulimit -v`), or because they do not
    overcommit. A system that overcommits grants any amount, and kills a process that uses too much:
    there, lack of memory raises no error.
    """
    try:
        with mmap.mmap(-1, size):  # no page of it is touched
            return False
    except (OSError, MemoryError):
        return True


def measure_resident_bytes() -> int | None:
    """Return the bytes of this process that are in memory (RSS); None where only Linux can tell."""
    try:
        pages = int(_STATM.read_text().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def return_free_memory() -> None:
    """Return freed memory to the system, where the C library does not by itself (glibc)."""
    if not _STATM.exists():
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other C libraries have none
    if trim is not None:
        trim(0)


def start_thread(function: Callable[..., object], *args: Any) -> Callable[[], object]:
    """Call a function in a thread that does not delay the end of the process.

    `threading.Thread` waits forever for a thread that has no memory to report its start.

    Returns:
        A function that waits until the call has ended.

    Raises:
        MemoryError: there is no memory for a thread.
        RuntimeError: no more threads can be started.
    """
    if is_little_left(_THREAD_BYTES):
        raise MemoryError("there is none for a new thread")
    has_started, has_ended = _thread.allocate_lock(), _thread.allocate_lock()
    has_started.acquire()
    has_ended.acquire()

    def call() -> None:
        has_started.release()
        try:
            function(*args)
        finally:
            has_ended.release()

    _thread.start_new_thread(call, ())
    while not has_started.acquire(timeout=_START_SECONDS):
        if is_little_left():
            raise MemoryError("a new thread has found no memory")
    return has_ended.acquire

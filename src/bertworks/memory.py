"""Memory that is short: how it is known, and threads that cannot begin for lack of it."""

from __future__ import annotations

import _thread
import errno
import mmap
from collections.abc import Callable
from typing import Any

_MAY_LACK_MEMORY = {
    *("ImportError", "OSError", "RuntimeError", "SystemError"),
    *("ArrowException", "OutOfMemoryError", "PanicException", "SafetensorError"),
}
"""The names of what libraries raise when memory is short: not of what derives from these."""

_LACKS_MEMORY = {
    *("allocate memory", "not enough memory", "out of memory", "bad_alloc", "cpuallocator"),
}

LITTLE = 256 << 20
"""Bytes of which less is little: a thread's stack and heap, or a large extension module, need some
of them."""

_THREAD = 4 << 20
"""Bytes that the interpreter may need to begin a thread; one that lacks them ends in many ways."""

_BEGINS_IN = 5.0
"""Seconds after which it is asked whether a thread has found no memory to begin."""


def is_memory_short(error: BaseException) -> bool:
    """Whether memory is what failed.

    Few libraries raise a `MemoryError`. Others have words of their own; and what finds no room for
    a thread, a kernel or the code of an extension module says anything. That is a lack of memory
    where little is left now.
    """
    if isinstance(error, MemoryError):
        return True
    if type(error).__name__ not in _MAY_LACK_MEMORY:
        return False
    number, says = getattr(error, "errno", None), str(error).lower()
    if number == errno.ENOMEM or any(words in says for words in _LACKS_MEMORY):
        return True
    return number is None and is_little_left()


def is_little_left(size: int = LITTLE) -> bool:
    """Whether this process cannot have so many bytes more, as far as the system can say.

    It can where it refuses memory: by a limit of the process (`ulimit -v`), or because it promises
    no more than it has. Where it promises any amount, and ends a process that uses too much, there
    is no error that this could explain.
    """
    try:
        with mmap.mmap(-1, size):  # no page of it is touched
            return False
    except (OSError, MemoryError):
        return True


def start_thread(function: Callable[..., object], *args: Any) -> Callable[[], object]:
    """Call a function in a thread that does not hold up the end of the process.

    `threading.Thread` waits for ever for one that has found no memory to say that it has begun.

    Returns:
        Waits for the function's end.

    Raises:
        MemoryError: there is no memory for a thread.
        RuntimeError: there can be no more threads.
    """
    if is_little_left(_THREAD):
        raise MemoryError("there is none for a new thread")
    begun, over = _thread.allocate_lock(), _thread.allocate_lock()
    begun.acquire()
    over.acquire()

    def call() -> None:
        begun.release()
        try:
            function(*args)
        finally:
            over.release()

    _thread.start_new_thread(call, ())
    while not begun.acquire(timeout=_BEGINS_IN):
        if is_little_left():
            raise MemoryError("a new thread has found no memory")
    return over.acquire

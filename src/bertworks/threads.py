"""How the threads of a computation wait for one another.

GNU OpenMP's threads, which PyTorch uses on Linux, wait by spinning, by default 300,000 times (16 ms
on some processors). On an idle machine that is fastest. Beside other programs, a spinning thread
takes the processor from the thread that it waits for, and training is several times slower
(docs/performance.md). The library reads its environment once, when it is loaded.
"""

from __future__ import annotations

import os
import time
from collections.abc import MutableMapping
from pathlib import Path

_LOAD = Path("/proc/loadavg")


def limit_spinning(environment: MutableMapping[str, str], load: Path = _LOAD) -> None:
    """Let waiting threads sleep at once, if other programs use the processors now.

    A variable that the user has set is not changed. The number of threads is not changed either,
    because results depend on it.

    Args:
        environment: the variables of this process, before PyTorch is imported.
        load: Linux's file with the number of running threads; without it nothing changes.
    """
    if environment.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}:
        return
    processors = os.cpu_count() or 1
    named = environment.get("OMP_NUM_THREADS", "")
    threads = int(named) if named.isdecimal() else processors
    if threads > 1 and _num_running(load) > max(0, processors - threads):
        environment["GOMP_SPINCOUNT"] = "0"


def _num_running(load: Path) -> int:
    """Return how many threads of other processes run: the least of three readings in 2 ms."""
    least = 1 << 30
    for reading in range(3):
        if reading:
            time.sleep(0.001)
        try:
            running, _, _ = load.read_text().split()[3].partition("/")
            least = min(least, int(running) - 1)  # this process runs
        except (OSError, ValueError, IndexError):
            return 0
    return least

"""A function over parts: results in order, in bounded memory, and every fault reported."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path

import pytest

from bertworks.errors import BertworksError, DataError, SettingsError
from bertworks.jobs import parallel
from bertworks.jobs.parallel import Workers, _without_main

pytestmark = pytest.mark.usefixtures("new_workers")


class Work:
    """Doubles numbers; it notes in a file whenever a process gets it."""

    def __init__(self, loads: Path) -> None:
        self.loads = loads

    def __setstate__(self, state: dict[str, Path]) -> None:
        self.__dict__ = state
        with self.loads.open("a") as file:
            file.write(f"{os.getpid()}\n")

    def __call__(self, part: int) -> int:
        if part % 5 == 0:
            time.sleep(0.02)  # others overtake it
        if part == 103:
            raise DataError("bad", where="f:3", fix="Mend it.")
        if part == 104:
            raise ZeroDivisionError
        if part == 105:
            signal.raise_signal(signal.SIGKILL)
        if part == 106:  # as Rust's libraries raise it: nothing can pickle it
            raise type("PanicException", (BaseException,), {})("no thread: out of memory")
        return part * 2


class Heavy(Work):
    """Finds no memory for what it imports."""

    def __setstate__(self, state: dict[str, Path]) -> None:
        raise ImportError("a.so: cannot allocate memory")


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_results_are_in_order_and_few_parts_are_on_their_way(workers: int, tmp_path: Path) -> None:
    num_drawn = 0

    def parts() -> Iterator[int]:
        nonlocal num_drawn
        while num_drawn < 40:
            num_drawn += 1
            yield num_drawn

    results = []
    for result in Workers(workers).map(Work(tmp_path / "loads"), parts()):
        results.append(result)
        assert num_drawn - len(results) <= 2 * workers
    assert results == [2 * number for number in range(1, 41)]
    if workers > 1:
        loads = (tmp_path / "loads").read_text().split()
        assert len(loads) == len(set(loads)) == workers


def test_connections_may_be_of_another_class_as_on_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "Connection", Path)
    assert list(Workers(2).map(Work(tmp_path / "loads"), range(3))) == [0, 2, 4]


def test_a_worker_that_dies_as_it_begins_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that the kernel kills: it reads nothing of a function that no pipe can hold."""
    resource_tracker.ensure_running()
    monkeypatch.setattr("multiprocessing.spawn.get_executable", lambda: b"/bin/true")
    function = {number: number for number in range(200_000)}.get
    with pytest.raises(BertworksError, match=r"a worker process died \(exit status 0\)"):
        list(Workers(2).map(function, [1, 2]))


@pytest.mark.long
def test_faults_in_workers_come_through(tmp_path: Path) -> None:
    work = Work(tmp_path / "loads")
    with pytest.raises(DataError, match=r"^f:3: bad\. Mend it\.$"):
        list(Workers(2).map(work, [1, 103]))
    with pytest.raises(ZeroDivisionError) as caught:
        list(Workers(2).map(work, [104]))
    assert "In a worker process" in caught.value.__notes__[0]
    with pytest.raises(BertworksError, match=r"worker process died \(signal 9\)"):
        list(Workers(2).map(work, [1, 105, 2]))


@pytest.mark.long
def test_a_worker_without_memory_raises_a_memory_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    work = Work(tmp_path / "loads")
    with pytest.raises(MemoryError, match=r"^in a worker process: no thread: out of memory$"):
        list(Workers(2).map(work, [1, 106]))
    with pytest.raises(MemoryError, match=r"^in a worker process: a\.so: cannot allocate memory$"):
        list(Workers(2).map(Heavy(work.loads), [1]))
    assert capfd.readouterr().err == ""


def test_no_process_is_started_for_nothing(tmp_path: Path) -> None:
    assert list(Workers(2).map(Work(tmp_path / "loads"), [])) == []
    assert not (tmp_path / "loads").exists()


def test_a_place_that_is_none() -> None:
    with pytest.raises(SettingsError, match="on='spark' is not valid"):
        list(Workers(cluster="spark").map(str, [1]))


def test_the_main_module_is_back_after_starts_that_overlap() -> None:
    main, entry, end = sys.modules["__main__"], threading.Event(), threading.Event()

    def start() -> None:
        with _without_main():
            entry.set()
            end.wait(10)

    thread = threading.Thread(target=start)
    with _without_main():
        thread.start()
        entry.wait(0.2)
    end.set()
    thread.join()
    assert sys.modules["__main__"] is main

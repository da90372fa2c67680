"""How many processors are usable; whether waiting threads sleep at once, by the machine's load."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from bertworks.jobs.parallel import Workers
from bertworks.utils.threads import (
    count_usable_cpus,
    limit_spinning,
    limit_spinning_of_numpy,
    num_threads,
)

CPUS = os.cpu_count() or 1


@pytest.mark.parametrize(
    ("running", "variables", "spins"),
    [
        (1, {"OMP_NUM_THREADS": str(CPUS + 1)}, None),  # this process alone
        (2, {"OMP_NUM_THREADS": str(CPUS + 1)}, "0"),
        (1 + CPUS, {"OMP_NUM_THREADS": "2"}, "0"),
        (1 + CPUS, {"OMP_NUM_THREADS": "1"}, None),  # one thread waits for none
        (9 + CPUS, {"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "7"}, "7"),
        (9 + CPUS, {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "active"}, None),
    ],
)
def test_waiting_threads_sleep_at_once_under_load(
    tmp_path: Path, running: int, variables: dict[str, str], spins: str | None
) -> None:
    load = tmp_path / "loadavg"
    load.write_text(f"0.50 0.40 0.30 {running}/200 4321\n")
    environment = dict(variables)
    limit_spinning(environment, load)
    assert environment.get("GOMP_SPINCOUNT") == spins


def test_program_that_runs_for_a_moment_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = tmp_path / "loadavg"
    load.write_text(f"0.50 0.40 0.30 {9 + CPUS}/200 4321\n")
    pauses: list[float] = []

    def end_program(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 15:
            load.write_text("0.50 0.40 0.30 1/200 4321\n")

    monkeypatch.setattr("time.sleep", end_program)
    environment = {"OMP_NUM_THREADS": str(CPUS + 1)}
    limit_spinning(environment, load)
    assert environment == {"OMP_NUM_THREADS": str(CPUS + 1)}
    assert len(pauses) == 15


@pytest.mark.parametrize("content", [None, "", "a b c d e"])
def test_an_unknown_load_changes_nothing(tmp_path: Path, content: str | None) -> None:
    load = tmp_path / "loadavg"
    if content is not None:
        load.write_text(content)
    environment = {"OMP_NUM_THREADS": "8"}
    limit_spinning(environment, load)
    assert environment == {"OMP_NUM_THREADS": "8"}


def test_threads_of_numpy_spin_briefly_unless_the_user_decides() -> None:
    environment: dict[str, str] = {}
    limit_spinning_of_numpy(environment)
    assert environment == {"OPENBLAS_THREAD_TIMEOUT": "20"}
    environment = {"OPENBLAS_THREAD_TIMEOUT": "26"}
    limit_spinning_of_numpy(environment)
    assert environment == {"OPENBLAS_THREAD_TIMEOUT": "26"}


def test_threads_are_no_more_than_processors() -> None:
    assert 1 <= count_usable_cpus() <= (os.cpu_count() or 1)


@pytest.mark.parametrize(
    ("quota", "count"),
    [
        *[("max 100000", 6), ("", 6), (None, 6), ("900000 100000", 6)],
        *[("250000 100000", 3), ("50000 100000", 1)],
    ],
)
def test_usable_processors_are_those_of_this_process(
    quota: str | None, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its affinity, and of its cgroup's quota, rounded up, if that has fewer."""

    def read_quota(path: Path) -> str:
        assert str(path) == "/sys/fs/cgroup/cpu.max"
        if quota is None:
            raise FileNotFoundError(path)
        return quota

    affinities = {0: set(range(6)), 1: {0}}  # of this process, and of the first one
    monkeypatch.setattr(os, "sched_getaffinity", affinities.__getitem__, raising=False)
    monkeypatch.setattr(Path, "read_text", read_quota)
    assert count_usable_cpus() == count


def get_process(_: int) -> int:
    return os.getpid()


def test_workers_are_as_many_as_usable_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    assert [*Workers(None).map(get_process, range(3))] == 3 * [os.getpid()], "one: this process"


def get_threads(_: int) -> tuple[int, str]:
    return num_threads(), os.environ["RAYON_NUM_THREADS"]


def test_workers_share_the_threads_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert [*Workers(2).map(get_threads, range(3))] == 3 * [(2, "2")]
    assert [*Workers(1, is_separate=True).map(get_threads, range(1))] == [(5, "5")]

"""The choice whether waiting threads sleep at once, by the load of the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bertworks.utils.threads import limit_spinning, limit_spinning_of_numpy

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

"""Shared files of the tests of faults, the number of tries, and a table of outcomes."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ..cli.conftest import World, make_world, world_at
from . import processes

_TALLIES: dict[str, Counter[str]] = {}
_PROCESSOR_SECONDS: Counter[str] = Counter()
"""The seconds of processor time, by file: on a busy machine those of the clock say little."""

IS_FULL = os.environ.get("FAULTS") == "full"
SEED = int(os.environ.get("FAULTS_SEED", "0"))


def tries(sample: int, full: int) -> int:
    """How often something is tried."""
    return full if IS_FULL else sample


@pytest.fixture
def draw(request: pytest.FixtureRequest) -> random.Random:
    """Draws that depend on the test and on FAULTS_SEED alone."""
    return random.Random(f"{SEED} {request.node.name}")


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Count what was tried; the table is printed at the end."""
    counts = _TALLIES.setdefault(request.node.nodeid.partition("faults/")[2], Counter())

    def count(**more: int) -> None:
        counts.update(more)

    return count


@pytest.fixture(autouse=True)
def _count_processor_seconds(request: pytest.FixtureRequest) -> Iterator[None]:
    before = processes.processor_seconds()
    yield
    _PROCESSOR_SECONDS[request.path.name] += processes.processor_seconds() - before


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Of several processes, each hands over what it has counted."""
    if hasattr(session.config, "workeroutput"):
        tried = {name: dict(counts) for name, counts in _TALLIES.items()}
        session.config.workeroutput["faults"] = [tried, dict(_PROCESSOR_SECONDS)]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take what a process has counted; nothing of one that crashed."""
    tried, seconds_by_file = getattr(node, "workeroutput", {}).get("faults", [{}, {}])
    for name, counts in tried.items():
        _TALLIES.setdefault(name, Counter()).update(counts)
    _PROCESSOR_SECONDS.update(seconds_by_file)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how often each fault was tried, and with what end."""
    if not any(_TALLIES.values()):
        return
    terminalreporter.section(f"faults tried (seed {SEED}, {'full' if IS_FULL else 'a sample'})")
    for name, counts in sorted(_TALLIES.items()):
        ends = ", ".join(f"{key.replace('_', ' ')} {count:,}" for key, count in counts.items())
        terminalreporter.write_line(f"{name}: {ends}")
    for name, seconds in _PROCESSOR_SECONDS.items():
        terminalreporter.write_line(f"{name}: {seconds:.0f} s of processor time")


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """As of the command line's tests, made in a process of its own: this one computes nothing."""
    root: Path = tmp_path_factory.mktemp("world")
    assert processes.call(make_world, root) == 0
    return world_at(root)

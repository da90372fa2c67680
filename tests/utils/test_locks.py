"""Two processes never hold the lock of one output, in any order of their system calls."""

from __future__ import annotations

import io
import random
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from bertworks.errors import OutputError
from bertworks.utils import locks
from bertworks.utils.locks import OutputKind
from bertworks.utils.outputs import locked_output

pytestmark = pytest.mark.light

Action = Callable[[], object]
Switches = list[tuple[int, int]]
RunClaims = Callable[[Sequence[OutputKind], bool, Switches], int]


class Interleaving:
    """Runs actions in threads of which one runs at a time, and switches at system calls.

    Args:
        actions: one for each thread; the first begins, and each runs until it ends unless a switch
            comes first.
        switches: for each switch, the number of system calls before it, and how many threads
            further the next one is.
    """

    def __init__(self, actions: Sequence[Action], switches: Switches) -> None:
        self._actions = list(actions)
        self._switches = dict(switches)
        self._turns = [threading.Semaphore(0) for _ in actions]
        self._alive = list(range(len(actions)))
        self._current = 0
        self._numbers: dict[int, int] = {}
        self.calls = 0
        self.errors: list[BaseException] = []

    def run(self) -> None:
        threads = [
            threading.Thread(target=self._act, args=(number,))
            for number in range(len(self._actions))
        ]
        for thread in threads:
            thread.start()
        self._turns[0].release()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        if self.errors:
            raise self.errors[0]

    def system_call(self) -> None:
        """Let another thread run first, if there is a switch here."""
        number = self._numbers.get(threading.get_ident())
        if number is None:  # the holder's heartbeat
            return
        further = self._switches.get(self.calls, 0)
        self.calls += 1
        if further and len(self._alive) > 1:
            others = [other for other in self._alive if other != number]
            self._pass_to(others[(further - 1) % len(others)])
            self._turns[number].acquire()

    def _act(self, number: int) -> None:
        self._turns[number].acquire()
        self._numbers[threading.get_ident()] = number
        try:
            self._actions[number]()
        except BaseException as error:
            self.errors.append(error)
        del self._numbers[threading.get_ident()]
        self._alive.remove(number)
        if self._alive:
            self._pass_to(self._alive[0])

    def _pass_to(self, number: int) -> None:
        self._current = number
        self._turns[number].release()


class System:
    """The system calls that a claim makes, each with a switch before it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.interleaving = Interleaving([], [])
        for name in ("mkdir", "stat", "unlink", "rmdir"):
            monkeypatch.setattr(Path, name, self._with_switch(getattr(Path, name)))
        monkeypatch.setattr(locks, "_try_lock", self._with_switch(locks._try_lock))
        monkeypatch.setattr(Path, "open", self._open())

    def _with_switch(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **keywords: Any) -> Any:
            self.interleaving.system_call()
            return function(*args, **keywords)

        return call

    def _open(self) -> Callable[[Path, str], Any]:
        system = self

        class LockFile(io.BufferedRandom):
            def close(self) -> None:
                if not self.closed:
                    system.interleaving.system_call()
                super().close()

        def open_lock(path: Path, mode: str) -> Any:
            assert mode == "a+b"
            system.interleaving.system_call()
            return LockFile(io.FileIO(path, "a+"))  # type: ignore[arg-type]

        return open_lock


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> System:
    return System(monkeypatch)


class Claims:
    """Claims of one output; counts how many hold it at once."""

    def __init__(self, system: System, output: Path, kinds: Sequence[OutputKind]) -> None:
        self._system, self._output, self._kinds = system, output, kinds
        self.holders = self.most_holders = self.successes = 0

    def run(self, switches: Switches) -> int:
        """Claim the output in several threads; return the number of system calls."""
        actions = [lambda kind=kind: self._claim(kind) for kind in self._kinds]
        interleaving = self._system.interleaving = Interleaving(actions, switches)
        interleaving.run()
        return interleaving.calls

    def _claim(self, kind: OutputKind) -> None:
        with suppress(OutputError), locked_output(self._output, kind=kind):
            self.holders += 1
            self.successes += 1
            self.most_holders = max(self.most_holders, self.holders)
            self._system.interleaving.system_call()
            self.holders -= 1


def every_schedule(run: Callable[[Switches], int], num_switches: int, num_threads: int) -> None:
    """Run with all choices of up to some switches."""
    pending: list[Switches] = [[]]
    while pending:
        switches = pending.pop()
        calls = run(switches)
        if len(switches) < num_switches:
            first = switches[-1][0] + 1 if switches else 0
            pending.extend(
                [*switches, (call, further)]
                for call in range(first, calls)
                for further in range(1, num_threads)
            )


PAIRS: list[tuple[tuple[OutputKind, ...], bool]] = [
    (("directory", "directory"), False),
    (("directory", "whole directory"), True),
    (("file", "file"), False),
]
TRIPLES: list[tuple[tuple[OutputKind, ...], bool]] = [
    (("directory", "directory", "directory"), False),
    (("directory", "whole directory", "directory"), True),
]


@pytest.fixture
def run_claims(tmp_path: Path, system: System) -> RunClaims:
    """Claim a new output in several threads; return the number of system calls."""
    numbers = count()

    def run(kinds: Sequence[OutputKind], exists: bool, switches: Switches) -> int:
        output = tmp_path / str(next(numbers)) / "out"
        output.parent.mkdir()
        if exists:
            output.mkdir()
        claims = Claims(system, output, kinds)
        calls = claims.run(switches)
        assert claims.most_holders == 1
        assert claims.successes >= 1
        return calls

    return run


@pytest.mark.slow
@pytest.mark.parametrize(("kinds", "exists"), PAIRS)
def test_two_claims_exclude_each_other_in_every_order(
    run_claims: RunClaims, kinds: Sequence[OutputKind], exists: bool
) -> None:
    """All ways to switch between the threads twice, before any of their system calls."""
    runs = count()

    def run(switches: Switches) -> int:
        next(runs)
        return run_claims(kinds, exists, switches)

    every_schedule(run, 2, len(kinds))
    assert next(runs) > 100


def many_schedules(run: Callable[[Switches], int], number: int, num_threads: int = 3) -> None:
    """Run with random choices of four switches between the threads."""
    draw = random.Random(0)
    calls = run([])
    for _ in range(number):
        places = sorted(draw.sample(range(calls), 4))
        run([(place, draw.randint(1, num_threads - 1)) for place in places])


@pytest.mark.parametrize(
    "number", [pytest.param(60, marks=pytest.mark.long), pytest.param(500, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(("kinds", "exists"), [*PAIRS, *TRIPLES])
def test_claims_exclude_each_other_in_many_orders(
    run_claims: RunClaims, kinds: Sequence[OutputKind], exists: bool, number: int
) -> None:
    many_schedules(lambda switches: run_claims(kinds, exists, switches), number, len(kinds))


@pytest.mark.long
def test_the_model_finds_two_holders_of_a_removed_lock(
    run_claims: RunClaims, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the check that the locked file is still there, a third claim creates another."""
    monkeypatch.setattr(locks, "_is_at", lambda *_: True)
    kinds: Sequence[OutputKind] = ("file", "file", "file")
    with pytest.raises(AssertionError, match=r"2 == 1"):
        many_schedules(lambda switches: run_claims(kinds, False, switches), 2000)

"""Are the tests tested? One operator is changed at a time, and a test must fail.

    python -m tests.faults.mutants --calls calls.pickle --count 100 --seed 0   # a sample
    python -m tests.faults.mutants --count 0 src/bertworks/text                # all of a folder
    python -m tests.faults.mutants src/bertworks/data/lines.py --tests tests/data/test_lines.py

A mutant is the module's source with one node of its syntax tree changed. First all tests that are
not marked slow run once, and each notes which functions of the package it calls, and how long it
takes (half an hour; `--calls` keeps it in a file). Then those that call the changed function run
against a changed copy of the package, in a process of their own, until one fails, for at most
`--seconds`: those of the module's folder first, and the more specific first, which call the fewest
functions. The survivors are printed with file, line and change, to be read one by one.
"""

from __future__ import annotations

import argparse
import ast
import copy
import multiprocessing
import os
import pickle
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow.parquet  # noqa: F401, so that no fork has to
import pytest
import tokenizers  # noqa: F401
import torch  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "bertworks"
FOLDERS = ("model", "text", "tasks", "training", "checkpoints", "corpus")

Owners = dict[ast.AST, ast.AST]

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE},
    **{ast.GtE: ast.Gt, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot},
    ast.IsNot: ast.Is,
}
_COUNTED: dict[type[ast.operator], type[ast.operator]] = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult},
    **{ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd},
}


@dataclass(frozen=True)
class Mutant:
    """A changed module.

    Attributes:
        file: the module.
        number: which of its changes.
        line: where it is changed.
        function: the line where the function around it begins; 0 outside of all.
        was: the node's source.
        now: what takes its place.
    """

    file: Path
    number: int
    line: int
    function: int
    was: str
    now: str


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """What may take a node's place."""
    new = copy.deepcopy(node)
    if isinstance(new, ast.Compare) and type(new.ops[0]) in _COMPARED:
        new.ops[0] = _COMPARED[type(new.ops[0])]()
        yield new
    elif isinstance(new, ast.BinOp) and type(new.op) in _COUNTED:
        new.op = _COUNTED[type(new.op)]()
        yield new
    elif isinstance(new, ast.BoolOp):
        new.op = ast.Or() if isinstance(new.op, ast.And) else ast.And()
        yield new
    elif isinstance(new, ast.UnaryOp) and isinstance(new.op, ast.Not | ast.USub | ast.Invert):
        yield new.operand
    elif isinstance(new, ast.Constant) and isinstance(new.value, bool):
        yield ast.Constant(not new.value)
    elif isinstance(new, ast.Constant) and isinstance(new.value, int | float):
        yield ast.Constant(new.value + 1)
    elif isinstance(new, ast.IfExp):
        new.body, new.orelse = new.orelse, new.body
        yield new
    elif isinstance(new, ast.Return):
        if new.value is not None and ast.unparse(new.value) != "None":
            yield ast.Return(ast.Constant(None))
    elif isinstance(new, ast.Break):
        yield ast.Continue()
    elif isinstance(new, ast.Raise) or (
        isinstance(new, ast.Expr) and isinstance(new.value, ast.Call)
    ):
        yield ast.Pass()


def mutants(file: Path) -> Iterator[Mutant]:
    """All mutants of a module, but for what only types and messages depend on."""
    tree = ast.parse(file.read_text("utf-8"))
    for number, (node, new, owners) in enumerate(_changed(tree)):
        was, now = ast.unparse(node), ast.unparse(new)
        yield Mutant(file, number, node.lineno, _function(node, owners), was, now)  # type: ignore[attr-defined]


def source_of(mutant: Mutant) -> str:
    """The whole of a changed module."""
    tree = ast.parse(mutant.file.read_text("utf-8"))
    node, new, owners = next(islice(_changed(tree), mutant.number, None))
    owner = owners[node]
    for name, value in ast.iter_fields(owner):
        if value is node:
            setattr(owner, name, new)
        elif isinstance(value, list) and node in value:
            value[value.index(node)] = new
    return ast.unparse(ast.fix_missing_locations(tree))


def _changed(tree: ast.AST) -> Iterator[tuple[ast.AST, ast.AST, Owners]]:
    """Nodes, what may take their places, and what each node of the tree is in."""
    nodes = list(ast.walk(tree))
    owners = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
    for node in nodes:
        if not _is_said(node, owners):
            for new in changes(node):
                yield node, ast.copy_location(new, node), owners


def _is_said(node: ast.AST, owners: Owners) -> bool:
    """Whether a node is in an annotation, a message, or a declaration of a setting or class."""
    while (owner := owners.get(node)) is not None:
        if isinstance(owner, ast.JoinedStr | ast.AnnAssign) or (
            isinstance(owner, ast.arg | ast.FunctionDef)
            and node is getattr(owner, "annotation", getattr(owner, "returns", None))
        ):
            return True
        called = owner.func if isinstance(owner, ast.Call) else None
        if isinstance(called, ast.Name) and called.id.endswith(("Error", "warn", "dataclass")):
            return True
        node = owner
    return False


def _function(node: ast.AST, owners: Owners) -> int:
    """The line where the function around a node begins, as its code object says; 0: none."""
    while (owner := owners.get(node)) is not None:
        if isinstance(owner, ast.FunctionDef) and node in owner.body:
            return min([owner.lineno, *(one.lineno for one in owner.decorator_list)])
        node = owner
    return 0


@dataclass(frozen=True)
class Test:
    """A test that passes as things are.

    Attributes:
        name: pytest's.
        seconds: how long it takes.
        calls: the functions of the package that it, or a fixture that it uses, calls: module, and
            the line where they begin.
    """

    name: str
    seconds: float
    calls: frozenset[tuple[str, int]]


class Calls:
    """A plugin of pytest that takes down what each test calls."""

    def __init__(self, package: Path) -> None:
        self.tests: list[Test] = []
        self.failed: list[str] = []
        self._root = str(package / "bertworks") + os.sep
        self._called: set[tuple[str, int]] = set()
        self._fixtures: dict[str, set[tuple[str, int]]] = {}

    def _trace(self, frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if code.co_filename.startswith(self._root):
            self._called.add((code.co_filename.removeprefix(self._root), code.co_firstlineno))

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        """What a fixture calls is called for every test that uses it."""
        around, self._called = self._called, set()
        try:
            return (yield)
        finally:
            self._fixtures.setdefault(fixturedef.argname, set()).update(self._called)
            self._called |= around

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Trace one test."""
        self._called, self._passed, begun = set(), True, time.monotonic()
        sys.settrace(self._trace)
        threading.settrace(self._trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            for name in item.fixturenames:  # type: ignore[attr-defined]
                self._called |= self._fixtures.get(name, set())
            seconds = time.monotonic() - begun
            if self._passed:
                self.tests.append(Test(item.nodeid, seconds, frozenset(self._called)))
            else:
                self.failed.append(item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take down what failed."""
        self._passed &= not report.failed


def traced(package: Path, where: Sequence[str]) -> Calls:
    """Run tests once, and take down what each calls."""
    taken = package / "calls"
    process = multiprocessing.get_context("fork").Process(
        target=_trace_tests, args=(package, where, taken)
    )
    process.start()
    process.join()
    calls: Calls = pickle.loads(taken.read_bytes())
    # A name that pytest does not take back would make every mutant seem found.
    assert _ended(package, calls.tests, "--collect-only") == 0
    return calls


def tests_of(mutant: Mutant, calls: Calls, seconds: float) -> list[Test]:
    """The tests that call a changed function, in the order in which they are tried."""
    module = mutant.file.relative_to(PACKAGE)
    near = f"tests/{module.parts[0]}/"
    of_module = [test for test in calls.tests if any(of == str(module) for of, _ in test.calls)]
    able = [test for test in of_module if (str(module), mutant.function) in test.calls]
    # What is called while the module is imported, or in a process of its own.
    able = able or of_module or [test for test in calls.tests if test.name.startswith(near)]
    # A test that calls little else is about the function.
    able.sort(key=lambda test: (not test.name.startswith(near), len(test.calls), test.seconds))
    used = accumulate(test.seconds for test in able)
    return [test for test, until in zip(able, used, strict=True) if until <= seconds] or able[:1]


class Limit:
    """A plugin of pytest that ends the process when a test takes ten times as long as it did."""

    def __init__(self, tests: Sequence[Test]) -> None:
        self._seconds = {test.name: test.seconds for test in tests}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Have an alarm, which nothing catches, end what hangs."""
        signal.alarm(60 + int(10 * self._seconds[item.nodeid]))
        try:
            return (yield)
        finally:
            signal.alarm(0)


def is_found(mutant: Mutant, package: Path, tests: Sequence[Test]) -> bool:
    """Whether a test fails of a mutant, or hangs; `package` is a copy to change.

    The tests run in a fork of this process, which has imported all but the package.
    """
    target = package / "bertworks" / mutant.file.relative_to(PACKAGE)
    whole = target.read_bytes()
    target.write_text(source_of(mutant), "utf-8")
    for compiled in target.parent.glob(f"__pycache__/{target.stem}.*"):
        compiled.unlink()
    status = _ended(package, tests, "-x")
    target.write_bytes(whole)
    return status != 0


def _begin(package: Path) -> list[str]:
    """Have a fork run tests of a copy, and say nothing; pytest's options."""
    os.chdir(ROOT)
    sys.path.insert(0, str(package))
    os.environ["PYTHONPATH"] = str(package)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    return ["-q", "-p", "no:cacheprovider", "-m", "not slow"]


def _ended(package: Path, tests: Sequence[Test], option: str) -> int | None:
    """The exit status of pytest in a fork of this process."""
    process = multiprocessing.get_context("fork").Process(
        target=_test, args=(package, tests, option)
    )
    process.start()
    process.join()
    return process.exitcode


def _test(package: Path, tests: Sequence[Test], option: str) -> None:
    names = [test.name for test in tests]
    os._exit(pytest.main([*_begin(package), option, *names], plugins=[Limit(tests)]))


def _trace_tests(package: Path, where: Sequence[str], taken: Path) -> None:
    calls = Calls(package)
    pytest.main([*_begin(package), *where], plugins=[calls])
    taken.write_bytes(pickle.dumps(calls))
    os._exit(0)


def main() -> None:
    """Try mutants, and print the survivors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path, default=[PACKAGE / f for f in FOLDERS])
    parser.add_argument("--tests", nargs="*", default=["tests", "--ignore=tests/faults"])
    parser.add_argument("--calls", type=Path, help="a file that keeps what the tests call")
    parser.add_argument("--count", type=int, default=100, help="how many; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=120, help="of tests for each mutant")
    given = parser.parse_args()
    paths = [path.resolve() for path in given.paths]
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*.py"))]
    every = [mutant for file in sorted(files) for mutant in mutants(file)]
    draw = random.Random(given.seed)
    chosen = draw.sample(every, min(given.count, len(every))) if given.count else every
    found = 0
    with tempfile.TemporaryDirectory() as temporary:
        package = Path(temporary).resolve()
        shutil.copytree(PACKAGE, package / "bertworks")
        shutil.copytree(ROOT / "recipes", package / "bertworks" / "recipes")  # as in a wheel
        if given.calls and given.calls.exists():
            calls: Calls = pickle.loads(given.calls.read_bytes())
        else:
            calls = traced(package, given.tests)
            if given.calls:
                given.calls.write_bytes(pickle.dumps(calls))
        for name in calls.failed:
            print(f"left out, since it fails as things are: {name}")
        for number, mutant in enumerate(chosen, 1):
            begun = time.monotonic()
            tests = tests_of(mutant, calls, given.seconds)
            is_one = bool(tests) and is_found(mutant, package, tests)
            found += is_one
            end = "found" if is_one else f"SURVIVED {len(tests)} tests"
            what = f"{mutant.was[:80]!r} -> {mutant.now[:80]!r}"
            print(
                f"{number}/{len(chosen)} {mutant.file.relative_to(ROOT)}:{mutant.line} "
                f"{time.monotonic() - begun:.0f} s {end}: {what}",
                flush=True,
            )
    used = os.times()
    print(
        f"{found} of {len(chosen)} found ({len(every):,} mutants in all); "
        f"{sum(used[:4]):.0f} s of processor time"
    )


if __name__ == "__main__":
    main()

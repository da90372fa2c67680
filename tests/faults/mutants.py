"""Mutation testing: one operator is changed at a time, and a test must fail.

    python -m tests.faults.mutants --lines lines.pickle --count 100 --seed 0   # a sample
    python -m tests.faults.mutants --count 0 src/bertworks/text                # all of a folder
    python -m tests.faults.mutants src/bertworks/data/lines.py --tests tests/data/test_lines.py

A mutant is the module's source with one node of its syntax tree changed. First all tests that are
not marked slow run once, while coverage.py records which lines of the package each test runs and
how long it takes (`--lines` keeps the record in a file). Then the tests that run the changed
statement run against a changed copy of the package, in a process of their own, until one fails,
for at most `--seconds`: those of the module's folder and others in turn, the most specific first,
which run the fewest lines. The survivors are printed with file, line and change, to be read one
by one.
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
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, islice, zip_longest
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from zlib import crc32

import coverage
import pyarrow.parquet  # noqa: F401, so that no fork has to
import pytest
import tokenizers  # noqa: F401
import torch  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "bertworks"

Owners = dict[ast.AST, ast.AST]

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE},
    **{ast.GtE: ast.Gt, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot},
    ast.IsNot: ast.Is,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
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
        lines: the lines of the statement, up to the changed node's last.
        was: the node's source.
        now: what takes its place.
    """

    file: Path
    number: int
    line: int
    lines: range
    was: str
    now: str


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """What may take a node's place."""
    new = copy.deepcopy(node)
    if isinstance(new, ast.Compare) and type(new.ops[0]) in _COMPARISONS:
        new.ops[0] = _COMPARISONS[type(new.ops[0])]()
        yield new
    elif isinstance(new, ast.BinOp) and type(new.op) in _OPERATORS:
        new.op = _OPERATORS[type(new.op)]()
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
    for number, (node, new, owners) in enumerate(_changes_in(tree)):
        was, now = ast.unparse(node), ast.unparse(new)
        line: int = node.lineno  # type: ignore[attr-defined]
        yield Mutant(file, number, line, _lines(node, owners), was, now)


def source_of(mutant: Mutant) -> str:
    """The whole of a changed module."""
    tree = ast.parse(mutant.file.read_text("utf-8"))
    node, new, owners = next(islice(_changes_in(tree), mutant.number, None))
    owner = owners[node]
    for name, value in ast.iter_fields(owner):
        if value is node:
            setattr(owner, name, new)
        elif isinstance(value, list) and node in value:
            value[value.index(node)] = new
    return ast.unparse(ast.fix_missing_locations(tree))


def _changes_in(tree: ast.AST) -> Iterator[tuple[ast.AST, ast.AST, Owners]]:
    """Nodes, what may take their places, and what each node of the tree is in."""
    nodes = list(ast.walk(tree))
    owners = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
    for node in nodes:
        if not _is_text_or_declaration(node, owners):
            for new in changes(node):
                yield node, ast.copy_location(new, node), owners


def _is_text_or_declaration(node: ast.AST, owners: Owners) -> bool:
    """Whether a node is in an annotation, a message, a guard, or a declaration of a class."""
    while (owner := owners.get(node)) is not None:
        if isinstance(owner, ast.JoinedStr | ast.AnnAssign) or (
            isinstance(owner, ast.arg | ast.FunctionDef)
            and node is getattr(owner, "annotation", getattr(owner, "returns", None))
        ):
            return True
        # Guards against our own mistakes, and where a warning points.
        if isinstance(owner, ast.keyword) and owner.arg in ("strict", "stacklevel"):
            return True
        called = owner.func if isinstance(owner, ast.Call) else None
        if isinstance(called, ast.Name) and called.id.endswith(("Error", "warn", "dataclass")):
            return True
        node = owner
    return False


def _lines(node: ast.AST, owners: Owners) -> range:
    """The lines from the beginning of the statement around a node to the node's end."""
    last: int = node.end_lineno  # type: ignore[attr-defined]
    while not isinstance(node, ast.stmt):
        node = owners[node]
    return range(node.lineno, last + 1)


@dataclass(frozen=True)
class Test:
    """A test that passes as things are.

    Attributes:
        name: pytest's.
        seconds: how long it takes.
        num_lines: how many lines of the package it runs, with its fixtures.
    """

    name: str
    seconds: float
    num_lines: int


@dataclass
class Record:
    """Which lines of the package each test runs.

    Attributes:
        tests: the tests that pass.
        failures: the names of those that fail.
        lines: for each module and line, the numbers of the tests that run it.
    """

    tests: list[Test]
    failures: list[str]
    lines: dict[str, dict[int, frozenset[int]]]

    def extend(self, other: Record) -> None:
        """Add the tests of another process."""
        start = len(self.tests)
        self.tests += other.tests
        self.failures += other.failures
        for module, lines in other.lines.items():
            own = self.lines.setdefault(module, {})
            for line, numbers in lines.items():
                moved = frozenset(start + number for number in numbers)
                own[line] = own.get(line, frozenset()) | moved


class Recorder:
    """A plugin of pytest that records the lines that each test runs, with its fixtures.

    Of all test modules it runs one share.
    """

    def __init__(self, package: Path, share: int, num_shares: int) -> None:
        self._root = package / "bertworks"
        self._share, self._num_shares = share, num_shares
        self._coverage = coverage.Coverage(
            data_file=None, config_file=False, include=[str(self._root / "*")]
        )
        self._seconds: dict[str, float] = {}
        self._fixtures: dict[str, list[str]] = {}  # of each test
        self._context: list[str] = []
        self.failures: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the modules of this share."""
        items[:] = [
            item
            for item in items
            if crc32(item.nodeid.split("::")[0].encode()) % self._num_shares == self._share
        ]

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        """The lines of a fixture belong to every test that uses it."""
        self._enter(f"fixture {fixturedef.baseid} {fixturedef.argname}")
        try:
            return (yield)
        finally:
            self._leave()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        """Record one test."""
        name, start, num_failed = item.nodeid, time.monotonic(), len(self.failures)
        self._coverage.start()
        self._enter(name)
        try:
            return (yield)
        finally:
            self._leave()
            self._coverage.stop()
            if len(self.failures) == num_failed:
                self._seconds[name] = time.monotonic() - start
                self._fixtures[name] = [
                    f"fixture {definition.baseid} {definition.argname}"
                    for definitions in item._fixtureinfo.name2fixturedefs.values()
                    for definition in definitions[-1:]
                ]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what failed."""
        if report.failed:
            self.failures.append(report.nodeid)

    def record(self) -> Record:
        """All that was recorded."""
        numbers = {name: number for number, name in enumerate(self._seconds)}
        users: dict[str, set[int]] = {name: {number} for name, number in numbers.items()}
        for name, fixtures in self._fixtures.items():
            for fixture in fixtures:
                users.setdefault(fixture, set()).add(numbers[name])
        counts = [0] * len(numbers)
        modules: dict[str, dict[int, frozenset[int]]] = {}
        data = self._coverage.get_data()
        for file in data.measured_files():
            lines = modules[str(Path(file).relative_to(self._root))] = {}
            for line, contexts in data.contexts_by_lineno(file).items():
                lines[line] = frozenset().union(*(users.get(name, ()) for name in contexts))
                for number in lines[line]:
                    counts[number] += 1
        tests = [
            Test(name, seconds, counts[numbers[name]]) for name, seconds in self._seconds.items()
        ]
        return Record(tests, self.failures, modules)

    def _enter(self, context: str) -> None:
        self._context.append(context)
        self._coverage.switch_context(context)

    def _leave(self) -> None:
        self._context.pop()
        self._coverage.switch_context(self._context[-1] if self._context else "")


def record_tests(package: Path, where: Sequence[str], num_processes: int) -> Record:
    """Run tests once, in several processes, and record which lines each runs."""
    num_shares = 4 * num_processes
    files = [package / f"record-{share}" for share in range(num_shares)]
    context = multiprocessing.get_context("fork")
    with ThreadPoolExecutor(num_processes) as threads:
        for share, file in enumerate(files):
            process = context.Process(
                target=_record_tests, args=(package, where, file, share, num_shares)
            )
            threads.submit(_run, process)
    record = Record([], [], {})
    for file in files:
        record.extend(pickle.loads(file.read_bytes()))
    return record


def _run(process: BaseProcess) -> int | None:
    """Run a process to its end; its exit status."""
    process.start()
    process.join()
    return process.exitcode


def tests_of(mutant: Mutant, record: Record, seconds: float) -> list[Test]:
    """The tests that run a changed statement, in the order in which they are tried."""
    module = mutant.file.relative_to(PACKAGE)
    folder = f"tests/{module.parts[0]}/"
    lines = record.lines.get(str(module), {})
    numbers = set().union(*(lines.get(line, ()) for line in mutant.lines))
    # Some lines run only while the module is imported, or in a process of its own.
    numbers = numbers or set().union(*lines.values())
    tests = [record.tests[number] for number in numbers]
    tests = tests or [test for test in record.tests if test.name.startswith(folder)]
    # A test that runs little else is about the statement.
    tests.sort(key=lambda test: (test.num_lines, test.seconds, test.name))
    groups: tuple[list[Test], list[Test]] = ([], [])
    for test in tests:
        groups[not test.name.startswith(folder)].append(test)
    tests = [test for pair in zip_longest(*groups) for test in pair if test is not None]
    used = accumulate(test.seconds for test in tests)
    return [test for test, until in zip(tests, used, strict=True) if until <= seconds] or tests[:1]


class Selection:
    """A plugin of pytest that runs some tests in order, and ends the process when one hangs.

    A test that takes ten times as long as it did hangs. Tests that are not collected are left out:
    those that are parametrized by all classes that are imported depend on other modules.
    """

    def __init__(self, tests: Sequence[Test]) -> None:
        self._seconds = {test.name: test.seconds for test in tests}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the tests, in the order in which they were given."""
        by_name = {item.nodeid: item for item in items}
        items[:] = [by_name[name] for name in self._seconds if name in by_name]

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
    status = _run(multiprocessing.get_context("fork").Process(target=_test, args=(package, tests)))
    target.write_bytes(whole)
    return status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


def _begin(package: Path) -> list[str]:
    """Have a fork run tests of a copy, and say nothing; pytest's options."""
    os.chdir(ROOT)
    sys.path.insert(0, str(package))
    os.environ["PYTHONPATH"] = str(package)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    return ["-q", "-p", "no:cacheprovider", "-m", "not slow"]


def _test(package: Path, tests: Sequence[Test]) -> None:
    files = list(dict.fromkeys(test.name.partition("::")[0] for test in tests))
    os._exit(pytest.main([*_begin(package), "-x", *files], plugins=[Selection(tests)]))


def _record_tests(
    package: Path, where: Sequence[str], file: Path, share: int, num_shares: int
) -> None:
    recorder = Recorder(package, share, num_shares)
    pytest.main([*_begin(package), *where], plugins=[recorder])
    file.write_bytes(pickle.dumps(recorder.record()))
    os._exit(0)


def _copy_package(directory: Path) -> Path:
    """Copy the package into a directory; the directory."""
    shutil.copytree(PACKAGE, directory / "bertworks")
    shutil.copytree(ROOT / "recipes", directory / "bertworks" / "recipes")  # as in a wheel
    return directory


def _try(sample: Sequence[Mutant], record: Record, seconds: float, results: Any) -> None:
    """Try one share of the mutants, and put whether each is found into a queue."""
    with tempfile.TemporaryDirectory() as temporary:
        package = _copy_package(Path(temporary).resolve())
        for mutant in sample:
            start = time.monotonic()
            tests = tests_of(mutant, record, seconds)
            is_one = bool(tests) and is_found(mutant, package, tests)
            results.put((mutant, len(tests), is_one, time.monotonic() - start))


def main() -> None:
    """Try mutants, and print the survivors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path, default=[PACKAGE])
    parser.add_argument("--tests", nargs="*", default=["tests", "--ignore=tests/faults"])
    parser.add_argument("--lines", type=Path, help="a file that keeps which lines the tests run")
    parser.add_argument("--count", type=int, default=100, help="how many; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=120, help="of tests for each mutant")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    paths = [path.resolve() for path in options.paths]
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*.py"))]
    every = [mutant for file in sorted(files) for mutant in mutants(file)]
    draw = random.Random(options.seed)
    sample = draw.sample(every, min(options.count, len(every))) if options.count else every
    if options.lines and options.lines.exists():
        record: Record = pickle.loads(options.lines.read_bytes())
    else:
        with tempfile.TemporaryDirectory() as temporary:
            package = _copy_package(Path(temporary).resolve())
            record = record_tests(package, options.tests, options.processes)
            if options.lines:
                options.lines.write_bytes(pickle.dumps(record))
    for name in record.failures:
        print(f"left out, since it fails as things are: {name}")
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [
        context.Process(
            target=_try,
            args=(sample[share :: options.processes], record, options.seconds, results),
        )
        for share in range(options.processes)
    ]
    for process in processes:
        process.start()
    num_found = 0
    for number in range(1, len(sample) + 1):
        mutant, num_tests, is_one, seconds = results.get()
        num_found += is_one
        end = "found" if is_one else f"SURVIVED {num_tests} tests"
        print(
            f"{number}/{len(sample)} {mutant.file.relative_to(ROOT)}:{mutant.line} "
            f"{seconds:.0f} s {end}: {mutant.was[:80]!r} -> {mutant.now[:80]!r}",
            flush=True,
        )
    for process in processes:
        process.join()
    times = os.times()
    print(
        f"{num_found} of {len(sample)} found ({len(every):,} mutants in all); "
        f"{sum(times[:4]):.0f} s of processor time"
    )


if __name__ == "__main__":
    main()

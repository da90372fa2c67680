"""Are the tests tested? One operator is changed at a time, and the tests of that module must fail.

    python -m tests.faults.mutants --count 100 --seed 0          # a sample
    python -m tests.faults.mutants --count 0 src/bertworks/text  # every mutant of a folder
    python -m tests.faults.mutants src/bertworks/corpus/lines.py --tests tests/corpus/test_lines.py

A mutant is the module's source with one node of its syntax tree changed. The tests of the module's
folder run against a copy of the package, in a process of their own, until the first fails. What is
left, the survivors, is printed with file, line and change, to be read one by one.
"""

from __future__ import annotations

import argparse
import ast
import copy
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet  # noqa: F401, so that no fork has to
import pytest
import tokenizers  # noqa: F401
import torch  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "bertworks"
FOLDERS = ("model", "text", "tasks", "training", "checkpoints", "corpus")

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
        line: where it is changed.
        was: the node's source.
        now: what takes its place.
        source: the whole.
    """

    file: Path
    line: int
    was: str
    now: str
    source: str


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
    elif isinstance(new, ast.Return) and new.value is not None:
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
    for node in ast.walk(tree):  # strings of docstrings, annotations and f-strings are no code
        for child in ast.iter_child_nodes(node):
            child.parent = node  # type: ignore[attr-defined]
    for node in list(ast.walk(tree)):
        if _is_said(node):
            continue
        for new in changes(node):
            owner = node.parent  # type: ignore[attr-defined]
            ast.copy_location(new, node)
            for name, value in ast.iter_fields(owner):
                if value is node:
                    setattr(owner, name, new)
                elif isinstance(value, list) and node in value:
                    value[value.index(node)] = new
                else:
                    continue
                source = ast.unparse(ast.fix_missing_locations(tree))
                yield Mutant(file, node.lineno, ast.unparse(node), ast.unparse(new), source)
                if getattr(owner, name) is new:
                    setattr(owner, name, node)
                else:
                    value[value.index(new)] = node


def _is_said(node: ast.AST) -> bool:
    """Whether a node is in an annotation, a message or a declaration of a setting."""
    while (owner := getattr(node, "parent", None)) is not None:
        if isinstance(owner, ast.JoinedStr | ast.AnnAssign) or (
            isinstance(owner, ast.arg | ast.FunctionDef)
            and node is getattr(owner, "annotation", getattr(owner, "returns", None))
        ):
            return True
        called = owner.func if isinstance(owner, ast.Call) else None
        if isinstance(called, ast.Name) and called.id.endswith(("Error", "warn")):
            return True
        node = owner
    return False


def tests_of(file: Path, named: Sequence[Path]) -> list[str]:
    """The tests of a module: those that are named; or its namesake's, then those of its folder."""
    if named:
        return [str(path) for path in named]
    folder = ROOT / "tests" / file.relative_to(PACKAGE).parts[0]
    namesakes = sorted(folder.rglob(f"test_{file.stem}*.py"))
    others = [path for path in sorted(folder.rglob("test_*.py")) if path not in namesakes]
    return [str(path) for path in (*namesakes, *others)]


def is_found(mutant: Mutant | None, package: Path, tests: Sequence[str], seconds: float) -> bool:
    """Whether a test fails of a mutant, or hangs; `package` is a copy to change.

    The tests run in a fork of this process, which has imported all but the package.
    """
    whole = b""
    if mutant is not None:
        target = package / "bertworks" / mutant.file.relative_to(PACKAGE)
        whole = target.read_bytes()
        target.write_text(mutant.source, "utf-8")
        for compiled in target.parent.glob(f"__pycache__/{target.stem}.*"):
            compiled.unlink()
    process = multiprocessing.get_context("fork").Process(target=_test, args=(package, tests))
    process.start()
    process.join(seconds)
    if process.is_alive():
        process.kill()
        process.join()
    if mutant is not None:
        target.write_bytes(whole)
    return process.exitcode != 0


def _test(package: Path, tests: Sequence[str]) -> None:
    os.chdir(ROOT)
    sys.path.insert(0, str(package))
    os.environ["PYTHONPATH"] = str(package)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    how = ["-q", "-x", "-p", "no:cacheprovider", "-m", "not slow and not long"]
    os._exit(pytest.main([*how, *tests]))


def main() -> None:
    """Try mutants, and print the survivors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path, default=[PACKAGE / f for f in FOLDERS])
    parser.add_argument(
        "--tests", nargs="*", type=Path, default=[], help="in place of the folder's"
    )
    parser.add_argument("--count", type=int, default=100, help="how many; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=900, help="until tests are said to hang")
    given = parser.parse_args()
    paths = [path.resolve() for path in given.paths]
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*.py"))]
    every = [mutant for file in sorted(files) for mutant in mutants(file)]
    draw = random.Random(given.seed)
    chosen = draw.sample(every, min(given.count, len(every))) if given.count else every
    found = 0
    with tempfile.TemporaryDirectory() as temporary:
        package = Path(temporary)
        shutil.copytree(PACKAGE, package / "bertworks")
        for file in sorted({mutant.file for mutant in chosen}):
            if is_found(None, package, tests_of(file, given.tests), given.seconds):
                sys.exit(f"{file.relative_to(ROOT)}: its tests fail as it is")
        for number, mutant in enumerate(chosen, 1):
            begun = time.monotonic()
            is_one = is_found(mutant, package, tests_of(mutant.file, given.tests), given.seconds)
            found += is_one
            where = f"{mutant.file.relative_to(ROOT)}:{mutant.line}"
            what = "found" if is_one else f"SURVIVED: {mutant.was[:80]!r} -> {mutant.now[:80]!r}"
            print(
                f"{number}/{len(chosen)} {where} {time.monotonic() - begun:.0f} s {what}",
                flush=True,
            )
    used = os.times()
    print(
        f"{found} of {len(chosen)} found ({len(every):,} mutants in all); "
        f"{sum(used[:4]):.0f} s of processor time"
    )


if __name__ == "__main__":
    main()

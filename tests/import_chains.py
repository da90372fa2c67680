"""What a module imports as soon as it is imported itself, read from the sources.

python -m tests.import_chains bertworks.loading torch
"""

from __future__ import annotations

import ast
import sys
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path

import bertworks

_PACKAGE = Path(bertworks.__file__).parent


def all_modules() -> list[str]:
    """The names of the package's modules."""
    files = sorted(_PACKAGE.rglob("*.py"))
    names = (".".join(file.relative_to(_PACKAGE.parent).with_suffix("").parts) for file in files)
    return [name.removesuffix(".__init__") for name in names]


def find_chain(module: str, targets: Collection[str]) -> tuple[str, ...] | None:
    """The shortest chain of imports from a module to one of other packages; None if none does.

    Imports in functions, and for type checkers alone, do not count.
    """
    waiting, reached = deque([(module,)]), {module}
    while waiting:
        chain = waiting.popleft()
        for name in _imports_of(chain[-1]):
            if name.partition(".")[0] in targets:
                return (*chain, name)
            if name not in reached and _file_of(name) is not None:
                reached.add(name)
                waiting.append((*chain, name))
    return None


def _file_of(module: str) -> Path | None:
    """The file of a module of the package; None if there is none."""
    path = _PACKAGE.parent.joinpath(*module.split("."))
    files = (path / "__init__.py", path.with_suffix(".py"))
    is_own = module.partition(".")[0] == bertworks.__name__
    return next((file for file in files if is_own and file.is_file()), None)


@cache
def _imports_of(module: str) -> tuple[str, ...]:
    """The modules that a module imports at once, with the packages that it is in."""
    file = _file_of(module)
    assert file is not None
    names = module.split(".")
    package = names if file.name == "__init__.py" else names[:-1]
    outer = (".".join(names[:count]) for count in range(1, len(names)))
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return (*outer, *_imports_in(tree.body, package))


def _imports_in(nodes: Iterable[ast.AST], package: list[str]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            home = ".".join([*base, *([node.module] if node.module else [])])
            yield home
            yield from (f"{home}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from _imports_in(node.orelse, package)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _imports_in(ast.iter_child_nodes(node), package)


if __name__ == "__main__":
    print(" → ".join(find_chain(sys.argv[1], sys.argv[2:]) or ("no chain",)))

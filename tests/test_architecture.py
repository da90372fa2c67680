"""`docs/architecture.md` and the layers that lint checks describe the package as it is."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "bertworks"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")

FOLDERS = {file.parent.name for file in PACKAGE.glob("*/*.py")}
MODULES = {file.stem for file in PACKAGE.glob("*.py")}
WITHOUT_LAYER = {"__init__", "__main__"}


def _layers() -> list[list[str]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    floors = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    return [re.split(r" *[|:] *", floor) for floor in floors]


def _subpackages_of_page() -> list[str]:
    table = PAGE.split("\n## Subpackages\n")[1].split("\n## ")[0]
    first_cells = re.findall(r"^\| (`[^|]+`) \|", table, re.MULTILINE)
    return [name for cell in first_cells for name in re.findall(r"`([^`]+)`", cell)]


def test_top_of_the_package_has_few_subpackages() -> None:
    assert len(FOLDERS) <= 20, sorted(FOLDERS)
    assert len(MODULES) <= 8, sorted(MODULES)  # `bertworks.sklearn` is public


def test_lint_checks_every_subpackage() -> None:
    assert sorted(name for floor in _layers() for name in floor) == sorted(
        (FOLDERS | MODULES) - WITHOUT_LAYER
    )


def test_page_lists_every_subpackage_in_the_order_of_the_layers() -> None:
    floors = {name: number for number, floor in enumerate(_layers()) for name in floor}
    names = _subpackages_of_page()
    assert sorted(names) == sorted(floors)
    assert [floors[name] for name in names] == sorted(floors.values())


def test_every_file_that_the_page_names_exists() -> None:
    names = set(re.findall(r"`([\w/]+(?:\.py|\.tsv|/))`", PAGE))
    assert len(names) > 50
    sources = [path for path in ROOT.glob("[stdb]*/**/*") if _is_source(path)]
    paths = [f"/{path.relative_to(ROOT)}" for path in (*sources, *ROOT.glob("*.py"))]
    for name in sorted(names):
        ending = f"/{name.removesuffix('/')}"
        assert any(path.endswith(ending) for path in paths), f"{name} does not exist"


def test_every_test_that_the_page_names_exists() -> None:
    names = set(re.findall(r"`(tests/[\w/.]+)`", PAGE))
    assert len(names) > 40
    missing = sorted(name for name in names if not (ROOT / name).exists())
    assert missing == []


@pytest.mark.long
def test_every_name_in_a_recipe_exists() -> None:
    recipes = PAGE.split("\n## Recipes\n")[1].split("\n### Base classes of tasks\n")[0]
    names = set(re.findall(r"`(?:\w+=)?(\w{4,})(?:\(\))?`", recipes))
    assert {"FORMATS", "_TASKS", "can_compute", "inFile"} <= names
    files = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.js"), *(ROOT / "tests").rglob("*.py")]
    files += ROOT.glob("*.py")
    words = set(re.findall(r"\w+", "\n".join(file.read_text(encoding="utf-8") for file in files)))
    assert sorted(names - words) == []


@pytest.mark.long
def test_every_name_in_a_recipe_is_in_its_file() -> None:
    """`FORMATS` (`data/formats.py`), or `needs` and `Need` in `settings/base.py`."""
    recipes = re.sub(r"\s+", " ", PAGE.split("\n## Recipes\n")[1])
    name = r"`(?:\w+=)?(\w+)(?:\(\))?`"
    pairs = re.findall(rf"{name}(?: and {name})? (?:in |of |\()`([\w/]+\.(?:py|js|c|h))`", recipes)
    assert len(pairs) > 40
    files = [
        path for path in ROOT.glob("[stdb]*/**/*.*") if path.suffix in {".py", ".js", ".c", ".h"}
    ]
    files += ROOT.glob("*.py")
    missing = []
    for *names, ending in pairs:
        texts = [file.read_text() for file in files if f"/{file}".endswith(f"/{ending}")]
        words = set(re.findall(r"\w+", "\n".join(texts)))
        missing += [f"{name} in {ending}" for name in names if name and name not in words]
    assert missing == []


def test_every_command_that_the_page_names_is_a_module_of_the_tests() -> None:
    modules = set(re.findall(r"`python -m (tests\.\w+)", PAGE))
    assert {"tests.keywords", "tests.families_table"} <= modules
    assert all((ROOT / f"{name.replace('.', '/')}.py").is_file() for name in modules)


def _is_source(path: Path) -> bool:
    return path.suffix in {".py", ".tsv"} or (path.is_dir() and any(path.glob("*.[pj][ys]")))

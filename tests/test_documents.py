"""Pages for readers: their length, their links, and the pages that the source names."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")])
_FENCE = re.compile(r"^( *)```.*?^\1```", re.M | re.S)
_LINK = re.compile(r"\]\(([^()\s]+)\)|(?:src|href)=\"([^\"]+)\"")
_SOURCES = [
    *(ROOT / "src").rglob("*.py"),
    *(ROOT / "tests").rglob("*.py"),
    *(ROOT / "recipes").iterdir(),
    *(ROOT / "examples").glob("*.*"),
    *ROOT.glob("benchmarks/**/*.py"),
]


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def internal_links(page: Path) -> list[str]:
    links = [one or other for one, other in _LINK.findall(re.sub(r"`[^`]*`", "", prose(page)))]
    return [link for link in links if not re.match(r"\w+:", link)]


def slug(heading: str) -> str:
    """The anchor of a heading on GitHub."""
    text = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return text.replace(" ", "-")


@cache
def anchors(page: Path) -> set[str]:
    return {slug(heading) for heading in re.findall(r"^#+ +(.*)$", prose(page), re.M)}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_of_a_page_have_targets(page: Path) -> None:
    for link in internal_links(page):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), f"{link}: {sorted(anchors(target))}"
            assert "--" not in anchor, f"{link}: the site joins dashes"


def test_pages_have_links() -> None:
    assert sum(len(internal_links(page)) for page in PAGES) > 200


def test_pages_that_the_source_names_exist() -> None:
    pattern = re.compile(r"(?<![\w/.])((?:docs|benchmarks)/[\w/-]+\.md)\b")
    names = {
        name: page_id(source)
        for source in _SOURCES
        for name in pattern.findall(source.read_text(encoding="utf-8"))
    }
    assert len(names) > 5
    assert {name: source for name, source in names.items() if not (ROOT / name).is_file()} == {}


def decisions() -> dict[str, list[str]]:
    """The lines of each decision, by the beginning of its first."""
    page = (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8")
    parts = re.split(r"^(?=\*\*|#)", page, flags=re.M)
    return {
        part.splitlines()[0][:60]: [line for line in part.splitlines() if line.strip()]
        for part in parts
        if part.startswith("**")
    }


def test_a_decision_has_at_most_eight_lines() -> None:
    lengths = {name: len(lines) for name, lines in decisions().items()}
    assert len(lengths) > 100
    assert {name: length for name, length in lengths.items() if length > 8} == {}
    assert max(len(line) for lines in decisions().values() for line in lines) <= 132


def test_the_first_pages_are_short() -> None:
    lengths = {
        name: len((ROOT / name).read_text(encoding="utf-8").splitlines())
        for name in ("README.md", "docs/performance.md")
    }
    assert lengths["README.md"] <= 120
    assert lengths["docs/performance.md"] <= 150


def test_the_first_part_of_the_changes_is_short() -> None:
    page = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    first = re.split(r"^## ", page, flags=re.M)[1]
    assert len(first.splitlines()) <= 60

"""Every code block of the pages for readers runs, or is checked where it cannot run."""

from __future__ import annotations

import ast
import importlib
import itertools
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import page_blocks
from tests.conftest import ROOT
from tests.page_blocks import HOW_TO, LESSONS, NOT_RUN, Block

README = ROOT / "README.md"
PAGES_THAT_RUN = [README, *LESSONS, *HOW_TO]
CHECKED_PAGES = {
    "CONTRIBUTING.md": "a clone, and minutes for each command",
    "benchmarks/README.md": "the peers, and an otherwise idle machine",
    "benchmarks/results/inference-notes.md": "minutes, and an otherwise idle machine",
    "benchmarks/results/zen3.md": "minutes, and an otherwise idle machine",
    "benchmarks/results/zen5.md": "a server of another project",
    "docs/ancestors.md": "hours of training",
    "docs/architecture.md": "drawings",
    "docs/faults.md": "half an hour",
    "docs/how-to/move.md": "tests/test_moving.py runs the pairs of blocks",
    "docs/install.md": "a network",
    "docs/kubernetes.md": "a cluster; tests/serving/test_production_pages.py checks the manifests",
    "docs/labels.md": "trained models; docs/how-to/classify.md runs the same commands",
    "docs/mini-sentences.md": "hours of training",
    "docs/mini.md": "hours of training",
    "docs/models.md": "models of the hub",
    "docs/production.md": "systemd, Docker; tests/serving/test_production_pages.py checks them",
    "docs/results.md": "hours of training",
    "docs/retrieval.md": "a judged corpus; docs/how-to/search.md runs the same commands",
    "docs/scale.md": "a cluster, a bucket or several machines",
    "docs/serving.md": "a model of the hub, Docker; docs/how-to/serve.md runs a server",
    "docs/static.md": "a model of the hub and hours of encoding",
}
"""Pages whose blocks are checked and not run, with what they would need."""
LANGUAGES = {"console", "sh", "python", "text", "yaml", "ini"}


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks_of(page: Path) -> list[Block]:
    return page_blocks.blocks(page.read_text(encoding="utf-8"))


def cases() -> list[Any]:
    """All blocks of each page; if some are slow, the others without them too."""
    parameters = []
    for page in PAGES_THAT_RUN:
        marks = {block.mark for block in blocks_of(page)} - {""}
        name = page_id(page)
        if "slow" in marks:
            parameters.append(pytest.param(page, {"", "long"}, id=name))
        mark = pytest.mark.slow if "slow" in marks else ()
        parameters.append(pytest.param(page, {"", *marks}, id=f"{name}-all", marks=mark))
    return parameters


@pytest.fixture
def page_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the blocks of a page run: with the examples, and the files that the README names."""
    page_blocks.write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::bertworks.errors.BertworksWarning")  # a page may have some
@pytest.mark.parametrize(("page", "included_marks"), cases())
def test_page_blocks_run_and_print_what_is_shown(
    page: Path, included_marks: set[str], page_directory: Path
) -> None:
    names: dict[str, Any] = {}
    for block in blocks_of(page):
        if block.mark in included_marks and page_blocks.runs(page, block):
            printed = page_blocks.run(block, names)
            for expected_output, text in zip(expected(block), printed, strict=False):
                if expected_output and expected_output.strip():
                    place = f"{page_id(page)}, line {block.line}: python -m tests.page_blocks"
                    assert page_blocks.skeleton(block, text) == page_blocks.skeleton(
                        block, expected_output
                    ), place


def expected(block: Block) -> list[str | None]:
    if block.language == "console":
        return [shown for _, shown in page_blocks.commands(block.body)]
    return [block.output]


def checked_blocks() -> Iterator[tuple[Path, Block]]:
    for name in CHECKED_PAGES:
        for block in blocks_of(ROOT / name):
            yield ROOT / name, block
    for page in PAGES_THAT_RUN:
        for block in blocks_of(page):
            if not page_blocks.runs(page, block):
                yield page, block


@pytest.mark.parametrize(
    ("page", "block"),
    [
        pytest.param(page, block, id=f"{page_id(page)}:{block.line}")
        for page, block in checked_blocks()
        if block.language in ("console", "sh", "python")
    ],
)
def test_block_that_does_not_run_is_well_formed(page: Path, block: Block) -> None:
    if block.language == "python":
        check_python(block.body)
        return
    lines = page_blocks.shell_lines(block)
    syntax = subprocess.run(
        ["bash", "-n", "-c", "\n".join(lines)], capture_output=True, text=True, check=False
    )
    assert syntax.returncode == 0, syntax.stderr
    for line in lines:
        check_paths(shlex.split(line.replace("\\\n", " "), comments=True))


def check_python(source: str) -> None:
    """The names that a block takes from the package exist."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and "bertworks" in node.module:
            module = importlib.import_module(node.module)
            assert all(hasattr(module, name.name) for name in node.names), ast.unparse(node)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "bw":
            assert hasattr(importlib.import_module("bertworks"), node.attr), node.attr


def check_paths(words: list[str]) -> None:
    """Programs and targets of this repository that a command names exist."""
    if words[:1] == ["make"]:
        targets = [word for word in words[1:] if re.fullmatch(r"[a-z-]+", word)]
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert all(re.search(rf"^{target}:", makefile, re.M) for target in targets), words
    for previous_word, word in itertools.pairwise(words):
        if previous_word.endswith("python") and word.endswith(".py"):
            assert (ROOT / word).is_file(), word
        if previous_word == "-m" and word.startswith(("tests.", "bertworks.")):
            path = word.replace(".", "/")
            roots = (ROOT, ROOT / "src")
            assert any((root / f"{path}.py").is_file() for root in roots), word


def test_every_page_with_blocks_runs_or_is_listed() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert page_blocks.has_only_blocks(text), f"{page_id(page)}: a fence without a language"
    with_blocks = {page_id(page) for page in pages if blocks_of(page)}
    run = {page_id(page) for page in PAGES_THAT_RUN}
    assert with_blocks - run == {*CHECKED_PAGES}
    languages = {block.language for page in pages for block in blocks_of(page)}
    assert languages <= LANGUAGES


def test_blocks_that_are_only_checked_are_few() -> None:
    for name, beginnings in NOT_RUN.items():
        bodies = [block.body for block in blocks_of(ROOT / name)]
        for beginning in beginnings:
            assert any(body.startswith(beginning) for body in bodies), beginning
    num_checked = sum(block.language != "text" for _, block in checked_blocks())
    num_blocks = sum(
        page_blocks.runs(page, block) for page in PAGES_THAT_RUN for block in blocks_of(page)
    )
    assert num_checked < num_blocks, (num_checked, num_blocks)


def test_a_block_that_fails_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (
        "```python\nprint(1)\n```\n\n```text\n1\n```\n\n"
        '```console title="long: a while"\n$ bertworks tokenize nowhere \\\n    text\nshown\n```\n'
    )
    first, second = page_blocks.blocks(page)
    assert page_blocks.has_only_blocks(page)
    assert not page_blocks.has_only_blocks("```\nbare\n```\n")
    assert page_blocks.run(first, {}) == ["1\n"]
    assert (first.output, first.mark, second.mark) == ("1\n", "", "long")
    assert page_blocks.commands(second.body) == [
        ("bertworks tokenize nowhere \\\n    text", "shown\n")
    ]
    with pytest.raises(AssertionError, match="no such directory"):
        page_blocks.run(second, {})
    with pytest.raises(AssertionError, match="neither run nor a file"):
        page_blocks.run(Block("yaml", "", "a: 1", 1, (0, 0)), {})
    with pytest.raises(AssertionError):
        page_blocks.run(Block("sh", "", "true\nfalse\n", 1, (0, 0)), {})
    with pytest.raises(AssertionError):
        check_python("bw.no_such_name")
    with pytest.raises(AssertionError):
        check_paths(["python", "benchmarks/no_such_file.py"])


def test_the_output_of_an_indented_block_is_indented(tmp_path: Path) -> None:
    lesson = tmp_path / "lesson.md"
    page = (
        "- One:\n\n    ```python\n    print(1)\n    print(2)\n    ```\n\n"
        "    ```text\n    {}\n    ```\n"
        '- Two:\n\n    ```console\n    $ bertworks tokenize mini "playing"\n    ```\n'
    )
    lesson.write_text(page.format("0"), encoding="utf-8")
    page_blocks.write_outputs(lesson)
    assert lesson.read_text(encoding="utf-8") == page.format("1\n    2")

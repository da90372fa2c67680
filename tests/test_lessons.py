"""Every code block of the lessons runs, prints what it should, and every picture is there."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests import lessons
from tests.conftest import ROOT
from tests.lessons import LESSONS, Block

IMAGES = ROOT / "docs" / "learn" / "images"


def marks(file: Path) -> set[str]:
    return {block.mark for block in lessons.blocks(file.read_text(encoding="utf-8"))} - {""}


def cases() -> list[Any]:
    """All blocks of each lesson; if some are slow, the others without them too."""
    parameters = []
    for file in LESSONS:
        block_marks = marks(file)
        if "slow" in block_marks:
            parameters.append(pytest.param(file, {""}, id=file.stem))
        mark = pytest.mark.slow if "slow" in block_marks else ()
        parameters.append(pytest.param(file, {"", *block_marks}, id=f"{file.stem}-all", marks=mark))
    return parameters


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::bertworks.errors.BertworksWarning")  # a lesson may have some
@pytest.mark.parametrize(("file", "included_marks"), cases())
def test_the_blocks_of_a_lesson_run(
    file: Path, included_marks: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in lessons.blocks(file.read_text(encoding="utf-8")):
        if block.mark in included_marks:
            printed = lessons.run(block, names)
            for expected_output, text in zip(expected(block), printed, strict=False):
                if expected_output and expected_output.strip():
                    place = f"{file.name}, line {block.line}: python -m tests.lessons"
                    assert lessons.skeleton(block, text) == lessons.skeleton(
                        block, expected_output
                    ), place


def expected(block: Block) -> list[str | None]:
    if block.language == "console":
        return [shown for _, shown in lessons.commands(block.body)]
    return [block.output]


def test_a_block_that_fails_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (
        "```python\nprint(1)\n```\n\n```text\n1\n```\n\n"
        '```console title="long: a while"\n$ bertworks tokenize nowhere \\\n    text\nshown\n```\n'
    )
    first, second = lessons.blocks(page)
    assert lessons.run(first, {}) == ["1\n"]
    assert (first.output, first.mark, second.mark) == ("1\n", "", "long")
    assert lessons.commands(second.body) == [("bertworks tokenize nowhere \\\n    text", "shown\n")]
    with pytest.raises(AssertionError, match="no such directory"):
        lessons.run(second, {})
    with pytest.raises(AssertionError, match="neither run nor a file"):
        lessons.run(Block("yaml", "", "a: 1", 1, (0, 0)), {})


def test_the_output_of_an_indented_block_is_indented(tmp_path: Path) -> None:
    lesson = tmp_path / "lesson.md"
    page = (
        "- One:\n\n    ```python\n    print(1)\n    print(2)\n    ```\n\n"
        "    ```text\n    {}\n    ```\n"
        '- Two:\n\n    ```console\n    $ bertworks tokenize mini "playing"\n    ```\n'
    )
    lesson.write_text(page.format("0"), encoding="utf-8")
    lessons.write_outputs(lesson)
    assert lesson.read_text(encoding="utf-8") == page.format("1\n    2")


def test_each_picture_is_drawn_by_the_script_and_shown() -> None:
    pages = [file.read_text(encoding="utf-8") for file in LESSONS]
    shown = {name for page in pages for name in re.findall(r"images/([\w-]+)\.svg", page)}
    assert shown == {file.stem for file in IMAGES.glob("*.svg")}
    assert shown == set(lesson_pictures())
    for file in IMAGES.glob("*.svg"):
        assert ElementTree.parse(file).getroot().get("viewBox"), file


def lesson_pictures() -> dict[str, Any]:
    """The pictures that `docs/learn/pictures.py` draws."""
    folder = ROOT / "docs" / "learn"
    sys.path.insert(0, str(folder))
    try:
        spec = importlib.util.spec_from_file_location("lesson_pictures", folder / "pictures.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found: dict[str, Any] = dict(module.PICTURES)
        return found
    finally:
        sys.path.remove(str(folder))


@pytest.mark.long  # a browser
def test_pictures_are_drawn_again(tmp_path: Path) -> None:
    from tests.explorer.browser import browsers

    with browsers():
        pass  # or the test is skipped
    lesson_pictures()
    module = sys.modules["drawing"]
    data = {"rows": ["a"], "columns": ["b", "c"], "values": [[0.0, 1.0]], "showsNumbers": True}
    with module.explorer() as draw:
        svg = ElementTree.fromstring(draw("heat", data))
    words = [one.text for one in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert words == ["b", "c", "a", "0.00", "1.00"]
    assert "var(--ink" in ElementTree.tostring(svg, "unicode")

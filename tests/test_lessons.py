"""The pictures of the lessons are there, and are drawn by their script."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.conftest import ROOT
from tests.page_blocks import LESSONS

IMAGES = ROOT / "docs" / "learn" / "images"


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

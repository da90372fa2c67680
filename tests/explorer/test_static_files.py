"""The explorer's scripts and style sheets: their layout, and the views that they show."""

from __future__ import annotations

import re

from bertworks.explorer.available_views import REQUIREMENTS
from bertworks.explorer.page import assets
from bertworks.serving.dialects.explorer import VIEWS as ROUTES


def test_scripts_and_styles_have_lines_of_at_most_100_columns() -> None:
    long_lines = [
        f"{name}:{number}"
        for name, (content, _) in assets().items()
        if name.endswith((".js", ".css"))
        for number, line in enumerate(content.decode().splitlines(), 1)
        if len(line) > 100
    ]
    assert long_lines == []


def test_each_view_of_the_page_has_a_file_and_a_requirement_or_none() -> None:
    script = assets()["views.js"][0].decode()
    uses = re.findall(r'\buses: "([^"]+)"', script)
    files = re.findall(r'import\("\./([^"]+)"\)', script)
    assert len(uses) == len(files) == len(re.findall(r'\bid: "', script))
    assert set(uses) <= REQUIREMENTS.keys()
    assert set(files) <= assets().keys()
    assert ROUTES.keys() <= REQUIREMENTS.keys()

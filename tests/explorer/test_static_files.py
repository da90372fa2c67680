"""The layout of the explorer's scripts and style sheets, where Biome is not installed."""

from __future__ import annotations

from bertworks.explorer.page import assets


def test_scripts_and_styles_have_lines_of_at_most_100_columns() -> None:
    long_lines = [
        f"{name}:{number}"
        for name, (content, _) in assets().items()
        if name.endswith((".js", ".css"))
        for number, line in enumerate(content.decode().splitlines(), 1)
        if len(line) > 100
    ]
    assert long_lines == []

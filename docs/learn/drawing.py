"""How the lessons' pictures are drawn: charts by the explorer's own code, diagrams by a few shapes.

A chart is made in Chromium by the modules that draw the explorer's pages, and saved by the button
that saves it there. Colours are written as `var(--NAME, …)`: as a file a picture is light; on the
documentation's pages, which hold it inline, it follows their colours.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any

from bertworks.explorer.page import assets

COLOURS = {
    "card": "#ffffff",
    "ink": "#24292f",
    "soft": "#5f6770",
    "grid": "#e4e5e1",
    "edge": "#868d95",
    "first": "#22577a",
    "second": "#b04c12",
    "third": "#3f7d58",
    "fourth": "#7a4b8f",
    "faint": "#6f96b1",
}
"""The explorer's light colours (`static/styles/base.css`)."""

_STYLES = "".join(
    f'<link rel="stylesheet" href="/{name}">' for name in assets() if name.endswith(".css")
)
_PAGE = f"""<!doctype html><html data-theme="light"><head>
{_STYLES}</head><body><div id="at"></div></body></html>"""
_DRAW = """async ([kind, data, width]) => {
  const {lineChart} = await import("/charts/line-chart.js");
  const {heatmap} = await import("/charts/heatmap.js");
  const {scatter} = await import("/charts/scatter.js");
  const {decodeWeights} = await import("/attention/weights.js");
  const {headGrid} = await import("/attention/head-grid.js");
  const {attentionLines} = await import("/attention/lines.js");
  const format = (await import("/ui/format.js"))[data.format ?? "formatFixed"];
  const name = "picture", title = "picture";
  const draw = {
    lines: () => lineChart({title, name, ...data, format}),
    heat: () => heatmap({title, name, ...data, format, value: (row, at) => data.values[row][at]}),
    map: () => scatter({title, name, ...data}),
    heads: () => headGrid(decodeWeights(data), {}, [-1, -1], () => {}),
    head: () => {
      const matrix = decodeWeights(data).getMatrix(data.layer, data.head, {});
      return attentionLines(matrix, title, name, {});
    },
  };
  const at = document.getElementById("at");
  at.style.width = `${width}px`;
  at.replaceChildren(...[draw[kind]()].flat());
}"""


@contextmanager
def browser() -> Iterator[Any]:
    """Chromium, driven by Playwright.

    Raises:
        SystemExit: Playwright or Chromium is not installed.
    """
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise SystemExit("the pictures need Playwright: pip install playwright") from None
    names = os.environ.get("CHROMIUM"), *map(shutil.which, ("chromium", "google-chrome"))
    program = next(filter(None, names), None)
    if program is None:
        raise SystemExit("the pictures need Chromium: install it")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@contextmanager
def explorer() -> Iterator[Any]:
    """A function `draw(kind, data, width)` that returns a chart of the explorer's as SVG.

    Raises:
        SystemExit: as `browser` does.
    """
    with browser() as chromium:
        page = chromium.new_page(device_scale_factor=1)

        def answer(route: Any) -> None:
            path = route.request.url.removeprefix("http://pictures/")
            body, kind = assets()[path] if path else (_PAGE.encode(), "text/html")
            route.fulfill(body=body, content_type=kind)

        page.route("http://pictures/**", answer)
        page.goto("http://pictures/")

        def draw(kind: str, data: dict[str, Any], width: int = 460) -> str:
            page.evaluate(_DRAW, [kind, data, width])
            page.wait_for_selector("#at svg, #at canvas", state="attached")
            with page.expect_download() as download:
                page.get_by_role("button", name="SVG").click()
            return with_colour_names(download.value.path().read_text(encoding="utf-8"))

        yield draw


def with_colour_names(svg: str) -> str:
    """The SVG with the names of the explorer's colours in place of their light values."""
    for name, light in COLOURS.items():
        red, green, blue = (int(light[at : at + 2], 16) for at in (1, 3, 5))
        svg = svg.replace(f"rgb({red}, {green}, {blue})", colour(name))
    return re.sub(r' (aria-label="[^"]*"|style="max-width: none;")', "", svg) + "\n"


def colour(name: str) -> str:
    return f"var(--{name}, {COLOURS[name]})"


def picture(width: float, height: float, *parts: str) -> str:
    """A diagram as a file."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" font-family="system-ui, sans-serif">'
        f'<rect width="100%" height="100%" fill="{colour("card")}"/>{"".join(parts)}</svg>\n'
    )


def text(
    x: float,
    y: float,
    words: str,
    size: float = 12,
    fill: str = "ink",
    anchor: str = "middle",
    weight: int = 400,
) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{colour(fill)}" '
        f'text-anchor="{anchor}" font-weight="{weight}">{escape(words)}</text>'
    )


def box(
    x: float,
    y: float,
    width: float,
    height: float,
    words: str = "",
    tone: str = "first",
    strength: float = 0.12,
    size: float = 12,
    is_dashed: bool = False,
) -> str:
    """A rounded box with words in its middle."""
    dash = ' stroke-dasharray="4 3"' if is_dashed else ""
    shape = (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" '
        f'fill="{colour(tone)}" fill-opacity="{strength:g}" stroke="{colour(tone)}"{dash}/>'
    )
    return shape + (text(x + width / 2, y + height / 2 + size * 0.36, words, size) if words else "")


def arrow(x: float, y: float, to_x: float, to_y: float, tone: str = "soft") -> str:
    """A line with a head."""
    length = max(1e-9, ((to_x - x) ** 2 + (to_y - y) ** 2) ** 0.5)
    dx, dy = 6 * (to_x - x) / length, 6 * (to_y - y) / length
    left = f"{to_x - dx - dy / 2:.1f},{to_y - dy + dx / 2:.1f}"
    right = f"{to_x - dx + dy / 2:.1f},{to_y - dy - dx / 2:.1f}"
    stroke = colour(tone)
    return (
        f'<line x1="{x:g}" y1="{y:g}" x2="{to_x - dx:.1f}" y2="{to_y - dy:.1f}" stroke="{stroke}"/>'
        f'<polygon points="{to_x:g},{to_y:g} {left} {right}" fill="{stroke}"/>'
    )


def bars(
    items: Sequence[tuple[str, float, str]],
    *,
    title: str = "",
    tone: str = "first",
    width: float = 460,
    names: float = 130,
    top: float = 0,
    most: float | None = None,
) -> str:
    """Horizontal bars: (name, value, what is written after the bar); parts of a picture."""
    largest = most or max(value for _, value, _ in items)
    room = width - names - 84
    parts = [text(4, top + 13, title, 12, "ink", "start", 600)] if title else []
    start = top + (24 if title else 4)
    for at, (name, value, note) in enumerate(items):
        y = start + 22 * at
        long = max(1.0, room * value / largest)
        parts += [
            text(names - 8, y + 13, name, 12, "ink", "end"),
            f'<rect x="{names:g}" y="{y + 2:g}" width="{long:.1f}" height="14" rx="2" '
            f'fill="{colour(tone)}"/>',
            text(names + long + 6, y + 13, note, 11, "soft", "start"),
        ]
    return "".join(parts)


def strip(
    tokens: Sequence[tuple[str, str, float]], *, width: float = 460, top: float = 4
) -> tuple[str, float]:
    """Tokens in boxes, (token, colour, strength), line by line; and the height below them."""
    parts, x, y = [], 4.0, top
    for token, tone, strength in tokens:
        wide = 7.2 * len(token) + 14
        if x + wide > width:
            x, y = 4.0, y + 32
        parts.append(box(x, y, wide, 25, token, tone, strength))
        x += wide + 5
    return "".join(parts), y + 32

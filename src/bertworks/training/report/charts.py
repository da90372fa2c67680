"""Curves as SVG that stands in a page and takes its colours from it, light or dark."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...errors import BertworksError, need

COLOURS = {
    "ink": "#010101",
    "grid": "#020202",
    "first": "#030303",
    "second": "#040404",
    "third": "#050505",
    "faint": "#060606",
    "card": "#070707",
}
"""Stand-ins, each of which becomes `var(--NAME)` in the SVG: the page says what they look like."""

SIZES = {"broad": (5.2, 2.9), "narrow": (3.4, 2.5)}
"""Inches, by the class of the SVG: drawn for a desktop and for a phone, so that the text is of a
readable size on both; the page shows one of them."""

DASHED = (0, (4, 3))

Colour = Literal["first", "second", "third", "faint"]


@dataclass(frozen=True)
class Curve:
    """A line of a chart; a point that is None is left out."""

    name: str
    steps: Sequence[int]
    values: Sequence[float | None]
    colour: Colour = "first"
    dots: bool = False
    dashed: bool = False


def can_draw() -> bool:
    """Whether the extra that draws is installed."""
    try:
        need("matplotlib", "plots", "A chart")
    except BertworksError:
        return False
    return True


def draw(curves: Sequence[Curve], *, percent: bool = False, zero: bool = False) -> str:
    """Inline `<svg>`s of the curves over the steps, one for each of `SIZES`.

    Args:
        curves: at least one, with at least one point in all.
        percent: whether the values are shares, written in percent.
        zero: whether the axis of values begins at zero.
    """

    def paint(axes: Any) -> None:
        from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator

        for curve in curves:
            points = [
                (step, value)
                for step, value in zip(curve.steps, curve.values, strict=True)
                if value is not None
            ]
            axes.plot(
                [step for step, _ in points],
                [value for _, value in points],
                color=COLOURS[curve.colour],
                linewidth=1.0 if curve.colour == "faint" else 1.8,
                linestyle=DASHED if curve.dashed else "solid",
                marker="o" if curve.dots else None,
                markersize=3.5,
                label=curve.name,
                solid_capstyle="round",
            )
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        low, high = axes.get_ylim()
        if percent:
            in_percent(axes.yaxis, decimals=0 if high - low > 0.05 else 1)
            axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))  # no 2.5 %
        elif high >= 1000:
            axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        elif high < 0.01:
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        if zero:
            axes.set_ylim(bottom=0)

    return svg(paint, legend=len(curves))


def svg(paint: Callable[[Any], None], *, legend: int = 0) -> str:
    """Inline `<svg>`s of what `paint` draws on matplotlib's axes, one for each of `SIZES`.

    Args:
        paint: draws, in colours of `COLOURS`.
        legend: how many things have a name; with fewer than two there is no legend.
    """
    return "".join(_svg(paint, legend, size) for size in SIZES)


def _svg(paint: Callable[[Any], None], legend: int, size: str) -> str:
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": size, "font.size": 9}):
        figure = Figure(figsize=SIZES[size], layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        axes.grid(axis="y", color=COLOURS["grid"], linewidth=0.8)
        axes.set_axisbelow(True)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.spines["bottom"].set_color(COLOURS["grid"])
        axes.tick_params(length=0, colors=COLOURS["ink"])
        axes.yaxis.set_major_locator(MaxNLocator(5))
        paint(axes)
        if legend > 1:
            figure.legend(
                loc="outside upper left",
                ncols=legend,
                frameon=False,
                labelcolor=COLOURS["ink"],
                handlelength=1.4,
                columnspacing=1.6,
                borderaxespad=0.2,
            )
        buffer = io.StringIO()
        figure.savefig(
            buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
    return _inline(buffer.getvalue(), size)


def in_percent(axis: Any, decimals: int = 0) -> None:
    """Write the shares of an axis in percent."""
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(1.0, decimals=decimals, symbol=" %"))


def _inline(svg: str, size: str) -> str:
    """Strip what a stand-alone file needs, and hand the colours to the page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(
        r'<svg [^>]*viewBox="([^"]+)"[^>]*>',
        rf'<svg class="{size}" viewBox="\1" role="img">',
        svg,
        count=1,
    )
    for name, stand_in in COLOURS.items():
        svg = svg.replace(stand_in, f"var(--{name})")
    return svg

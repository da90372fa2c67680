"""Charts as SVG for a page, in its light or dark colours: curves over steps, and diagrams."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...errors import BertworksError, need
from ...tasks.breakdown import Calibration

COLOURS = {
    "ink": "#010101",
    "grid": "#020202",
    "first": "#030303",
    "second": "#040404",
    "third": "#050505",
    "faint": "#060606",
    "card": "#070707",
}
"""Placeholders; each is replaced by `var(--NAME)` in the SVG, and the page defines the colours."""

SIZES = {"broad": (5.2, 2.9), "narrow": (3.4, 2.5)}
"""Width and height in inches, by the class of the SVG. Each chart is drawn for desktops and for
phones, so that its text is readable on both; the page shows one of them."""

MARGINS, LEGEND = (40, 12, 16, 8), 24
"""Margins in points: left (room for seven digits), right, bottom, top; and top with a legend.

They are fixed, since matplotlib's automatic layout takes longer than the drawing.
"""

DASHED = (0, (4, 3))

Colour = Literal["first", "second", "third", "faint"]


@dataclass(frozen=True)
class Curve:
    """A line of a chart; values that are None are left out."""

    name: str
    steps: Sequence[int]
    values: Sequence[float | None]
    colour: Colour = "first"
    dots: bool = False
    dashed: bool = False


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    try:
        need("matplotlib", "plots", "A chart")
    except BertworksError:
        return False
    return True


def draw(curves: Sequence[Curve], *, percent: bool = False, zero: bool = False) -> str:
    """Return inline `<svg>` elements of the curves over the steps, one for each of `SIZES`.

    Args:
        curves: at least one, with at least one point in total.
        percent: whether the values are shares, to be written in percent.
        zero: whether the axis of values starts at zero.
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
        _thousands(axes.xaxis)
        # With one step, or values that hardly differ, tick labels would have too many digits.
        first, last = axes.get_xlim()
        if last - first < 2:
            axes.set_xlim((first + last) / 2 - 1, (first + last) / 2 + 1)
        low, high = axes.get_ylim()
        if high - low < (least := 0.02 * max(abs(low), abs(high))):
            axes.set_ylim((low + high - least) / 2, (low + high + least) / 2)
        axes.ticklabel_format(axis="y", useOffset=False)
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
    """Return inline `<svg>` elements of what `paint` draws on axes, one for each of `SIZES`.

    Args:
        paint: draws on matplotlib axes, with colours of `COLOURS`.
        legend: number of entries in the legend; with fewer than two there is no legend.
    """
    return "".join(_svg(paint, legend, size) for size in SIZES)


def picture(paint: Callable[[Any], None]) -> str:
    """Return the text of an SVG file that `paint` draws, in the report's light or dark colours.

    The margins fit the labels.
    """
    light, dark = (
        ";".join(f"--{name}:{colour}" for name, colour in zip(COLOURS, colours, strict=True))
        for colours in (
            ("#24292f", "#e4e5e1", "#22577a", "#c2571a", "#3f7d58", "#6f96b1", "#ffffff"),
            ("#dfe2e5", "#30353b", "#7ab8dd", "#eb9860", "#86c79f", "#5a7f97", "#1d2024"),
        )
    )
    style = f"svg{{{light};background:var(--card);font-family:sans-serif}}"
    style += f"@media(prefers-color-scheme:dark){{svg{{{dark}}}}}"
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    inline = _svg(paint, 0, "broad", "constrained").replace("<svg ", f"<svg {names} ", 1)
    return inline.replace(">", f"><style>{style}</style>", 1)


def _svg(
    paint: Callable[[Any], None],
    legend: int,
    size: str,
    layout: Literal["constrained"] | None = None,
) -> str:
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": size, "font.size": 9}):
        figure = Figure(figsize=SIZES[size], layout=layout)
        canvas = FigureCanvasSVG(figure)
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
                loc="upper left",
                ncols=legend,
                frameon=False,
                labelcolor=COLOURS["ink"],
                handlelength=1.4,
                columnspacing=1.6,
                borderaxespad=0.2,
            )
        for patch in (figure.patch, axes.patch):
            patch.set_visible(False)
        if layout is None:
            width, height = (inches * 72 for inches in SIZES[size])
            left, right, bottom, top = MARGINS
            above = LEGEND if legend > 1 else top
            figure.subplots_adjust(
                left / width, bottom / height, 1 - right / width, 1 - above / height
            )
        buffer = io.StringIO()
        canvas.print_svg(  # type: ignore[no-untyped-call]
            buffer, metadata={"Date": None, "Creator": None}
        )
    return _inline(buffer.getvalue(), size)


def in_percent(axis: Any, decimals: int = 0) -> None:
    """Format the tick labels of an axis of shares in percent."""
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(1.0, decimals=decimals, symbol=" %"))


def _inline(svg: str, size: str) -> str:
    """Remove what only a stand-alone file needs, and replace colours by the page's variables."""
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


def reliability(calibration: Calibration) -> str:
    """A reliability diagram: accuracy per bin of confidence (Guo et al. 2017, figure 1)."""

    def paint(axes: Any) -> None:
        bins = calibration.bins
        _bars(axes, bins, [one.accuracy for one in bins], "first", "accuracy")
        axes.plot(
            [0, 1], [0, 1], color=COLOURS["second"], linestyle=DASHED, label="perfect calibration"
        )
        axes.set_ylim(0, 1.02)
        in_percent(axes.yaxis)

    return svg(paint, legend=2)


def confidences(calibration: Calibration) -> str:
    """A histogram of confidences: the number of predictions per bin."""

    def paint(axes: Any) -> None:
        bins = calibration.bins
        _bars(axes, bins, [one.count for one in bins], "faint", "")
        _thousands(axes.yaxis)

    return svg(paint)


def _bars(axes: Any, bins: Sequence[Any], heights: Sequence[float], colour: str, name: str) -> None:
    """Draw bars over bins of probability."""
    axes.bar(
        [one.low for one in bins],
        heights,
        [one.high - one.low for one in bins],
        align="edge",
        color=COLOURS[colour],
        edgecolor=COLOURS["card"],
        linewidth=1.0,
        label=name,
    )
    axes.set_xlim(0, 1)
    in_percent(axes.xaxis)


def scatter(values: Sequence[tuple[float, float]]) -> str:
    """A scatter plot: gold values on the x axis, predicted values on the y axis.

    Args:
        values: pairs of gold and predicted value.
    """

    def paint(axes: Any) -> None:
        gold, predicted = zip(*values, strict=True)
        ends = [min(gold), max(gold)]
        axes.plot(ends, ends, color=COLOURS["second"], linestyle=DASHED)
        axes.plot(
            gold,
            predicted,
            "o",
            color=COLOURS["first"],
            markersize=3.5,
            alpha=0.55,
            markeredgewidth=0,
        )

    return svg(paint)


def lengths(bin_width: int, bins: Sequence[int], cut_bins: Sequence[int]) -> str:
    """A histogram of rows by their number of tokens; truncated rows have another colour.

    Args:
        bin_width: tokens per bin.
        bins: all rows per bin.
        cut_bins: truncated rows per bin.
    """

    def paint(axes: Any) -> None:
        edges = [at * bin_width + 0.5 for at in range(len(bins))]
        whole = [every - cut for every, cut in zip(bins, cut_bins, strict=True)]
        style = {"align": "edge", "edgecolor": COLOURS["card"], "linewidth": 0.6}
        axes.bar(edges, whole, bin_width, color=COLOURS["first"], label="whole", **style)
        if any(cut_bins):
            axes.bar(
                edges,
                cut_bins,
                bin_width,
                bottom=whole,
                color=COLOURS["second"],
                label="truncated",
                **style,
            )
        _thousands(axes.yaxis)

    return svg(paint, legend=1 + any(cut_bins))


def _thousands(axis: Any) -> None:
    """Format the tick labels of an axis of counts in short form, such as 10k."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(5, integer=True))
    axis.set_major_formatter(EngFormatter(sep=""))

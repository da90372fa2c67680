"""Diagrams that are no curves over steps: calibration, told over true numbers, lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...tasks.breakdown import Calibration
from .charts import COLOURS, DASHED, in_percent, svg


def reliability(calibration: Calibration) -> str:
    """How much is right of what is told with each probability (Guo et al. 2017, figure 1)."""

    def paint(axes: Any) -> None:
        bins = calibration.bins
        _bars(axes, bins, [one.accuracy for one in bins], "first", "right")
        axes.plot([0, 1], [0, 1], color=COLOURS["second"], linestyle=DASHED, label="as sure")
        axes.set_ylim(0, 1.02)
        in_percent(axes.yaxis)

    return svg(paint, legend=2)


def confidences(calibration: Calibration) -> str:
    """How much is told with each probability."""

    def paint(axes: Any) -> None:
        bins = calibration.bins
        _bars(axes, bins, [one.count for one in bins], "faint", "")
        _thousands(axes.yaxis)

    return svg(paint)


def _bars(axes: Any, bins: Sequence[Any], heights: Sequence[float], colour: str, name: str) -> None:
    """Bars over bins of probabilities."""
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
    """True numbers to the right, told ones upwards."""

    def paint(axes: Any) -> None:
        true, told = zip(*values, strict=True)
        ends = [min(true), max(true)]
        axes.plot(ends, ends, color=COLOURS["second"], linestyle=DASHED)
        axes.plot(
            true,
            told,
            "o",
            color=COLOURS["first"],
            markersize=3.5,
            alpha=0.55,
            markeredgewidth=0,
        )

    return svg(paint)


def lengths(bin_width: int, bins: Sequence[int], cut_bins: Sequence[int]) -> str:
    """Rows by their tokens; those that are cut stand out."""

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
                label="cut",
                **style,
            )
        _thousands(axes.yaxis)

    return svg(paint, legend=1 + any(cut_bins))


def _thousands(axis: Any) -> None:
    """Write the counts of an axis short."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(5, integer=True))
    axis.set_major_formatter(EngFormatter(sep=""))

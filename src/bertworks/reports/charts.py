"""Charts as SVG for a page, in its light or dark colours: curves over steps, and diagrams."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal, TypeAlias

from ..tasks.breakdown import Calibration

COLOURS: Mapping[str, tuple[str, str]] = {
    "ink": ("#24292f", "#dfe2e5"),
    "grid": ("#e4e5e1", "#30353b"),
    "first": ("#22577a", "#7ab8dd"),
    "second": ("#c2571a", "#eb9860"),
    "third": ("#3f7d58", "#86c79f"),
    "faint": ("#6f96b1", "#5a7f97"),
    "card": ("#ffffff", "#1d2024"),
}
"""The colours of a file of its own, in the light and the dark theme; a page defines its own."""

SIZES = {"broad": (374, 209), "narrow": (245, 180)}
"""Width and height in points, by the class of the SVG. Each chart is drawn for desktops and for
phones, so that its text is readable on both; the page shows one of them."""

FONT_SIZE = 9
_LETTER = 0.56 * FONT_SIZE  # the width of an average letter
_RIGHT, _TOP, _LEGEND, _BOTTOM = 18, 10, 24, 18  # margins in points; `_LEGEND`: top with a legend
_MAX_POINTS = 600  # of a curve: more cannot be seen

Colour: TypeAlias = Literal["first", "second", "third", "faint"]
Format: TypeAlias = Callable[[float], str]


@dataclass(frozen=True)
class Curve:
    """A line of a chart; values that are None are left out."""

    name: str
    steps: Sequence[int]
    values: Sequence[float | None]
    colour: Colour = "first"
    dots: bool = False
    is_dashed: bool = False


@dataclass
class Axis:
    """The range of an axis and its labels.

    Attributes:
        low, high: the range; if None, that of the data.
        is_percent: whether the numbers are shares, to be written in percent.
        is_count: whether the numbers are whole, to be written in short form, such as 10k.
        names: labels for 0, 1, 2, … in place of numbers.
    """

    low: float | None = None
    high: float | None = None
    is_percent: bool = False
    is_count: bool = False
    names: Sequence[str] = ()

    def ticks(self, low: float, high: float, most: int) -> list[tuple[float, str]]:
        """Return about `most` round numbers of a range, each with its label."""
        if self.names:
            return [(float(number), name) for number, name in enumerate(self.names)]
        # Half a range, rounded up, may be longer than the range and leave it without a label.
        step = _round_step((high - low) / max(most, 3), whole=self.is_count)
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        unit, mark = (0.01, " %") if self.is_percent else _unit(max(abs(low), abs(high)))
        numbers = range(first, last + 1)
        if not self.is_percent and step < 1e-4:
            return [(number * step, f"{number * step:.3g}") for number in numbers]
        digits, percent = _decimals(step / unit), mark if self.is_percent else ""
        return [
            (number * step, f"{number * step / unit:.{digits}f}{mark}" if number else f"0{percent}")
            for number in numbers
        ]


def _unit(most: float) -> tuple[float, str]:
    """Return the unit of numbers up to `most`, thousands, millions, …, and its mark."""
    units = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
    return next((unit for unit in units if most >= unit[0]), (1.0, ""))


def _round_step(least: float, *, whole: bool) -> float:
    """Return the smallest of 1, 2, 5, 10, 20, … that is not much less than `least`."""
    size = 10.0 ** math.floor(math.log10(least))
    step = next(factor * size for factor in (1, 2, 5, 10) if factor * size >= 0.95 * least)
    return max(step, 1.0) if whole else step


def _decimals(step: float) -> int:
    """Return how many decimals distinguish multiples of a step."""
    return max(0, -math.floor(math.log10(step) + 1e-9))


@dataclass
class Chart:
    """Marks on two axes; `svg` draws them.

    Attributes:
        x, y: the axes.
        has_columns: whether lines of the grid are vertical, not horizontal.
    """

    x: Axis = field(default_factory=Axis)
    y: Axis = field(default_factory=Axis)
    has_columns: bool = False
    _marks: list[Callable[[_Frame], str]] = field(default_factory=list)
    _legend: list[tuple[str, Colour, bool]] = field(default_factory=list)
    _points: list[tuple[float, float]] = field(default_factory=list)

    def line(
        self,
        points: Sequence[tuple[float, float]],
        colour: Colour,
        *,
        name: str = "",
        width: float = 1.8,
        is_dashed: bool = False,
    ) -> None:
        """Add a line through points."""
        self._points += points
        drawn_points = _decimate(points)
        dashes = ' stroke-dasharray="5 4"' if is_dashed else ""

        def mark(frame: _Frame) -> str:
            path = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in drawn_points)
            return (
                f'<polyline points="{path}" fill="none" stroke="var(--{colour})" '
                f'stroke-width="{width}" stroke-linejoin="round" stroke-linecap="round"{dashes}/>'
            )

        self._add(mark, name, colour, is_dashed)

    def dots(
        self, points: Sequence[tuple[float, float]], colour: Colour, *, opacity: float = 1
    ) -> None:
        """Add a dot at each point."""
        self._points += points
        fill_opacity = "" if opacity == 1 else f' fill-opacity="{opacity}"'

        def mark(frame: _Frame) -> str:
            circles = (
                f'<circle cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="1.8"/>' for x, y in points
            )
            return f'<g fill="var(--{colour})"{fill_opacity}>{"".join(circles)}</g>'

        self._add(mark, "", colour, False)

    def boxes(
        self,
        boxes: Sequence[tuple[float, float, float, float]],
        colour: Colour,
        *,
        name: str = "",
    ) -> None:
        """Add filled boxes: for each, x from and to, y from and to."""
        self._points += [
            (x, y) for left, right, low, high in boxes for x, y in ((left, low), (right, high))
        ]

        def mark(frame: _Frame) -> str:
            rectangles = []
            for left, right, low, high in boxes:
                x, y = frame.x(left), frame.y(high)
                width, height = frame.x(right) - x, frame.y(low) - y
                place = f'x="{x:.1f}" y="{y:.1f}"'
                rectangles.append(f'<rect {place} width="{width:.1f}" height="{height:.1f}"/>')
            style = f'fill="var(--{colour})" stroke="var(--card)" stroke-width="0.8"'
            return f"<g {style}>{''.join(rectangles)}</g>"

        self._add(mark, name, colour, False)

    def _add(
        self, mark: Callable[[_Frame], str], name: str, colour: Colour, is_dashed: bool
    ) -> None:
        self._marks.append(mark)
        if name:
            self._legend.append((name, colour, is_dashed))

    def svg(self) -> str:
        """Return inline `<svg>` elements, one for each of `SIZES`."""
        return "".join(self._svg(size) for size in SIZES)

    def picture(self) -> str:
        """Return the text of an SVG file, in light or dark colours as the reader's system has."""
        light, dark = (
            ";".join(f"--{name}:{both[theme]}" for name, both in COLOURS.items())
            for theme in (0, 1)
        )
        style = f"svg{{{light};background:var(--card);font-family:sans-serif}}"
        style += f"text{{fill:var(--ink)}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}"
        drawn = self._svg("broad").replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
        return drawn.replace(">", f"><style>{style}</style>", 1) + "\n"

    def _svg(self, size: str) -> str:
        frame = _Frame.from_chart(self, *SIZES[size], has_legend=len(self._legend) > 1)
        parts = [self._grid(frame), *(mark(frame) for mark in self._marks)]
        if len(self._legend) > 1:
            parts.append(self._drawn_legend())
        width, height = SIZES[size]
        return (
            f'<svg class="{size}" viewBox="0 0 {width} {height}" role="img">'
            f'<g style="font-size: {FONT_SIZE}px">{"".join(parts)}</g></svg>'
        )

    def _grid(self, frame: _Frame) -> str:
        """Return the lines of the grid, the axis below, and the labels."""
        parts = []
        for value, label in frame.y_ticks:
            y = frame.y(value)
            if not self.has_columns:
                parts.append(_rule(frame.left, y, frame.right, y))
            parts.append(_text(frame.left - 6, y + 3, label, "end"))
        for value, label in frame.x_ticks:
            x = frame.x(value)
            if self.has_columns:
                parts.append(_rule(x, frame.top, x, frame.bottom))
            parts.append(_text(x, frame.bottom + 13, label, "middle"))
        parts.append(_rule(frame.left, frame.bottom, frame.right, frame.bottom))
        return "".join(parts)

    def _drawn_legend(self) -> str:
        parts, x = [], 4.0
        for name, colour, is_dashed in self._legend:
            dashes = ' stroke-dasharray="4 3"' if is_dashed else ""
            parts.append(
                f'<line x1="{x:.1f}" y1="10" x2="{x + 12:.1f}" y2="10" stroke="var(--{colour})" '
                f'stroke-width="3"{dashes}/>'
            )
            parts.append(_text(x + 17, 13, name, "start"))
            x += 17 + _LETTER * len(name) + 14
        return "".join(parts)


@dataclass(frozen=True)
class _Frame:
    """The rectangle of a chart's marks, in points, and the data's range."""

    left: float
    right: float
    top: float
    bottom: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]

    @classmethod
    def from_chart(cls, chart: Chart, width: int, height: int, *, has_legend: bool) -> _Frame:
        x_range = _range(chart.x, [x for x, _ in chart._points], margin=0.03)
        y_range = _range(chart.y, [y for _, y in chart._points], margin=0.05)
        y_ticks = chart.y.ticks(*y_range, 5)
        left = 10 + _LETTER * max(len(label) for _, label in y_ticks)
        room = width - left - _RIGHT
        most = max(2, int(room / (_LETTER * 9)))
        return cls(
            left=left,
            right=width - _RIGHT,
            top=_LEGEND if has_legend else _TOP,
            bottom=height - _BOTTOM,
            x_range=x_range,
            y_range=y_range,
            x_ticks=chart.x.ticks(*x_range, min(6, most)),
            y_ticks=y_ticks,
        )

    def x(self, value: float) -> float:
        """Return the position of a value on the x axis."""
        low, high = self.x_range
        return self.left + (value - low) / (high - low) * (self.right - self.left)

    def y(self, value: float) -> float:
        """Return the position of a value on the y axis, which points upwards."""
        low, high = self.y_range
        return self.bottom - (value - low) / (high - low) * (self.bottom - self.top)


def _range(axis: Axis, values: Sequence[float], margin: float) -> tuple[float, float]:
    """Return the range of an axis: its own limits, or the data's with a margin.

    A range is at least 2 % of its values: with less, labels would have too many digits.
    """
    low = min(values, default=0.0) if axis.low is None else axis.low
    high = max(values, default=1.0) if axis.high is None else axis.high
    least = max(0.02 * max(abs(low), abs(high)), 1e-9)
    if axis.is_count:
        least = max(least, 1.0)
    if high - low < least:
        low, high = (low + high - least) / 2, (low + high + least) / 2
    room = margin * (high - low)
    return low - room * (axis.low is None), high + room * (axis.high is None)


def _decimate(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Return at most `_MAX_POINTS` points of a curve: the lowest and highest of each stretch."""
    if len(points) <= _MAX_POINTS:
        return points
    stretch = -(-2 * len(points) // _MAX_POINTS)
    extremes = []
    for start in range(0, len(points), stretch):
        part = points[start : start + stretch]
        ends = {min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])}
        extremes += sorted(ends)
    return extremes


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="var(--grid)" stroke-width="0.8"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def draw(curves: Sequence[Curve], *, percent: bool = False, zero: bool = False) -> str:
    """Return inline `<svg>` elements of the curves over the steps, one for each of `SIZES`.

    Args:
        curves: a metric that was never defined, such as a correlation of equal numbers, has no
            points.
        percent: whether the values are shares, to be written in percent.
        zero: whether the axis of values starts at zero.
    """
    chart = Chart(Axis(is_count=True), Axis(low=0 if zero else None, is_percent=percent))
    for curve in curves:
        pairs = zip(curve.steps, curve.values, strict=True)
        points = [(float(step), value) for step, value in pairs if value is not None]
        width = 1.0 if curve.colour == "faint" else 1.8
        chart.line(points, curve.colour, name=curve.name, width=width, is_dashed=curve.is_dashed)
        if curve.dots or len(points) == 1:  # a line through one point is not drawn
            chart.dots(points, curve.colour)
    return chart.svg()


def reliability(calibration: Calibration) -> str:
    """A reliability diagram: accuracy per bin of confidence (Guo et al. 2017, figure 1)."""
    chart = Chart(Axis(0, 1, is_percent=True), Axis(0, 1.02, is_percent=True))
    chart.boxes(
        [(one.low, one.high, 0, one.accuracy) for one in calibration.bins], "first", name="accuracy"
    )
    chart.line([(0, 0), (1, 1)], "second", name="perfect calibration", is_dashed=True)
    return chart.svg()


def confidences(calibration: Calibration) -> str:
    """A histogram of confidences: the number of predictions per bin."""
    chart = Chart(Axis(0, 1, is_percent=True), Axis(0, is_count=True))
    chart.boxes([(one.low, one.high, 0, one.count) for one in calibration.bins], "faint")
    return chart.svg()


def scatter(values: Sequence[tuple[float, float]]) -> str:
    """A scatter plot: gold values on the x axis, predicted values on the y axis.

    Args:
        values: pairs of gold and predicted value.
    """
    gold = [one for one, _ in values]
    ends = [(end, end) for end in (min(gold), max(gold))]
    chart = Chart()
    chart.line(ends, "second", is_dashed=True)
    chart.dots(values, "first", opacity=0.55)
    return chart.svg()


def lengths(bin_width: int, bins: Sequence[int], cut_bins: Sequence[int]) -> str:
    """A histogram of rows by their number of tokens; truncated rows have another colour.

    Args:
        bin_width: tokens per bin.
        bins: all rows per bin.
        cut_bins: truncated rows per bin.
    """
    chart = Chart(Axis(is_count=True), Axis(0, is_count=True))
    whole, truncated = [], []
    for number, (rows, num_truncated) in enumerate(zip(bins, cut_bins, strict=True)):
        left, right = number * bin_width + 0.5, (number + 1) * bin_width + 0.5
        whole.append((left, right, 0, rows - num_truncated))
        truncated.append((left, right, rows - num_truncated, rows))
    chart.boxes(whole, "first", name="whole")
    if any(cut_bins):
        chart.boxes(truncated, "second", name="truncated")
    return chart.svg()


def bars(arms: Mapping[str, Sequence[float]]) -> str:
    """Return an SVG file with a bar for the mean of each arm, from top to bottom, and a dot for
    each of its values."""
    names = list(arms)[::-1]
    chart = Chart(Axis(), Axis(-0.6, len(names) - 0.4, names=names), has_columns=True)
    means = [sum(arms[name]) / len(arms[name]) for name in names]
    chart.boxes(
        [(min(0, mean), max(0, mean), y - 0.3, y + 0.3) for y, mean in enumerate(means)], "faint"
    )
    for y, name in enumerate(names):
        chart.dots([(value, float(y)) for value in arms[name]], "second")
    return chart.picture()


def lines(curves: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Return an SVG file with a line for each of at most six curves of shares."""
    chart = Chart(Axis(is_count=True), Axis(is_percent=True))
    colours: tuple[Colour, ...] = ("first", "second", "third")
    for number, (name, points) in enumerate(curves.items()):
        colour, is_dashed = colours[number % 3], number >= 3
        chart.line(points, colour, name=name, is_dashed=is_dashed)
        chart.dots(points, colour)
    return chart.picture()

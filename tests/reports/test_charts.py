"""Marks of charts are where their numbers say, measured by the labels of the axes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree

import numpy as np
import pytest

from bertworks.reports import charts
from bertworks.tasks.breakdown import Calibration, CalibrationBin

Boxes = list[tuple[float, float, float, float]]
_UNITS = {"": 1, " %": 0.01, "k": 1e3, "M": 1e6}


class Drawing:
    """The marks of an SVG, in the units of its axes."""

    def __init__(self, svg: ElementTree.Element, names: tuple[str, ...] = ()) -> None:
        self._svg = svg
        labels: dict[str, list[tuple[float, float]]] = {"middle": [], "end": []}
        for text in svg.iter(_tag(svg, "text")):
            anchor, label = text.attrib["text-anchor"], text.text or ""
            if anchor in labels:
                value = float(names.index(label)) if label in names else _number(label)
                place = (
                    float(text.attrib["x"]) if anchor == "middle" else float(text.attrib["y"]) - 3
                )
                labels[anchor].append((place, value))
        self._x, self._y = (np.polyfit(*zip(*pairs, strict=True), 1) for pairs in labels.values())

    def boxes(self) -> Boxes:
        """The boxes: x from and to, y from and to."""
        result = []
        for box in self._svg.iter(_tag(self._svg, "rect")):
            x, y, width, height = (float(box.attrib[k]) for k in ("x", "y", "width", "height"))
            left, top = self._point(x, y)
            right, bottom = self._point(x + width, y + height)
            result.append((left, right, bottom, top))
        return result

    def dots(self) -> list[tuple[float, float]]:
        """The dots."""
        circles = self._svg.iter(_tag(self._svg, "circle"))
        return [self._point(float(one.attrib["cx"]), float(one.attrib["cy"])) for one in circles]

    def line(self) -> list[tuple[float, float]]:
        """The points of the only line."""
        (line,) = self._svg.iter(_tag(self._svg, "polyline"))
        points = [point.split(",") for point in line.attrib["points"].split()]
        return [self._point(float(x), float(y)) for x, y in points]

    def _point(self, x: float, y: float) -> tuple[float, float]:
        return float(np.polyval(self._x, x)), float(np.polyval(self._y, y))


def _tag(svg: ElementTree.Element, name: str) -> str:
    """A tag in the namespace of an SVG."""
    return svg.tag.removesuffix("svg") + name


def _number(label: str) -> float:
    match = re.fullmatch(r"(-?[\d.]+)( %|\D?)", label)
    assert match is not None, label
    return float(match[1]) * _UNITS[match[2]]


def drawings(svgs: str) -> Iterator[Drawing]:
    """The desktop's and the phone's form of a chart."""
    pair = list(ElementTree.fromstring(f"<page>{svgs}</page>"))
    assert len(pair) == 2
    yield from map(Drawing, pair)


BINS = ((0.0, 0.5, 40, 0.25), (0.5, 0.75, 10, 0.5), (0.75, 1.0, 120, 0.8))
CALIBRATION = Calibration(
    unit="rows",
    expected_error=0.1,
    confidence=0.8,
    accuracy=0.65,
    bins=tuple(
        CalibrationBin(low=low, high=high, count=count, confidence=high, accuracy=accuracy)
        for low, high, count, accuracy in BINS
    ),
)


def test_boxes_of_lengths_are_bins_of_tokens() -> None:
    """Rows of 1 to 10 tokens are in the first bin; truncated rows are above the others."""
    for drawing in drawings(charts.lengths(10, [30, 50, 20], [0, 0, 15])):
        whole = [(0.5, 10.5, 0, 30), (10.5, 20.5, 0, 50), (20.5, 30.5, 0, 5)]
        cut = [(0.5, 10.5, 30, 30), (10.5, 20.5, 50, 50), (20.5, 30.5, 5, 20)]
        assert np.array(drawing.boxes()) == pytest.approx(np.array(whole + cut), abs=0.4)


def test_diagrams_of_calibration_have_its_bins() -> None:
    shares = [(low, high, 0, accuracy) for low, high, _, accuracy in BINS]
    for drawing in drawings(charts.reliability(CALIBRATION)):
        assert np.array(drawing.boxes()) == pytest.approx(np.array(shares), abs=0.01)
        assert np.array(drawing.line()) == pytest.approx(np.array([(0, 0), (1, 1)]), abs=0.01)
    counts = [(low, high, 0, count) for low, high, count, _ in BINS]
    for drawing in drawings(charts.confidences(CALIBRATION)):
        assert np.array(drawing.boxes()) == pytest.approx(np.array(counts), abs=1)


def test_dots_are_gold_and_predicted_values() -> None:
    values = [(1.0, 2.0), (4.0, 3.5), (2.5, 0.5)]
    for drawing in drawings(charts.scatter(values)):
        assert np.array(drawing.dots()) == pytest.approx(np.array(values), abs=0.03)
        assert np.array(drawing.line()) == pytest.approx(np.array([(1, 1), (4, 4)]), abs=0.03)


def test_bars_are_means_from_top_to_bottom() -> None:
    picture = charts.bars({"first": [0.5, 0.75], "second": [-0.25]})
    drawing = Drawing(ElementTree.fromstring(picture), ("second", "first"))
    bars = np.array([(-0.25, 0, -0.3, 0.3), (0, 0.625, 0.7, 1.3)])
    assert np.array(drawing.boxes()) == pytest.approx(bars, abs=0.01)
    dots = np.array([(-0.25, 0), (0.5, 1), (0.75, 1)])
    assert np.array(drawing.dots()) == pytest.approx(dots, abs=0.01)


def test_a_single_value_is_a_dot() -> None:
    assert charts.draw([charts.Curve("training", [4], [0.5])]).count("<circle") == len(charts.SIZES)
    assert "<circle" not in charts.draw([charts.Curve("training", [4, 8], [0.5, 1])])


def test_a_metric_without_values_is_an_empty_chart() -> None:
    """A correlation of equal numbers is not defined, so a run may have logged none."""
    curves = [charts.Curve("held out", [1, 2], [None, None], "second", dots=True)]
    assert "<svg" in charts.draw(curves)
    assert "<svg" in charts.draw(curves, percent=True, zero=True)

"""The report: complete from the run directory alone, self-contained, and safe with any text."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from html.parser import HTMLParser
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from bertworks.errors import DataError
from bertworks.inference.evaluate import Evaluation
from bertworks.reports.charts import Axis, Chart, Curve, draw
from bertworks.reports.facts import SMOOTHING_WINDOW, RunFacts, charts_of, smooth
from bertworks.reports.page import label, value
from bertworks.reports.report import write_evaluation_report, write_report
from bertworks.runs.run_directory import RunDirectory, read_run
from bertworks.settings.base import RUN_FORMAT
from bertworks.tasks.breakdown import Breakdown
from bertworks.tasks.summary import DataSummary, SplitSummary
from bertworks.utils.json_files import with_checksum

NASTY = "<script>alert('x')</script> & \"quoted\""


def _write_lines(file: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def _train(step: int, **losses: float | None) -> dict[str, Any]:
    return {
        "kind": "train",
        "step": step,
        "phase": "train",
        "epoch": 0,
        "loss": 1.0,
        "grad_norm": 1.0,
        "losses": losses,
        "lr": 1e-4,
        "tokens": 1000 * step,
        "examples": 10 * step,
        "time": {"seconds": 0.5 * step, "tokens_per_second": 2000.0},
    }


def _eval(step: int, **metrics: float) -> dict[str, Any]:
    return {
        "kind": "eval",
        "step": step,
        "tokens": 1000 * step,
        "metrics": metrics,
        "time": {"seconds": 0.5 * step},
    }


def _write_settings(run: Path, **settings: object) -> None:
    tree = {"format_version": RUN_FORMAT, **settings}
    (run / "settings.yaml").write_text(yaml.safe_dump(tree))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    directory = tmp_path / "run"
    directory.mkdir()
    _write_settings(directory, corpus=NASTY, seed=7)
    evaluation = _eval(
        40,
        loss=5.0,
        mlm_loss=4.321,
        mlm_accuracy=0.25,
        nsp_loss=0.6,
        nsp_accuracy=0.7,
        nsp_majority=0.6,
    )
    lines = [_train(step, mlm=9 - step / 10, nsp=0.6) for step in (10, 20, 30, 40)]
    _write_lines(directory / "journal.jsonl", [*lines, evaluation])
    start = {"event": "start", "time": "2026-01-02T03:04:05+00:00", "step": 0, "cpu": NASTY}
    _write_lines(directory / "sessions.jsonl", [start])
    (directory / "data.json").write_text(json.dumps({"documents": 12345, NASTY: {"x": NASTY}}))
    sample = {
        "text": f"{NASTY} [MASK] end",
        "answers": ["right"],
        "guesses": [[{"token": "wrong", "probability": 0.75}]],
    }
    (directory / "samples.json").write_text(json.dumps([sample]))
    return directory


class _Page(HTMLParser):
    """The tags and the visible text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data


def _charts(page: _Page) -> int:
    """How many charts there are, each drawn for a desktop and for a phone."""
    kinds = Counter(given["class"] for tag, given in page.tags if tag == "svg")
    assert kinds.keys() <= {"broad", "narrow"}
    assert kinds["broad"] == kinds["narrow"]
    return kinds["broad"]


@pytest.mark.long
def test_the_page_says_what_the_run_directory_says(run: Path) -> None:
    page = _Page(write_report(run).read_text(encoding="utf-8"))
    for words in (
        "4.321",
        "25.0 %",
        "70.0 %",
        "majority 60.0 %",
        "12,345",
        "seed: 7",
        "75 %",
        "wrong",
    ):
        assert words in page.words, words
    assert "right" in page.words, "the answer stands in its gap"
    assert _charts(page) == 6


@pytest.mark.long
def test_a_page_fetches_and_executes_nothing(run: Path) -> None:
    text = write_report(run).read_text(encoding="utf-8")
    page = _Page(text)
    assert NASTY in page.words
    assert not {"script", "link", "img", "iframe", "image"} & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        for name, content in attributes.items():
            assert not name.startswith("on")
            if name in ("href", "src", "xlink:href"):
                assert (content or "").startswith("#")
    assert not re.search(r"url\((?!#)", text)
    assert "@import" not in text


@pytest.mark.long
def test_a_page_is_the_same_every_time(run: Path) -> None:
    assert write_report(run).read_bytes() == write_report(run).read_bytes()


def test_report_of_a_run_without_steps_is_written(tmp_path: Path) -> None:
    _write_settings(tmp_path, seed=1)
    assert "No step has been logged" in write_report(tmp_path).read_text(encoding="utf-8")


@pytest.mark.long
def test_losses_and_metrics_that_were_not_finite(run: Path) -> None:
    """The journal writes null for them."""
    lines = [_train(10, mlm=None, nsp=0.5), _train(20, mlm=3.0, nsp=0.5), _eval(20, mlm_loss=2.0)]
    lines[-1]["metrics"]["mlm_perplexity"] = None
    _write_lines(run / "journal.jsonl", lines)
    assert "–" in _Page(write_report(run).read_text(encoding="utf-8")).words


def test_fine_tuning_has_its_metrics_too(run: Path) -> None:
    lines = [_train(10, classification=0.7), _eval(10, loss=0.6, accuracy=0.8, macro_f1=0.75)]
    _write_lines(run / "journal.jsonl", [*lines, _eval(20, loss=0.7, accuracy=0.9, macro_f1=0.85)])
    page = _Page(write_report(run).read_text(encoding="utf-8"))
    for said in ("Macro F1", "90.0 %", "85.0 %", "0.600"):
        assert said in page.words, said


@pytest.mark.parametrize(("metric", "step"), [(None, 20), ("loss", 10), ("accuracy", 20)])
def test_the_headline_is_of_the_weights_that_were_kept(
    run: Path, metric: str | None, step: int
) -> None:
    _write_settings(run, task="classification", best_metric=metric)
    scores = {10: (0.6, 0.8), 20: (0.7, 0.9), 30: (0.8, 0.9)}
    lines = [_eval(at, loss=loss, accuracy=score) for at, (loss, score) in scores.items()]
    _write_lines(run / "journal.jsonl", lines)
    page = _Page(write_report(run).read_text(encoding="utf-8"))
    assert f"held out, step {step}" in page.words


def test_the_headline_is_measured_as_the_model_was(run: Path) -> None:
    """The journal's evaluations may have been computed in bfloat16."""
    _write_settings(run, task="classification", best_metric="accuracy")
    _write_lines(run / "journal.jsonl", [_eval(10, accuracy=0.5), _eval(20, accuracy=0.25)])
    tree = {"data": "dev", "rows": 4, "metrics": {"accuracy": 0.515, "f1": None}, "notes": []}
    (run / "evaluation.json").write_text(json.dumps(with_checksum(tree)))
    words = _Page(write_report(run).read_text(encoding="utf-8")).words
    head = words[: words.index("Evaluations")]
    assert "51.5 %" in head
    assert "50.0 %" not in head
    assert "held out, step 10" in head


def test_headline_shows_tokens_time_and_speed(run: Path) -> None:
    lines = [_train(step, mlm=1.0) for step in (10, 20, 30)]
    for line, speed, share in zip(lines, (1000.0, 9000.0, 4000.0), (0.5, 0.0, 0.25), strict=True):
        line["time"] |= {"tokens_per_second": speed, "peak_share": share}
    _write_lines(run / "journal.jsonl", lines)
    words = _Page(write_report(run).read_text("utf-8")).words
    for said in ("Tokens30k300 rows", "Time15 sall sessions", "second4kmedian; 25% of matmul peak"):
        assert said in words, said
    assert "Matmul peak: " in words
    for line in lines:
        del line["time"]["peak_share"]
    _write_lines(run / "journal.jsonl", lines)
    words = _Page(write_report(run).read_text("utf-8")).words
    assert "second4kmedian" in words
    assert "peak" not in words


def test_each_session_is_listed(run: Path) -> None:
    page = _Page(write_report(run).read_text("utf-8"))
    assert f"UTCEventStep2026-01-02 03:04:05start0cpu {NASTY}" in page.words
    assert "started 2026-01-02 03:04:05 UTC" in page.words
    start = {"event": "start", "time": "2026-01-02T03:04:05+00:00", "cpu": "Xeon"}
    for device, machine in (("cpu", "Xeon"), ("H200", "H200")):
        _write_lines(run / "sessions.jsonl", [{**start, "device": device}])
        words = _Page(write_report(run).read_text("utf-8")).words
        assert f"started 2026-01-02 03:04:05 UTC · {machine}\n" in words
    note = {"event": "note", "time": "2026-01-02T03:05:06+00:00", "text": "as it is"}
    _write_lines(run / "sessions.jsonl", [note])
    assert "03:05:06noteas it is" in _Page(write_report(run).read_text("utf-8")).words
    (run / "sessions.jsonl").unlink()
    page = _Page(write_report(run).read_text("utf-8"))
    assert "sessions" not in {given.get("class") for _, given in page.tags}


def test_failures_before_the_last_start_are_not_shown(run: Path) -> None:
    time = "2026-01-02T03:04:05+00:00"
    start = {"event": "start", "time": time, "step": 0}
    failure = {"event": "failure", "time": time, "text": "the run learned nothing"}
    for sessions, is_shown in (
        ([start, failure], True),
        ([start, failure, start], False),
        ([start, start, failure], True),
    ):
        _write_lines(run / "sessions.jsonl", sessions)
        assert (
            RunFacts.read(RunDirectory(run)).failures == ["the run learned nothing"]
        ) is is_shown


@pytest.mark.parametrize(("count", "every"), [(1, 1), (30, 1), (31, 2), (95, 4)])
def test_many_evaluations_are_shown_at_even_intervals(run: Path, count: int, every: int) -> None:
    """Evenly, the last one among them."""
    lines = [_eval(step, loss=1000.0 * step) for step in range(1, count + 1)]
    _write_lines(run / "journal.jsonl", lines)
    words = _Page(write_report(run).read_text("utf-8")).words
    table = words[words.index("StepLoss") : words.index("Data")].removeprefix("StepLoss").strip()
    steps = range(count, 0, -every)
    assert table == "".join(f"{step}{1000 * step:,.1f}" for step in reversed(steps))
    assert len(steps) <= 30


def test_charts_of_a_run_have_its_curves(run: Path) -> None:
    curves = {}
    for chart in charts_of(RunFacts.read(read_run(run))):
        curves[chart.title] = {curve.name: list(curve.values) for curve in chart.curves}
        assert chart.is_percent == ("accuracy" in chart.title)
        assert chart.from_zero == (chart.title in ("Learning rate", "Tokens per second"))
    assert curves == {
        "MLM loss": {"training": [8.0, 7.0, 6.0, 5.0], "held out": [4.321]},
        "NSP loss": {"training": [0.6] * 4, "held out": [0.6]},
        "MLM accuracy": {"held out": [0.25]},
        "NSP accuracy": {"held out": [0.7], "majority": [0.6]},
        "Learning rate": {"": [1e-4] * 4},
        "Tokens per second": {"": [2000.0] * 4},
    }


def test_early_stopping_is_reported(run: Path) -> None:
    why = f"stopped early after step 40 of 90: {NASTY} was best"
    with (run / "journal.jsonl").open("a") as file:
        for reason in (why, "out of time"):
            file.write(json.dumps({"kind": "stop", "step": 40, "why": reason}) + "\n")
    assert (
        f"40 steps · {why}; out of time · started"
        in _Page(write_report(run).read_text("utf-8")).words
    )


def test_a_grid_is_no_run(run: Path) -> None:
    grid = run.parent
    _write_settings(grid, seed=1)
    (grid / "grid.json").write_text("{}")
    with pytest.raises(DataError, match=r"a grid of runs, not a run; its runs are run\. Give one"):
        write_report(grid)
    for number in range(20):
        (grid / f"run-{number:02d}").mkdir()
        (grid / f"run-{number:02d}" / "settings.yaml").touch()
    with pytest.raises(DataError, match=r"are run, run-00, .* run-10, and 9 more\. Give one"):
        write_report(grid)
    assert not (grid / "report.html").exists()


@pytest.mark.long
def test_fine_tuning_data_are_described(run: Path) -> None:
    table = {
        "name": "rows.tsv",
        "rows": 4000,
        "labels": {NASTY: 3000, "fine": 1000},
        "lengths": {"min": 3, "p50": 17, "p90": 30, "p95": 41, "p99": 88, "max": 301},
        "num_truncated_rows": 13,
        "num_truncated_tokens": 777,
        "tokens": 71234,
        "bin_width": 8,
        "length_histogram": [3000, 900, 100],
        "truncated_length_histogram": [0, 0, 13],
    }
    data = {
        "columns": "text = 'a'",
        "max_seq_length": 128,
        "train": table,
        "dev": None,
        "num_shared_rows": 2,
    }
    (run / "data.json").write_text(json.dumps(data))
    words = _Page(write_report(run).read_text(encoding="utf-8")).words
    for text in ("3,000 (75.0%)", "1,000 (25.0%)", "301", "777", "71,234", NASTY):
        assert text in words, text
    for text in ("Rows of train, by tokens", "13 rows truncated, by 777 tokens in total"):
        assert text in words, text


@pytest.mark.parametrize(("has_majority_baseline", "shares"), [(True, "60.0%"), (False, "150.0%")])
def test_shares_of_labels_are_those_of_the_summary(
    run: Path, has_majority_baseline: bool, shares: str
) -> None:
    """Of all tags in tagging, where a row has many; of rows where a row has a set of labels."""
    table = SplitSummary(
        name="t",
        rows=2,
        labels={"O": 3, "B-X": 2},
        lengths={"min": 1, "p50": 2, "p90": 2, "p95": 2, "p99": 2, "max": 4},
        num_truncated_rows=0,
        num_truncated_tokens=0,
        tokens=5,
        bin_width=1,
        length_histogram=[0, 2],
        truncated_length_histogram=[0, 0],
    )
    data = DataSummary("tags", has_majority_baseline, 8, table, None, 0)
    assert f"'O' 3 ({shares})" in " ".join(data.lines())
    (run / "data.json").write_text(json.dumps(asdict(data)))
    assert f"3 ({shares})" in _Page(write_report(run).read_text(encoding="utf-8")).words


def _evaluation_page(run: Path, **parts: Any) -> _Page:
    """The page of a run whose evaluation has these parts."""
    tree = {"data": NASTY, "rows": 250, "metrics": {}, "notes": [], "breakdown": parts}
    (run / "evaluation.json").write_text(json.dumps(with_checksum(tree)))
    return _Page(write_report(run).read_text(encoding="utf-8"))


MISTAKE = {"row": 37, "text": f"so {NASTY}", "gold": NASTY, "predicted": f"not {NASTY}"}


def test_mistakes_are_shown_with_their_text(run: Path) -> None:
    mark = [3, 3 + len(NASTY)]
    page = _evaluation_page(run, mistakes=[{**MISTAKE, "probability": 0.875, "mark": mark}])
    for said in ("Most confident mistakes", f"so {NASTY}", f"not {NASTY}", "87.5 %", "row 37"):
        assert said in page.words, said
    tags = [tag for tag, _ in page.tags]
    assert "mark" in tags
    assert "script" not in tags


@pytest.mark.long
def test_errors_of_numbers_are_shown(run: Path) -> None:
    page = _evaluation_page(
        run, mistakes=[{**MISTAKE, "error": 2.5}], values=[[1.0, 2.0], [3.0, 2.5]]
    )
    for said in ("Largest errors", "off by 2.5", "Predicted by gold value"):
        assert said in page.words, said
    assert _charts(page) == 7


def test_confusions_are_a_heat_map(run: Path) -> None:
    cells = [[0, 0, 30], [0, 1, 10], [1, 1, 1234]]
    page = _evaluation_page(
        run, confusion={"unit": "words", "labels": [NASTY, "b"], "cells": cells}
    )
    styles = [given["style"] for tag, given in page.tags if tag == "td" and "style" in given]
    assert styles == ["--share:0.750", "--share:0.250", "--share:1.000"]
    assert "1,234" in page.words
    assert f"the kept weights on {NASTY}, 250 rows" in page.words


def test_confusions_of_many_labels_are_a_list(run: Path) -> None:
    labels = [f"label {at}" for at in range(150)]
    cells = [[at, (at + 1) % 150, at + 1] for at in range(150)] + [[7, 7, 8]]
    page = _evaluation_page(run, confusion={"unit": "rows", "labels": labels, "cells": cells})
    assert "The most frequent of 150 confusions" in page.words
    assert "label 149label 0150100.0 %" in page.words
    assert "label 7label 88" not in page.words, "a rare one"
    classes = [attributes.get("class") for tag, attributes in page.tags if tag == "td"]
    numbers = "".join("n" if one == "number" else "-" for one in classes)
    assert 25 * "--nn" in numbers, "two names, a count and a share"


def test_scores_by_label_are_the_lowest_of_many(run: Path) -> None:
    rows = [
        {"name": f"kind {at}", "count": 10, "metrics": {"precision": 1, "f1": at / 100}}
        for at in range(60)
    ]
    table = {"grouping": "type", "unit": "spans", "rows": rows[:2]}
    page = _evaluation_page(run, tables=[table, {**table, "rows": rows}])
    assert "By type" in page.words
    assert "kind 110100.0 %1.0 %" in page.words
    assert "The 25 of 60 with the lowest F1" in page.words
    assert "kind 24" in page.words
    assert "kind 25" not in page.words


CALIBRATION = {
    "unit": "rows",
    "expected_error": 0.125,
    "confidence": 0.9,
    "accuracy": 0.775,
    "bins": [{"low": 0.8, "high": 0.9, "count": 44, "confidence": 0.85, "accuracy": 0.7}],
}


@pytest.mark.long
def test_calibration_is_shown(run: Path) -> None:
    page = _evaluation_page(run, calibration=CALIBRATION)
    for said in ("Mean confidence 90.0 %", "accuracy 77.5 %", "12.5 %", "80 to 90 %4485.0 %70.0 %"):
        assert said in page.words, said
    assert _charts(page) == 8


def test_a_page_shows_one_evaluation(tmp_path: Path) -> None:
    mistake = {**MISTAKE, "probability": 0.875}
    breakdown = Breakdown.parse({"mistakes": [mistake], "calibration": CALIBRATION}, where="here")
    found = Evaluation({"accuracy": 0.775, "majority": 0.5}, 250, [f"look: {NASTY}"], breakdown)
    file = write_evaluation_report(tmp_path / "page.html", found, model=NASTY, data="dev.tsv")
    page = _Page(file.read_text(encoding="utf-8"))
    for said in ("77.5 %", "majority 50.0 %", "dev.tsv, 250 rows", "row 37", f"look: {NASTY}"):
        assert said in page.words, said
    assert "script" not in {tag for tag, _ in page.tags}


def test_a_damaged_breakdown_is_refused(run: Path) -> None:
    with pytest.raises(DataError, match=r"evaluation\.json: holds no breakdown .*mistakes"):
        _evaluation_page(run, mistakes="none")


def test_the_text_of_charts_is_readable_on_a_phone_and_on_a_desktop() -> None:
    """Ten to thirteen CSS pixels, at the width that a card leaves a chart there."""
    for svg, width in zip(
        draw([Curve("", [1, 2], [2.0, 1.0])]).split("</svg>")[:2], (425, 302), strict=True
    ):
        view_box = re.search(r'viewBox="0 0 ([\d.]+)', svg)
        assert view_box is not None
        sizes = {float(size) for size in re.findall(r"font-size: ([\d.]+)px", svg)}
        assert all(10 <= size * width / float(view_box[1]) <= 13 for size in sizes), sizes
        assert sizes


@given(
    values=st.lists(
        st.none() | st.floats(-1e12, 1e12, allow_subnormal=False), min_size=1, max_size=30
    ).filter(lambda values: any(value is not None for value in values)),
    percent=st.booleans(),
    zero=st.booleans(),
)
def test_marks_and_labels_of_a_chart_are_inside_it(
    values: list[float | None], percent: bool, zero: bool
) -> None:
    steps = range(10, 10 * len(values) + 10, 10)
    if zero:
        values = [None if value is None else abs(value) for value in values]
    drawn = draw([Curve("<a> & b", steps, values, dots=True)] * 2, percent=percent, zero=zero)
    for svg in ElementTree.fromstring(f"<page>{drawn}</page>"):
        _, _, width, height = map(float, svg.attrib["viewBox"].split())
        for x, y in _coordinates(svg):
            assert 0 <= x <= width
            assert 0 <= y <= height
        labels = [text.text for text in svg.iter("text")]
        assert len(labels) >= 4
        assert labels.count("<a> & b") == 2


def _coordinates(svg: ElementTree.Element) -> Iterator[tuple[float, float]]:
    for line in svg.iter("polyline"):
        for point in line.attrib["points"].split():
            x, y = point.split(",")
            yield float(x), float(y)
    for names, tag in ((("x", "y"), "text"), (("cx", "cy"), "circle"), (("x2", "y2"), "line")):
        for element in svg.iter(tag):
            x, y = (element.attrib[name] for name in names)
            yield float(x), float(y)


@given(
    st.floats(-1e9, 1e9, allow_subnormal=False),
    st.floats(1e-6, 1e9),
    st.integers(2, 7),
    st.sampled_from(("number", "percent", "count")),
)
def test_labels_of_an_axis_are_round_and_distinct(
    low: float, span: float, most: int, kind: str
) -> None:
    high = low + max(span, 0.02 * abs(low), 1.0 if kind == "count" else 0)
    ticks = Axis(is_percent=kind == "percent", is_count=kind == "count").ticks(low, high, most)
    assert 1 <= len(ticks) <= most + 2
    margin = 1e-6 * (high - low)
    assert all(low - margin <= value <= high + margin for value, _ in ticks)
    steps = {f"{after - before:.3e}" for (before, _), (after, _) in pairwise(ticks)}
    assert len(steps) <= 1
    assert all(step.startswith(("1.000", "2.000", "5.000")) for step in steps)
    labels = [label for _, label in ticks]
    assert len(set(labels)) == len(labels), labels
    units = {"k": 1e3, "M": 1e6, "G": 1e9}
    for position, text in ticks:
        number = text.removesuffix(" %")
        unit = units.get(number[-1], 1)
        written = float(number.rstrip("kMG")) * unit / (100 if kind == "percent" else 1)
        assert written == pytest.approx(position, rel=6e-3, abs=1e-9)


def test_a_long_curve_keeps_its_extremes() -> None:
    values = [1.0] * 5000
    values[1234], values[4321] = 7.0, -3.0
    drawn = draw([Curve("", range(5000), values)])
    points = re.search(r'points="([^"]+)"', drawn)
    assert points is not None
    heights = [float(point.split(",")[1]) for point in points[1].split()]
    assert len(heights) <= 600
    chart = Chart(Axis(), Axis())
    chart.line([(0, 7.0), (1, -3.0)], "first")
    both = re.search(r'points="[\d.]+,([\d.]+) [\d.]+,([\d.]+)"', chart.svg())
    assert both is not None
    assert [min(heights), max(heights)] == [float(both[1]), float(both[2])]


def test_a_training_curve_is_drawn_strongly_where_it_is_alone(run: Path) -> None:
    """A mean over single values would hide the curve that it is of."""
    for count, names in ((SMOOTHING_WINDOW, ["training"]), (60, ["training", "smoothed"])):
        steps = range(10, 10 * count + 10, 10)
        _write_lines(run / "journal.jsonl", [_train(step, mlm=1 / step) for step in steps])
        chart = next(charts_of(RunFacts.read(read_run(run))))
        assert [curve.name for curve in chart.curves] == names
        assert chart.curves[-1].colour == "first"


@pytest.mark.parametrize("theme", [0, 1])
def test_every_curve_has_enough_contrast(theme: int) -> None:
    """Graphics need a contrast of 3 (WCAG 2.1, 1.4.11), in the light theme and the dark one."""
    template = (files("bertworks.reports") / "template.html").read_text(encoding="utf-8")
    blocks = re.findall(r":root \{(.*?)\}", template, flags=re.DOTALL)
    colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", blocks[theme]))
    for name in ("first", "second", "third", "faint"):
        assert _contrast(colours[name], colours["card"]) >= 3, name


def _contrast(one: str, other: str) -> float:
    """Of two colours, by WCAG 2.1's definition."""

    def luminance(colour: str) -> float:
        shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (
            share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4
            for share in shares
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_a_missing_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no run"):
        write_report(tmp_path / "nothing")


def test_smoothing_keeps_a_constant_and_skips_gaps() -> None:
    assert smooth([2.0] * 100) == pytest.approx([2.0] * 100)
    assert smooth([None, 3.0, None]) == [None, 3.0, 3.0]
    ramp = [float(n) for n in range(200)]
    curve = smooth(ramp)
    assert all(earlier < later for earlier, later in pairwise(curve))
    assert curve[100] == pytest.approx(96, abs=2)


def test_names_and_values_as_people_write_them() -> None:
    assert label("mlm_accuracy") == "MLM accuracy"
    assert label("macro_f1") == "Macro F1"
    assert [value(x) for x in (True, None, 12345, 0.00021, ["a", 1], "t")] == [
        "yes",
        "–",
        "12,345",
        "0.00021",
        "a, 1",
        "t",
    ]

"""What an evaluation's metrics are made of, as sections of a page (see `tasks.breakdown`)."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from ...tasks.breakdown import Breakdown, Calibration, Confusion, Mistake, ScoreTable
from . import charts, diagrams, page

MOST_LABELS = 20
"""Of a confusion matrix; of more, the commonest confusions are listed."""

MOST_ROWS = 25


def sections(breakdown: Breakdown, of: str) -> Iterator[str]:
    """The sections of a breakdown; `of` says what was measured."""
    if breakdown.confusion is not None:
        yield page.section("Confusions", _confusion(breakdown.confusion, of))
    for table in breakdown.tables:
        yield page.section(f"By {table.by}", _scores(table))
    if breakdown.calibration is not None:
        yield page.section("Calibration", _calibration(breakdown.calibration))
    if breakdown.values:
        yield page.section("Gold and predicted", _values(breakdown))
    if breakdown.mistakes:
        worst = breakdown.mistakes[0]
        heading = "Mistakes" if worst.probability is None else "The most confident mistakes"
        if worst.error is not None:
            heading = "The largest errors"
        elif worst.margin is not None:
            heading = "Queries with a wrong text nearest"
        yield page.section(heading, _mistakes(breakdown))


def _confusion(confusion: Confusion, of: str) -> str:
    names, cells = confusion.labels, confusion.cells
    totals = [0] * len(names)
    for true, _, count in cells:
        totals[true] += count
    if len(names) > MOST_LABELS:
        wrong = sorted((cell for cell in cells if cell[0] != cell[1]), key=lambda cell: -cell[2])
        rows = [
            (names[true], names[told], f"{count:,}", _percent(count / totals[true]))
            for true, told, count in wrong[:MOST_ROWS]
        ]
        columns = ("True", "Told", confusion.counted.capitalize(), "Of the true ones")
        said = f"The commonest of {len(wrong):,} confusions; {of}."
        return page.paragraph(said) + page.table(columns, rows, numbers=2)
    counts = {(true, told): count for true, told, count in cells}
    lines = []
    for true, name in enumerate(names):
        told = "".join(
            _cell(counts.get((true, at), 0), totals[true], is_right=at == true)
            for at in range(len(names))
        )
        lines.append(f'<tr><th scope="row">{escape(name)}</th>{told}</tr>')
    upright = " upright" if len(names) > 4 else ""
    heads = "".join(f'<th scope="col"><span>{escape(name)}</span></th>' for name in names)
    table = (
        f'<table class="heat{upright}"><thead><tr><th>gold ↓ predicted →</th>{heads}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table>"
    )
    said = f"{confusion.counted.capitalize()} by gold and predicted label: {of}."
    return page.paragraph(said) + f'<div class="wide">{table}</div>'


def _cell(count: int, total: int, *, is_right: bool) -> str:
    share = count / total if total else 0.0
    kind = ("right" if is_right else "wrong") if count else "soft"
    style = f' style="--share:{share:.3f}"' if count else ""
    return f'<td class="{kind}"{style} title="{_percent(share)}">{count:,}</td>'


def _scores(table: ScoreTable) -> str:
    rows = list(table.rows)
    said = ""
    if len(rows) > MOST_ROWS and "f1" in rows[0].metrics:
        rows = sorted(rows, key=lambda row: row.metrics["f1"])[:MOST_ROWS]
        said = page.paragraph(f"The {MOST_ROWS} of {len(table.rows)} with the lowest F1.")
    metrics = list(rows[0].metrics) if rows else []
    lines = [
        (row.name, f"{row.count:,}", *(page.metric(key, row.metrics[key]) for key in metrics))
        for row in rows
    ]
    columns = ("", table.counted.capitalize(), *map(page.label, metrics))
    return said + page.table(columns, lines, numbers=len(columns) - 1)


def _calibration(calibration: Calibration) -> str:
    rows = [
        (
            f"{100 * one.low:.0f} to {100 * one.high:.0f} %",
            f"{one.count:,}",
            _percent(one.confidence),
            _percent(one.accuracy),
        )
        for one in calibration.bins
    ]
    counted = calibration.counted.capitalize()
    table = page.table(("Probability", counted, "Mean", "Right"), rows, numbers=3)
    said = page.paragraph(
        f"{_percent(calibration.confidence)} sure on average, "
        f"{_percent(calibration.accuracy)} right. Expected calibration error: "
        f"{_percent(calibration.expected_error)}, over bins of probability (Guo et al. 2017)."
    )
    if not charts.can_draw():
        return said + table
    drawn = page.chart(
        "Right, by probability",
        diagrams.reliability(calibration),
        "a bar under the line: surer than right",
    ) + page.chart(f"{counted}, by probability", diagrams.confidences(calibration))
    return said + f'<div class="charts">{drawn}</div>' + page.folded("As a table", table)


def _values(breakdown: Breakdown) -> str:
    if not charts.can_draw():
        return ""
    drawn = page.chart(
        "Told, by true",
        diagrams.scatter(breakdown.values),
        f"{len(breakdown.values):,} rows; on the line they are equal",
    )
    return f'<div class="charts">{drawn}</div>'


def _mistakes(breakdown: Breakdown) -> str:
    items = "".join(
        f'<li><div class="fill">{_marked(mistake)}</div>{_verdict(mistake)}</li>'
        for mistake in breakdown.mistakes
    )
    return f'<ol class="mistakes">{items}</ol>'


def _marked(mistake: Mistake) -> str:
    text = mistake.text
    if mistake.mark is None:
        return escape(text)
    start, end = mistake.mark
    return f"{escape(text[:start])}<mark>{escape(text[start:end])}</mark>{escape(text[end:])}"


def _verdict(mistake: Mistake) -> str:
    how = "" if mistake.probability is None else _percent(mistake.probability)
    if mistake.error is not None:
        how = f"off by {mistake.error:.3g}"
    elif mistake.margin is not None:
        how = f"nearer by {mistake.margin:.3g}"
    place = escape(mistake.where or f"row {mistake.row:,}")
    lines = (
        ("predicted", ' class="wrong"', mistake.told, how),
        ("gold", "", mistake.truth, place),
    )
    shown = "".join(
        f"<dt>{name}</dt><dd><b{kind}>{escape(answer)}</b> "
        f'<span class="soft small">{note}</span></dd>'
        for name, kind, answer, note in lines
    )
    return f'<dl class="verdict">{shown}</dl>'


def _percent(share: float) -> str:
    return page.metric("share", share)

"""Sections of a page: the breakdown of an evaluation (see `tasks.breakdown`), statistics of the
tables of a fine-tuning run, and sample fill-ins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from ..tasks.breakdown import (
    CROSS_FITTED_STAGE,
    PROBABILITY_STAGES,
    Breakdown,
    Calibration,
    Confusion,
    Mistake,
    ScoreTable,
)
from ..tasks.dev_share import DevShare
from ..utils.formatting import format_count
from . import charts, page

MAX_LABELS = 20
"""The maximum size of a confusion matrix; with more labels, the most frequent confusions are
listed."""

MAX_ROWS = 25


def sections(breakdown: Breakdown, caption: str) -> Iterator[str]:
    """Yield the sections of a breakdown; `caption` describes the evaluation."""
    if breakdown.confusion is not None:
        yield page.section("Confusions", _confusion(breakdown.confusion, caption))
    for table in breakdown.tables:
        yield page.section(f"By {table.grouping}", _scores(table))
    if breakdown.calibration is not None:
        yield page.section("Calibration", _calibration(breakdown.calibration))
    if breakdown.values:
        yield page.section("Gold and predicted", _values(breakdown))
    if breakdown.mistakes:
        worst = breakdown.mistakes[0]
        heading = "Mistakes" if worst.probability is None else "Most confident mistakes"
        if worst.error is not None:
            heading = "Largest errors"
        elif worst.margin is not None:
            heading = "Queries whose nearest text is wrong"
        yield page.section(heading, _mistakes(breakdown))


def _confusion(confusion: Confusion, caption: str) -> str:
    names, cells = confusion.labels, confusion.cells
    totals = [0] * len(names)
    for gold, _, count in cells:
        totals[gold] += count
    if len(names) > MAX_LABELS:
        wrong = sorted((cell for cell in cells if cell[0] != cell[1]), key=lambda cell: -cell[2])
        rows = [
            (names[gold], names[predicted], f"{count:,}", _percent(count / totals[gold]))
            for gold, predicted, count in wrong[:MAX_ROWS]
        ]
        columns = ("Gold", "Predicted", confusion.unit.capitalize(), "Share of gold label")
        sentence = f"The most frequent of {len(wrong):,} confusions; {caption}."
        return page.paragraph(sentence) + page.table(columns, rows, numbers=2)
    counts = {(gold, predicted): count for gold, predicted, count in cells}
    lines = []
    for gold, name in enumerate(names):
        cells_of_row = "".join(
            _cell(counts.get((gold, at), 0), totals[gold], is_right=at == gold)
            for at in range(len(names))
        )
        lines.append(f'<tr><th scope="row">{escape(name)}</th>{cells_of_row}</tr>')
    upright = " upright" if len(names) > 4 else ""
    heads = "".join(f'<th scope="col"><span>{escape(name)}</span></th>' for name in names)
    table = (
        f'<table class="heat{upright}"><thead><tr><th>gold ↓ predicted →</th>{heads}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table>"
    )
    unit = confusion.unit
    sentence = (
        f"{unit.capitalize()} by label in the data (gold, one line each) and predicted label "
        f"(one column each): {caption}."
    )
    legend = (
        f'<p class="soft small legend"><span class="key right"></span> correct '
        f'<span class="key wrong"></span> mispredicted; the stronger the colour, the larger the '
        f"share of the gold label's {unit}</p>"
    )
    return page.paragraph(sentence) + f'<div class="wide">{table}</div>{legend}'


def _cell(count: int, total: int, *, is_right: bool) -> str:
    share = count / total if total else 0.0
    kind = ("right" if is_right else "wrong") if count else "soft"
    style = f' style="--share:{share:.3f}"' if count else ""
    return f'<td class="{kind}"{style} title="{_percent(share)}">{count:,}</td>'


def _scores(table: ScoreTable) -> str:
    rows = list(table.rows)
    note = ""
    if len(rows) > MAX_ROWS and "f1" in rows[0].metrics:
        rows = sorted(rows, key=lambda row: row.metrics["f1"])[:MAX_ROWS]
        note = page.paragraph(f"The {MAX_ROWS} of {len(table.rows)} with the lowest F1.")
    metrics = list(rows[0].metrics) if rows else []
    lines = [
        (row.name, f"{row.count:,}", *(page.metric(key, row.metrics[key]) for key in metrics))
        for row in rows
    ]
    if table.grouping == PROBABILITY_STAGES and rows[-1].name == CROSS_FITTED_STAGE:
        note = page.paragraph(
            "The calibration was fitted on these rows, on which it looks better than it is. "
            "Cross-fitted: each fifth of the rows by a calibration fitted on the others."
        )
    columns = ("", table.unit.capitalize(), *map(page.label, metrics))
    return note + page.table(columns, lines, numbers=len(columns) - 1)


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
    unit = calibration.unit.capitalize()
    table = page.table(("Probability", unit, "Confidence", "Accuracy"), rows, numbers=3)
    summary = page.paragraph(
        f"Mean confidence {_percent(calibration.confidence)}, "
        f"accuracy {_percent(calibration.accuracy)}. Expected calibration error: "
        f"{_percent(calibration.expected_error)}, over bins of probability (Guo et al. 2017)."
    )
    both_charts = page.chart(
        "Accuracy by confidence",
        charts.reliability(calibration),
        "a bar below the line: overconfident",
    ) + page.chart(f"{unit} by confidence", charts.confidences(calibration))
    return summary + f'<div class="charts">{both_charts}</div>' + page.details("As a table", table)


def _values(breakdown: Breakdown) -> str:
    chart = page.chart(
        "Predicted by gold value",
        charts.scatter(breakdown.values),
        f"{format_count(len(breakdown.values), 'row')}; on the line, predicted equals gold",
    )
    return f'<div class="charts">{chart}</div>'


def _mistakes(breakdown: Breakdown) -> str:
    items = "".join(
        f'<li><div class="fill">{_mark_text(mistake)}</div>{_verdict(mistake)}</li>'
        for mistake in breakdown.mistakes
    )
    return f'<ol class="mistakes">{items}</ol>'


def _mark_text(mistake: Mistake) -> str:
    text = mistake.text
    if mistake.mark is None:
        return escape(text)
    start, end = mistake.mark
    return f"{escape(text[:start])}<mark>{escape(text[start:end])}</mark>{escape(text[end:])}"


def _verdict(mistake: Mistake) -> str:
    detail = "" if mistake.probability is None else _percent(mistake.probability)
    if mistake.error is not None:
        detail = f"off by {mistake.error:.3g}"
    elif mistake.margin is not None:
        detail = f"nearer by {mistake.margin:.3g}"
    place = escape(mistake.where or f"row {mistake.row:,}")
    lines = (
        ("predicted", ' class="wrong"', mistake.predicted, detail),
        ("gold", "", mistake.gold, place),
    )
    entries = "".join(
        f"<dt>{name}</dt><dd><b{kind}>{escape(answer)}</b> "
        f'<span class="soft small">{note}</span></dd>'
        for name, kind, answer, note in lines
    )
    return f'<dl class="verdict">{entries}</dl>'


def _percent(share: float) -> str:
    return page.metric("share", share)


_LENGTHS = ("min", "p50", "p90", "p95", "p99", "max")


def labelled_data(data: Mapping[str, Any]) -> str:
    """For each table: rows per label, tokens per row, and the truncated rows and tokens."""
    tables = {name: data[name] for name in ("train", "dev") if data.get(name)}
    rest = {key: item for key, item in data.items() if key not in ("train", "dev")}
    sizes = [
        (
            name,
            page.value(table["rows"]),
            page.value(table["tokens"]),
            *(page.value(table["lengths"][length]) for length in _LENGTHS),
            f"{table['num_truncated_rows']:,}",
            f"{table['num_truncated_tokens']:,}",
        )
        for name, table in tables.items()
    ]
    if (split := rest.pop("split", None)) is not None:
        rest["dev"] = DevShare(**split).description
    columns = ("", "Rows", "Tokens", *_LENGTHS, "Truncated rows", "Truncated tokens")
    if "num_shared_rows" in rest:
        shared = rest.pop("num_shared_rows")
        rest["dev rows that are also in train"] = shared
    # As in `DataSummary.lines`: a row of several labels has a share of rows for each.
    of_rows = not data.get("has_majority_baseline", True)
    balance = [
        (label, *(_share(table, label, of_rows=of_rows) for table in tables.values()))
        for label in sorted(tables["train"]["labels"], key=tables["train"]["labels"].get)[::-1]
    ]
    return "".join(
        (
            page.table(columns, sizes, numbers=len(columns) - 1),
            page.paragraph("min to max: tokens per row before truncation."),
            _histograms(tables),
            page.subheading("Labels") if balance else "",
            page.table(("", *tables), balance, numbers=len(tables)) if balance else "",
            page.facts(rest),
        )
    )


def _histograms(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Histograms of rows by length."""
    histograms = (
        page.chart(
            f"Rows of {name}, by tokens",
            charts.lengths(
                table["bin_width"], table["length_histogram"], table["truncated_length_histogram"]
            ),
            f"{format_count(table['num_truncated_rows'], 'row')} truncated, by "
            f"{format_count(table['num_truncated_tokens'], 'token')} in total"
            if table["num_truncated_rows"]
            else "no row is truncated",
        )
        for name, table in tables.items()
    )
    return f'<div class="charts">{"".join(histograms)}</div>'


def _share(table: Mapping[str, Any], label: str, *, of_rows: bool) -> str:
    """How often a label occurs, and its share: of the rows, or of all labels (tags of words)."""
    count = table["labels"].get(label, 0)
    total = table["rows"] if of_rows else sum(table["labels"].values())
    return f"{count:,} ({count / max(total, 1):.1%})"


MASK = "[MASK]"


def fill_ins(samples: Sequence[Mapping[str, Any]]) -> str:
    """A table of samples: the text with the answers marked, and the most probable pieces."""
    rows = "".join(
        f'<tr><td class="fill">{_text(sample)}</td><td>{_guesses(sample)}</td></tr>'
        for sample in samples
    )
    if not rows:
        return ""
    head = "<thead><tr><th>Held-out text</th><th>Most probable pieces</th></tr></thead>"
    return f'<div class="wide"><table class="samples">{head}<tbody>{rows}</tbody></table></div>'


def _text(sample: Mapping[str, Any]) -> str:
    parts = str(sample["text"]).split(MASK)
    answers, guesses = sample["answers"], sample["guesses"]
    out = [escape(parts[0])]
    for number, part in enumerate(parts[1:]):
        answer = answers[number] if number < len(answers) else None
        best = guesses[number][0]["token"] if number < len(guesses) and guesses[number] else ""
        kind = "gap" if answer is None or answer == best else "gap miss"
        out.append(f'<span class="{kind}">{escape(best if answer is None else answer)}</span>')
        out.append(escape(part))
    return "".join(out)


def _guesses(sample: Mapping[str, Any]) -> str:
    lines = []
    for guesses in sample["guesses"]:
        pieces = "".join(
            f"<span>{escape(str(guess['token']))} "
            f'<span class="soft">{100 * guess["probability"]:.0f} %</span></span>'
            for guess in guesses
        )
        lines.append(f'<div class="guesses">{pieces}</div>')
    return "".join(lines)

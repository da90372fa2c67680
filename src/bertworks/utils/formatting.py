"""Numbers, durations, lines and tables as text for people."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence


def format_number(number: float) -> str:
    """A number in three digits: 950, 12.3k, 1.2M."""
    for size, mark in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * size:  # else three digits of the smaller unit would be 1,000
            return f"{number / size:.3g}{mark}"
    return f"{number:.3g}"


def format_metrics(metrics: Mapping[str, float], notes: Sequence[str] = ()) -> str:
    """Format metrics and notes on one line."""
    shown = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items()) or "not measured"
    return "; ".join([shown, *notes])


def format_count(number: int, noun: str) -> str:
    """A number with its noun: 1 document, 2 documents, 3 matches, 4 queries."""
    if noun.endswith("y") and noun[-2] not in "aeiou":
        plural = f"{noun[:-1]}ies"
    else:
        plural = f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def html_facts(title: str, facts: Mapping[str, object], notes: Sequence[str] = ()) -> str:
    """Names and values as HTML, for notebooks; numbers have four digits."""
    import html

    rows = "".join(
        f"<tr><th style='text-align:left'>{html.escape(name)}</th><td style='text-align:left'>"
        f"{html.escape(f'{value:.4g}' if isinstance(value, float) else str(value))}</td></tr>"
        for name, value in facts.items()
    )
    below = "".join(f"<p>{html.escape(note)}</p>" for note in notes)
    return f"<p><b>{html.escape(title)}</b></p><table>{rows}</table>{below}"


def format_duration(seconds: float) -> str:
    """A span of time: 4.2 s, 48 s, 3 min 20 s, 2 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def format_clock(seconds: float | None) -> str:
    """A span of time as a clock shows it: 0:42, 12:05, 3:07:00, 2d 04h; -:-- if it is not known."""
    if seconds is None:
        return "-:--"
    whole = int(max(0.0, seconds))
    if whole >= 2 * 365 * 86400:
        return f"{whole // (365 * 86400):,} years"
    if whole >= 86400:
        return f"{whole // 86400}d {whole % 86400 // 3600:02d}h"
    hours, minutes = whole // 3600, whole % 3600 // 60
    if hours:
        return f"{hours}:{minutes:02d}:{whole % 60:02d}"
    return f"{minutes}:{whole % 60:02d}"


def escape_surrogates(name: str) -> str:
    """Return a text that can be encoded as UTF-8.

    A lone surrogate, as in a file name that is not UTF-8, becomes an escape such as `\\udcff`, as
    in JSON.
    """
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def wrap_text(text: str, width: int = 80) -> str:
    """Text whose lines are no wider than a terminal; continued lines are indented by four columns.

    Words are not broken, so that paths and settings can be copied.
    """
    lines: list[str] = []
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        lines += textwrap.wrap(
            line,
            width,
            subsequent_indent=f"{indent}    ",
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return "\n".join(lines)


def markdown_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: int = 0
) -> list[str]:
    """Return a table's lines in Markdown; the last `numbers` columns are right-aligned."""
    rule = ["---"] * (len(columns) - numbers) + ["--:"] * numbers
    return [f"| {' | '.join(cells)} |" for cells in (columns, rule, *rows)]

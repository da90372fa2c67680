"""A page about labels that are probably wrong."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ..tasks.breakdown import excerpt
from ..tasks.label_check import CheckedLabel, LabelCheck
from ..utils.atomic_writes import write_file
from . import page

MAX_ROWS = 500


def write_label_report(
    file: str | os.PathLike[str], result: LabelCheck, *, model: str, data: str
) -> Path:
    """Write a page about the labels of a table, and return its path.

    Args:
        file: the page; replaced if it exists.

    Raises:
        OutputError: the page cannot be written.
    """
    suspects = result.suspects
    percent = page.metric("share", len(suspects) / len(result.rows))
    figures = [
        page.Figure("Suspect labels", f"{len(suspects):,}", f"{percent} of the rows"),
        page.Figure("Conflicts", f"{len(result.conflicts):,}", "texts with different labels"),
        page.Figure("Misspellings", f"{len(result.misspellings):,}", "labels"),
        page.Figure("Accuracy", page.metric("accuracy", result.accuracy), "on rows left out"),
    ]
    more, more_conflicts = (
        f" The first {MAX_ROWS} are shown." if len(rows) > MAX_ROWS else ""
        for rows in (suspects, result.conflicts)
    )
    note = page.paragraph(
        "Another class is more probable than is usual for its rows, for a classifier that was not "
        f"trained on the row; the least probable label first.{more}"
    )
    body = [
        page.headline(figures),
        *map(page.paragraph, result.notes),
        page.section("Suspect labels", note, _rows(suspects[:MAX_ROWS])) if suspects else "",
        page.section(
            "Nearly the same text, different labels",
            page.paragraph(more_conflicts.strip()) if more_conflicts else "",
            *map(_rows, result.conflicts[:MAX_ROWS]),
        ),
        _misspellings(result) if result.misspellings else "",
    ]
    text = page.page(
        data, [f"Labels checked with {model}"], filter(None, body), "Made by bertworks."
    )
    write_file(file, text)
    return Path(file)


def _rows(rows: Sequence[CheckedLabel]) -> str:
    lines = [
        (
            f"{row.number:,}",
            excerpt(row.text)[0],
            row.label,
            row.predicted,
            page.metric("share", row.label_probability),
            page.metric("share", row.predicted_probability),
        )
        for row in rows
    ]
    columns = ("Row", "Text", "Label", "Predicted", "Label's probability", "Predicted probability")
    return page.table(columns, lines, numbers=2)


def _misspellings(result: LabelCheck) -> str:
    lines = [
        (name, other, f"{count:,}", f"{other_count:,}")
        for name, count, other, other_count in result.misspellings
    ]
    columns = ("Label", "Perhaps", "Rows", "Rows of the other")
    return page.section("Labels that may be misspelt", page.table(columns, lines, numbers=2))

"""Display for users: progress on standard error, results on standard output, in 80 columns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from ..utils.formatting import format_count, wrap_text
from ..utils.json_files import to_json as json_of

if TYPE_CHECKING:
    from ..data.reading import ReadCounts
    from ..tasks.breakdown import Breakdown
    from ..tasks.task import DisplayValue


@contextmanager
def stopwatch() -> Iterator[Callable[[], float]]:
    """Seconds since the start of the block; at least a microsecond, so that rates are finite."""
    start = time.perf_counter()
    yield lambda: max(time.perf_counter() - start, 1e-6)


def facts(rows: Mapping[str, Any]) -> None:
    """Print names and values, one per line."""
    width = max([10, *map(len, rows)])
    for name, value in rows.items():
        typer.echo(f"  {name:<{width}}  {value}")


def notes(lines: Iterable[str]) -> None:
    """Print notes."""
    for line in lines:
        typer.echo(wrap_text(f"  {line}"))


def metrics(values: Mapping[str, float | None]) -> None:
    """Print a table of metrics."""
    if values:
        table(("metric", "value"), list(values.items()), right="value")


def evaluation_facts(breakdown: Breakdown, report: Path | None) -> dict[str, Any]:
    """An evaluation's calibration and report in addition to its metrics, for `facts`."""
    facts_by_name = {"calibration": breakdown.calibration, "report": report}
    return {name: value for name, value in facts_by_name.items() if value is not None}


def predictions(
    rows: Iterable[tuple[Mapping[str, Any], dict[str, Any]]],
    display_values: Callable[[dict[str, Any]], list[DisplayValue] | None],
) -> None:
    """Print predictions for users: each with its probability and text, in tables of 1,000 rows."""
    rows = iter(rows)
    while some := list(islice(rows, 1000)):
        lines: list[tuple[Any, Any, str]] = []
        for row, prediction in some:
            text = " | ".join(" ".join(str(part).split()) for part in row.values())
            answers = display_values(prediction)
            if answers is None:
                as_json({**row, **prediction})
            for what, probability in answers or ([("none", None)] if answers == [] else []):
                lines.append((what, "" if probability is None else probability, text))
        if lines:
            columns = ("prediction", "probability", "text")
            table(columns, lines, right="probability", truncate="text")


def read_counts(counts: ReadCounts) -> None:
    """Print what a user should know about the reading of a corpus: dropped and skipped input."""
    num_excluded = len(counts.excluded_documents)
    rows = [
        ("duplicates", f"{counts.duplicates:,} documents dropped", counts.duplicates),
        ("excluded", f"{num_excluded:,} documents share text with --exclude's files", num_excluded),
        ("left out", f"{format_count(counts.left_out, 'document')}, by weight", counts.left_out),
        ("empty", format_count(counts.empty, "document"), counts.empty),
        (
            "split",
            f"{counts.num_splits:,} times: a very long document was split",
            counts.num_splits,
        ),
    ]
    facts({name: text for name, text, count in rows if count})
    for kind, count in counts.num_skipped_by_kind.items():
        typer.echo(f"  skipped {count:,} × {kind}; the first: {counts.first_skipped[kind]}")


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    right: str | Sequence[str] = "",
    truncate: str = "",
) -> None:
    """Print a plain table.

    Args:
        rows: the cells, converted to strings here; floats get four decimals.
        right: the headings of right-aligned columns; in a string, separated by spaces.
        truncate: the heading of the column whose cells are truncated if a line is too long.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    to_the_right = right.split() if isinstance(right, str) else right
    rich_table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        justify: Literal["left", "right"] = "right" if name in to_the_right else "left"
        rich_table.add_column(name, justify=justify, no_wrap=truncate not in {"", name})
    for row in rows:
        cells = zip(columns, row, strict=True)
        rich_table.add_row(
            *(
                Text(number(cell), no_wrap=name == truncate or None, overflow="ellipsis")
                for name, cell in cells
            )
        )
    Console().print(rich_table)


def number(value: Any) -> str:
    """Format a value for users."""
    if isinstance(value, float):
        return f"{value:.4f}"
    return str(value)


def as_json(value: Any) -> None:
    """Print a JSON document on one line."""
    typer.echo(json_of(value))

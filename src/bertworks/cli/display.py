"""Results for users, on standard output: as text in 80 columns, or as JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import typer

from ..utils.formatting import wrap_text
from ..utils.json_files import to_json
from .option_groups import OptionGroup


class Display:
    """Prints the results of a verb: `json` what is asked for with --json, all else without it.

    Args:
        as_json: whether JSON is asked for.
    """

    def __init__(self, *, as_json: bool = False) -> None:
        self._as_json = as_json

    def json(self, value: Any) -> None:
        """Print a result as a JSON document on one line."""
        if self._as_json:
            typer.echo(to_json(value))

    def text(self, *lines: str) -> None:
        """Print lines."""
        if not self._as_json:
            for line in lines:
                typer.echo(line)

    def status(self, line: str) -> None:
        """Print a line about the work, on standard error; also with --json."""
        typer.echo(line, err=True)

    def facts(self, rows: Mapping[str, Any]) -> None:
        """Print names and values, one per line; those that are None are left out."""
        rows = {name: value for name, value in rows.items() if value is not None}
        width = max([10, *map(len, rows)])
        self.text(*(f"  {name:<{width}}  {value}" for name, value in rows.items()))

    def notes(self, lines: Iterable[str]) -> None:
        """Print notes."""
        self.text(*(wrap_text(f"  {line}") for line in lines))

    def metrics(self, values: Mapping[str, float | None]) -> None:
        """Print a table of metrics."""
        if values:
            self.table(("metric", "value"), list(values.items()), right="value")

    def table(
        self,
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
        if self._as_json:
            return
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
            cells = [f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in row]
            rich_table.add_row(
                *(
                    Text(cell, no_wrap=name == truncate or None, overflow="ellipsis")
                    for name, cell in zip(columns, cells, strict=True)
                )
            )
        Console().print(rich_table)


def _json_option(*, json: bool = False) -> Display:
    """The display of a verb with `--json`.

    Args:
        json: Print JSON.
    """
    return Display(as_json=json)


JsonDisplay = Annotated[Display, OptionGroup(_json_option)]


def _no_option() -> Display:
    return Display()


TextDisplay = Annotated[Display, OptionGroup(_no_option)]


@contextmanager
def stopwatch() -> Iterator[Callable[[], float]]:
    """Seconds since the start of the block; at least a microsecond, so that rates are finite."""
    start = time.perf_counter()
    yield lambda: max(time.perf_counter() - start, 1e-6)

"""The texts that a verb reads: from the command line, from standard input, or from a file."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Annotated

import typer

from ..data.reading import MAX_LINE_BYTES, Reading
from ..errors import DataError

Texts = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TEXT]…", help="Texts; - reads lines from standard input."),
]
Column = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Text column, by name or number; detected if omitted."),
]
Pair = Annotated[str | None, typer.Option(metavar="TEXT", help="Second text, for tasks on pairs.")]
RequiredTexts = Annotated[
    list[str], typer.Argument(metavar="TEXT…", help="Texts; - reads lines from standard input.")
]


def check_source(
    ctx: typer.Context, texts: list[str] | None, data: str | None, **table_options: object
) -> None:
    """Check that a verb gets either texts or a file, and a table's options only with a file.

    Args:
        table_options: the options that need a file; None: not given.
    """
    if bool(texts) == (data is not None):
        ctx.fail("Give either texts or --data FILE.")
    if data is None and any(value is not None for value in table_options.values()):
        *names, last = (f"--{name}" for name in table_options)
        ctx.fail(f"{', '.join(names)} and {last} need --data FILE.")
    for text in texts or ():
        require_text(text)


def require_text(text: str) -> None:
    """Raise DataError for an empty text on the command line."""
    if not text.strip():
        raise DataError("empty text", fix="Put the text in quotes.")


def lines_of(
    texts: Iterable[str], *, encoding: str = "utf-8", max_line_bytes: int = MAX_LINE_BYTES
) -> Iterator[str]:
    """Yield the texts; `-` is replaced by the lines of standard input, read as they arrive."""
    reading = Reading(encoding=encoding, max_line_bytes=max_line_bytes)
    for text in texts:
        if text == "-":
            from ..data.lines import decode_lines

            for _, line in decode_lines(sys.stdin.buffer, "standard input", reading):
                yield line.rstrip("\r\n")
        else:
            yield text

"""The texts that a verb reads: from the command line, from standard input, or from a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from ..errors import DataError
from .option_groups import OptionGroup

if TYPE_CHECKING:
    from ..data.reading import Reading

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
    ctx: typer.Context, texts: list[str] | None, data: str | None, **options: object
) -> None:
    """Check that a verb gets either texts or a file, and some options only with a file.

    Args:
        options: the options that need a file; None: not given.
    """
    if bool(texts) == (data is not None):
        ctx.fail("Give either texts or --data FILE.")
    for name, value in options.items():
        if data is None and value is not None:
            ctx.fail(f"--{name} needs --data FILE.")
    for text in texts or ():
        require_text(text)


class TextSource(NamedTuple):
    """Texts, or a file of them, and its text column."""

    texts: Sequence[str]
    data: str | None
    column: str | None


def _text_source(
    ctx: typer.Context, texts: Texts = None, *, data: str | None = None, column: Column = None
) -> TextSource:
    """The texts that a verb reads: typed, or in a file.

    Args:
        data (FILE): Read a file instead: .txt with one text per line, or a table.
    """
    check_source(ctx, texts, data, column=column)
    return TextSource(texts or (), data, column)


Source = Annotated[TextSource, OptionGroup(_text_source)]


def require_text(text: str) -> None:
    """Raise DataError for an empty text on the command line."""
    if not text.strip():
        raise DataError("empty text", fix="Put the text in quotes.")


def all_texts(texts: Sequence[str]) -> list[str]:
    """Return the texts, read to the end; see `lines_of`.

    Raises:
        DataError: a text is empty.
    """
    lines = list(lines_of(texts))
    for line in lines:
        require_text(line)
    return lines


def lines_of(texts: Sequence[str], settings: dict[str, Any] | None = None) -> Iterator[str]:
    """Return the texts; `-` is replaced by the lines of standard input, read as they arrive.

    Args:
        settings: a verb's; those of standard input (`encoding`, `max_line_bytes`) are removed.
    """
    if "-" not in texts:
        return iter(texts)
    from ..data.reading import Reading

    settings = {} if settings is None else settings
    names = [name for name in ("encoding", "max_line_bytes") if name in settings]
    options = {name: settings.pop(name) for name in names}
    return _lines_of(texts, Reading(**options))


def _lines_of(texts: Iterable[str], reading: Reading) -> Iterator[str]:
    from ..data.lines import StandardInput

    for text in texts:
        if text == "-":
            for _, line in StandardInput.lines(reading):
                yield line.rstrip("\r\n")
        else:
            yield text

"""Texts as vectors: `embed`, `features`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..wording import duration
from . import show
from .app import (
    Device,
    Encoding,
    Header,
    MaxLineBytes,
    ModelPath,
    SettingsFile,
    TableFormat,
    TaskFile,
    Threads,
    given_settings,
    lines_of,
    load_model,
    output,
    table_options,
    verb,
)

if TYPE_CHECKING:
    from ..inference.vectors import WrittenVectors


Texts = Annotated[list[str] | None, typer.Argument(metavar="[TEXT]…", help="Texts; - reads lines.")]
Data = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Instead: .txt, a text a line; or a table."),
]
Column = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The texts' column, by name or number; else found out."),
]


@verb(
    "embed",
    "bertworks embed sentence-transformers/all-MiniLM-L6-v2 --data texts.txt \\\n"
    "      --out vectors.npy",
    "bertworks embed bert-base-uncased --data news.csv --column title \\\n"
    "      --out news.parquet pooling=mean layers=-2 normalize=true",
    "cat texts.txt | bertworks embed bert-base-uncased - --out vectors.npy",
)
def embed(
    ctx: typer.Context,
    model: ModelPath,
    out: Annotated[
        str, typer.Option(metavar="FILE", help="Where to: .npy is NumPy's format, or .parquet.")
    ],
    texts: Texts = None,
    data: Data = None,
    column: Column = None,
    header: Header = None,
    format: TableFormat = "auto",
    encoding: Encoding = "utf-8",
    max_line_bytes: MaxLineBytes = None,
    settings_file: SettingsFile = None,
    device: Device = "auto",
    threads: Threads = None,
    task: TaskFile = None,
) -> None:
    """Write a vector of each text to a file.

    Any number of texts will do: few are held at a time. Stopped and started again with the same
    --out, it resumes; FILE.json says what the vectors were made with. Row N of the
    file is of text N, counted from 0.
    """
    given = given_settings(ctx, settings_file)
    options = table_options(header, format, encoding, max_line_bytes)
    source = _texts(ctx, texts, data, column, options)
    with output(out, [data], model=model):
        write = load_model(model, device, threads, task).embed_to
        _run(write, out, source, column=column, **options, **given)


@verb(
    "features",
    "bertworks features runs/tiny --data texts.txt --out words.parquet of=words",
)
def features(
    ctx: typer.Context,
    model: ModelPath,
    out: Annotated[str, typer.Option(metavar="FILE", help="Where to: a .parquet file.")],
    texts: Texts = None,
    data: Data = None,
    column: Column = None,
    header: Header = None,
    format: TableFormat = "auto",
    encoding: Encoding = "utf-8",
    max_line_bytes: MaxLineBytes = None,
    settings_file: SettingsFile = None,
    device: Device = "auto",
    threads: Threads = None,
    task: TaskFile = None,
) -> None:
    """Write a vector of each token or word, with its place in the text.

    The columns are row (the text's number, counted from 0), token or word, start and end (its
    characters), and vector. Stopped and started again with the same --out, it resumes.
    """
    given = given_settings(ctx, settings_file)
    options = table_options(header, format, encoding, max_line_bytes)
    source = _texts(ctx, texts, data, column, options)
    with output(out, [data], model=model):
        write = load_model(model, device, threads, task).features_to
        _run(write, out, source, column=column, **options, **given)


def _texts(
    ctx: typer.Context,
    texts: list[str] | None,
    data: str | None,
    column: str | None,
    options: Mapping[str, Any],
) -> str | Iterable[str]:
    """What is to be read: a file, or texts, or the lines of standard input."""
    if bool(texts) == (data is not None):
        ctx.fail("Give either texts or --data FILE.")
    if data is None and (column is not None or options.keys() & {"header", "format"}):
        ctx.fail("--column, --header and --format are for --data FILE.")
    if data is not None:
        return data
    given = texts or []
    for text in given:
        show.must_hold_text(text)
    return lines_of(given, **options) if "-" in given else given


def _run(
    write: Callable[..., WrittenVectors],
    out: str,
    source: str | Iterable[str],
    **settings: Any,
) -> None:
    """Write vectors, and show how it goes and what came of it."""
    with show.stopwatch() as seconds:
        with show.bar("embedding", "texts") as embedding:
            found = write(out, source, progress=embedding, **settings)
        rows = f"{found.rows:,}"
        if found.new < found.rows:
            rows += f", {found.rows - found.new:,} of them from before"
        show.facts({"texts": rows, "width": f"{found.width:,}"})
        if found.cut:
            show.facts({"cut": f"{found.cut:,} texts were too long for the model"})
        rate = f"{found.new / seconds():,.0f} texts/s" if found.new else "nothing left to do"
        show.facts({"time": f"{duration(seconds())}, {rate}", "written to": out})

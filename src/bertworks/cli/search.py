"""Searching texts: `search`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import show
from .app import (
    AsJson,
    Device,
    Encoding,
    Header,
    MaxLineBytes,
    ModelPath,
    SettingsFile,
    TableFormat,
    Threads,
    given_settings,
    lines_of,
    load_model,
    table_options,
    verb,
)
from .vectors import Column


@verb(
    "search",
    "bertworks search sentence-transformers/all-MiniLM-L6-v2 notes.txt \\\n"
    '      "who opened the door?"',
    "bertworks search runs/questions passages.parquet --column passage \\\n"
    "      --index passages.index --rerank runs/relevance --top-k 10 \\\n"
    '      "how do doors work?" "what is a river?"',
)
def search(
    ctx: typer.Context,
    model: ModelPath,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="The texts: .txt, a text a line; or a table.")
    ],
    queries: Annotated[
        list[str], typer.Argument(metavar="QUERY…", help="Questions; - reads lines.")
    ],
    index: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the vectors are kept for the next time."),
    ] = None,
    column: Column = None,
    header: Header = None,
    format: TableFormat = "auto",
    encoding: Encoding = "utf-8",
    max_line_bytes: MaxLineBytes = None,
    top_k: Annotated[int, typer.Option(min=1, metavar="N", help="How many for each.")] = 5,
    rerank: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="A classifier or regression of pairs, to order the candidates."
        ),
    ] = None,
    candidates: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="How many texts the reranker reads; 50."),
    ] = None,
    approximate: Annotated[
        bool, typer.Option("--approximate", help="Look at a part of the texts alone, with Faiss.")
    ] = False,
    json: AsJson = False,
    settings_file: SettingsFile = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Find the texts of a file that are nearest to a question.

    The vectors are the model's, compared by their cosines. With --index the file's are made once;
    if the file or the model has changed since, that is an error. Blank texts are left out.
    """
    if candidates is not None and rerank is None:
        ctx.fail("--candidates is for --rerank MODEL.")
    from ..checkpoints.locate import local_directory
    from ..locks import check_inputs

    given = given_settings(ctx, settings_file)
    asked = list(lines_of(queries))
    for query in asked:
        show.must_hold_text(query)
    if index is not None:
        check_inputs(index, map(local_directory, filter(None, (model, rerank))))
    loaded = load_model(model, device, threads)
    reranker = None if rerank is None else load_model(rerank, device, threads)
    from ..search import MANY, Index

    with show.bar("embedding", "texts") as embedding:
        opened = Index.open(
            loaded,
            file,
            index,
            column=column,
            progress=embedding,
            **given,
            **table_options(header, format, encoding, max_line_bytes),
        )
    if opened.cut:
        typer.echo(f"{opened.cut:,} of {len(opened):,} texts were too long, and cut", err=True)
    if len(opened) > MANY and not approximate:
        typer.echo(f"{len(opened):,} texts: --approximate would be faster", err=True)
    more = {} if candidates is None else {"candidates": candidates}
    found = opened.search(asked, top_k, rerank=reranker, approximate=approximate, **more)
    for query, hits in zip(asked, found, strict=True):
        if json:
            show.as_json({"query": query, "hits": [hit._asdict() for hit in hits]})
            continue
        if len(asked) > 1:
            typer.echo(query)
        names = ("score", "line", "text") if rerank is None else ("score", "cosine", "line", "text")
        rows = [
            (
                *((hit.score,) if rerank is None else (hit.score, hit.similarity)),
                hit.where.removeprefix(file).lstrip(":, "),
                " ".join(hit.text.split()),
            )
            for hit in hits
        ]
        show.table(names, rows, right="score cosine line", cut="text")

"""Find near texts or words: `neighbours`, `search`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ..utils.locks import OutputKind
from ..utils.progress import Progress
from . import display
from .app import verb
from .devices import DeviceOption, load_model
from .options import Adapters, AsJson, Encoding, ModelPath, Overwrite, SettingsOption, Table
from .outputs import output
from .texts import Column, lines_of, require_text


@verb(
    "neighbours",
    "bertworks neighbours mini river",
    'bertworks neighbours glove.6B.100d.txt "king - man + woman"',
    "bertworks neighbours glove.6B.100d.txt --out runs/glove",
    "bertworks neighbours mini --out mini.txt --layout glove",
)
def neighbours(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="A model, or a file of vectors in word2vec or GloVe text format."
        ),
    ],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[WORD]…", help='Words, or "king - man + woman".')
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Write the vectors: NAME.txt, or a directory for a model with these vectors.",
        ),
    ] = None,
    overwrite: Overwrite = False,
    layout: Annotated[
        Literal["word2vec", "glove"], typer.Option(help="Format of a text file to write.")
    ] = "word2vec",
    top_k: Annotated[
        int, typer.Option(min=1, max=1_000_000, metavar="N", help="Words per query.")
    ] = 10,
    farthest: Annotated[
        bool, typer.Option("--farthest", help="Show the least similar words instead.")
    ] = False,
    json: AsJson = False,
    encoding: Encoding = "utf-8",
) -> None:
    """Find the words nearest to a word, or to a sum of words.

    Static vectors are compared; a model's are the rows of its embedding table for whole words.
    Opposites occur in the same contexts and are often near; --farthest shows words with nothing in
    common.
    """
    from ..analysis.word_vectors import WordVectors

    to_model = out is not None and out.suffix != ".txt"
    kind: OutputKind = "whole directory" if to_model else "file"
    is_file = Path(source).is_file()
    with output(
        out,
        [source] if is_file else [],
        model=source,
        kind=kind,
        overwrite=overwrite,
        repeats=bool(words),
    ) as replaces:
        if is_file:
            vectors = WordVectors.read(source, encoding=encoding)
        else:
            vectors = WordVectors.of_model(load_model(source, "cpu"))
        if out is not None and out.suffix == ".txt":
            vectors.write(out, format=layout, overwrite=replaces)
        elif out is not None:
            vectors.to_model().save(out, overwrite=replaces)
    if out is not None:
        display.facts({"words": f"{len(vectors.words):,}", "written to": out})
    for query in words or ():
        plus: list[str] = []
        minus: list[str] = []
        for part in query.replace(" - ", " + -").split(" + "):
            (minus if part.startswith("-") else plus).append(part.removeprefix("-").strip())
        matches = vectors.neighbours(plus, minus, top_k=top_k, farthest=farthest)
        if json:
            display.as_json({"words": query, "neighbours": dict(matches)})
        else:
            display.table((query, "cosine"), matches, right="cosine")


@verb(
    "search",
    'bertworks search mini-sentences notes.txt "who opened the door?"',
    "bertworks search runs/questions passages.parquet --column passage \\\n"
    "      --index passages.index --rerank runs/relevance --top-k 10 \\\n"
    '      "how do doors work?" "what is a river?"',
)
def search(
    ctx: typer.Context,
    *,
    model: ModelPath,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="Texts to search: .txt with one text per line, or a table."
        ),
    ],
    queries: Annotated[
        list[str],
        typer.Argument(metavar="QUERY…", help="Queries; - reads lines from standard input."),
    ],
    index: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory that keeps the vectors for later searches."),
    ] = None,
    overwrite: Overwrite = False,
    column: Column = None,
    table: Table,
    top_k: Annotated[
        int, typer.Option(min=1, max=1_000_000, metavar="N", help="Results per query.")
    ] = 5,
    rerank: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Classifier or regression model for pairs, to reorder the candidates.",
        ),
    ] = None,
    candidates: Annotated[
        int | None,
        typer.Option(
            min=1, max=1_000_000, metavar="N", help="Number of texts to rerank; 50 if omitted."
        ),
    ] = None,
    approximate: Annotated[
        bool, typer.Option("--approximate", help="Search only part of the texts, with Faiss.")
    ] = False,
    json: AsJson = False,
    settings: SettingsOption,
    device: DeviceOption = "auto",
    adapters: Adapters,
) -> None:
    """Find the texts of a file that are nearest to a query.

    The model's vectors are compared by cosine, or as its files say. With --index, the vectors of
    the file are computed once; a later change of the file or the model is an error. Blank texts are
    skipped.
    """
    if candidates is not None and rerank is None:
        ctx.fail("--candidates needs --rerank MODEL.")
    from ..checkpoints.locate import local_directory
    from ..utils.outputs import check_inputs

    query_texts = list(lines_of(queries))
    for query in query_texts:
        require_text(query)
    if index is not None:
        check_inputs(
            index, map(local_directory, filter(None, (model, adapters.get("base"), rerank)))
        )
    encoder = load_model(model, device, **adapters)
    reranker = None if rerank is None else load_model(rerank, device)
    from ..analysis.search import MANY, Index

    with Progress() as progress:
        text_index = Index.open(
            encoder,
            file,
            index,
            column=column,
            overwrite=overwrite,
            progress=progress.counter("embedding", "texts"),
            **settings,
            **table,
        )
    if text_index.num_truncated:
        typer.echo(
            f"{text_index.num_truncated:,} of {len(text_index):,} texts were too long and were "
            "truncated",
            err=True,
        )
    if len(text_index) > MANY and not approximate:
        typer.echo(f"{len(text_index):,} texts: --approximate is faster", err=True)
    more = {} if candidates is None else {"candidates": candidates}
    results = text_index.search(
        query_texts, top_k, rerank=reranker, approximate=approximate, **more
    )
    for query, hits in zip(query_texts, results, strict=True):
        if json:
            display.as_json({"query": query, "hits": [hit._asdict() for hit in hits]})
            continue
        if len(query_texts) > 1:
            typer.echo(query)
        similarity_columns = () if rerank is None else (text_index.model.similarity_function,)
        rows = [
            (
                *((hit.score,) if rerank is None else (hit.score, hit.similarity)),
                hit.where.removeprefix(file).lstrip(":, "),
                " ".join(hit.text.split()),
            )
            for hit in hits
        ]
        names = ("score", *similarity_columns, "line", "text")
        display.table(names, rows, right=("score", *similarity_columns, "line"), truncate="text")

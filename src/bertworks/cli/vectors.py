"""Texts and words as vectors: `embed`, `features`, `neighbours`, `search`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..remote import is_remote
from ..wording import duration
from . import show
from .app import (
    AsJson,
    Computing,
    Encoding,
    Given,
    Group,
    ModelPath,
    Part,
    Spread,
    Table,
    TaskFile,
    Texts,
    lines_of,
    load_model,
    output,
    verb,
)

Data = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Instead: .txt, a text a line; or a table."),
]
Column = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The texts' column, by name or number; else found out."),
]


def _texts(
    ctx: typer.Context,
    texts: list[str] | None,
    data: str | None,
    column: str | None,
    table: Mapping[str, Any],
) -> str | Iterable[str]:
    """What is to be read: a file, or texts, or the lines of standard input."""
    if bool(texts) == (data is not None):
        ctx.fail("Give either texts or --data FILE.")
    if data is None and (column is not None or table.keys() & {"header", "format"}):
        ctx.fail("--column, --header and --format are for --data FILE.")
    if data is not None:
        return data
    given = texts or []
    for text in given:
        show.must_hold_text(text)
    return lines_of(given, **table) if "-" in given else given


def _writing(
    ctx: typer.Context,
    *,
    model: ModelPath,
    texts: Texts = None,
    data: Data = None,
    column: Column = None,
    table: Table,
    part: Part = None,
    spread: Spread,
    given: Given,
    device: Computing = "auto",
    task: TaskFile = None,
) -> Callable[[str, str], None]:
    """What writes vectors to a file, by the name of a method of `Model`."""
    source = _texts(ctx, texts, data, column, table)
    settings = {"column": column, "part": part, **spread, **table, **given}

    def write(out: str, method: str) -> None:
        with output(None if is_remote(out) else out, [data], model=model):
            to_file = getattr(load_model(model, device, task), method)
            with show.stopwatch() as seconds, show.bar("embedding", "texts") as embedding:
                found = to_file(out, source, progress=embedding, **settings)
            rows = f"{found.rows:,}"
            if found.new < found.rows:
                rows += f", {found.rows - found.new:,} of them from before"
            facts = {"texts": rows, "width": f"{found.width:,}"}
            if found.cut:
                facts["cut"] = f"{found.cut:,} texts were too long for the model"
            show.facts(facts)
            rate = f"{found.new / seconds():,.0f} texts/s" if found.new else "nothing left to do"
            show.facts({"time": f"{duration(seconds())}, {rate}", "written to": out})

    return write


Writing = Annotated[Callable[[str, str], None], Group(_writing)]


@verb(
    "embed",
    "bertworks embed sentence-transformers/all-MiniLM-L6-v2 --data texts.txt \\\n"
    "      --out vectors.npy",
    "bertworks embed bert-base-uncased --data news.csv --column title \\\n"
    "      --out news.parquet pooling=mean layers=-2 normalize=true",
    "cat texts.txt | bertworks embed mini-sentences - --out vectors.npy",
)
def embed(
    out: Annotated[
        str, typer.Option(metavar="FILE", help="Where to: .npy is NumPy's format, or .parquet.")
    ],
    write: Writing,
) -> None:
    """Write a vector of each text to a file.

    Any number of texts will do: few are held at a time. Stopped and started again with the same
    --out, it resumes; FILE.json says what the vectors were made with. Row N of the
    file is of text N, counted from 0.
    """
    write(out, "embed_to")


@verb(
    "features",
    "bertworks features runs/tiny --data texts.txt --out words.parquet of=words",
)
def features(
    out: Annotated[str, typer.Option(metavar="FILE", help="Where to: a .parquet file.")],
    write: Writing,
) -> None:
    """Write a vector of each token or word, with its place in the text.

    The columns are row (the text's number, counted from 0), token or word, start and end (its
    characters), and vector. Stopped and started again with the same --out, it resumes.
    """
    write(out, "features_to")


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
            metavar="SOURCE", help="A model, or a file of vectors: word2vec's or GloVe's text."
        ),
    ],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[WORD]…", help='Words, or "king - man + woman".')
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Write the vectors: NAME.txt, or a directory for a model of them."
        ),
    ] = None,
    layout: Annotated[
        Literal["word2vec", "glove"], typer.Option(help="Of a text file that is written.")
    ] = "word2vec",
    top_k: Annotated[int, typer.Option(min=1, metavar="N", help="How many for each.")] = 10,
    farthest: Annotated[
        bool, typer.Option("--farthest", help="The least like a word, instead of the most.")
    ] = False,
    json: AsJson = False,
    encoding: Encoding = "utf-8",
) -> None:
    """Find the words nearest to a word, or to a sum of words, by static vectors.

    A model's are those of its table for whole words. Words that are opposites stand in the same
    places of sentences, and are often near; --farthest shows words with nothing in common.
    """
    from ..word_vectors import WordVectors

    with output(out, [source], kind="directory" if out and out.suffix != ".txt" else "file"):
        if Path(source).is_file():
            found = WordVectors.read(source, encoding=encoding)
        else:
            found = WordVectors.of_model(load_model(source, "cpu"))
        if out is not None and out.suffix == ".txt":
            found.write(out, format=layout)
        elif out is not None:
            found.to_model().save(out)
    if out is not None:
        show.facts({"words": f"{len(found.words):,}", "written to": out})
    for query in words or ():
        plus: list[str] = []
        minus: list[str] = []
        for part in query.replace(" - ", " + -").split(" + "):
            (minus if part.startswith("-") else plus).append(part.removeprefix("-").strip())
        near = found.neighbours(plus, minus, top_k=top_k, farthest=farthest)
        if json:
            show.as_json({"words": query, "neighbours": dict(near)})
        else:
            show.table((query, "cosine"), near, right="cosine")


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
    table: Table,
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
    given: Given,
    device: Computing = "auto",
) -> None:
    """Find the texts of a file that are nearest to a question.

    The vectors are the model's, compared by their cosines. With --index the file's are made once;
    if the file or the model has changed since, that is an error. Blank texts are left out.
    """
    if candidates is not None and rerank is None:
        ctx.fail("--candidates is for --rerank MODEL.")
    from ..checkpoints.locate import local_directory
    from ..locks import check_inputs

    asked = list(lines_of(queries))
    for query in asked:
        show.must_hold_text(query)
    if index is not None:
        check_inputs(index, map(local_directory, filter(None, (model, rerank))))
    loaded = load_model(model, device)
    reranker = None if rerank is None else load_model(rerank, device)
    from ..search import MANY, Index

    with show.bar("embedding", "texts") as embedding:
        opened = Index.open(
            loaded,
            file,
            index,
            column=column,
            progress=embedding,
            **given,
            **table,
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

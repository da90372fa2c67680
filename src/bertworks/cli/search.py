"""Find near texts or words: `neighbours`, `search`, `index`, `mine`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..errors import truncate_repr
from ..settings.literals import Quantization
from ..utils.formatting import format_count
from ..utils.progress import Progress
from .application import verb
from .devices import EngineOption, ModelWorkers
from .display import Display, JsonDisplay
from .models import BM25, AdaptedModel, ModelSource, use_each
from .options import Others, Overwrite, SettingsOption, SettingsWords, TopK
from .outputs import check_present, output
from .retrievers import Passages, no_match, short_places
from .texts import Column, all_texts

if TYPE_CHECKING:
    from ..analysis.retrieval.store import VectorStore
    from ..analysis.retrieval.text_index import Hit


@verb(
    "neighbours",
    "bertworks neighbours mini river",
    'bertworks neighbours glove.6B.100d.txt "king - man + woman"',
    "bertworks neighbours glove.6B.100d.txt --out runs/glove",
    "bertworks neighbours mini --out mini.txt --layout glove",
)
def neighbours(
    source: str,
    words: list[str] | None = None,
    *,
    out: Path | None = None,
    overwrite: Overwrite = False,
    layout: Literal["word2vec", "glove"] = "word2vec",
    top_k: TopK = 10,
    farthest: bool = False,
    encoding: str = "utf-8",
    display: JsonDisplay,
) -> None:
    """Find the words nearest to a word, or to a sum of words.

    Static vectors are compared; a model's are the rows of its embedding table for whole words.
    Opposites occur in the same contexts and are often near; --farthest shows words with nothing in
    common.

    Args:
        source (SOURCE): A model, or a file of vectors in word2vec or GloVe text format.
        words ([WORD]…): Words, or "king - man + woman".
        out (PATH): Write the vectors: NAME.txt, or a directory for a model with these vectors.
        layout: Format of a text file to write.
        top_k: Words per query.
        farthest: Show the least similar words instead.
        encoding (NAME): Text encoding, such as latin-1, cp1252 or utf-16.
    """
    from ..analysis.word_vectors import WordVectors

    model, is_file = ModelSource(source), Path(source).is_file()
    to_text = out is not None and out.suffix == ".txt"
    with output(
        out,
        [source] if is_file else [],
        model=model,
        kind="file" if out is None or to_text else "whole directory",
        overwrite=overwrite,
        repeats=bool(words),
    ) as replaces:
        if is_file:
            vectors = WordVectors.read(source, encoding=encoding)
        else:
            vectors = WordVectors.of_model(model.load("cpu"))
        if out is not None and to_text:
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
        display.json({"words": query, "neighbours": dict(matches)})
        display.table((query, "cosine"), matches, right="cosine")


@verb(
    "search",
    'bertworks search mini-sentences notes.txt "who opened the door?"',
    'bertworks search bm25 notes.txt "door" --with mini-sentences',
    "bertworks search runs/questions passages.parquet --column passage \\\n"
    "      --index passages.index --rerank runs/relevance --top-k 10 \\\n"
    '      "how do doors work?" "what is a river?"',
)
def search(
    ctx: typer.Context,
    model: AdaptedModel,
    file: str,
    queries: list[str],
    *,
    index: Path | None = None,
    overwrite: Overwrite = False,
    column: Column = None,
    top_k: TopK = 5,
    others: Others = None,
    rerank: str | None = None,
    candidates: Annotated[int | None, typer.Option(min=1, max=1_000_000)] = None,
    approximate: bool = False,
    quantization: Quantization = "none",
    settings: SettingsOption,
    engine: EngineOption,
    display: JsonDisplay,
) -> None:
    """Find the texts of a file that are nearest to a query.

    The model's vectors are compared by cosine, or as its files say. With --index, the vectors of
    the file are computed once; a later change of the file or the model is an error. Blank texts are
    skipped. MODEL may also be bm25, which ranks by shared words; --with fuses rankings.

    Args:
        file (FILE): Texts to search: .txt with one text per line, a table, BEIR's or MS MARCO's
            folder, or a store.
        queries (QUERY…): Queries; - reads lines from standard input.
        index (DIR): Directory that keeps the vectors for later searches.
        top_k: Results per query.
        others (MODEL): Another model, or bm25, whose ranking is fused with the others'; may be
            repeated.
        rerank (MODEL): Classifier or regression model for pairs, to reorder the candidates.
        candidates (N): Number of texts to rerank; 50 if omitted.
        approximate: Search only part of the texts, with Faiss.
        quantization: Keep vectors as 8-bit integers or bits: a quarter of the size, or 1/32.
    """
    if candidates is not None and rerank is None:
        ctx.fail("--candidates needs --rerank MODEL.")
    query_texts = all_texts(queries)
    reranker = None if rerank is None else ModelSource(rerank)
    models = [model, *map(ModelSource, others or ()), *([] if reranker is None else [reranker])]
    settings |= {"quantization": quantization}
    passages = Passages(index, column, overwrite, "texts", settings)
    passages.check(models)
    more = {} if candidates is None else {"candidates": candidates}

    def find(retrievers: list[Any]) -> tuple[list[list[Hit]], str]:
        from ..analysis.retrieval.index import MANY, Index

        loaded_reranker = None if reranker is None else retrievers.pop()
        text_index = passages.open(retrievers, file)
        if isinstance(text_index, Index) and len(text_index) > MANY and not approximate:
            display.status(f"{len(text_index):,} texts: --approximate is faster")
        results = text_index.search(
            query_texts, top_k, rerank=loaded_reranker, approximate=approximate, **more
        )
        return results, text_index.score_name

    results, similarity = use_each(models, find, engine)
    for query, hits in zip(query_texts, results, strict=True):
        display.json({"query": query, "hits": [hit._asdict() for hit in hits]})
        if len(query_texts) > 1:
            display.text(query)
        if not hits:
            display.text(f"  no result: {no_match([model, *map(ModelSource, others or ())])}")
            continue
        _show_hits(display, hits, file, None if rerank is None else similarity)


_OF_LINES = ("encoding", "max_line_bytes")
"""The settings of tables that lines of ids have, too."""


@verb(
    "index",
    "bertworks index mini-sentences store --add passages.jsonl --ids id",
    "bertworks index mini-sentences store --delete old.txt",
    "bertworks index mini-sentences postgresql:///library --add notes.txt",
)
def index(
    ctx: typer.Context,
    model: AdaptedModel,
    store: str,
    *,
    add: str | None = None,
    ids: str | None = None,
    delete: str | None = None,
    column: Column = None,
    quantization: Quantization | None = None,
    compact: bool = False,
    settings: SettingsOption,
    engine: EngineOption,
    display: JsonDisplay,
) -> None:
    """Add texts to a store that search and answer read, or delete some.

    Each 2,048 texts are added as a whole or not at all, and the same command completes an
    interrupted one. A text replaces the earlier one with its id, and a blank one deletes it.

    Args:
        store (STORE): Directory of the texts and vectors, or the URL of a database, such as
            postgresql://HOST/DATABASE?table=NAME or qdrant://HOST:6333/COLLECTION; --add
            creates it.
        add (FILE): Texts to add: .txt with one text per line, a table, or BEIR's or MS MARCO's
            folder.
        ids (NAME): Column of their ids; if omitted, _id, or the place of a text in its file.
        delete (FILE): Ids to delete, one on each line.
        quantization: Of a new store: compare 8-bit or binary codes first.
        compact: Remove what was deleted from the disk.
    """
    if ids is not None and add is None:
        ctx.fail("--ids needs --add FILE.")
    if column is not None and add is None:
        ctx.fail("--column needs --add FILE.")
    check_present([add, delete])

    def change(loaded_model: Any) -> tuple[dict[str, int], list[str], str]:
        from ..analysis.retrieval.store import VectorStore, read_rows_to_add
        from ..data.reading import TableOptions
        from ..data.text_inputs import read_texts

        options, engine_settings = TableOptions.split(settings)
        text_store = VectorStore.open(
            loaded_model,
            store,
            quantization=quantization,
            create=add is not None,
            **engine_settings,
        )
        counts = {"added": 0, "replaced": 0, "deleted": 0}
        unknown_ids: list[str] = []
        if delete is not None:
            of_lines: Any = {key: options[key] for key in _OF_LINES if key in options}
            lines = read_texts(delete, format="text", **of_lines).without_blank()
            words = {text: text.strip() for _, text in lines}
            present_ids = text_store.texts({*words, *words.values()})
            # An id may begin or end with a space.
            chosen = (text if text in present_ids else word for text, word in words.items())
            names = list(dict.fromkeys(chosen))
            unknown_ids = [name for name in names if name not in present_ids]
            counts["deleted"] = text_store.delete(names)
        if add is not None:
            rows = read_rows_to_add(add, column, ids, **options)
            counts["deleted"] += _delete_blank(text_store, rows, display)
            texts = {name: text for name, text in rows.items() if text}
            count = len(text_store)
            with Progress() as progress:
                report = progress.counter("embedding", "texts")
                counts["replaced"] = text_store.add(texts.values(), texts, progress=report)
            counts["added"] = len(text_store) - count
        if compact:
            text_store.compact()
        return {**counts, "texts": len(text_store)}, unknown_ids, text_store.name

    counts, unknown_ids, name = model.use(change, engine)
    if unknown_ids:
        _show_ids(display, "ids to delete that are not in the store", unknown_ids)
    display.json(counts)
    display.facts({**{what: f"{count:,}" for what, count in counts.items()}, "store": name})


@verb(
    "mine",
    "bertworks mine mini-sentences pairs.tsv --out negatives.jsonl margin=0.05",
    "bertworks mine bm25 pairs.tsv --out negatives.jsonl --corpus passages.txt \\\n"
    "      --rerank runs/relevance num_negatives=8",
)
def mine(
    model: AdaptedModel,
    pairs: str,
    *,
    out: Path,
    corpus: str | None = None,
    rerank: str | None = None,
    overwrite: Overwrite = False,
    workers: ModelWorkers,
    settings: SettingsWords,
    engine: EngineOption,
    display: JsonDisplay,
) -> None:
    """Find hard negatives for pairs of a query and its passage.

    A negative is a passage that MODEL ranks high for the query, and that belongs to it in no row.
    The table that is written trains retrieval: finetune retrieval --train FILE. If interrupted, the
    same command resumes. MODEL may be bm25.

    Args:
        pairs (PAIRS): Table of queries and their passages.
        out (FILE): Output file: .jsonl.
        corpus (FILE): More passages: .txt with one on each line, or a table.
        rerank (MODEL): Cross-encoder that drops passages which it finds relevant, and whose scores
            are written for the losses margin-mse and kl.
    """
    sources = [model, *([] if rerank is None else [ModelSource(rerank)])]

    def run(models: list[Any]) -> Any:
        from ..analysis.retrieval.mining import mine as write_negatives
        from ..jobs.parallel import Workers

        reranker = None if rerank is None else models.pop()
        with Progress() as progress:
            return write_negatives(
                models[0],
                pairs,
                out,
                corpus=corpus,
                rerank=reranker,
                overwrite=overwrite,
                progress=lambda step: progress.counter(step, "rows"),
                workers=Workers(workers.get("workers", 1), workers.get("on")),
                **settings,
            )

    with output(out, [pairs, corpus], model=None if model.name == BM25 else model):
        result = use_each(sources, run, engine)
    display.json(asdict(result))
    facts = {"pairs": f"{result.rows:,}", "negatives": f"{result.negatives:,}"}
    if result.num_short:
        facts["fewer"] = f"{format_count(result.num_short, 'pair')} with fewer than were asked for"
    display.facts({**facts, "written to": out})


def _delete_blank(store: VectorStore, rows: dict[str, str], display: Display) -> int:
    """Delete texts that are blank now from a store; return their number."""
    blank_ids = [*store.texts([name for name, text in rows.items() if not text])]
    if blank_ids:
        _show_ids(display, "texts that have become blank, and are deleted", blank_ids)
    return store.delete(blank_ids) if blank_ids else 0


def _show_ids(display: Display, what: str, ids: list[str]) -> None:
    display.status(f"{what}: {len(ids):,}, the first is {truncate_repr(ids[0])}")


def _show_hits(display: Display, hits: list[Hit], file: str, similarity: str | None) -> None:
    """Print the hits of a query in a file.

    Args:
        similarity: the name of the vectors' similarity, if the hits are ranked by another score.
    """
    scores = ("score",) if similarity is None else ("score", similarity)
    name, places = short_places([hit.where for hit in hits], file)
    rows = [
        ((*(hit.score, hit.similarity)[: len(scores)], place, " ".join(hit.text.split())))
        for hit, place in zip(hits, places, strict=True)
    ]
    columns = (*scores, name, "text")
    display.table(columns, rows, right=columns[:-1], truncate="text")

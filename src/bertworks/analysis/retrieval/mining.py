"""Hard negatives: passages that a model ranks high for a query, and that do not belong to it.

    pairs ─► distinct passages ─► index ─► ranking of each query ─► without its own passages,
             without those that are too near, or that a cross-encoder finds relevant ─► negatives

Sources: Karpukhin et al. (2020), "Dense Passage Retrieval", §3.2, for negatives from a ranking; Qu
et al. (2021), "RocketQA", §4.2, for a cross-encoder that finds false ones; Moreira et al. (2024),
"NV-Retriever", §3.1, for a margin to the positive.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from ...data.reading import TableOptions
from ...data.rows import Rows, chunks, text_of
from ...data.schema import RoleColumns
from ...data.tables import Table, read_rows
from ...data.texts_by_id import TITLE
from ...errors import BertworksError, DataError
from ...inference.engine import resolve_precision
from ...inference.prediction_files import Lines
from ...inference.settings import EngineSettings
from ...inference.window_files import (
    FileJob,
    RowsRecord,
    RowWindow,
    check_has_manifest,
    remove_file,
    row_windows,
)
from ...jobs.parallel import HERE, Workers
from ...jobs.resumable import digest_texts
from ...settings.keywords import MineKeywords
from ...tasks.choice import ChoiceTask
from ...tasks.retrieval.columns import find_retrieval_columns
from ...utils.atomic_writes import writing
from ...utils.directories import remove_directory
from ...utils.json_files import to_json
from ...utils.outputs import locked_output
from .opening import open_index
from .reranking import text_scorer
from .settings import Layout, MineSettings
from .text_index import TextIndex, open_texts

if TYPE_CHECKING:
    from .opening import Retriever
    from .text_index import AnyModel

Pair = tuple[str, str]
"""A query and a passage that belongs to it."""

_MAX_LOG_ODDS = 40.0
"""A cross-encoder's score is limited to this: that of a probability rounded to 1 is infinite."""


@dataclass(frozen=True)
class MinedNegatives:
    """Counts of mined negatives.

    Attributes:
        rows: the number of pairs.
        negatives: the number of negatives of all pairs.
        num_short: the pairs with fewer negatives than asked for.
    """

    rows: int
    negatives: int
    num_short: int


def mine(
    retriever: Retriever,
    pairs: Table,
    out: str | os.PathLike[str],
    *,
    corpus: Table | None = None,
    rerank: AnyModel | None = None,
    workers: Workers = HERE,
    overwrite: bool = False,
    progress: Callable[[str], Callable[[int, int], None]] | None = None,
    **settings: Unpack[MineKeywords],
) -> MinedNegatives:
    """Write a table of queries, their passages and hard negatives; called again, it resumes.

    Columns: `query`, `positive`, `negatives` (a list, best ranked first), and with `rerank` also
    `scores`: the cross-encoder's scores (log-odds or value) of the passage and the negatives, which
    the losses `margin-mse` and `kl` learn. With `layout`, rows that train a cross-encoder.

    Args:
        retriever: the model that ranks passages, or "bm25".
        pairs: queries with a passage that belongs to them. All passages of a query, in any row, are
            no negatives of it, and neither is the query itself. Texts that differ in case and
            blanks alone are the same.
        out: a `.jsonl` file. The vectors are in `OUT.index` until it is finished.
        corpus: more passages that may become negatives: texts, or a table with one text column.
        rerank: a cross-encoder; see `rerank_margin`.
        workers: the processes, each with the model; the output is the same for any number.
        overwrite: replace an existing file.
        progress: returns, for the name of a step, what is called with the work done, and all of it.
        settings: settings of `MineSettings`, `TableOptions` and `EngineSettings`.

    Raises:
        DataError: the columns are not found, or a cell is empty; or the output was started with
            other data, another model or other settings.
        BertworksError: the reranker does not score pairs of texts.
        OutputError: the output exists, cannot be written, or another process is writing it.
    """
    path = Path(out)
    _check_kinds(path, rerank)
    table_options, others = TableOptions.split(settings)
    mine_settings, engine = MineSettings.split(others)
    options = MineSettings.parse(mine_settings)
    engine_settings = EngineSettings.parse(engine)
    inputs = [pairs, corpus]
    for model in (retriever, rerank):
        if model is not None and not isinstance(model, str):  # before rows are read
            resolve_precision(engine_settings.precision, model.network)
    if overwrite:
        remove_file(path, inputs)
    rows = _read_pairs(pairs, options, table_options)
    passages, rows_of_passages, positives = _passages_of(rows, corpus, table_options)
    index_folder = path.with_name(f"{path.name}.index")
    provenance = {
        "model": _fingerprint_of(retriever),
        "reranker": None if rerank is None else _fingerprint_of(rerank),
        "pairs": digest_texts(text for pair in rows for text in pair),
        "passages": digest_texts(passages),
        **options.model_dump(mode="json"),
    }
    with locked_output(path, inputs):  # an output of another job is refused before any work
        check_has_manifest(path)
    index: TextIndex | None = None
    if not path.exists():
        folder = None if retriever == "bm25" else index_folder
        update = None if progress is None else progress("embedding passages")
        index = open_index(retriever, passages, folder, progress=update, **engine)
    miner = _Miner(index, passages, rows_of_passages, positives, options, rerank, engine)
    report = _report_rows(None if progress is None else progress("mining"), len(rows))

    def windows() -> Iterator[RowWindow[Pair]]:
        return row_windows(chunks(rows, engine_settings.window_rows), "\n".join)

    job = FileJob(path, windows, miner, Lines(""), provenance, workers, inputs=inputs)
    manifest = job.run(report)
    if index_folder.exists():
        with writing(index_folder):
            remove_directory(index_folder)
    with path.open(encoding="utf-8") as file:
        counts = _count_negatives(map(json.loads, file), options.layout)
    num_short = sum(count < options.num_negatives for count in counts)
    return MinedNegatives(manifest.rows, sum(counts), num_short)


def _check_kinds(out: Path, rerank: AnyModel | None) -> None:
    """Check the suffix of the output, and the reranker's task."""
    if out.suffix != ".jsonl":
        what = "negatives are written as JSON Lines"
        raise DataError(what, where=str(out), fix="Name it .jsonl.")
    if rerank is not None and isinstance(rerank.task, ChoiceTask):
        raise BertworksError(
            "a model of multiple choice compares texts with each other, not with a margin",
            fix="Mine with a cross-encoder for pairs; use this one in search and evaluate.",
        )


def _report_rows(
    update: Callable[[int, int], None] | None, total: int
) -> Callable[[RowsRecord, bool], None]:
    """Return what is called with the record of each window, and reports the rows so far."""
    num_done = 0

    def report(record: RowsRecord, is_new: bool) -> None:
        nonlocal num_done
        del is_new
        num_done += record.rows
        if update is not None:
            update(num_done, total)

    return report


def _fingerprint_of(retriever: Retriever) -> str:
    return retriever if isinstance(retriever, str) else retriever.fingerprint()


def _read_pairs(
    table: Table, options: MineSettings, table_options: Mapping[str, Any]
) -> list[Pair]:
    names: RoleColumns = {
        "query": options.query_column,
        "passage": options.passage_column,
        "negatives": None,
        "score": None,
    }
    rows: Rows = read_rows(table, **table_options)
    columns = find_retrieval_columns(rows, names, labelled=False)
    query, passage = columns["query"], columns["passage"]
    assert isinstance(query, str) and isinstance(passage, str)
    return [
        (text_of(row.values, query, row.where), text_of(row.values, passage, row.where))
        for row in rows
    ]


def _passages_of(
    pairs: Sequence[Pair], corpus: Table | None, table_options: Mapping[str, Any]
) -> tuple[list[str], dict[str, int], dict[str, set[int]]]:
    """Return the distinct passages, the row of each pair's, and the rows that belong to a query."""
    passages: list[str] = []
    rows: dict[str, int] = {}

    def row_of(text: str) -> int:
        row = rows.setdefault(_key_of(text), len(passages))
        if row == len(passages):
            passages.append(text)
        return row

    rows_of_passages = {passage: row_of(passage) for _, passage in pairs}
    if corpus is not None:
        own_keys = frozenset(rows)
        texts = open_texts(corpus, None, is_read_once=True, **table_options).without_blank()
        for row in texts.rows:
            text = text_of(row.values, texts.column, row.where)
            # Passages of pairs may be without the title that the text begins with (`with_titles`).
            title = "" if TITLE in texts.rows.columns else row.values.get(TITLE)
            text_alone = text.removeprefix(title) if isinstance(title, str) else text
            if _key_of(text_alone) not in own_keys:
                row_of(text)
    sets: dict[str, set[int]] = {}  # by the query's key
    positives: dict[str, set[int]] = {}
    for query, passage in pairs:
        key = _key_of(query)
        # The query itself may be a passage.
        own = sets.setdefault(key, {rows[key]} if key in rows else set())
        own.add(rows_of_passages[passage])
        positives[query] = own
    return passages, rows_of_passages, positives


def _key_of(text: str) -> str:
    """Return what texts that differ in case and blanks alone have in common."""
    return " ".join(text.split()).casefold()


@dataclass(frozen=True)
class _Miner:
    """Mines the negatives of a window of pairs, in a worker.

    Attributes:
        index: of the passages; None if nothing is to be mined.
        rows_of_passages: the rows of the pairs' passages among all.
        positives: the rows of the passages of each query, and of the query itself.
    """

    index: TextIndex | None
    passages: Sequence[str]
    rows_of_passages: Mapping[str, int]
    positives: Mapping[str, set[int]]
    settings: MineSettings
    rerank: AnyModel | None
    engine: Mapping[str, Any]

    def __call__(self, window: RowWindow[Pair]) -> tuple[RowsRecord, bytes]:
        assert self.index is not None
        pairs = window.rows
        queries = list(dict.fromkeys(query for query, _ in pairs))
        scores, rows = self.index.rank(queries, min(self.settings.depth, len(self.passages)))
        rankings = {
            query: [(row, score) for row, score in zip(*ranking, strict=True) if row >= 0]
            for query, *ranking in zip(queries, rows.tolist(), scores.tolist(), strict=True)
        }
        candidates = [self._candidates(query, passage, rankings[query]) for query, passage in pairs]
        if self.rerank is None:
            negatives = [one[: self.settings.num_negatives] for one in candidates]
            lines = [
                {"query": query, "positive": passage, "negatives": texts}
                for (query, passage), texts in zip(pairs, negatives, strict=True)
            ]
        else:
            lines = self._with_scores(pairs, candidates, self.rerank)
        rows_of_lines = (_rows_of(line, self.settings.layout) for line in lines)
        content = "".join(f"{to_json(row)}\n" for rows in rows_of_lines for row in rows).encode()
        return RowsRecord.from_content(window, content, num_truncated=0), content

    def _candidates(
        self, query: str, passage: str, ranking: Sequence[tuple[int, float]]
    ) -> list[str]:
        """Return the passages that may be negatives of a pair, best ranked first."""
        settings, own = self.settings, self.positives[query]
        limit = None
        if settings.margin is not None:
            # A passage that is not in the ranking is less similar than all that are.
            own_row = self.rows_of_passages[passage]
            limit = dict(ranking).get(own_row, float("-inf")) - settings.margin
        others = [(row, score) for row, score in ranking if row not in own][settings.skip :]
        return [self.passages[row] for row, score in others if limit is None or score <= limit]

    def _with_scores(
        self, pairs: Sequence[Pair], candidates: Sequence[Sequence[str]], model: AnyModel
    ) -> list[dict[str, Any]]:
        """Return the lines of pairs, without candidates that a cross-encoder finds relevant.

        A query's candidates are scored a few at a time, until it has enough negatives.
        """
        score = text_scorer(model, self.engine)
        settings = self.settings
        positives = list(score([(query, [passage]) for query, passage in pairs]))
        lines: list[dict[str, Any]] = [
            {"query": query, "positive": passage, "negatives": [], "scores": [_clamp(one.order)]}
            for (query, passage), one in zip(pairs, positives, strict=True)
        ]
        starts = [0] * len(pairs)
        while True:
            chunk: list[tuple[int, Sequence[str]]] = []
            for number, (line, texts) in enumerate(zip(lines, candidates, strict=True)):
                missing = settings.num_negatives - len(line["negatives"])
                stop = min(starts[number] + missing, len(texts))
                if stop > starts[number]:
                    chunk.append((number, texts[starts[number] : stop]))
                starts[number] = stop
            if not chunk:
                return lines
            relevances = score([(pairs[number][0], some) for number, some in chunk])
            rows = [(number, text) for number, some in chunk for text in some]
            for (number, text), relevance in zip(rows, relevances, strict=True):
                if relevance.score <= positives[number].score - settings.rerank_margin:
                    lines[number]["negatives"].append(text)
                    lines[number]["scores"].append(_clamp(relevance.order))


def _rows_of(line: Mapping[str, Any], layout: Layout) -> list[dict[str, Any]]:
    """Return the rows of a query, its passage and its negatives in a layout."""
    query, texts = line["query"], [line["positive"], *line["negatives"]]
    if layout == "choices":
        return [{"prompt": query, "choices": texts, "label": 0}]
    if layout == "pairs":
        return [
            {"text": query, "pair": text, "label": int(number == 0)}
            for number, text in enumerate(texts)
        ]
    return [dict(line)]


def _count_negatives(rows: Iterable[Mapping[str, Any]], layout: Layout) -> list[int]:
    """Return the number of negatives of each query and passage."""
    if layout == "lists":
        return [len(row["negatives"]) for row in rows]
    if layout == "choices":
        return [len(row["choices"]) - 1 for row in rows]
    counts: list[int] = []
    for row in rows:
        if row["label"]:
            counts.append(0)
        else:
            counts[-1] += 1
    return counts


def _clamp(order: float) -> float:
    return max(-_MAX_LOG_ODDS, min(_MAX_LOG_ODDS, order))

"""Evaluation of retrieval on a judged corpus: first stages, their fusion, and reranking.

queries ─► each index ─► ranking ─┬─► metrics
                                  ├─► reciprocal rank fusion ─► metrics
                                  └──────────► reranked ──────► metrics
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError, SettingsError
from ...settings.keywords import RetrievalEvaluationKeywords
from ...tasks.evaluation import Evaluation
from ...utils.formatting import format_count
from .fusion import fuse_rankings
from .index import Index
from .judgements import (
    JudgedCorpus,
    check_ids_of_run,
    read_candidates,
    read_judgements,
    read_run,
    write_run,
)
from .metrics import Judgements, Run, measure_run, sort_documents
from .opening import check_retriever, open_index
from .reranking import rerank_hits, text_scorer
from .settings import RankingSettings, RetrievalEvaluationSettings
from .store_backend import ranking_of
from .text_index import Ranking, TextIndex

if TYPE_CHECKING:
    from .opening import Retriever
    from .text_index import AnyModel


_HYBRID = "hybrid"


class _RunIndex(TextIndex):
    """The documents that a file ranks for the queries of a judged corpus.

    Args:
        depth: of candidates without scores, the most that a query may have; None: they may not be
            used.

    Attributes:
        notes: on queries of the file that are ignored, and candidates without an order.

    Raises:
        DataError: the file is not valid, a document is not in the corpus, or candidates have no
            scores and their order would matter.
    """

    def __init__(self, corpus: JudgedCorpus, file: Path, depth: int | None) -> None:
        super().__init__(corpus.texts)
        run, has_scores = read_candidates(file)
        self.notes = _unjudged_notes(corpus.judgements, run)
        rows = {name: row for row, name in enumerate(corpus.document_ids)}
        runs = [run.get(query, {}) for query in corpus.queries]
        if unknown_names := {name for scores in runs for name in scores} - rows.keys():
            raise DataError(f"{min(unknown_names)!r} is not in {corpus.name}", where=str(file))
        if not has_scores:
            _check_unordered(max(map(len, runs)), depth, file)
            what = "the candidates have no order unless they are reranked"
            self.notes.append(f"{file}: {what}; only their recall means anything")
        self._size = len(rows)
        self._pairs = [
            [(rows[name], scores[name]) for name in sort_documents(scores)] for scores in runs
        ]

    def __len__(self) -> int:
        return self._size

    def rank(self, queries: Sequence[str], count: int, *, approximate: bool = False) -> Ranking:
        assert len(queries) == len(self._pairs) and not approximate, "those of the corpus"
        return ranking_of([pairs[:count] for pairs in self._pairs], count)


def _check_unordered(count: int, depth: int | None, file: Path) -> None:
    """Check that no ranks are read out of candidates without scores.

    Args:
        count: the most candidates of a query.
        depth: see `_RunIndex`.
    """
    if depth is None:
        what = "the candidates have no scores, so their ranking cannot be fused with others"
        raise DataError(what, where=str(file), fix="Evaluate them alone, or give a run.")
    if count > depth:
        what = f"a query has {count:,} candidates without scores, and {depth:,} are ranked"
        fix = f"Rank them all: depth={count}, and no smaller candidates."
        raise DataError(what, where=str(file), fix=fix)


@dataclass(frozen=True)
class Stage:
    """A ranking of a judged corpus, and its metrics."""

    name: str
    evaluation: Evaluation
    run: Run


def evaluate_retrieval(
    retrievers: Mapping[str, Retriever | Path],
    folder: str | os.PathLike[str],
    *,
    rerank: AnyModel | None = None,
    run_file: str | os.PathLike[str] | None = None,
    progress: Callable[[str], Callable[[int, int], None]] | None = None,
    **settings: Unpack[RetrievalEvaluationKeywords],
) -> list[Stage]:
    """Evaluate how retrievers rank the documents of a folder in BEIR's or MS MARCO's layout.

    A document with the id and the text of a query is left out of its ranking unless it is judged:
    the queries of some collections are documents.

    Args:
        retrievers: models, or "bm25", by name; or files of their runs (TREC's format), or of
            candidates (MS MARCO's top1000.dev.tsv). If there are several, their fusion is a stage
            too.
        folder: `corpus.jsonl`, `queries.jsonl`, `qrels/SPLIT.tsv`; or `collection.tsv`,
            `queries.SPLIT.tsv`, `qrels.SPLIT.tsv`.
        rerank: a cross-encoder or a model of late interaction, which orders the documents of the
            last stage anew.
        run_file: the last stage's ranking is written here, in TREC's format.
        progress: returns, for the name of a retriever, what is called with the number of texts
            embedded, and of all texts.
        settings: of `RetrievalEvaluationSettings` and `EngineSettings`.

    Returns:
        The stages, in their order.

    Raises:
        DataError: the folder is not valid, or an id has white space, and a run is to be written.
        SettingsError: a setting is unknown or not valid; there is no retriever; or they are not by
            name, or one is neither a model nor "bm25".
    """
    ranking_settings, engine = RetrievalEvaluationSettings.split(settings)
    options = RetrievalEvaluationSettings.parse(ranking_settings)
    _check_retrievers(retrievers)
    if rerank is None and options.candidates is not None:
        raise SettingsError(f"candidates={options.candidates} does nothing without a reranker")
    num_reranked = options.depth if options.candidates is None else options.candidates
    corpus = JudgedCorpus.read(folder, options.qrels)
    if run_file is not None:  # whether other documents are found, `write_run` knows
        judged = set(chain(*corpus.judgements.values()))
        likely = (name for name in corpus.document_ids if name in judged)
        check_ids_of_run(chain(corpus.queries, likely), corpus.name)
    depth = min(options.depth + 1, len(corpus.document_ids))  # one may be left out
    queries, own_rows = list(corpus.queries.values()), _rows_of_queries(corpus)
    rankings: dict[str, Ranking] = {}
    notes: dict[str, list[str]] = {}
    index: TextIndex | None = None
    unordered_depth = None if len(retrievers) > 1 else min(options.depth, num_reranked)
    for name, retriever in retrievers.items():
        report = None if progress is None else progress(name)
        if isinstance(retriever, Path):
            index = _RunIndex(corpus, retriever, unordered_depth)
            notes[name] = index.notes
        else:
            index = open_index(retriever, corpus.texts, progress=report, **engine)
        if isinstance(index, Index) and index.num_truncated:
            what = f"{index.num_truncated:,} of {len(index):,} texts were too long"
            notes[name] = [f"{what} and were truncated"]
        rankings[name] = _without_rows(index.rank(queries, depth), own_rows)
    assert index is not None
    if len(rankings) > 1:
        fused = fuse_rankings([rows for _, rows in rankings.values()], depth)
        rankings[_HYBRID] = fused
    runs = {name: _run_of(corpus, ranking, options.depth) for name, ranking in rankings.items()}
    if rerank is not None:
        last = list(rankings)[-1]
        scored = _rerank(corpus, index, rankings[last], num_reranked, rerank, engine)
        runs[f"{last}, reranked"] = _run_of(corpus, scored, options.depth)
    if run_file is not None:
        write_run(run_file, runs[list(runs)[-1]], list(runs)[-1])
    notes = {name: [*_missing_notes(corpus), *notes.get(name, ())] for name in runs}
    return [
        Stage(name, evaluate_run(corpus.judgements, run, options, notes[name]), run)
        for name, run in runs.items()
    ]


def _missing_notes(corpus: JudgedCorpus) -> list[str]:
    if not corpus.num_missing:
        return []
    what = f"{corpus.num_missing:,} relevant documents of queries are not in the corpus or blank"
    return [f"{what}; they count as not found"]


def _check_retrievers(retrievers: Mapping[str, Retriever | Path]) -> None:
    if not isinstance(retrievers, Mapping):
        what = f"the retrievers are no mapping, but {type(retrievers).__name__}"
        raise SettingsError(what, fix='Name them: {"dense": model, "words": "bm25"}.')
    if not retrievers:
        raise SettingsError("there is nothing to evaluate")
    if len(retrievers) > 1 and _HYBRID in retrievers:
        raise SettingsError(f"{_HYBRID!r} is the name of the fusion", fix="Choose another name.")
    for retriever in retrievers.values():
        if not isinstance(retriever, Path):
            check_retriever(retriever)


def evaluate_run(
    judgements: Judgements, run: Run, settings: RankingSettings, notes: Any = ()
) -> Evaluation:
    """Measure a run."""
    metrics = measure_run(judgements, run, settings.metric_names)
    lines = list(notes)
    without_relevant = sum(max(grades.values()) <= 0 for grades in judgements.values())
    if without_relevant:
        lines.append(
            f"{format_count(without_relevant, 'query')} without a relevant document, counted as 0"
        )
    missing = sum(not run.get(query) for query in judgements)
    if missing:
        lines.append(
            f"{format_count(missing, 'judged query')} without a retrieved document, counted as 0"
        )
    return Evaluation(metrics, len(judgements), lines)


def score_run(
    judgements: str | os.PathLike[str], run: str | os.PathLike[str], settings: RankingSettings
) -> Evaluation:
    """Measure a run in TREC's format by judgements in TREC's or BEIR's.

    Raises:
        DataError: a file is not valid.
    """
    relevance, scores = read_judgements(judgements), read_run(run)
    return evaluate_run(relevance, scores, settings, _unjudged_notes(relevance, scores))


def _unjudged_notes(judgements: Judgements, run: Run) -> list[str]:
    count = sum(query not in judgements for query in run)
    return [f"not judged, and ignored: {format_count(count, 'query')} of the run"] if count else []


def _run_of(corpus: JudgedCorpus, ranking: Ranking, depth: int) -> Run:
    run: dict[str, dict[str, float]] = {}
    for query, scores, rows in zip(
        corpus.queries, *(part.tolist() for part in ranking), strict=True
    ):
        pairs = [pair for pair in zip(rows, scores, strict=True) if pair[0] != -1]
        run[query] = {corpus.document_ids[row]: score for row, score in pairs[:depth]}
    return run


def _without_rows(ranking: Ranking, left_out: NDArray[np.int64]) -> Ranking:
    """Return a ranking without one row of each query, which is -1 if there is none."""
    scores, rows = ranking
    rows = np.where(rows == left_out[:, None], -1, rows)
    order = np.argsort(rows == -1, axis=1, kind="stable")
    return np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)


def _rows_of_queries(corpus: JudgedCorpus) -> NDArray[np.int64]:
    """Return the row of the document that is the query itself and is not judged for it; or -1."""
    common_ids = corpus.queries.keys() & set(corpus.document_ids)
    documents = zip(corpus.document_ids, corpus.texts, strict=True) if common_ids else ()
    rows = {
        name: row
        for row, (name, (_, text)) in enumerate(documents)
        if name in common_ids
        and name not in corpus.judgements[name]
        and text.strip() == corpus.queries[name].strip()
    }
    return np.array([rows.get(query, -1) for query in corpus.queries], np.int64)


def _rerank(
    corpus: JudgedCorpus,
    index: TextIndex,
    ranking: Ranking,
    count: int,
    model: AnyModel,
    engine: Mapping[str, Any],
) -> Ranking:
    """Return a ranking whose first are in a reranker's order; its scores count down the places."""
    scores, rows = ranking
    hits = index.hits(scores[:, :count], rows[:, :count])
    hits = rerank_hits(list(corpus.queries.values()), hits, text_scorer(model, engine))
    rows = rows.copy()
    for number, query_hits in enumerate(hits):
        rows[number, : len(query_hits)] = [hit.row for hit in query_hits]
    places = np.arange(len(rows[0]), 0, -1, dtype=np.float32)
    return np.broadcast_to(places, rows.shape), rows

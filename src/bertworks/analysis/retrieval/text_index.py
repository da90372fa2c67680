"""Texts that can be searched, whatever ranks them."""

from __future__ import annotations

import os
import zlib
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...data.rows import LocatedRow
from ...data.tables import Table
from ...data.text_inputs import Texts, as_texts, read_texts
from ...data.texts_by_id import (
    CORPUS_FILES,
    ID,
    TEXT,
    TITLE,
    corpus_file,
    read_texts_with_ids,
    with_titles,
)
from ...errors import DataError, SettingsError
from ...settings.keywords import TableKeywords
from .reranking import rerank_hits, text_scorer

if TYPE_CHECKING:
    from typing import Unpack

    from ...inference.native_model import NativeModel
    from ...model import Model

    AnyModel: TypeAlias = Model | NativeModel

Ranking: TypeAlias = tuple[NDArray[np.float32], NDArray[np.int64]]
"""For each query the scores of the best texts and their rows, `[queries, count]` both, best first.

Rows are numbers of texts that are not blank; -1 where there is no further text.
"""


class Hit(NamedTuple):
    """A text that was found.

    Attributes:
        score: the score for the ranking: the reranker's, if there is one, or else the similarity.
        similarity: of the text and the query, by the index: for vectors the cosine, or what the
            model's files name: the inner product, or a distance, which is negative.
        row: the text's index among the given texts, from 0; blank ones count.
        where: its place: file and line, or row.
        text: the text.
    """

    score: float
    similarity: float
    row: int
    where: str
    text: str


class TextIndex(ABC):
    """Texts that can be searched.

    Args:
        texts: the texts, which are read again for results; blank ones are left out.
        checksums: of the texts that are not blank, by which changed ones are recognised; not
            checked if empty.
        engine: settings of `EngineSettings`, for queries and a reranker.
    """

    score_name = "score"

    def __init__(
        self, texts: Texts, checksums: Sequence[int] = (), engine: Mapping[str, Any] | None = None
    ) -> None:
        self._texts, self._checksums, self._engine = texts, checksums, dict(engine or {})

    def __getstate__(self) -> dict[str, Any]:
        """What a worker needs to rank: not the texts, which are read for results."""
        return {**self.__dict__, "_texts": None}

    @property
    def source(self) -> str:
        """The file or store of the texts, with which places may begin."""
        return self._texts.rows.name

    @abstractmethod
    def __len__(self) -> int:
        """Number of texts that can be found: those that are not blank."""

    def refresh(self) -> None:  # noqa: B027  other texts may not change
        """Read the state that the last writer of a store has left."""

    @abstractmethod
    def rank(self, queries: Sequence[str], count: int, *, approximate: bool = False) -> Ranking:
        """Return the best texts for each query; of equal ones, the earlier text first.

        Args:
            count: at least 1; at most as many as there are texts are returned.
            approximate: compare only a part of the texts, where the index can.
        """

    def search(
        self,
        queries: str | Iterable[str],
        top_k: int = 5,
        *,
        rerank: AnyModel | None = None,
        candidates: int = 50,
        approximate: bool = False,
    ) -> list[list[Hit]]:
        """The best texts for each query, best first; of equal ones, the earlier text.

        A blank query has none. With `rerank`, of equal ones the text that the index ranked higher.

        Args:
            queries: one query, or any number.
            top_k: number of texts per query.
            rerank: a classifier or regression model for pairs (a cross-encoder), or a model of
                late interaction (ColBERT), which scores each query with each of its candidates and
                sets the final order.
            candidates: number of texts to rerank; at least `top_k`.
            approximate: search only part of the texts, with Faiss, which may miss some.

        Raises:
            DataError: a query is too long; or the texts have changed since the index was opened.
            SettingsError: `top_k` or `candidates` is not a number from 1.
            BertworksError: the reranker does not score pairs of texts; with `approximate`, Faiss
                is not installed, or the texts are not ranked by inner products of dense vectors.
        """
        queries = list(as_texts(queries))
        for name, value in (("top_k", top_k), ("candidates", candidates)):
            if not isinstance(value, int | np.integer) or value < 1:
                raise SettingsError(f"{name}={value}: must be a whole number, at least 1")
        if not queries:
            return []
        score = None if rerank is None else text_scorer(rerank, self._engine)
        count = min(top_k if rerank is None else max(top_k, candidates), len(self))
        hits = self.hits(*self.rank(queries, count, approximate=approximate))
        if score is not None:
            hits = rerank_hits(queries, hits, score)
        return [
            query_hits[:top_k] if query.strip() else []
            for query, query_hits in zip(queries, hits, strict=True)
        ]

    def hits(self, scores: NDArray[np.float32], rows: NDArray[np.int64]) -> list[list[Hit]]:
        """Return the texts of a ranking."""
        texts = self._texts_of(set(rows.ravel().tolist()))
        return [
            [
                Hit(score, score, *texts[row])
                for score, row in zip(query_scores, query_rows, strict=True)
                if row in texts  # a database's text may have been deleted since it was ranked
            ]
            for query_scores, query_rows in zip(scores.tolist(), rows.tolist(), strict=True)
        ]

    def _texts_of(self, rows: set[int]) -> dict[int, tuple[int, str, str]]:
        """Return the indices, places and texts of some rows."""
        filled = ((at, *placed) for at, placed in enumerate(self._texts) if placed[1].strip())
        some = islice(filled, max(rows, default=-1) + 1)
        texts = {row: placed for row, placed in enumerate(some) if row in rows}
        what = ""
        if len(texts) < len(rows - {-1}):
            what = "has fewer texts than when it was opened"
        elif self._checksums and any(
            self._checksums[row] != text_checksum(text) for row, (*_, text) in texts.items()
        ):
            what = "has other texts than when it was opened"
        if what:
            raise DataError(what, where=self._texts.rows.name, fix="Open it again.")
        return texts


def open_texts(
    data: Table | Texts | Iterable[str],
    column: str | None,
    *,
    is_read_once: bool = False,
    **options: Unpack[TableKeywords],
) -> Texts:
    """Open the texts of an index, which are read more than once unless `is_read_once`.

    `Texts` are returned unchanged. Without `column`, texts of BEIR's layout (`_id`, `title`,
    `text`) begin with their titles, MS MARCO's `collection.tsv` has ids and texts, and a judged
    corpus's folder stands for its texts.

    Raises:
        DataError: they are read from standard input, or see `read_texts`.
    """
    if isinstance(data, Texts):
        return read_texts(data, **options)
    collection: str | os.PathLike[str] | None = None
    if isinstance(data, str | os.PathLike):
        if os.fspath(data) == "-" and not is_read_once:
            what = "texts to search cannot be read from standard input"
            raise DataError(what, fix="Give a file.")
        data = file = corpus_file(data) or data
        if column is None and Path(file).name in CORPUS_FILES[1:]:
            collection = file
    if collection is not None:
        texts = Texts(read_texts_with_ids(collection, **options), TEXT, is_repeatable=True)
    else:
        items = list(data) if isinstance(data, Iterator) else data
        texts = read_texts(items, column=column, **options)
    if column is None and {ID, TITLE, TEXT} <= set(texts.rows.columns):
        return replace(texts, rows=with_titles(texts.rows))
    return texts


def with_checksums(texts: Texts, checksums: array[int]) -> Texts:
    """The texts, whose checksums are noted each time that they are read."""

    def rows() -> Iterator[LocatedRow]:
        del checksums[:]
        for row in texts.rows:
            checksums.append(text_checksum(str(row.values.get(texts.column))))
            yield row

    return replace(texts, rows=replace(texts.rows, read=rows))


def text_checksum(text: str) -> int:
    """Return the CRC-32 of a text."""
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))


def sort_ranking(scores: NDArray[np.float32], rows: NDArray[np.int64]) -> Ranking:
    """Sort each query's texts by score, and equal ones by their rows."""
    order = np.lexsort((rows, -scores))
    return np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)

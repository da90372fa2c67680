"""Columns, settings and packs of retrieval: queries with passages and negatives, scored pairs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from itertools import product
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from ...checkpoints.sentence import SentencePooling
from ...data.rows import Row, Rows, listing, parse_json_cell, value_of
from ...data.schema import PAIR_NAMES, QUERY_NAMES, Role, Schema
from ...errors import DataError
from ...packed import Packed
from ...settings.base import Settings
from ..example import LabelledExample, list_sequences, pack
from ..labelled import TaskOptions, TaskSettings
from ..labels import read_finite_number

POSITIVE_NAMES = ("positive", "pos")
PASSAGE_NAMES = (*POSITIVE_NAMES, "passage", "answer", "document", "context")
SCORE_NAMES = ("score", "similarity", "similarity_score")
LABEL_NAMES = ("label", "labels")
_NEGATIVE = re.compile(r"(hard_)?neg(ative)?s?(_?\d+)?")


SCHEMA = Schema(
    Role("query"),
    Role("passage"),
    Role("negatives", many=True, optional=True),
    Role("score", of_label=True, optional=True),
)


class RetrievalColumns(Settings):
    """The columns that rows are read from."""

    query: str  # the queries, or the first texts of scored pairs
    passage: str  # the passage that belongs to each query, or the second texts
    # passages that do not belong to the query; a column holds a text, a list of texts, or nothing
    negatives: tuple[str, ...] = ()
    score: str | None = None  # the similarity of the two texts of a pair

    def __str__(self) -> str:
        first, second = ("query", "positive") if self.score is None else ("text", "second text")
        parts = [(first, self.query), (second, self.passage)]
        parts += [("negative", name) for name in self.negatives]
        parts += [("score", self.score)] if self.score is not None else []
        return ", ".join(f"{role} = {name!r}" for role, name in parts)


def find_retrieval_columns(
    rows: Rows,
    *,
    query: str | None = None,
    passage: str | None = None,
    negatives: Sequence[str] | None = None,
    score: str | None = None,
    labelled: bool = True,
    may_score: bool = True,
) -> RetrievalColumns:
    """Find the column of each role.

    Args:
        query, passage, negatives, score: names or numbers of columns; guessed if None.
        labelled: whether to find negatives and scores.
        may_score: whether to guess a column of scores. It is guessed only if there are no negatives
            and the passage's column is not called positive.

    Raises:
        DataError: a named column does not exist, the columns of texts cannot be guessed, or there
            is a column of labels that may be scores or classes.
    """
    columns = rows.columns
    by_name = {name.strip().lower(): name for name in columns}

    def resolve_name(name: str | None) -> str | None:
        return None if name is None else rows.column(name)

    query_column, passage_column, score_column = map(resolve_name, (query, passage, score))
    pairs = [*product(QUERY_NAMES, PASSAGE_NAMES), *PAIR_NAMES]
    if len(columns) == 2:
        first, second = (name.strip().lower() for name in columns)
        pairs.append((first, second))
    guesses = (
        (query_column or by_name.get(first), passage_column or by_name.get(second))
        for first, second in pairs
    )
    text_columns = [
        (first, second) for first, second in guesses if first and second and first != second
    ]
    if not text_columns:
        raise DataError(
            f"cannot tell which columns are the query and what belongs to it; {listing(columns)}",
            where=rows.name,
            fix="Name them with query_column=NAME and passage_column=NAME.",
        )
    texts = text_columns[0]
    if not labelled:
        return RetrievalColumns(query=texts[0], passage=texts[1])
    if negatives is not None:
        negative_columns = [rows.column(name) for name in negatives]
    else:
        negative_columns = [name for name in columns if _NEGATIVE.fullmatch(name.strip().lower())]
    may_score = (
        may_score and not negative_columns and texts[1].strip().lower() not in POSITIVE_NAMES
    )
    if score_column is None and may_score:
        score_column = _guess_score(rows, by_name.get, texts)
    return RetrievalColumns(
        query=texts[0], passage=texts[1], negatives=tuple(negative_columns), score=score_column
    )


def _guess_score(
    rows: Rows, by_name: Callable[[str], str | None], texts: Sequence[str]
) -> str | None:
    """The column called score, or one called label if it holds 0 and 1, or fractions.

    Raises:
        DataError: a column called label holds something else.
    """
    scores, labels = (
        [column for name in names if (column := by_name(name)) is not None and column not in texts]
        for names in (SCORE_NAMES, LABEL_NAMES)
    )
    if scores:
        return scores[0]
    for name in labels:
        try:
            numbers = {read_finite_number(row, name, None) for row in rows.sample}
        except DataError:
            numbers = set()
        if numbers == {0.0, 1.0} or any(not number.is_integer() for number in numbers):
            return name
        raise DataError(
            f"the column {name!r} may hold scores of pairs, or classes",
            where=rows.name,
            fix=f"Give score_column={name}; or loss=in-batch, if every pair belongs together.",
        )
    return None


def negatives_of(row: Row, columns: Sequence[str], where: str) -> list[str]:
    """The negatives of a row, from all columns; an empty column has none.

    Raises:
        DataError: a column is missing, or holds neither a text nor a list of texts.
    """
    negatives: list[str] = []
    for column in columns:
        value = parse_json_cell(value_of(row, column, where), list)
        is_nan = isinstance(value, float) and math.isnan(value)  # where pandas has nothing
        texts = value if isinstance(value, list) else [value] if value and not is_nan else []
        if not all(isinstance(text, str) for text in texts):
            raise DataError(
                f"the column {column!r} holds neither text nor a list of texts", where=where
            )
        negatives += texts
    return negatives


Loss = Literal["in-batch", "triplet", "cosine"]
"""The loss that vectors are trained with; see `network`.

- `in-batch`: find each query's passage among the passages and negatives of the whole batch;
- `triplet`: bring each passage nearer to its query than the row's negatives;
- `cosine`: make the cosine of two texts equal to their score.
"""


class _SharedSettings(Settings):
    """Settings of losses and of truncation."""

    scale: float = Field(
        20.0,
        gt=0,
        le=10_000,
        description="scale of cosines in the in-batch loss; one over the temperature",
    )
    symmetric: bool = Field(
        False, description="in-batch: also find each passage's query; the loss is the mean of both"
    )
    margin: float = Field(
        0.1,
        gt=0,
        le=2,
        description="margin of cosines in the triplet loss, which differ by at most 2",
    )
    score_range: tuple[float, float] | None = Field(
        None, description="scores that mean cosines 0 and 1; detected if omitted"
    )
    chunk_tokens: int | None = Field(
        None, ge=1, description="tokens encoded at once; saves memory, takes longer"
    )
    truncation: Literal["cut", "error"] = Field(
        "cut", description="whether longer texts are cut, or an error"
    )

    @model_validator(mode="after")
    def _check_score_range(self) -> Self:
        if self.score_range is not None and not self.score_range[0] < self.score_range[1]:
            raise ValueError(f"score_range={list(self.score_range)} is not a range")
        return self


class RetrievalOptions(TaskOptions, _SharedSettings):
    """Columns, loss and pooling of retrieval."""

    query_column: str | None = Field(None, description="column name or number; detected if omitted")
    passage_column: str | None = Field(
        None, description="column of the passage, or of the second text of a scored pair"
    )
    negative_columns: str | None = Field(
        None, description="names or numbers, comma-separated; a column may hold lists"
    )
    score_column: str | None = Field(
        None, description="column of scores of pairs; detected if omitted"
    )
    text_column: str | None = Field(
        None, description="column of texts to learn from a teacher; detected if omitted"
    )
    loss: Loss | None = Field(
        None, description="if omitted: cosine if there are scores, else in-batch"
    )
    pooling: SentencePooling | None = Field(
        None,
        description="how token vectors become a text vector; the model's own if omitted, or mean",
    )

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        if self.dropout is not None:
            raise ValueError(f"dropout={self.dropout}: retrieval has no output layer")
        if self.score_column is not None and self.loss not in {None, "cosine"}:
            raise ValueError(f"score_column={self.score_column!r} is not for loss={self.loss}")
        return self


class RetrievalSettings(TaskSettings, _SharedSettings):
    """Settings that are saved with a retrieval model."""

    columns: RetrievalColumns = Field(description="the columns that rows are read from")
    loss: Loss = "in-batch"
    pooling: SentencePooling = "mean"


def pack_texts(examples: Sequence[LabelledExample]) -> tuple[Packed, dict[str, np.ndarray]]:
    """Pack all texts in order of length.

    Returns:
        The pack, and by name:
        `query` `[rows]` int64: indices of the queries' sequences in the pack;
        `passage` `[rows + negatives]` int64: the same for the rows' passages, then all negatives;
        `negative_row` `[negatives]` int64: index of the row that each negative belongs to;
        `is_excluded` `[rows, rows + negatives]` bool: passages that are not negatives of a query.
    """
    # First queries, then their passages, then the negatives, each in the order of the rows.
    roles = sorted(list_sequences(examples), key=lambda role: min(role[1], 2))
    texts = [examples[at].sequences[number].input_ids for at, number in roles]
    order = sorted(range(len(texts)), key=lambda role: len(texts[role]))
    packed = pack(examples, [roles[role] for role in order])
    positions = np.empty(len(order), np.int64)
    positions[order] = np.arange(len(order))
    rows = len(examples)
    return packed, {
        "query": positions[:rows],
        "passage": positions[rows:],
        "negative_row": np.array([at for at, _ in roles[2 * rows :]], np.int64),
        "is_excluded": _find_excluded(texts[:rows], texts[rows:]),
    }


def _find_excluded(
    queries: Sequence[np.ndarray], passages: Sequence[np.ndarray]
) -> NDArray[np.bool_]:
    """Which passages must not be used as negatives of a query: `[queries, passages]`.

    These are passages that belong to the same query in another row, and passages that equal the
    query. The first passages are the positives, in the order of the queries; they are not excluded.
    Texts are compared by their token ids.
    """
    numbers: dict[bytes, int] = {}
    query_ids = np.array([numbers.setdefault(ids.tobytes(), len(numbers)) for ids in queries])
    passage_ids = np.array([numbers.setdefault(ids.tobytes(), len(numbers)) for ids in passages])
    pairs = query_ids[:, None] * len(numbers) + passage_ids
    is_excluded: NDArray[np.bool_] = np.isin(pairs, pairs.diagonal()) | (
        query_ids[:, None] == passage_ids
    )
    np.fill_diagonal(is_excluded, val=False)
    return is_excluded

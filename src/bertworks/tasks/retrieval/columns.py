"""Which columns hold queries, what belongs to them and what does not; or pairs and their scores."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import product

from ...errors import DataError
from ...settings import Settings
from ..columns import PAIR_NAMES, QUERY_NAMES, listing, resolve
from ..labels import finite_number
from ..placed import Rows, missing_column, unpacked
from ..schema import Role, Schema
from ..task import Row

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
    """The columns that rows are read from.

    Attributes:
        query: the queries, or the first texts of scored pairs.
        passage: what belongs to each, or the second texts.
        negatives: what does not: of each column a text, or a list of them, or nothing.
        score: how alike the two texts of a pair are.
    """

    query: str
    passage: str
    negatives: tuple[str, ...] = ()
    score: str | None = None

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
    """Settle which columns are what: those named, by name or by number; the others by guessing.

    Args:
        rows: the table.
        query, passage, negatives, score: what is named; guessed if None.
        labelled: whether negatives and scores are wanted.
        may_score: whether a score is looked for; only where the second texts are not called
            positives and there are no negatives.

    Raises:
        DataError: a named column is not there, or texts cannot be guessed; or there are labels that
            may be scores or classes.
    """
    columns = rows.columns
    by_name = {name.strip().lower(): name for name in columns}

    def named(name: str | None) -> str | None:
        return None if name is None else resolve(columns, name, rows.name)

    own_query, own_passage, own_score = named(query), named(passage), named(score)
    pairs = [*product(QUERY_NAMES, PASSAGE_NAMES), *PAIR_NAMES]
    if len(columns) == 2:
        first, second = (name.strip().lower() for name in columns)
        pairs.append((first, second))
    guesses = (
        (own_query or by_name.get(first), own_passage or by_name.get(second))
        for first, second in pairs
    )
    found = [(first, second) for first, second in guesses if first and second and first != second]
    if not found:
        raise DataError(
            f"cannot tell which columns are the query and what belongs to it; {listing(columns)}",
            where=rows.name,
            fix="Name them with query_column=NAME and passage_column=NAME.",
        )
    texts = found[0]
    if not labelled:
        return RetrievalColumns(query=texts[0], passage=texts[1])
    if negatives is not None:
        own_negatives = [resolve(columns, name, rows.name) for name in negatives]
    else:
        own_negatives = [name for name in columns if _NEGATIVE.fullmatch(name.strip().lower())]
    may_score = may_score and not own_negatives and texts[1].lower() not in POSITIVE_NAMES
    if own_score is None and may_score:
        own_score = _guess_score(rows, by_name.get, texts)
    return RetrievalColumns(
        query=texts[0], passage=texts[1], negatives=tuple(own_negatives), score=own_score
    )


def _guess_score(
    rows: Rows, by_name: Callable[[str], str | None], texts: Sequence[str]
) -> str | None:
    """The column of a score's name that holds numbers.

    Raises:
        DataError: it is called labels, and they may as well be classes: whole numbers beyond 0 and
            1, or names.
    """
    for name in filter(None, map(by_name, SCORE_NAMES)):
        if name not in texts:
            return name
    for name in filter(None, map(by_name, LABEL_NAMES)):
        try:
            numbers = {finite_number(row, name, None) for row in rows.sample}
        except DataError:
            numbers = set()
        if numbers == {0.0, 1.0} or any(not number.is_integer() for number in numbers):
            return name
        raise DataError(
            f"the column {name!r} may hold scores of pairs, or classes",
            where=rows.name,
            fix=f"Say score_column={name}; or loss=in-batch, if every pair belongs together.",
        )
    return None


def negatives_of(row: Row, columns: Sequence[str], where: str) -> list[str]:
    """The negatives of a row, of all columns; where a column holds nothing, there is none.

    Raises:
        DataError: a column is missing, or holds something else than a text or a list of texts.
    """
    found: list[str] = []
    for column in columns:
        if column not in row:
            raise missing_column(column, row, where)
        value = unpacked(row[column], list)
        texts = value if isinstance(value, list) else [value] if value else []
        if not all(isinstance(text, str) for text in texts):
            raise DataError(
                f"the column {column!r} holds neither text nor a list of texts", where=where
            )
        found += texts
    return found

"""Columns of retrieval: queries with passages and negatives, or scored pairs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from ...data.missing_columns import MissingColumnError
from ...data.rows import (
    LocatedRow,
    Row,
    Rows,
    is_missing,
    listing,
    parse_json_cell,
    sample_of,
    value_of,
)
from ...data.schema import (
    PAIR_NAMES,
    QUERY_NAMES,
    Role,
    RoleColumns,
    Schema,
    canonical,
    columns_by_name,
)
from ...errors import DataError
from ..labels import read_finite_number

POSITIVE_NAMES = ("positive", "pos", "positives")
PASSAGE_NAMES = (*POSITIVE_NAMES, "passage", "answer", "document", "context")
SCORE_NAMES = ("score", "similarity", "similarity_score")
LABEL_NAMES = ("label", "labels")
_CLASS_NAMES = (*LABEL_NAMES, "class", "category", "intent")
_TREC_COLUMNS = 4
_NEGATIVE = re.compile(r"(hard_)?neg(ative)?s?(_?\d+)?")


SCHEMA = Schema(
    Role("query"),
    Role("passage"),
    Role("negatives", many=True, optional=True),
    Role("score", of_label=True, optional=True),
)


def find_retrieval_columns(
    rows: Rows,
    names: RoleColumns,
    *,
    labelled: bool = True,
    may_score: bool = True,
    has_score_lists: bool = False,
) -> RoleColumns:
    """Find the column of each role.

    Args:
        names: names or numbers of columns by role; those that are None are guessed.
        labelled: whether to find negatives and scores.
        may_score: whether to guess a column of scores. It is guessed only if there are no negatives
            and the passage's column is not called positive.
        has_score_lists: whether to guess a column of lists of scores, of passage and negatives.

    Raises:
        DataError: a named column does not exist, the columns of texts cannot be guessed, or there
            is a column of labels that may be scores or classes.
    """
    columns = rows.columns
    by_name = columns_by_name(columns)

    query_column, passage_column, score_column = (
        rows.column(name) if isinstance(name := names[role], str) else None
        for role in ("query", "passage", "score")
    )
    pairs = [*product(QUERY_NAMES, PASSAGE_NAMES), *PAIR_NAMES]
    if len(columns) == 2:
        first, second = (name.strip().lower() for name in columns)
        _check_no_classes(rows, (query_column, passage_column))
        pairs.append((first, second))
    guesses = (
        (query_column or by_name.get(first), passage_column or by_name.get(second))
        for first, second in pairs
    )
    text_columns = [
        (first, second) for first, second in guesses if first and second and first != second
    ]
    if not text_columns:
        raise MissingColumnError(
            f"cannot tell which columns are the query and what belongs to it; {listing(columns)}",
            where=rows.name,
            fix="Name them with query_column=NAME and passage_column=NAME.",
            rename="Call them query and passage.",
        )
    texts = text_columns[0]
    if not labelled:
        return {"query": texts[0], "passage": texts[1], "negatives": None, "score": None}
    negatives = names["negatives"]
    if negatives is not None:
        parts = negatives.split(",") if isinstance(negatives, str) else negatives
        negative_columns = [rows.column(part.strip()) for part in parts]
    else:
        negative_columns = [name for name in columns if _NEGATIVE.fullmatch(canonical(name))]
    if score_column is None and has_score_lists:
        score_column = by_name.get("scores")
    may_score = may_score and not negative_columns and canonical(texts[1]) not in POSITIVE_NAMES
    if score_column is None and may_score:
        score_column = _guess_score(rows, by_name.get, texts)
    return {
        "query": texts[0],
        "passage": texts[1],
        "negatives": tuple(negative_columns),
        "score": score_column,
    }


def _check_no_classes(rows: Rows, named_columns: Sequence[str | None]) -> None:
    """Check that the only two columns of a table, unless they are named, are not of classes.

    Raises:
        DataError: a column is called label, or the like, or has few, short values: these names
            would be ranked as passages.
    """
    names = columns_by_name(rows.columns).keys()
    pairs = (*product(QUERY_NAMES, PASSAGE_NAMES), *PAIR_NAMES)
    is_known_pair = any(names >= {*pair} for pair in pairs)
    for column in rows.columns:
        if column in named_columns:
            continue
        if canonical(column) in _CLASS_NAMES:
            what = "labels"
        elif not is_known_pair and _has_few_short_values(rows, column):
            what = "few, short values, as of labels"
        else:
            continue
        raise DataError(
            f"the column {column!r} has {what}, not passages to find",
            where=rows.name,
            fix="Rename it if it has passages; finetune also takes passage_column=NAME.",
        )


def _has_few_short_values(rows: Rows, column: str) -> bool:
    """Whether each value of a column occurs several times, and none has many words."""
    values = [str(row.get(column, "")).strip() for row in rows.sample]
    kinds = set(values)
    return 5 * len(kinds) <= len(values) and all(len(kind.split()) <= 3 for kind in kinds)


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
        raise MissingColumnError(
            f"the column {name!r} may hold scores of pairs, or classes",
            where=rows.name,
            fix=f"Give score_column={name}; or loss=in-batch, if every pair belongs together.",
            rename="Call it score, if it has scores.",
        )
    return None


def read_score_list(row: Row, column: str, count: int, where: str) -> np.ndarray:
    """The scores of a row's passage and negatives: `[count]` float32.

    Raises:
        DataError: the column is missing, or has something else than `count` numbers.
    """
    value = parse_json_cell(value_of(row, column, where), list, object)
    is_list = isinstance(value, list) and all(
        isinstance(one, int | float) and not isinstance(one, bool) and math.isfinite(one)
        for one in value
    )
    if not is_list or len(value) != count:
        what = f"the column {column!r} has no list of {count} numbers"
        fix = "Give a score of the passage and of each negative that is not blank."
        raise DataError(what, where=where, fix=fix)
    return np.array(value, np.float32)


def read_negatives(row: Row, columns: Sequence[str], where: str) -> list[str]:
    """The negatives of a row, from all columns; blank ones do not count.

    Raises:
        DataError: a column is missing, or holds neither a text nor a list of texts.
    """
    negatives: list[str] = []
    for column in columns:
        value = parse_json_cell(value_of(row, column, where), list)
        texts = value if isinstance(value, list) else [] if is_missing(value) else [value]
        if not all(isinstance(text, str) for text in texts):
            raise DataError(
                f"the column {column!r} holds neither text nor a list of texts", where=where
            )
        negatives += filter(str.strip, texts)
    return negatives


def without_irrelevant(rows: Rows) -> Rows:
    """Return a table of ids without the passages that are judged irrelevant: 0, or less.

    Judgements are BEIR's column `score`, next to `query-id` and `corpus-id`, and the last of TREC's
    four columns, which have no header.

    Raises:
        DataError: a judgement is not a number.
    """
    if {"query-id", "corpus-id", "score"} <= set(rows.columns):
        column = "score"
    elif rows.has_header is False and len(rows.columns) == _TREC_COLUMNS:
        column = rows.columns[-1]
    else:
        return rows

    def read() -> Iterator[LocatedRow]:
        for row in rows:
            if read_finite_number(row.values, column, row.where) > 0:
                yield row

    return replace(rows, sample=sample_of(read), read=read)


def check_same_scale(rows: Rows, column: str, score_range: tuple[float, float]) -> None:
    """Check that the scores of a training table are of the scale of the first one's.

    Raises:
        DataError: one lies outside, or all lie in the lower half.
    """
    low, high = score_range
    scores = [read_finite_number(row, column, where) for where, row in rows]
    if min(scores) < low or not (low + high) / 2 < max(scores) <= high:
        raise DataError(
            f"its scores (column {column!r}) are from {min(scores):g} to {max(scores):g}, those of "
            f"the first training table from {low:g} to {high:g}",
            where=rows.name,
            fix="Write them in one scale.",
        )


def find_score_range(scores: Sequence[float]) -> tuple[float, float]:
    """The scores that mean cosines of 0 and 1: the lowest and the highest of `scores`.

    If all scores are between -1 and 1, they are used as cosines: the range is (0, 1).
    """
    low, high = min(scores), max(scores)
    if low >= -1 and high <= 1:
        return 0.0, 1.0
    return low, high if high > low else low + 1


def scale_score(score: float, score_range: tuple[float, float]) -> float:
    """Return the cosine that a score means."""
    low, high = score_range
    return (score - low) / (high - low)

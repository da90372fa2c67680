"""Score answers by question id, as the official scorers of SQuAD read them."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ...data.rows import LocatedRow, Rows, text_of
from ...errors import BertworksWarning, DataError, truncate_repr
from ...tasks.answering.answers import SCHEMA, has_ignored_answers, read_answers
from ...tasks.answering.scores import AnsweringScores
from ...tasks.evaluation import Evaluation
from ...tasks.measures import Location
from ...utils.json_files import RepeatedKeys, parse_json
from ...utils.regular_files import read_bytes

T = TypeVar("T", str, float)


def score_answers(
    rows: Rows,
    predictions: str | os.PathLike[str] | Mapping[str, str],
    chances: str | os.PathLike[str] | Mapping[str, float] | None,
) -> Evaluation:
    """Score answers, given by question id; `chances` are probabilities of no answer."""
    columns = SCHEMA.find(rows, labelled=True)
    question_column, context_column = str(columns["question"]), str(columns["context"])
    questions: dict[str, LocatedRow] = {}
    for row in rows:
        number = row.values.get("id")  # a table may number its questions
        is_number = isinstance(number, int) and not isinstance(number, bool)
        identity = str(number) if is_number else text_of(row.values, "id", row.where)
        if not identity:
            raise DataError("the question has no id", where=row.where)
        if identity in questions:
            raise DataError(f"two questions have the id {identity!r}", where=row.where)
        questions[identity] = row
    answers = {
        identity: read_answers(row.values, columns, row.where)[0]
        for identity, row in questions.items()
    }
    places = [
        where for where, row in questions.values() if has_ignored_answers(row, columns, where)
    ]
    if places:
        what = f"{len(places):,} question(s) with is_impossible have answers, which are ignored"
        warnings.warn(f"{places[0]}: {what}; here the first", BertworksWarning, stacklevel=3)
    predicted = _by_id(predictions, "the predictions", str, questions, rows.name)
    margins: dict[str, float] = {}
    if chances is not None:
        where = "the no-answer probabilities"
        margins = _by_id(chances, where, float, questions, rows.name)
        for identity in questions:
            if identity not in margins:
                where = os.fspath(chances) if isinstance(chances, str | os.PathLike) else where
                raise DataError(f"the question {identity!r} is missing", where=where)
    # The predictions are final: no threshold is applied to them.
    scores = AnsweringScores(unanswerable=bool(margins) or not all(answers.values()))
    for index, (identity, row) in enumerate(questions.items()):
        context = text_of(row.values, context_column, row.where)
        answer = predicted.get(identity)
        start = context.find(answer) if answer else -1
        scores.add(
            Location(index, row.where),
            text_of(row.values, question_column, row.where),
            context,
            answers[identity],
            answer,
            margin=margins.get(identity),
            mark=(0, 0) if answer is None or start < 0 else (start, start + len(answer)),
        )
    return Evaluation.from_measure(scores, len(questions))


def _by_id(
    source: str | os.PathLike[str] | Mapping[str, Any],
    name: str,
    kind: Callable[[Any], T],
    questions: Mapping[str, LocatedRow],
    data: str,
) -> dict[str, T]:
    """Read texts (`kind` is `str`) or finite numbers by question id.

    Ids that are not in the data are ignored, as by the official scorers, and counted in a warning.

    Raises:
        DataError: a value is not valid, or no id is that of a question.
    """
    where, items = name, source
    if isinstance(source, str | os.PathLike):
        where, items = os.fspath(source), _json_object(os.fspath(source))
    assert isinstance(items, Mapping)
    unknown_ids = [identity for identity in items if identity not in questions]
    if unknown_ids and len(unknown_ids) == len(items):
        what = f"none of its {len(items):,} ids is that of a question in {data}, such as"
        raise DataError(f"{what} {truncate_repr(unknown_ids[0])}", where=where)
    if unknown_ids:
        what = f"{len(unknown_ids):,} of {len(items):,} ids are not those of a question in {data}"
        warnings.warn(
            f"{where}: {what}, and are ignored; the first is {truncate_repr(unknown_ids[0])}",
            BertworksWarning,
            stacklevel=4,
        )
    values: dict[str, T] = {}
    for identity in questions:
        if identity not in items:
            continue
        value = items[identity]
        if not (isinstance(value, str) if kind is str else _is_finite(value)):
            expected = "a text" if kind is str else "a finite number"
            what = f"{type(value).__name__} {_short(value)} of the question {identity!r}"
            raise DataError(f"expected {expected}, got {what}", where=where)
        values[identity] = kind(value)
    return values


def _is_finite(value: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer of hundreds of digits
        return False


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def _json_object(path: str) -> dict[str, Any]:
    """Read the object in a JSON file; no key may occur twice."""
    try:
        value = parse_json(read_bytes(path, limit=1 << 32), mark_repeated_keys=True)
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror})", where=path) from None
    except UnicodeDecodeError:
        raise DataError("not UTF-8", where=path) from None
    except json.JSONDecodeError as error:
        raise DataError(f"not valid JSON: {error.msg}", where=f"{path}:{error.lineno}") from None
    except ValueError as error:
        raise DataError(f"JSON that cannot be read: {error}", where=path) from None
    if not isinstance(value, dict):
        raise DataError(
            f"a JSON {type(value).__name__}, not an object",
            where=path,
            fix='It must hold one value for each id: {"id": …}.',
        )
    if isinstance(value, RepeatedKeys):
        raise value.error(path)
    return value

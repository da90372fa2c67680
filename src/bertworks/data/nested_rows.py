"""Records that stand for several rows, or for none: questions of a passage, passages of a query,
annotations, and Prodigy's examples that were rejected or ignored.

    {"query": …, "pos": ["…", "…"], "neg": ["…", …]}     FlagEmbedding: a row for each positive
    {"article": …, "questions": [Q, …], "options": [[O, …], …], "answers": ["B", …]}     RACE

`pos_scores` and `neg_scores`, a teacher's, become the list `scores` of a row's passage and its
negatives. RACE's rows have the columns `question`, `options` and `answer`, as in later copies.
SQuAD's questions are described in `questions.py`, annotations of a text in `label_studio.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import DataError
from .label_studio import holds_annotations, rows_of_task
from .questions import holds_questions, questions_of
from .reading import ReadCounts
from .rows import LocatedRow

_OF_QUESTIONS = {"questions": "question", "options": "options", "answers": "answer"}
"""RACE's lists with an item for each question, and the columns of its rows."""
_NO_ANNOTATION = "task with cancelled annotations only"
_NOT_ACCEPTED = "example that was rejected or ignored"
_PRODIGY_KEYS = {"_task_hash", "_input_hash"}
_POSITIVES = ("pos", "positive", "positives")


def rows_in_record(
    values: dict[str, Any], name: str, number: int, where: str, counts: ReadCounts
) -> Iterator[LocatedRow]:
    """Yield the rows of a record: itself, or those that it stands for.

    Args:
        values: the record.
        name: of the file, for messages.
        number: of the record, from 1.
        where: the record's place.
        counts: counts records that have no row.

    Raises:
        DataError: a part of nested questions is missing or of another type; or lists of questions
            and of their options differ in length; or the record is a whole table by columns.
    """
    if holds_questions(values):
        yield from questions_of(values, name, number)
        return
    if holds_annotations(values):
        rows = [LocatedRow(where, row) for row in rows_of_task(values)]
        if not rows:
            _count(_NO_ANNOTATION, where, counts)
        yield from rows
        return
    if values.get("answer") in ("reject", "ignore") and _PRODIGY_KEYS & values.keys():
        _count(_NOT_ACCEPTED, where, counts)
        return
    if holds_choices(values):
        yield from _rows_of_choices(values, where)
        return
    if _is_table(values):
        what = "one object that holds all rows, as pandas' to_json writes it"
        raise DataError(what, where=where, fix='Write it with orient="records", lines=True.')
    column = next((name for name in _POSITIVES if isinstance(values.get(name), list)), None)
    is_ranked = isinstance(values.get("query"), str) and isinstance(values.get("neg"), list)
    if column is None or not is_ranked:
        yield LocatedRow(where, values)
        return
    of_positives, of_negatives = values.get("pos_scores"), values.get("neg_scores")
    others = {key: values[key] for key in values if key not in ("pos_scores", "neg_scores")}
    for index, positive in enumerate(values[column] or [None]):  # None: an error of its row
        row = {**others, column: positive}
        if isinstance(of_positives, list) and isinstance(of_negatives, list):
            row["scores"] = [*of_positives[index : index + 1], *of_negatives]
        yield LocatedRow(where, row)


def _is_table(values: Mapping[str, Any]) -> bool:
    """Whether a record has the rows or the columns of a table by their numbers: pandas' layouts."""
    parts = [list(part) for part in values.values() if isinstance(part, Mapping)]
    if len(parts) < max(len(values), 1) or any(part != parts[0] for part in parts):
        return False
    if len(parts) * len(parts[0]) < 2:
        return False
    return any(names == [str(at) for at in range(len(names))] for names in (parts[0], [*values]))


def _count(kind: str, where: str, counts: ReadCounts) -> None:
    counts.num_skipped_by_kind[kind] += 1
    counts.first_skipped.setdefault(kind, where)


def holds_choices(values: Mapping[str, Any]) -> bool:
    """Whether a record is a passage with several questions and the options of each, as in RACE."""
    questions, options = values.get("questions"), values.get("options")
    return (
        isinstance(questions, list)
        and isinstance(options, list)
        and all(isinstance(part, list) for part in options)
    )


def _rows_of_choices(values: Mapping[str, Any], where: str) -> Iterator[LocatedRow]:
    lists = {key: values[key] for key in _OF_QUESTIONS if values.get(key) is not None}
    counts = {key: len(part) for key, part in lists.items() if isinstance(part, list)}
    if len(counts) < len(lists) or len(set(counts.values())) > 1:
        raise DataError(f"{', '.join(lists)} are not lists of equal length", where=where)
    others = {key: value for key, value in values.items() if key not in _OF_QUESTIONS}
    for at, parts in enumerate(zip(*lists.values(), strict=True), 1):
        of_question = zip(map(_OF_QUESTIONS.__getitem__, lists), parts, strict=True)
        yield LocatedRow(f"{where}, question {at}", {**others, **dict(of_question)})

"""Records that stand for several rows: questions of a passage, passages of a query, annotations.

    {"query": …, "pos": ["…", "…"], "neg": ["…", …]}     FlagEmbedding: a row for each positive

`pos_scores` and `neg_scores`, a teacher's, become the list `scores` of a row's passage and its
negatives. Questions are described in `questions.py`, annotations of a text in `label_studio.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .label_studio import holds_annotations, rows_of_task
from .questions import holds_questions, questions_of
from .rows import LocatedRow

_POSITIVES = ("pos", "positive", "positives")


def rows_in_record(
    values: dict[str, Any], name: str, number: int, where: str
) -> Iterator[LocatedRow]:
    """Yield the rows of a record: itself, or those that it stands for.

    Args:
        values: the record.
        name: of the file, for messages.
        number: of the record, from 1.
        where: the record's place.

    Raises:
        DataError: a part of nested questions is missing or of another type.
    """
    if holds_questions(values):
        yield from questions_of(values, name, number)
        return
    if holds_annotations(values):
        yield from (LocatedRow(where, row) for row in rows_of_task(values))
        return
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

"""Score class labels: a table with a column of gold labels and one of predicted labels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from ...data.rows import NoLabel, Rows
from ...errors import DataError, shorten_list
from ...tasks.evaluation import Evaluation
from ...tasks.labels import (
    MARKS,
    find_unlabelled_marks,
    parse_class_numbers,
    read_label_name,
    sort_labels,
    warn_about_absent_mark,
    warn_about_possible_marks,
)
from ...tasks.measures import Location
from ...tasks.scores import ClassificationScores
from .columns import format_row, unfold_prediction

_WHOLE_FLOAT = re.compile(r"-?\d+\.0")  # a whole number in a table's column of floats


def score_classes(rows: Rows, label: str, prediction: str, no_label: str | None) -> Evaluation:
    """Score the labels in the columns `label` and `prediction`.

    Args:
        no_label: the label of rows without a gold label; see `score`.
    """
    pairs, texts = [], []
    places: list[Location] = []
    declared_marks: set[str] = set()
    total = 0
    for total, (where, row) in enumerate(rows, 1):
        if isinstance(value := row.get(label), NoLabel):
            declared_marks.add(str(value))
            continue
        predicted = unfold_prediction(row, prediction, "label")
        pairs.append(
            (read_label_name(row, label, where), read_label_name(predicted, prediction, where))
        )
        texts.append(format_row(row, (label, prediction)))
        places.append(Location(total - 1, where))
    if not total:
        raise DataError("there are no rows", where=rows.name)
    pairs, name_notes = _unify_names(pairs)
    warn_about_absent_mark({*_sides(pairs)[0], *declared_marks}, no_label, rows.name)
    marks = _marks(pairs, no_label, rows.name)
    labelled_rows = [at for at, (gold, _) in enumerate(pairs) if gold not in marks]
    if not labelled_rows:
        raise DataError("no row has a gold label", where=rows.name)
    pairs = [pairs[at] for at in labelled_rows]
    names = sort_labels({name for pair in pairs for name in pair})
    number_of = {name: number for number, name in enumerate(names)}
    numbers = np.array([[number_of[name] for name in pair] for pair in pairs]).T
    # With two labels, F1 is that of the second one, as for a trained classifier.
    scores = ClassificationScores(names, 1 if len(names) == 2 else None)
    scores.add(numbers[0], numbers[1])
    for at, pair in zip(labelled_rows, pairs, strict=True):
        if pair[0] != pair[1]:
            scores.add_mistake(places[at], texts[at], *pair)
    notes = [*scores.notes(), *_disjoint_labels(pairs), *name_notes]
    if left_out := total - len(pairs):
        what = shorten_list(sorted(marks)) if marks else "-1"
        notes.append(f"{left_out:,} of {total:,} rows have no gold label ({what}) and are left out")
    return Evaluation(scores.result(), len(pairs), notes, scores.breakdown())


def _marks(pairs: Sequence[tuple[str, str]], no_label: str | None, where: str) -> set[str]:
    """Return the gold labels that mark a row without a label; predicted labels never do."""
    gold, predicted = _sides(pairs)
    warn_about_possible_marks(gold | predicted, no_label, where, predicted, is_option=True)
    marks = find_unlabelled_marks(gold | predicted, no_label)
    return marks if no_label is not None else marks - predicted


def _sides(pairs: Sequence[tuple[str, str]]) -> tuple[set[str], set[str]]:
    """Return all gold and all predicted labels."""
    return {gold for gold, _ in pairs}, {predicted for _, predicted in pairs}


def _unify_names(
    pairs: list[tuple[str, str]],
) -> tuple[list[tuple[str, str]], list[str]]:
    """Give equal labels equal names, where only one side, gold or predicted, has others.

    Returns:
        The pairs, and notes for the user.
    """
    pairs = _whole_numbers(pairs)
    if {label.lower() for pair in pairs for label in pair} <= {"true", "false"}:
        pairs = [(one.lower(), two.lower()) for one, two in pairs]
    gold, predicted = (side - {*MARKS} for side in _sides(pairs))
    for name, side, other in (("gold", gold, predicted), ("predicted", predicted, gold)):
        numbers = parse_class_numbers(side)
        if numbers and all(label.isdecimal() for label in other):
            pairs = [(numbers.get(one, one), numbers.get(two, two)) for one, two in pairs]
            some = shorten_list([f"{label} as {number}" for label, number in numbers.items()], str)
            return pairs, [f"{name} labels are read by their number: {some}"]
    return pairs, []


def _whole_numbers(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Replace labels such as "1.0" by "1" if only one side, gold or predicted, has such labels.

    `read_label_name` returns "1" for the number 1.0. A text such as "1.0" may be a label too, so
    labels are not changed if both sides have such labels.
    """
    sides = [any(map(_WHOLE_FLOAT.fullmatch, side)) for side in zip(*pairs, strict=True)]
    if all(sides) or not any(sides):
        return pairs

    def whole(name: str) -> str:
        return str(int(name[:-2])) if _WHOLE_FLOAT.fullmatch(name) else name

    return [(whole(gold), whole(predicted)) for gold, predicted in pairs]


def _disjoint_labels(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Return a note if gold and predicted labels have none in common."""
    gold, predicted = (sorted(set(side)) for side in zip(*pairs, strict=True))
    if not set(gold).isdisjoint(predicted):
        return []
    labels = f"{shorten_list(gold)}, predicted {shorten_list(predicted)}"
    return [
        f"gold and predicted labels have none in common: gold {labels}; are these the "
        "right columns?"
    ]

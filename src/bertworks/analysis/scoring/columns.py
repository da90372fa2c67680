"""Find the columns of gold and predicted labels in a table, by name or by place."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from ...data.missing_columns import missing_column_error
from ...data.rows import Rows
from ...data.schema import (
    GOLD_NAMES,
    PREDICTED_NAMES,
    PREDICTION,
    canonical,
    columns_by_name,
)
from ...errors import BertworksWarning, DataError, shorten_list
from ...tasks.tagging.columns import find_numbered_columns

_LATER_GOLD_NAMES = ("expected", "actual", "reference", "references", "ref", "true", "correct", "y")
_GOLD_WORDS = frozenset({"gold", "true", "truth"})
_PREDICTED_WORDS = frozenset({"pred", "predicted", "prediction", "guess", "guessed", "hyp"})
_PROBABILITY_WORDS = frozenset(
    ["prob", "probs", "proba", "probability", "probabilities", "confidence", "logit", "logits"]
)
_NUMBER = re.compile(r"-?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


def find_label_columns(
    rows: Rows, label_names: Sequence[str], label: str | None, prediction: str | None
) -> tuple[str, str]:
    """Return the columns of gold and predicted labels: the last two in a file without names."""
    if names := find_numbered_columns(rows):
        gold, predicted = names[-2:-1], names[-1:]
    else:
        gold, predicted = _columns_of_roles(rows, label_names)
    if label is not None:
        gold = [rows.column(label)]
    if prediction is not None:
        predicted = [rows.column(prediction)]
    if not (gold and predicted) and _are_alike(rows):
        gold, predicted = _two_columns(rows, gold, predicted)
    for columns, role in ((gold, "label"), (predicted, "prediction")):
        if not columns:
            fix = f"Name it with {role}_column (--{role}-column NAME)."
            if len(rows.columns) == 1:
                fix = "Separate the fields by tabs in a .tsv file, by commas in a .csv file."
            raise missing_column_error(rows, role, fix)
        if len(columns) > 1:
            _warn(
                rows,
                f"the {role} is read from {columns[0]!r}, not from {shorten_list(columns[1:])}",
            )
    if gold[0] == predicted[0]:
        raise DataError(
            f"the column {gold[0]!r} cannot be both the label and the prediction", where=rows.name
        )
    return gold[0], predicted[0]


def _columns_of_roles(rows: Rows, label_names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the columns that could hold gold and predicted labels, the most likely first.

    Of the names in `label_names`, which any labelled table may have, only the first counts.
    """
    by_name = columns_by_name(rows.columns)
    words = {column: set(canonical(column).split("_")) for column in rows.columns}
    keys = {f"{PREDICTION}.{key}" for key in ("label", "value", "tags")}
    # What `predict` writes next to the predicted label is not a label: the class `true` of
    # `prediction.probabilities.true` is not the gold one.
    outer = [column for column in rows.columns if not column.startswith(f"{PREDICTION}.")]
    names = [*PREDICTED_NAMES, *(("hypothesis", "hyp") if "premise" not in by_name else ())]
    if "expected" in by_name:
        names.append("actual")
    predicted = [column for column in rows.columns if column in keys]
    predicted += [by_name[name] for name in names if name in by_name]
    predicted += [
        column
        for column in outer
        if words[column] & _PREDICTED_WORDS and not words[column] & _PROBABILITY_WORDS
    ]
    gold = [by_name[name] for name in GOLD_NAMES if name in by_name]
    gold += [column for column in outer if words[column] & _GOLD_WORDS]
    gold += [by_name[name] for name in label_names if name in by_name][:1]
    gold = gold or [by_name[name] for name in _LATER_GOLD_NAMES if name in by_name][:1]
    predicted = list(dict.fromkeys(predicted))
    gold = [column for column in dict.fromkeys(gold) if column not in predicted[:1]]
    return gold, [column for column in predicted if column not in gold[:1]]


def _are_alike(rows: Rows) -> bool:
    """Whether a table has two columns, of numbers or with values in common."""
    if len(rows.columns) != 2:
        return False
    sides = [{str(row.get(column)) for row in rows.sample} for column in rows.columns]
    return not sides[0].isdisjoint(sides[1]) or all(
        _NUMBER.fullmatch(value) for side in sides for value in side
    )


def _two_columns(
    rows: Rows, gold: Sequence[str], predicted: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return the two columns of a table as gold and predicted labels, and say so."""
    first, second = rows.columns
    if gold[:1] == [second] or predicted[:1] == [first]:
        first, second = second, first
    _warn(rows, f"the label is read from {first!r}, and the prediction from {second!r}")
    return [first], [second]


def _warn(rows: Rows, what: str) -> None:
    fix = "If that is wrong, name the columns with --label-column and --prediction-column"
    warnings.warn(
        f"{rows.name}: {what}. {fix} (label_column, prediction_column)",
        BertworksWarning,
        stacklevel=3,
    )


def unfold_prediction(row: Mapping[str, Any], column: str, key: str) -> Mapping[str, Any]:
    """Return a row with the prediction's value alone, where `predict` has written an object."""
    value = row.get(column)
    if isinstance(value, Mapping) and key in value:
        return {**row, column: value[key]}
    return row


def format_row(row: Mapping[str, Any], columns: Sequence[str]) -> str:
    """Return the other columns of a row as a text to show."""
    return " | ".join(
        str(value)
        for name, value in row.items()
        if name not in columns and not name.startswith(f"{PREDICTION}.")
    )

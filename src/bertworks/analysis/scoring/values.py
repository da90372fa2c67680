"""Score numbers: a table with a column of gold values and one of predicted values."""

from __future__ import annotations

from ...data.rows import Rows
from ...errors import DataError
from ...tasks.evaluation import Evaluation
from ...tasks.labels import read_finite_number
from ...tasks.measures import Location
from ...tasks.scores import RegressionScores
from .columns import format_row, unfold_prediction


def score_values(rows: Rows, label: str, prediction: str) -> Evaluation:
    """Score the numbers in the columns `label` and `prediction`."""
    scores = RegressionScores()
    count = 0
    for count, (where, row) in enumerate(rows, 1):
        predicted = read_finite_number(
            unfold_prediction(row, prediction, "value"), prediction, where
        )
        text = format_row(row, (label, prediction))
        scores.add(
            Location(count - 1, where), text, read_finite_number(row, label, where), predicted
        )
    if not count:
        raise DataError("there are no rows", where=rows.name)
    metrics = {"mean_squared_error": scores.mean_squared_error(), **scores.result()}
    return Evaluation(metrics, count, scores.notes(), scores.breakdown())

"""Numbers are scored as SciPy scores them."""

from __future__ import annotations

import random

import pytest
from scipy.stats import pearsonr, spearmanr

import bertworks as bw
from bertworks.errors import BertworksError


def test_regression_metrics_equal_the_formulas():
    draw = random.Random(0)
    true = [draw.random() for _ in range(30)]
    predicted = [value + draw.gauss(0, 0.3) for value in true]
    pairs = zip(true, predicted, strict=True)
    score = bw.score("regression", [{"label": a, "prediction": {"value": b}} for a, b in pairs])
    errors = [abs(a - b) for a, b in zip(true, predicted, strict=True)]
    assert score.metrics == pytest.approx(
        {
            "mean_squared_error": sum(error**2 for error in errors) / 30,
            "pearson": pearsonr(true, predicted).statistic,
            "spearman": spearmanr(true, predicted).statistic,
        }
    )
    assert score.breakdown.mistakes[0].error == pytest.approx(max(errors))
    with pytest.raises(
        BertworksError, match=r"'nan' \(column 'predicted'\) is not a finite number"
    ):
        bw.score("regression", [{"label": 1, "predicted": "nan"}])

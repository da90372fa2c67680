"""Metrics of rankings equal those of `trec_eval`, bit for bit, also with equal scores."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from bertworks.analysis.retrieval.metrics import (
    RankingMetric,
    measure_query,
    measure_run,
    sort_documents,
)
from bertworks.errors import DataError, SettingsError

GOLDEN = json.loads(Path(__file__).with_name("trec_eval.json").read_text())
"""Judgements, some negative, a run with equal scores, and what pytrec_eval 0.5 computes."""


@pytest.mark.parametrize("query", GOLDEN["judgements"])
def test_metrics_are_equal_to_those_of_trec_eval(query: str) -> None:
    expected = GOLDEN["metrics"][query]
    metrics = [RankingMetric.parse(name) for name in expected]
    own = measure_query(GOLDEN["judgements"][query], GOLDEN["run"][query], metrics)
    assert own == expected  # exactly


def test_golden_values_are_not_all_trivial() -> None:
    values = [value for metrics in GOLDEN["metrics"].values() for value in metrics.values()]
    assert len({value for value in values if 0 < value < 1}) > 15


def test_mean_is_over_judged_queries_and_counts_missing_ones() -> None:
    judgements = {"a": {"x": 1}, "b": {"y": 2}}
    assert measure_run(judgements, {"a": {"x": 0.5}, "c": {"z": 9}}, ["mrr"]) == {"mrr": 0.5}
    with pytest.raises(DataError, match="no query is judged"):
        measure_run({}, {}, ["mrr"])


def test_equal_scores_are_ordered_by_the_last_id_as_float32() -> None:
    scores = {"b": 1.0, "a": 1.0 + 1e-9, "c": 1.0, "d": 1.1}
    assert sort_documents(scores) == ["d", "c", "b", "a"]


def test_ndcg_uses_graded_gains() -> None:
    grades = {"a": 3, "b": 1, "c": 2}
    metric = RankingMetric.parse("ndcg@2")
    (value,) = measure_query(grades, {"b": 3.0, "a": 2.0, "c": 1.0}, [metric]).values()
    assert value == (1 + 3 / math.log2(3)) / (3 + 2 / math.log2(3))


@pytest.mark.parametrize("name", ["ndcg", "ndcg@", "ndcg@0", "ndcg@-1", "map@x", "ndgc@10", ""])
def test_names_that_are_no_metrics_are_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="metric"):
        RankingMetric.parse(name)

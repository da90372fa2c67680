"""Settings of the evaluation of rankings, and of mining."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from ...errors import SettingsError
from ...settings.base import Settings
from .metrics import DEFAULT_METRICS, RankingMetric

Layout = Literal["lists", "pairs", "choices"]
"""How mined negatives are written."""


class RankingSettings(Settings):
    """Metrics of rankings."""

    metrics: str | tuple[str, ...] = Field(
        DEFAULT_METRICS,
        description="of rankings, comma-separated: ndcg@K, mrr, mrr@K, map, map@K, recall@K, "
        "precision@K",
    )

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The names of the metrics."""
        metrics = self.metrics
        return tuple(metrics.split(",")) if isinstance(metrics, str) else metrics

    @model_validator(mode="after")
    def _check_metrics(self) -> Self:
        for metric in self.metric_names:
            try:
                RankingMetric.parse(metric)
            except SettingsError as error:
                raise ValueError(str(error)) from None
        return self


class RetrievalEvaluationSettings(RankingSettings):
    """Evaluation on a folder of retrieval (BEIR's or MS MARCO's layout)."""

    qrels: str | None = Field(
        None,
        description="name of a file in qrels/, such as dev; test, or the only one, if omitted",
    )
    depth: int = Field(
        100,
        ge=1,
        le=1_000_000,
        description="documents retrieved per query, of which the best are measured and reranked",
    )
    candidates: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="documents per query that are reranked, and precede the others; all if omitted",
    )

    @model_validator(mode="after")
    def _check_depth(self) -> Self:
        cutoffs = [RankingMetric.parse(metric).cutoff or 0 for metric in self.metric_names]
        if max(cutoffs) > self.depth:
            raise ValueError(f"depth={self.depth} is less than a metric's cutoff, {max(cutoffs)}")
        return self


class MineSettings(Settings):
    """Hard negatives."""

    num_negatives: int = Field(4, ge=1, le=10_000, description="maximum negatives per pair")
    depth: int = Field(100, ge=1, le=1_000_000, description="passages ranked per query")
    skip: int = Field(
        0, ge=0, description="best ranked passages that are not used: they may be relevant"
    )
    margin: float | None = Field(
        None,
        ge=0,
        description="how much less similar to the query than its passage a negative must be, by "
        "the model that ranks; not checked if omitted",
    )
    rerank_margin: float = Field(
        0.0,
        description="how much less relevant than the passage a negative must be, by the reranker "
        "(probability or value)",
    )
    layout: Layout = Field(
        "lists",
        description="of the rows: lists of negatives, for finetune retrieval; pairs of a query and "
        "a passage with a label, for a cross-encoder by finetune classification; or choices, of "
        "which the first is right, for one by finetune choice (listwise)",
    )
    query_column: str | None = Field(None, description="column name or number; detected if omitted")
    passage_column: str | None = Field(None, description="column of the passages that belong")

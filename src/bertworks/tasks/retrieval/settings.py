"""The settings of retrieval: what a user may say of it, and what a trained model is."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from ...checkpoints.sentence import SentencePooling
from ...settings import Settings
from ..labelled import TaskOptions, TaskSettings
from .columns import RetrievalColumns

Loss = Literal["in-batch", "triplet", "cosine"]
"""What vectors are trained by; see `losses`.

- `in-batch`: each query is to find its passage among those of the whole batch and all negatives;
- `triplet`: each passage is to be nearer to its query than the row's negatives are;
- `cosine`: the cosine of two texts is to be their score.
"""


class _Shared(Settings):
    """Losses of retrieval."""

    scale: float = Field(
        20.0, gt=0, description="of cosines in the in-batch loss; one over the temperature"
    )
    symmetric: bool = Field(
        False, description="in-batch: each passage is to find its query, too; the mean of both"
    )
    margin: float = Field(0.1, gt=0, description="of cosines in the triplet loss")
    score_range: tuple[float, float] | None = Field(
        None, description="the scores that stand for cosines 0 and 1; found out if left out"
    )
    chunk_tokens: int | None = Field(
        None, ge=1, description="tokens that are encoded at once; saves memory for time"
    )
    truncation: Literal["cut", "error"] = Field("cut", description="what becomes of longer texts")

    @model_validator(mode="after")
    def _range_is_one(self) -> Self:
        if self.score_range is not None and not self.score_range[0] < self.score_range[1]:
            raise ValueError(f"score_range={list(self.score_range)} is no range")
        return self


class RetrievalOptions(TaskOptions, _Shared):
    """Columns, loss and pooling of retrieval."""

    query_column: str | None = Field(None, description="name or number; guessed if left out")
    passage_column: str | None = Field(
        None, description="what belongs to the query, or the second text of a scored pair"
    )
    negative_columns: str | None = Field(
        None, description="names or numbers with commas between; a column may hold lists"
    )
    score_column: str | None = Field(None, description="of scored pairs; guessed if left out")
    loss: Loss | None = Field(None, description="cosine if there are scores, or else in-batch")
    pooling: SentencePooling | None = Field(
        None, description="from tokens to a text; the model's own way, or mean"
    )

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.dropout is not None:
            raise ValueError(f"dropout={self.dropout}: retrieval has no output layer")
        if self.score_column is not None and self.loss not in {None, "cosine"}:
            raise ValueError(f"score_column={self.score_column!r} is not for loss={self.loss}")
        return self


class RetrievalSettings(TaskSettings, _Shared):
    """What retrieval is, beside its weights."""

    columns: RetrievalColumns = Field(description="the columns that rows are read from")
    loss: Loss = "in-batch"
    pooling: SentencePooling = "mean"

"""Settings of retrieval."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from ...settings.base import Need
from ...settings.pooling import TrainedPooling
from ..labelled import TaskSettings

Loss = Literal["in-batch", "triplet", "cosine"]
"""The loss that vectors are trained with; see `network`.

- `in-batch`: find each query's passage among the passages and negatives of the whole batch;
- `triplet`: bring each passage nearer to its query than the row's negatives;
- `cosine`: make the cosine of two texts equal to their score.
"""


_WITHOUT_TEACHER = (
    *("loss", "scale", "symmetric", "margin", "score_range", "negative_columns"),
    "temperature",  # of classifiers
)


class RetrievalSettings(TaskSettings):
    """Columns, loss and pooling of retrieval."""

    needs: ClassVar[tuple[Need, ...]] = (
        Need(
            _WITHOUT_TEACHER,
            "with a teacher, whose vectors are learned",
            lambda own: getattr(own, "teacher", None) is None,
        ),
        Need(
            ("scale", "symmetric"),
            "without loss=in-batch",
            lambda own: own.loss in (None, "in-batch"),
        ),
        Need(("margin",), "without loss=triplet", lambda own: own.loss == "triplet"),
        Need(
            ("score_range",),
            "without scores (loss=cosine)",
            lambda own: own.loss in (None, "cosine") or own.score_column is not None,
        ),
    )

    scale: float = Field(
        20.0,
        gt=0,
        le=10_000,
        description="scale of cosines in the in-batch loss; one over the temperature",
    )
    symmetric: bool = Field(
        False, description="in-batch: also find each passage's query; the loss is the mean of both"
    )
    margin: float = Field(
        0.1,
        gt=0,
        le=2,
        description="margin of cosines in the triplet loss, which differ by at most 2",
    )
    score_range: tuple[float, float] | None = Field(
        None, description="scores that mean cosines 0 and 1; detected if omitted"
    )
    chunk_tokens: int | None = Field(
        None, ge=1, description="tokens encoded at once; saves memory, takes longer"
    )
    truncation: Literal["longest_first", "error"] = Field(
        "longest_first", description="whether longer texts are truncated, or an error"
    )
    query_column: str | None = Field(None, description="column name or number; detected if omitted")
    passage_column: str | None = Field(
        None, description="column of the passage, or of the second text of a scored pair"
    )
    negative_columns: str | tuple[str, ...] | None = Field(
        None, description="names or numbers, comma-separated; a column may hold lists"
    )
    score_column: str | None = Field(
        None, description="column of scores of pairs; detected if omitted"
    )
    text_column: str | None = Field(
        None, description="column of texts to learn from a teacher; detected if omitted"
    )
    loss: Loss | None = Field(
        None, description="if omitted: cosine if there are scores, else in-batch"
    )
    pooling: TrainedPooling | None = Field(
        None,
        description="how token vectors become a text vector; the model's own if omitted, or mean",
    )

    @model_validator(mode="after")
    def _check_values(self) -> Self:
        if self.score_range is not None and not self.score_range[0] < self.score_range[1]:
            raise ValueError(f"score_range={list(self.score_range)} is not a range")
        if self.dropout is not None:
            raise ValueError(f"dropout={self.dropout}: retrieval has no output layer")
        return self

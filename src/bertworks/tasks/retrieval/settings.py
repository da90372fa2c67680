"""Settings of retrieval."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from ...settings.base import Need
from ...settings.pooling import SPLADE_POOLINGS, RetrievalPooling
from ..labelled import TaskSettings

Loss = Literal["in-batch", "triplet", "margin-mse", "kl", "cosine", "cosent", "angle"]
"""The loss that vectors are trained with; see `losses`.

- `in-batch`: find each query's passage among the passages and negatives of the whole batch;
- `triplet`: bring each passage nearer to its query than the row's negatives;
- `margin-mse`: learn how much higher a cross-encoder scores the passage than each negative;
- `kl`: learn a cross-encoder's distribution over the passage and its negatives;
- `cosine`: make the cosine of two texts equal to their score;
- `cosent`: bring the cosines of a batch into the order of the scores;
- `angle`: the same of the angles of complex numbers, for scores near their ends.
"""

PAIR_LOSSES = ("cosine", "cosent", "angle")
"""Losses of pairs of texts with a score."""

SPARSE_LOSSES = ("in-batch", "margin-mse", "kl")
"""Those of inner products, which sparse vectors are trained with."""

ORDER_LOSSES = ("cosent", "angle")
"""Those that compare the pairs of a batch with each other."""

DISTILLATION_LOSSES = ("margin-mse", "kl")
"""Losses of a list of scores: of a row's passage, and of its negatives."""


_WITHOUT_TEACHER = (
    *("loss", "dimensions", "scale", "symmetric", "margin", "score_range", "negative_columns"),
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
            ("scale",),
            "without loss=in-batch, margin-mse, kl, cosent or angle",
            lambda own: own.loss not in ("triplet", "cosine"),
        ),
        Need(
            ("query_regularization", "passage_regularization"),
            "without sparse vectors (pooling=splade-max)",
            lambda own: own.is_sparse,
        ),
        Need(("symmetric",), "without loss=in-batch", lambda own: own.loss in (None, "in-batch")),
        Need(("margin",), "without loss=triplet", lambda own: own.loss == "triplet"),
        Need(
            ("score_range",),
            "without scores of pairs (loss=cosine, cosent or angle)",
            lambda own: own.loss in (None, *PAIR_LOSSES) or own.score_column is not None,
        ),
    )

    scale: float = Field(
        20.0,
        gt=0,
        le=10_000,
        description="factor of cosines in a loss that is not of cosines themselves; one over the "
        "temperature; 1 for sparse vectors if omitted",
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
    dimensions: tuple[int, ...] | None = Field(
        None,
        min_length=1,
        description="widths, such as [384,128,64]: the loss is the sum of those of the first so "
        "many numbers of the vectors, which can then be shortened (Matryoshka)",
    )
    query_prompt: str | tuple[str, ...] = Field(
        "",
        description='put before each query, such as "query: "; a list has one for each training '
        "table, and the first is the model's own",
    )
    passage_prompt: str | tuple[str, ...] = Field(
        "", description="put before each passage; a list as in query_prompt"
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
        None,
        description="column of scores of pairs, or of lists of a cross-encoder's scores of passage "
        "and negatives; detected if omitted",
    )
    text_column: str | None = Field(
        None, description="column of texts to learn from a teacher; detected if omitted"
    )
    loss: Loss | None = Field(
        None, description="if omitted: cosine if there are scores, else in-batch"
    )
    pooling: RetrievalPooling | None = Field(
        None,
        description="how token vectors become a text vector; the model's own if omitted, or mean; "
        "splade-max: sparse vectors of a masked-language model, compared by inner products",
    )
    query_regularization: float = Field(
        5e-5,
        ge=0,
        le=1000,
        description="weight of the FLOPS of sparse vectors of queries in the loss",
    )
    passage_regularization: float = Field(
        3e-5,
        ge=0,
        le=1000,
        description="the same of passages; higher weights give sparser vectors",
    )

    def prompts(self, table: int = 0) -> tuple[str, str]:
        """The prompts of queries and passages of a training table; the first are the model's."""
        query, passage = (
            one if isinstance(one, str) else one[table]
            for one in (self.query_prompt, self.passage_prompt)
        )
        return query, passage

    @property
    def is_sparse(self) -> bool:
        """Whether vectors have a number for each piece of the vocabulary."""
        return self.pooling in SPLADE_POOLINGS

    @property
    def has_pair_scores(self) -> bool:
        """Whether rows are pairs of texts with a score."""
        return self.score_column is not None and self.loss not in DISTILLATION_LOSSES

    @model_validator(mode="after")
    def _check_values(self) -> Self:
        if self.dimensions is not None and min(self.dimensions) < 1:
            raise ValueError(f"dimensions={list(self.dimensions)}: each must be at least 1")
        if self.score_range is not None and not self.score_range[0] < self.score_range[1]:
            raise ValueError(f"score_range={list(self.score_range)} is not a range")
        if self.is_sparse and self.loss not in (None, *SPARSE_LOSSES):
            losses = ", ".join(SPARSE_LOSSES)
            raise ValueError(f"loss={self.loss}: sparse vectors are trained with {losses}")
        if self.is_sparse and self.dimensions is not None:
            raise ValueError(f"dimensions: sparse vectors ({self.pooling}) are not shortened")
        if () in (self.query_prompt, self.passage_prompt):
            raise ValueError("a list of prompts must not be empty")
        if self.dropout is not None:
            raise ValueError(f"dropout={self.dropout}: retrieval has no output layer")
        return self

"""Settings of retrieval."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from ...settings.base import Need
from ...settings.pooling import NO_POOLING, SPLADE_POOLINGS, RetrievalPooling
from ..task import TaskSettings, has_no_teacher

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

PAIR_LOSSES: tuple[Loss, ...] = ("cosine", "cosent", "angle")
"""Losses of pairs of texts with a score."""

SCORE_LOSSES: tuple[Loss, ...] = ("in-batch", "margin-mse", "kl")
"""Those of any scores, which sparse vectors and late interaction are trained with."""

ORDER_LOSSES: tuple[Loss, ...] = ("cosent", "angle")
"""Those that compare the pairs of a batch with each other."""

DISTILLATION_LOSSES: tuple[Loss, ...] = ("margin-mse", "kl")
"""Losses of a list of scores: of a row's passage, and of its negatives."""


_WITHOUT_TEACHER = (
    *("loss", "dimensions", "scale", "symmetric", "margin", "score_range", "negative_columns"),
    *("query_texts", "passage_texts"),
    "temperature",  # of classifiers
)


class RetrievalSettings(TaskSettings):
    """Columns, loss and pooling of retrieval."""

    needs: ClassVar[tuple[Need, ...]] = (
        Need(
            _WITHOUT_TEACHER,
            "with a teacher, whose vectors are learned",
            has_no_teacher,
        ),
        Need(
            ("scale",),
            "without loss=in-batch, margin-mse, kl, cosent or angle",
            lambda own: own.has_loss(None, *SCORE_LOSSES, *ORDER_LOSSES),
        ),
        Need(
            ("query_regularization", "passage_regularization", "regularization_warmup"),
            "without sparse vectors (pooling=splade-max)",
            lambda own: own.is_sparse,
        ),
        Need(
            ("query_length", "projection_size", "query_marker", "passage_marker", "skipped_words"),
            "without late interaction (pooling=none)",
            lambda own: own.is_late,
        ),
        Need(("symmetric",), "without loss=in-batch", lambda own: own.has_loss(None, "in-batch")),
        Need(("margin",), "without loss=triplet", lambda own: own.has_loss("triplet")),
        Need(
            ("score_range",),
            "without scores of pairs (loss=cosine, cosent or angle)",
            lambda own: own.has_loss(None, *PAIR_LOSSES) or own.score_column is not None,
        ),
    )

    scale: float | None = Field(
        None,
        gt=0,
        le=10_000,
        description="factor of cosines in a loss that is not of cosines themselves; one over the "
        "temperature; if omitted 20, or 1 for sparse vectors and late interaction",
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
    query_texts: str | None = Field(
        None,
        description="file of the texts of queries, which tables name by their ids: a table of ids "
        "and texts without a header, such as MS MARCO's queries.train.tsv, or BEIR's queries.jsonl",
    )
    passage_texts: str | None = Field(
        None,
        description="the same of passages and negatives: collection.tsv, or corpus.jsonl",
    )
    text_column: str | None = Field(
        None, description="column of texts to learn from a teacher; detected if omitted"
    )
    loss: Loss | tuple[Loss, ...] | None = Field(
        None,
        description="if omitted: cosine if there are scores, else in-batch; a list, such as "
        "[in-batch,cosent], has one for each training table",
    )
    pooling: RetrievalPooling | None = Field(
        None,
        description="how token vectors become a text vector; the model's own if omitted, or mean; "
        "splade-max: sparse vectors of a masked-language model, compared by inner products; none: "
        "a vector for each token (ColBERT), compared by MaxSim",
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
    regularization_warmup: int = Field(
        0,
        ge=0,
        le=1_000_000_000,
        description="steps in which both weights grow from 0, with the square of the step",
    )
    query_length: int = Field(
        32,
        ge=4,
        le=100_000,
        description="late interaction: tokens of a query, which is filled with [MASK]",
    )
    projection_size: int = Field(
        128, ge=1, le=100_000, description="late interaction: numbers of a token's vector"
    )
    query_marker: str | None = Field(
        None,
        description="late interaction: piece after [CLS] in queries, none if empty; if omitted, "
        "the model's, or [Q] or [unused0], if in the vocabulary",
    )
    passage_marker: str | None = Field(None, description="the same in passages: [D] or [unused1]")
    skipped_words: tuple[str, ...] | None = Field(
        None,
        description="late interaction: pieces of passages that are not compared; if omitted, the "
        "model's, or punctuation",
    )

    def prompts(self, table: int = 0) -> tuple[str, str]:
        """The prompts of queries and passages of a training table; the first are the model's."""
        query, passage = (
            one if isinstance(one, str) else one[table]
            for one in (self.query_prompt, self.passage_prompt)
        )
        return query, passage

    @property
    def losses(self) -> tuple[Loss | None, ...]:
        """The loss of each training table; one for all if there is no list."""
        return self.loss if isinstance(self.loss, tuple) else (self.loss,)

    def has_loss(self, *losses: Loss | None) -> bool:
        """Whether a table is trained with one of these losses."""
        return not {*losses}.isdisjoint(self.losses)

    def of_table(self, table: int) -> Self:
        """The settings of one training table, with its own prompts and loss."""
        if not any(
            isinstance(one, tuple) for one in (self.query_prompt, self.passage_prompt, self.loss)
        ):
            return self
        query, passage = self.prompts(table)
        values = {"query_prompt": query, "passage_prompt": passage}
        if not isinstance(self.loss, tuple):
            return self.with_values(**values)
        own = self.model_copy(update={**values, "loss": self.loss[table]})
        # What only the losses of other tables use.
        unused = [key for need in own.needs if not need.is_met(own) for key in need.keys]
        if not own.has_loss(None, *PAIR_LOSSES, *DISTILLATION_LOSSES):
            unused += ["score_column", "score_range"]
        defaults = {key: type(self).model_fields[key].default for key in unused}
        return self.with_values(**values, loss=own.loss, **defaults)

    @property
    def is_sparse(self) -> bool:
        """Whether vectors have a number for each piece of the vocabulary."""
        return self.pooling in SPLADE_POOLINGS

    @property
    def is_late(self) -> bool:
        """Whether texts are compared by the vectors of their tokens (late interaction)."""
        return self.pooling == NO_POOLING

    @property
    def score_scale(self) -> float:
        """The factor of scores in a loss: `scale`, or the usual one of such vectors."""
        if self.scale is not None:
            return self.scale
        return 20.0 if self.has_cosines else 1.0

    @property
    def has_cosines(self) -> bool:
        """Whether texts are compared by cosines."""
        return not (self.is_sparse or self.is_late)

    @property
    def has_pair_scores(self) -> bool:
        """Whether rows, of the first training table, are pairs of texts with a score."""
        if isinstance(self.loss, tuple) and self.loss[0] not in PAIR_LOSSES:
            return False  # the column is that of another table
        return self.score_column is not None and self.losses[0] not in DISTILLATION_LOSSES

    @model_validator(mode="after")
    def _check_values(self) -> Self:
        if self.dimensions is not None and min(self.dimensions) < 1:
            raise ValueError(f"dimensions={list(self.dimensions)}: each must be at least 1")
        if self.score_range is not None and not self.score_range[0] < self.score_range[1]:
            raise ValueError(f"score_range={list(self.score_range)} is not a range")
        others = {*self.losses} - {None, *SCORE_LOSSES}
        if others and (self.is_sparse or self.is_late):
            what = "sparse vectors are" if self.is_sparse else "late interaction is"
            losses = ", ".join(SCORE_LOSSES)
            raise ValueError(f"loss={min(map(str, others))}: {what} trained with {losses}")
        if self.dimensions is not None and (self.is_sparse or self.is_late):
            what = "sparse vectors" if self.is_sparse else "vectors of tokens"
            raise ValueError(f"dimensions: {what} (pooling={self.pooling}) are not shortened")
        if () in (self.query_prompt, self.passage_prompt, self.loss):
            raise ValueError("a list of prompts or losses must not be empty")
        if self.dropout is not None:
            raise ValueError(f"dropout={self.dropout}: retrieval has no output layer")
        return self

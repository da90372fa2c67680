"""Options and settings of question answering."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from ...settings.base import Settings
from ..task_options import TaskOptions, TaskSettings, check_stride
from .network import Softmax, SpanLoss


class _SharedSettings(Settings):
    """Settings of windows and answers."""

    max_seq_length: int = Field(384, ge=8, description="maximum tokens per window")
    stride: int = Field(128, ge=1, description="tokens between the starts of windows")
    max_question_tokens: int = Field(
        64, ge=1, description="maximum tokens of a question; longer ones are truncated"
    )
    max_answer_tokens: int = Field(30, ge=1, description="maximum tokens of an answer")
    n_best: int = Field(20, ge=1, description="number of best spans that get probabilities")
    span_loss: SpanLoss = Field(
        "mean", description="mean (as in the original) or sum of the two log-likelihoods"
    )
    softmax: Softmax = Field(
        "sequence",
        description="over all tokens of the window, as in the original, or the passage's",
    )


class AnsweringOptions(_SharedSettings, TaskOptions):
    """Options of question answering."""

    question_column: str | None = Field(
        None, description="column name or number; detected if omitted"
    )
    context_column: str | None = Field(None, description="column of passages; detected if omitted")
    answers_column: str | None = Field(
        None, description="column name or number; detected if omitted"
    )
    start_column: str | None = Field(
        None, description="column of the answers' first characters, from 0; detected if omitted"
    )
    impossible_column: str | None = Field(
        None, description="column that says whether a question has no answer; detected if omitted"
    )

    @model_validator(mode="after")
    def _check_stride(self) -> Self:
        usual = type(self).model_fields["stride"].default
        check_stride(None if self.stride == usual else self.stride, self.max_seq_length)
        return self


class AnsweringSettings(_SharedSettings, TaskSettings):
    """Settings that are saved with a question-answering model."""

    question: str = Field("question", description="the column of questions")
    context: str = Field("context", description="the column of passages")
    answers: str = Field("answers", description="the column of answers")
    start: str | None = Field(None, description="the column of their starts, if it is another")
    impossible: str | None = Field(
        None, description="the column that says whether a question has no answer"
    )
    unanswerable: bool = Field(False, description="some questions have no answer")
    null_threshold: float = Field(
        0.0,
        description="no answer is predicted if it beats the best span's score by more than this",
    )

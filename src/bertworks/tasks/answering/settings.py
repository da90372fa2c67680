"""The settings of question answering: what a user may say of it, and what a trained model is."""

from __future__ import annotations

from pydantic import Field

from ...settings import Settings
from ..labelled import TaskOptions, TaskSettings
from .network import Softmax, SpanLoss


class _Shared(Settings):
    """Windows and answers of question answering."""

    max_seq_length: int = Field(384, ge=8, description="the most tokens of a window")
    stride: int = Field(128, ge=1, description="tokens between the beginnings of windows")
    max_question_tokens: int = Field(64, ge=1, description="a longer question is cut")
    max_answer_tokens: int = Field(30, ge=1, description="a longer span is no answer")
    n_best: int = Field(20, ge=1, description="spans that probabilities are shared out among")
    span_loss: SpanLoss = Field(
        "mean", description="of the two log-likelihoods: their mean, as in the original, or sum"
    )
    softmax: Softmax = Field(
        "sequence", description="over which tokens: all, as in the original, or the passage's"
    )


class AnsweringOptions(_Shared, TaskOptions):
    """Columns of question answering."""

    question_column: str | None = Field(None, description="name or number; guessed if left out")
    context_column: str | None = Field(None, description="of the passages; guessed if left out")
    answers_column: str | None = Field(None, description="name or number; guessed if left out")


class AnsweringSettings(_Shared, TaskSettings):
    """What question answering is, beside its weights."""

    question: str = Field("question", description="the column of questions")
    context: str = Field("context", description="the column of passages")
    answers: str = Field("answers", description="the column of answers")
    unanswerable: bool = Field(False, description="whether there are questions without an answer")
    null_threshold: float = Field(
        0.0, description="no answer is predicted where it scores better than the best span by more"
    )

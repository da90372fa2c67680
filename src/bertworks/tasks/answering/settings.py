"""Settings of question answering."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ..task import TaskSettings, detected_setting
from ..texts import check_stride

SpanLoss = Literal["mean", "sum"]
Softmax = Literal["sequence", "passage"]


class AnsweringSettings(TaskSettings):
    """Columns, windows and answers."""

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
    unanswerable: bool = detected_setting(False, "some questions have no answer")
    null_threshold: float = detected_setting(
        0.0, "no answer is predicted if it beats the best span's score by more than this"
    )

    def check_together(self) -> None:
        super().check_together()
        usual = type(self).model_fields["stride"].default
        check_stride(None if self.stride == usual else self.stride, self.max_seq_length)

"""The settings of multiple choice: what a user may say of it, and what a trained model is."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ...text.encoding import Truncation
from ..labelled import TaskOptions, TaskSettings


class ChoiceOptions(TaskOptions):
    """Columns of multiple choice."""

    prompt_column: str | None = Field(None, description="name or number; guessed if left out")
    choice_columns: str | None = Field(
        None, description="names or numbers with commas between, or of one that holds lists"
    )
    label_column: str | None = Field(None, description="name or number; guessed if left out")
    first_number: Literal[0, 1] | None = Field(
        None, description="the number of the first choice in tables; found out if left out"
    )
    truncation: Truncation = Field(
        "longest_first", description="which text is cut where both are too long, or error"
    )


class ChoiceSettings(TaskSettings):
    """What multiple choice is, beside its weights."""

    prompt: str = Field("prompt", description="the column of prompts")
    choices: tuple[str, ...] = Field(
        ("choices",), min_length=1, description="a column each, or one that holds lists"
    )
    label: str | None = Field("label", description="the column of the right choices' numbers")
    first_number: int = Field(0, description="the number of the first choice in tables")
    truncation: Truncation = "longest_first"

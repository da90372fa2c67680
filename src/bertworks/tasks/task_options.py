"""The user's options for a task with labelled rows, and the settings that are saved with it."""

from __future__ import annotations

from typing import Any

from pydantic import Field, ValidationInfo, field_validator

from ..data.schema import Column, Schema
from ..data.unlabelled import LabelledTableOptions
from ..errors import SettingsError
from ..nn.config import EncoderConfig
from ..settings.base import Settings


class TaskOptions(LabelledTableOptions):
    """Sequence length and output layer."""

    @field_validator("*", mode="before")
    @classmethod
    def _convert_numbers_to_names(cls, value: Any, info: ValidationInfo) -> Any:
        """Turn numbers into names: YAML reads a column or label named `1` as a number."""
        is_name = info.field_name is not None and info.field_name.endswith(
            ("_column", "_columns", "_label")
        )
        is_number = isinstance(value, int) and not isinstance(value, bool)
        return str(value) if is_name and is_number else value

    max_seq_length: int = Field(128, ge=4, description="maximum tokens per sequence")
    dropout: float | None = Field(None, ge=0, lt=1, description="dropout before the output layer")

    def values_for(self, settings: type[TaskSettings]) -> dict[str, Any]:
        """Return the options that are saved with the task: those that `settings` has too."""
        return self.model_dump(include=set(type(self).model_fields) & set(settings.model_fields))

    def named_columns(self) -> list[str]:
        """Return the columns that the user named, to distinguish a header from a row."""
        values = (value for name, value in self if name.endswith("_column"))
        return [value for value in values if value is not None]

    def columns_by_role(self, schema: Schema) -> dict[str, str | None]:
        """Return for each role of a schema the column that the user named; None if none."""
        return {role.name: getattr(self, role.option) for role in schema.roles}


class TaskSettings(Settings):
    """Settings of a task that are saved with its weights."""

    max_seq_length: int = Field(128, ge=4, description="maximum tokens per sequence")
    dropout: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="dropout before the output layer; the task's usual one if omitted",
    )


class ColumnSettings(TaskSettings):
    """Settings of a task that has only columns, saved with its weights."""

    columns: dict[str, Column] = Field(description="column of each role")


def check_length(limit: int, config: EncoderConfig) -> None:
    """Check that an encoder has enough positions for a task's sequences.

    Raises:
        SettingsError: it has fewer than `limit` (`max_seq_length`) positions.
    """
    if limit > config.max_seqlen:
        raise SettingsError(
            f"max_seq_length={limit} is more than the {config.max_seqlen} tokens that the "
            f"encoder's max_position_embeddings={config.max_position_embeddings} has room for"
        )


def check_stride(stride: int | None, max_seq_length: int) -> None:
    """Check that windows overlap or adjoin; None is valid.

    Raises:
        ValueError: a window is shorter than `stride`, so that tokens would be in no window.
    """
    if stride is not None and stride > max_seq_length:
        raise ValueError(
            f"stride={stride} is more than max_seq_length={max_seq_length}: tokens between two "
            "windows would be lost"
        )

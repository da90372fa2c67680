"""Settings of tasks that are trained on a table of labelled rows."""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar, cast

from pydantic import Field, ValidationInfo, field_validator

from ..data.unlabelled import LabelledTableOptions
from ..settings.base import Settings

_DETECTED_MARK = {"detected": True}


def detected_setting(default: Any, description: str) -> Any:
    """A setting of a task that comes from the training rows or a checkpoint, not from the user."""
    return Field(default, description=description, json_schema_extra=dict(_DETECTED_MARK))


class TaskSettings(Settings):
    """Sequence length and output layer."""

    is_checked_later = True

    max_seq_length: int = Field(128, ge=4, description="maximum tokens per sequence")
    dropout: float | None = Field(None, ge=0, lt=1, description="dropout before the output layer")

    @field_validator("*", mode="before")
    @classmethod
    def _convert_numbers_to_names(cls, value: Any, info: ValidationInfo) -> Any:
        """Turn numbers into names: YAML reads a column or label named `1` as a number."""
        if not (info.field_name or "").endswith(("_column", "_columns", "_label")):
            return value
        return tuple(map(_name_of, value)) if isinstance(value, list | tuple) else _name_of(value)

    def named_columns(self) -> list[str]:
        """Return the columns that the user named, to distinguish a header from a row."""
        values = (value for name, value in self if name.endswith("_column"))
        return [value for value in values if value is not None]


def _name_of(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


@cache
def user_settings(settings: type[TaskSettings]) -> type[TaskSettings]:
    """Return the settings that a user gives: not the detected ones, but how tables are read."""
    detected_fields = {
        name: field.default
        for name, field in settings.model_fields.items()
        if field.json_schema_extra == _DETECTED_MARK
    }
    members = {
        "__module__": settings.__module__,
        "__doc__": settings.__doc__,
        "__annotations__": dict.fromkeys(detected_fields, ClassVar[Any]),  # so they are no fields
        **detected_fields,
    }
    bases = (settings, LabelledTableOptions)
    return cast(type[TaskSettings], type(settings.__name__, bases, members))


def has_no_teacher(settings: Any) -> bool:
    """Whether a task learns from labels, also before it is known that it does."""
    return getattr(settings, "teacher", None) is None

"""How a user says what a table's file is, wherever one is read: the same names everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, field_validator

from ..corpus.lines import MAX_LINE_BYTES, text_encoding
from ..errors import DataError
from ..literals import TableFormat
from ..settings import Settings


class TableOptions(Settings):
    """The format of tables, where it is not to be detected."""

    header: bool | None = Field(None, description="whether files begin with column names")
    format: TableFormat = Field("auto", description="of files whose name does not say it")
    encoding: str = Field("utf-8", description="of text, such as latin-1")
    max_line_bytes: int = Field(MAX_LINE_BYTES, ge=1, description="a longer line is an error")

    @field_validator("encoding")
    @classmethod
    def _is_known(cls, value: str) -> str:
        try:
            return text_encoding(value)
        except DataError as error:
            raise ValueError(f"{error.what}. {error.fix}") from None

    @classmethod
    def split(cls, settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The options among settings, and the other settings."""
        own = {name: value for name, value in settings.items() if name in cls.model_fields}
        return own, {name: value for name, value in settings.items() if name not in own}

    def table_options(self) -> dict[str, Any]:
        """These alone, where they are among others."""
        return {name: getattr(self, name) for name in TableOptions.model_fields}

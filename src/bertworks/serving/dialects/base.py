"""What all protocols share: a router, the base classes of requests, and types of fields."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from ...errors import did_you_mean
from ..request_error import ErrorFormat

Ids = list[Annotated[int, Field(ge=0, le=2**31 - 1)]]
Side = Literal["Left", "Right", "left", "right"]
TopK = Annotated[int, Field(ge=1, le=1000)]
Prompt = Field(None, description="The name of a prompt of the model, put before each text.")
Truncate = Field(None, description="Truncate texts that are too long; else they are an error.")


class ProtocolRouter(APIRouter):
    """The routes of a protocol.

    Args:
        title: the protocol's name, for the description.
        errors: the format of the routes' errors.
    """

    def __init__(self, title: str, *, errors: ErrorFormat) -> None:
        super().__init__(tags=[title])
        self.error_format = errors


class Request(BaseModel):
    """A request; a field that is null has its default, as if it was omitted."""

    @model_validator(mode="before")
    @classmethod
    def _null_is_omitted(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        optional = {name for name, field in cls.model_fields.items() if not field.is_required()}
        return {k: value for k, value in values.items() if value is not None or k not in optional}


class LenientRequest(Request):
    """A request in another server's format; unknown fields are ignored."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class StrictRequest(Request):
    """A request in a format of this server only: an unknown field is an error."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    model: str | None = Field(None, description="A served model's name; the first if omitted.")

    @model_validator(mode="before")
    @classmethod
    def _fields_are_known(cls, values: Any) -> Any:
        for name in values if isinstance(values, dict) else ():
            if name not in cls.model_fields:
                fix = did_you_mean(name, cls.model_fields)
                raise PydanticCustomError(
                    "unknown_field", "no such field. {fix}", {"fix": fix, "field": name}
                )
        return values


class Usage(BaseModel):
    prompt_tokens: int
    total_tokens: int

"""Which error a client gets for an exception."""

from __future__ import annotations

import math

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from ..errors import (
    BertworksError,
    CheckpointError,
    DataError,
    LengthError,
    SettingsError,
)
from .loaded_model import WrongModelError
from .models import UnavailableModelError, UnknownModelError
from .queue import ClosedError, DeadlineError, OverloadedError, TooLargeError
from .request_error import RequestError
from .validation_error import validation_request_error

_KINDS: tuple[tuple[type[BertworksError], int, str, str | None], ...] = (
    (OverloadedError, 429, "Overloaded", "rate_limit_exceeded"),
    (TooLargeError, 413, "Validation", None),
    (DeadlineError, 408, "Timeout", None),
    (ClosedError, 503, "Unhealthy", None),
    (UnknownModelError, 404, "NotFound", "model_not_found"),
    (WrongModelError, 424, "Backend", None),
    (UnavailableModelError, 503, "Unhealthy", "model_unavailable"),
    (LengthError, 413, "Validation", "context_length_exceeded"),
    (CheckpointError, 424, "Backend", None),
    (SettingsError, 400, "Validation", None),
    (DataError, 422, "Tokenizer", None),
    (BertworksError, 424, "Backend", None),
)
"""The status, kind and OpenAI code of each error; the first entry that matches is used."""


def to_request_error(error: Exception) -> RequestError:
    """Convert an exception to the error that the client gets."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, RequestValidationError | ValidationError):
        return validation_request_error(error)
    if isinstance(error, HTTPException):
        message = {404: "no such route", 405: "no such method here"}.get(
            error.status_code, str(error.detail)
        )
        kind = "NotFound" if error.status_code in (404, 405) else "Validation"
        return RequestError(error.status_code, kind, message, headers=error.headers)
    if isinstance(error, BertworksError):
        return _from_bertworks_error(error)
    return RequestError(
        500, "Internal", "internal server error; the server's log has this request's id"
    )


def _from_bertworks_error(error: BertworksError) -> RequestError:
    _, status, kind, code = next(entry for entry in _KINDS if isinstance(error, entry[0]))
    headers = {}
    if isinstance(error, OverloadedError):
        headers = {
            "retry-after": str(math.ceil(error.retry_after)),
            "retry-after-ms": str(int(1000 * error.retry_after)),
        }
    is_of_name = isinstance(error, UnknownModelError | UnavailableModelError)
    field = "model" if is_of_name else error.where
    return RequestError(status, kind, str(error), field, code, headers)

"""Which error a client gets for an exception, also for a body that does not fit its schema."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from ..errors import (
    BertworksError,
    CheckpointError,
    DataError,
    LengthError,
    SettingsError,
    WrongModelError,
)
from .models import UnavailableModelError, UnknownModelError
from .queue import ClosedError
from .request_error import RequestError, invalid_field_error
from .schedule import DeadlineError, OverloadedError, TooLargeError

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

_NOUNS = {
    "str": ("a text", "texts"),
    "int": ("an integer", "integers"),
    "constrained-int": ("a token id", "token ids"),
}
"""How messages name pydantic's types, singular and plural; all others are objects."""

_VALUES = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "a text",
    list: "a list",
}
_LocatedError = tuple[list[Any], Mapping[str, Any]]
"""A location in the body, and pydantic's error there."""


def to_request_error(error: Exception) -> RequestError:
    """Convert an exception to the error that the client gets."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, RequestValidationError | ValidationError):
        return _from_validation_error(error)
    if isinstance(error, HTTPException):
        if error.status_code == 400 and error.__cause__ is not None:
            return _from_unread_body(error.__cause__)
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


def _from_unread_body(cause: BaseException) -> RequestError:
    """Return the error for a body that cannot be read as JSON at all; `cause` is Python's error."""
    reason = "a number has too many digits"
    if isinstance(cause, UnicodeDecodeError):
        reason = f"it is not UTF-8 (byte {cause.start})"
    elif isinstance(cause, RecursionError):
        reason = "it is nested too deeply"
    return RequestError(400, "Validation", f"the body is not valid JSON: {reason}")


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


def _from_validation_error(error: RequestValidationError | ValidationError) -> RequestError:
    """Return the first error of a body, with its field."""
    errors = error.errors()
    first = errors[0]
    location, _ = _locate(first)
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", "")
        return RequestError(400, "Validation", f"the body is not valid JSON: {reason}")
    if first["type"] == "unknown_field":
        return invalid_field_error(
            _format_location([*location, str(first["ctx"]["field"])[:100]]), first["msg"], 422
        )
    if not location or isinstance(location[0], int):
        # FastAPI passes on a body with another content type as bytes.
        if isinstance(error, RequestValidationError) and isinstance(error.body, bytes):
            message = "the body is not sent as JSON: send the header content-type: application/json"
            return RequestError(415, "Validation", message)
        return RequestError(422, "Validation", "the body must be a JSON object")
    union = next((index for index, part in enumerate(location) if _is_type(part)), None)
    if union is not None:
        return _union_error([_locate(each) for each in errors], location[:union])
    return _value_error(first, location)


def _value_error(error: Mapping[str, Any], location: list[Any]) -> RequestError:
    """Return the error for the value at a location."""
    if error["type"] == "missing":
        return invalid_field_error(_format_location(location), "must be given", 422)
    message = str(error["msg"]).removeprefix("Value error, ")
    return invalid_field_error(_format_location(location), message[:1].lower() + message[1:], 422)


def _union_error(errors: list[_LocatedError], location: list[Any]) -> RequestError:
    """Return the error for a value that may have one of several types.

    Args:
        errors: all errors of the body. They have at least one error for each type of this value,
            whose location is the value's location followed by the type's name.
        location: the value's location.
    """
    depth = len(location)
    of_value = [each for each in errors if each[0][:depth] == location and len(each[0]) > depth]
    # Where texts are allowed, token ids are not mentioned: the server refuses them by default.
    types = list(dict.fromkeys(str(parts[depth]) for parts, _ in of_value))
    types = [name for name in types if "int" not in name] or types
    of_value = [each for each in of_value if each[0][depth] in types]
    # The client probably meant the type whose first error is deepest in the value, or last.
    firsts = {str(parts[depth]): (parts, error) for parts, error in reversed(of_value)}
    parts, error = max(
        firsts.values(),
        key=lambda each: (len(each[0]), [part for part in each[0] if isinstance(part, int)]),
    )
    item = [*location, *parts[depth + 1 :]]
    if not error["type"].endswith("_type"):
        return _value_error(error, item)
    *others, last = map(_describe_type, types)
    allowed = f"{', '.join(others)} or {last}" if others else last
    actual = _VALUES.get(type(error["input"]), "an object")
    message = f"must be {allowed}; {_format_location(item)} is {actual}"
    return invalid_field_error(_format_location(location), message, 422)


def _locate(error: Mapping[str, Any]) -> _LocatedError:
    return [part for part in error["loc"] if part != "body"], error


def _is_type(part: Any) -> bool:
    """Whether a part of a location names one of a value's types, not a field or an index."""
    name = str(part)
    return not isinstance(part, int) and (name in _NOUNS or "[" in name or name[:1].isupper())


def _describe_type(name: str, *, many: bool = False) -> str:
    """Describe a type, given by pydantic's name: `list[str]` becomes `a list of texts`."""
    if name.startswith("list["):
        inner = _describe_type(name.removeprefix("list[").removesuffix("]"), many=True)
        return f"{'lists' if many else 'a list'} of {inner}"
    return _NOUNS.get(name, ("an object", "objects"))[many]


def _format_location(location: list[Any]) -> str:
    """Join the parts of a location, as in `inputs[3].text`."""
    names = [part for part in location if isinstance(part, int) or "[" not in str(part)]
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in names)
    return text.removeprefix(".")[:200]

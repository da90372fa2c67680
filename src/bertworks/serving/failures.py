"""Errors of requests: a status, and a one-line message in the format that the client expects.

| status | kind | when |
|---|---|---|
| 400 | Empty, Validation | no input; an impossible value; the body is not valid JSON |
| 401, 403 | Unauthorized | no valid API key; the request's host is not this machine |
| 404, 405 | NotFound | no such route, method or model |
| 408 | Timeout | the deadline passed; the body did not arrive |
| 413 | Validation | too many texts; a text, the request or its body is too long |
| 415 | Validation | the content type is not JSON |
| 422 | Validation, Tokenizer | a value of the wrong type; a text that cannot be tokenised |
| 424 | Backend | the model was not trained for the task; its output is not finite |
| 429 | Overloaded | the queue is full, or there are too many concurrent requests |
| 431 | Validation | the headers are too long |
| 500 | Internal | any other error |
| 503 | Unhealthy | the server is not ready, or it stops; the model cannot be loaded |

Under `/v1` the body has OpenAI's format, and 400 replaces 413 (except for a body that is too large)
and 422, as in OpenAI's API. Under `/v2` it has Cohere's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import orjson
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from ..errors import (
    BertworksError,
    CheckpointError,
    DataError,
    LengthError,
    SettingsError,
)
from .models import UnavailableModelError, UnknownModelError, WrongModelError
from .queue import ClosedError, LateError, OverloadedError, TooLargeError

_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_KINDS: tuple[tuple[type[BertworksError], int, str, str | None], ...] = (
    (OverloadedError, 429, "Overloaded", "rate_limit_exceeded"),
    (TooLargeError, 413, "Validation", None),
    (LateError, 408, "Timeout", None),
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
_Placed = tuple[list[Any], Mapping[str, Any]]
"""A place in the body, and pydantic's error there."""


class RequestError(Exception):
    """An error response.

    Args:
        status: HTTP status.
        kind: one word, for the body, the log and the metrics.
        message: one line.
        field: the invalid field of the request.
        code: OpenAI's error code.
        headers: additional headers.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        message: str,
        field: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.field, self.code = status, kind, field, code
        self.message = " ".join(message.split())
        self.headers = dict(headers or {})

    def response(self, path: str) -> Response:
        """Return the response in the format that clients of the path expect."""
        message = self.message.encode("utf-8", "backslashreplace").decode()
        if path.startswith("/v1/"):
            status = 400 if self.status in (413, 422) and self.kind != "Body" else self.status
            usual = "server_error" if status >= 500 else "invalid_request_error"
            kind = _OPENAI_TYPES.get(status, usual)
            body: Any = {
                "error": {
                    "message": message,
                    "type": kind,
                    "param": self.field,
                    "code": self.code,
                }
            }
        else:
            status = self.status
            kind = "Validation" if self.kind == "Body" else self.kind
            body = {"error": message, "error_type": kind}
            if path.startswith("/v2/"):
                body = {"message": message}
        headers = dict(self.headers)
        if status in (401, 403, 404, 408):
            headers["x-should-retry"] = "false"
        if status == 401 and not path.startswith(("/v1/", "/v2/")):
            return Response(status_code=401, headers={**headers, "www-authenticate": "Bearer"})
        return Response(orjson.dumps(body), status, headers, "application/json")


def invalid(field: str, message: str, status: int = 400, kind: str = "Validation") -> RequestError:
    """Return the error for an invalid field of the request."""
    return RequestError(status, kind, f"{field}: {message}", field)


def error_of(error: Exception) -> RequestError:
    """Convert an exception to the error that the client gets."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, RequestValidationError | ValidationError):
        return _of_validation(error)
    if isinstance(error, HTTPException):
        message = {404: "no such route", 405: "no such method here"}.get(
            error.status_code, str(error.detail)
        )
        kind = "NotFound" if error.status_code in (404, 405) else "Validation"
        return RequestError(error.status_code, kind, message, headers=error.headers)
    if isinstance(error, BertworksError):
        return _of_error(error)
    return RequestError(
        500, "Internal", "internal server error; the server's log has this request's id"
    )


def _of_error(error: BertworksError) -> RequestError:
    _, status, kind, code = next(one for one in _KINDS if isinstance(error, one[0]))
    headers = {}
    if isinstance(error, OverloadedError):
        headers = {
            "retry-after": str(math.ceil(error.retry_after)),
            "retry-after-ms": str(int(1000 * error.retry_after)),
        }
    is_of_name = isinstance(error, UnknownModelError | UnavailableModelError)
    field = "model" if is_of_name else error.where
    return RequestError(status, kind, str(error), field, code, headers)


def _of_validation(error: RequestValidationError | ValidationError) -> RequestError:
    """Return the first error of a body, with its field."""
    found = error.errors()
    first = found[0]
    place, _ = _placed(first)
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", "")
        return RequestError(400, "Validation", f"the body is not valid JSON: {reason}")
    if first["type"] == "unknown_field":
        return invalid(_path([*place, str(first["ctx"]["field"])[:100]]), first["msg"], 422)
    if not place or isinstance(place[0], int):
        # FastAPI passes on a body with another content type as bytes.
        if isinstance(error, RequestValidationError) and isinstance(error.body, bytes):
            message = "the body is not sent as JSON: send the header content-type: application/json"
            return RequestError(415, "Validation", message)
        return RequestError(422, "Validation", "the body must be a JSON object")
    union = next((at for at, part in enumerate(place) if _is_type(part)), None)
    if union is not None:
        return _of_union([_placed(one) for one in found], place[:union])
    return _of_value(first, place)


def _of_value(error: Mapping[str, Any], place: list[Any]) -> RequestError:
    """Return the error for the value at a place."""
    if error["type"] == "missing":
        return invalid(_path(place), "must be given", 422)
    message = str(error["msg"]).removeprefix("Value error, ")
    return invalid(_path(place), message[:1].lower() + message[1:], 422)


def _of_union(found: list[_Placed], place: list[Any]) -> RequestError:
    """Return the error for a value that may have one of several types.

    Args:
        found: all errors of the body. They have at least one error for each type of this value,
            whose place is the value's place followed by the type's name.
        place: the value's place.
    """
    depth = len(place)
    of_value = [one for one in found if one[0][:depth] == place and len(one[0]) > depth]
    # Where texts are allowed, token ids are not mentioned: the server refuses them by default.
    types = list(dict.fromkeys(str(parts[depth]) for parts, _ in of_value))
    types = [name for name in types if "int" not in name] or types
    of_value = [one for one in of_value if one[0][depth] in types]
    # The client probably meant the type whose first error is deepest in the value, or last.
    firsts = {str(parts[depth]): (parts, error) for parts, error in reversed(of_value)}
    parts, error = max(
        firsts.values(),
        key=lambda one: (len(one[0]), [part for part in one[0] if isinstance(part, int)]),
    )
    item = [*place, *parts[depth + 1 :]]
    if not error["type"].endswith("_type"):
        return _of_value(error, item)
    *others, last = map(_described, types)
    allowed = f"{', '.join(others)} or {last}" if others else last
    message = (
        f"must be {allowed}; {_path(item)} is {_VALUES.get(type(error['input']), 'an object')}"
    )
    return invalid(_path(place), message, 422)


def _placed(error: Mapping[str, Any]) -> _Placed:
    return [part for part in error["loc"] if part != "body"], error


def _is_type(part: Any) -> bool:
    """Whether a part of a place names one of a value's possible types, not a field or an index."""
    name = str(part)
    return not isinstance(part, int) and (name in _NOUNS or "[" in name or name[:1].isupper())


def _described(name: str, *, many: bool = False) -> str:
    """Describe a type, given by pydantic's name: `list[str]` becomes `a list of texts`."""
    if name.startswith("list["):
        inner = _described(name.removeprefix("list[").removesuffix("]"), many=True)
        return f"{'lists' if many else 'a list'} of {inner}"
    return _NOUNS.get(name, ("an object", "objects"))[many]


def _path(place: list[Any]) -> str:
    """Join the parts of a place, as in `inputs[3].text`."""
    named = [part for part in place if isinstance(part, int) or "[" not in str(part)]
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in named)
    return text.removeprefix(".")[:200]

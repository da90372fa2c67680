"""What can go wrong with a request, in one line: a status, and the body that a client expects.

| status | kind | when |
|---|---|---|
| 400 | Empty, Validation | nothing is given; a value is impossible; the body is no JSON |
| 401, 403 | Unauthorized | no key, or a wrong one; a page of another host asks |
| 404, 405 | NotFound | no such route or model |
| 408 | Timeout | the deadline passed; the body did not arrive |
| 413 | Validation | too many texts, or too long |
| 422 | Validation, Tokenizer | a value of a wrong type; a text that cannot be tokenised |
| 424 | Backend | the model was not trained for it; what it computes is not finite |
| 429 | Overloaded | the queue is full |
| 503 | Unhealthy | the server stops |

Under `/v1` the body is OpenAI's, and what is wrong with a request's values is 400, as it is there.
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
from .models import UnknownModelError, WrongModelError
from .queue import ClosedError, LateError, OverloadedError, TooLargeError

_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_KINDS: tuple[tuple[type[BertworksError], int, str], ...] = (
    (OverloadedError, 429, "Overloaded"),
    (TooLargeError, 413, "Validation"),
    (LateError, 408, "Timeout"),
    (ClosedError, 503, "Unhealthy"),
    (UnknownModelError, 404, "NotFound"),
    (WrongModelError, 424, "Backend"),
    (LengthError, 413, "Validation"),
    (CheckpointError, 424, "Backend"),
    (SettingsError, 400, "Validation"),
    (DataError, 422, "Tokenizer"),
    (BertworksError, 424, "Backend"),
)


class RequestError(Exception):
    """An answer that is an error.

    Args:
        status: HTTP's.
        kind: in a word; counted in the metrics.
        message: one line.
        field: of the request that is at fault.
        code: OpenAI's.
        headers: more of them.
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
        """The answer, in the form that clients of the path expect."""
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
            body = {
                "error": message,
                "error_type": "Validation" if self.kind == "Body" else self.kind,
            }
        headers = dict(self.headers)
        if status in (401, 403, 404, 408):
            headers["x-should-retry"] = "false"
        if status == 401 and not path.startswith("/v1/"):
            return Response(status_code=401, headers={**headers, "www-authenticate": "Bearer"})
        return Response(orjson.dumps(body), status, headers, "application/json")


def invalid(field: str, message: str, status: int = 400, kind: str = "Validation") -> RequestError:
    """A failure of a field of the request."""
    return RequestError(status, kind, f"{field}: {message}", field)


def error_of(error: Exception) -> RequestError:
    """What an exception is to the client."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, RequestValidationError | ValidationError):
        return _of_validation(error)
    if isinstance(error, HTTPException):
        message = {404: "no such route", 405: "no such method here"}.get(
            error.status_code, str(error.detail)
        )
        return RequestError(error.status_code, "NotFound", message, headers=error.headers)
    if isinstance(error, BertworksError):
        for kind, status, name in _KINDS:
            if isinstance(error, kind):
                return _of_error(error, status, name)
    return RequestError(500, "Internal", "a fault of the server; its log has this request's id")


def _of_error(error: BertworksError, status: int, kind: str) -> RequestError:
    headers = {}
    code = None
    if isinstance(error, OverloadedError):
        headers = {
            "retry-after": str(math.ceil(error.retry_after)),
            "retry-after-ms": str(int(1000 * error.retry_after)),
        }
        code = "rate_limit_exceeded"
    elif isinstance(error, UnknownModelError):
        code = "model_not_found"
    elif isinstance(error, LengthError):
        code = "context_length_exceeded"
    field = "model" if isinstance(error, UnknownModelError) else error.where
    return RequestError(status, kind, str(error), field, code, headers)


def _of_validation(error: RequestValidationError | ValidationError) -> RequestError:
    """The first thing that is wrong with a body, by its field."""
    found = error.errors()
    first = found[0]
    place = [part for part in first["loc"] if part != "body"]
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", "")
        return RequestError(400, "Validation", f"the body is not valid JSON: {reason}")
    if first["type"] == "unknown_field":
        return invalid(_path([*place, str(first["ctx"]["field"])[:100]]), first["msg"], 422)
    if not place or isinstance(place[0], int):
        return RequestError(422, "Validation", "the body must be a JSON object")
    field = str(place[0])
    if first["type"] == "missing":
        return invalid(_path(place), "must be given", 422)
    is_one_field = len(found) > 1 and all(field in one["loc"][:2] for one in found)
    if is_one_field and not isinstance(place[1], int):  # one of several types
        return invalid(field, "is of none of the types that it may be", 422)
    message = str(first["msg"]).removeprefix("Value error, ")
    return invalid(_path(place), message[:1].lower() + message[1:], 422)


def _path(place: list[Any]) -> str:
    """`inputs[3].text` of the parts of a place."""
    named = [part for part in place if isinstance(part, int) or "[" not in str(part)]
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in named)
    return text.removeprefix(".")[:200]

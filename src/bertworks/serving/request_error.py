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

Each protocol's router declares the format of its errors (`ErrorFormat`). In OpenAI's format, 400
replaces 413 (except for a body that is too large) and 422, as in OpenAI's API.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias, assert_never

import orjson
from pydantic import BaseModel
from starlette.responses import Response
from starlette.routing import Route

ErrorFormat: TypeAlias = Literal["tei", "openai", "cohere"]
"""Format of an error's body: that of text-embeddings-inference, OpenAI or Cohere."""

_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class TEIError(BaseModel):
    error: str
    error_type: str


class OpenAIErrorBody(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(BaseModel):
    error: OpenAIErrorBody


class CohereError(BaseModel):
    message: str


ERROR_SCHEMAS: Mapping[ErrorFormat, type[BaseModel]] = {
    "tei": TEIError,
    "openai": OpenAIError,
    "cohere": CohereError,
}
"""The schema of the body of an error in each format."""


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

    def to_response(self, format: ErrorFormat) -> Response:
        """Return the response in a format."""
        message = self.message.encode("utf-8", "backslashreplace").decode()
        status = self.status
        body: Any
        if format == "openai":
            if status in (413, 422) and self.kind != "Body":
                status = 400
            usual = "server_error" if status >= 500 else "invalid_request_error"
            kind = _OPENAI_TYPES.get(status, usual)
            body = {
                "error": {
                    "message": message,
                    "type": kind,
                    "param": self.field,
                    "code": self.code,
                }
            }
        elif format == "cohere":
            body = {"message": message}
        elif format == "tei":
            kind = "Validation" if self.kind == "Body" else self.kind
            body = {"error": message, "error_type": kind}
        else:
            assert_never(format)
        headers = dict(self.headers)
        if status in (401, 403, 404, 408):
            headers["x-should-retry"] = "false"
        if status == 401 and format == "tei":
            return Response(status_code=401, headers={**headers, "www-authenticate": "Bearer"})
        return Response(orjson.dumps(body), status, headers, "application/json")


class ErrorFormats:
    """The format of errors of each path.

    Args:
        routes: all routes, each with the format of its errors.
    """

    def __init__(self, routes: Iterable[tuple[Route, ErrorFormat]]) -> None:
        self._routes = tuple(routes)

    def find(self, path: str) -> ErrorFormat:
        """Return the format of a path's route.

        A path without a route has the format of the first route below the same folder (`/v1/`), as
        a client of that API expects, else that of text-embeddings-inference.
        """
        for route, format in self._routes:
            if route.path_regex.match(path):
                return format
        folder = f"/{path.split('/')[1]}/" if path.count("/") > 1 else path
        return next(
            (format for route, format in self._routes if route.path.startswith(folder)), "tei"
        )


def invalid_field_error(
    field: str, message: str, status: int = 400, kind: str = "Validation"
) -> RequestError:
    """Return the error for an invalid field of the request."""
    return RequestError(status, kind, f"{field}: {message}", field)

"""What both clients share: requests, and responses and their errors."""

from __future__ import annotations

import json
import random
import re
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    NamedTuple,
    TypeVar,
)

from ..data.text_inputs import as_texts
from ..errors import BertworksError, DataError, SettingsError, import_optional
from .client_parts import MAX_REQUEST_TEXTS, add_neighbours, select_columns, split_texts

if TYPE_CHECKING:
    import httpx


T = TypeVar("T")
Body = Mapping[str, Any]


class Reply(NamedTuple):
    """A response: its JSON value, and the columns that rows were read from, if it names them."""

    value: Any
    columns: list[str] | None = None


Requests = Generator["dict[str, Any] | float", "httpx.Response | None", T]
"""Yields requests, as keywords of httpx, and receives their responses; also yields seconds to wait.
Returns the result of a method."""

_MAX_RETRY_SECONDS = 60.0
INFO_PATH = "/info"
_JSON_HEADERS = {"content-type": "application/json"}
_LOCATION = re.compile(r"^(inputs|rows|texts|sentences)\[(\d+)\]")
_SOURCE = "source_sentence"


class ServerError(BertworksError):
    """A server cannot be reached, or returns an error; `status` is the HTTP status, 0 if none."""

    status: int = 0


class ClientBase(ABC):
    """The common base of both clients.

    Args:
        url: the server's address.
        key: an API key.
        model: name of a served model; the server's first model if omitted.
        timeout: seconds to wait for a response; connecting may take at most five seconds.
        retries: how often a request is sent again while the server is busy (429); `retry_delay`
            computes the delays.
        verify: for HTTPS: whether the server's certificate must be trusted; or a PEM file of the
            authorities to trust, which may be the certificate itself.

    Raises:
        SettingsError: the address does not begin with http:// or https://; or `verify` is not a
            file of certificates.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        key: str | None = None,
        *,
        model: str | None = None,
        timeout: float = 300.0,
        retries: int = 8,
        verify: bool | str | Path = True,
    ) -> None:
        import_optional("httpx", "serve", "the client")
        if not url.startswith(("http://", "https://")):
            raise SettingsError("the address must begin with http:// or https://", where=url)
        self.url, self.model, self.retries = url.rstrip("/"), model, retries
        self._max_texts = MAX_REQUEST_TEXTS
        self._headers = {} if key is None else {b"authorization": f"Bearer {key}".encode()}
        self._timeout, self._verify = timeout, _make_verification(verify)
        self._open()

    @abstractmethod
    def _open(self) -> None:
        """Create the HTTP client; it opens connections when they are needed."""

    def _make_options(self) -> dict[str, Any]:
        import httpx

        timeout = httpx.Timeout(self._timeout, connect=5.0)
        return {
            "base_url": self.url,
            "headers": self._headers,
            "timeout": timeout,
            "verify": self._verify,
        }

    def _make_body(self, **values: Any) -> dict[str, Any]:
        """Return the body of a request, without values that are None."""
        fields = {"model": self.model, **values}
        return {name: value for name, value in fields.items() if value is not None}

    def _request_one(self, path: str, body: Body | None, read: Callable[[Any], T]) -> Requests[T]:
        """Send one request."""
        return read((yield from self._ask(path, body)).value)

    def _request_many(
        self,
        path: str,
        texts: Any,
        body: Callable[[list[Any], int], Body],
        read: Callable[[list[Any]], T],
        *,
        reads_neighbours: bool = False,
        texts_per_item: int = 1,
    ) -> Requests[T]:
        """Send requests about any number of texts, in smaller parts if the server refuses them.

        Args:
            body: returns the request of some texts; it also gets the number of the first.
            read: makes the result from the values of their responses.
            reads_neighbours: whether the response about a row may depend on neighbouring rows.
            texts_per_item: how many texts the server reads for each one, such as passages.
        """
        texts = list(as_texts(texts))
        most = _count_items(self._max_texts, texts_per_item)
        while True:
            parts, answers, first = split_texts(texts, most), [], 0
            try:
                if reads_neighbours and len(parts) > 1:
                    info = (yield from self._ask(INFO_PATH)).value
                    parts = add_neighbours(parts, info.get("row_context"))
                columns: list[str] | None = None
                for part in parts:
                    rows = part if columns is None else select_columns(part, columns)
                    reply = yield from self._ask(path, body(rows, first), first)
                    answers.append(reply.value)
                    columns = columns or reply.columns
                    first += len(part)
                return read(answers)
            except ServerError as error:
                largest = max(map(len, parts))
                if error.status != 413 or largest == 1 or _names_item(error.what):
                    raise
                info = (yield from self._ask(INFO_PATH)).value
                self._max_texts = info.get("max_client_batch_size", self._max_texts)
                most = _count_items(self._max_texts, texts_per_item)
                if most >= largest:  # an item counts for more than its texts, such as choices
                    most = largest // 2

    def _ask(self, path: str, body: Body | None = None, first: int = 0) -> Requests[Reply]:
        """Send a request, by GET without a body, until the server is not busy; see `retries`."""
        request = self._make_request(path, body)
        for number in range(self.retries + 1):
            answer = yield request
            assert answer is not None, "the response"
            if answer.status_code != 429 or number == self.retries:
                return self._read_response(answer, first)
            yield retry_delay(answer, number)
        raise AssertionError("the last try returns")

    def _make_request(self, path: str, body: Body | None) -> dict[str, Any]:
        """Return a request as keywords for `httpx`."""
        if body is None:
            return {"method": "GET", "url": path, "params": self._make_body()}
        return {"method": "POST", "url": path, "content": _encode(body), "headers": _JSON_HEADERS}

    def _read_response(self, answer: httpx.Response, first: int) -> Reply:
        """Return the content of a response.

        Args:
            first: the number of the request's first text among those of the call, for errors.

        Raises:
            ServerError: the response is an error.
        """
        if answer.is_success:
            columns = answer.headers.get("x-columns")
            return Reply(answer.json(), None if columns is None else json.loads(columns))
        try:
            body = answer.json().get("error", "")
            message = body.get("message", "") if isinstance(body, dict) else str(body)
        except ValueError:
            message = ""
        if answer.status_code == 401:
            message = "the API key is missing or wrong"
        message = _LOCATION.sub(lambda match: f"{match[1]}[{int(match[2]) + first}]", message)
        error = ServerError(message or f"status {answer.status_code}", where=self.url)
        error.status = answer.status_code
        raise error

    def _connection_error(self, error: Exception) -> ServerError:
        import httpx

        _, is_untrusted, reason = str(error).partition("CERTIFICATE_VERIFY_FAILED] ")
        if is_untrusted:
            return ServerError(
                f"its certificate is not trusted ({reason})",
                where=self.url,
                fix="Give verify=FILE, a PEM file of the authority that signed it.",
            )
        if "[SSL" in str(error):
            what = f"no HTTPS connection is possible ({error})"
            return ServerError(what, where=self.url, fix="Does the server use HTTPS?")
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return ServerError("cannot be reached", where=self.url, fix="Is the server running?")
        if isinstance(error, httpx.TimeoutException):
            return ServerError(f"no answer in {self._timeout:g} seconds", where=self.url)
        what = f"the connection broke ({type(error).__name__})"
        fix = "Does the server use HTTPS?" if self.url.startswith("http:") else None
        return ServerError(what, where=self.url, fix=fix)


def _names_item(message: str) -> bool:
    """Whether an error is about one item, and so remains in a smaller request."""
    return message.startswith(_SOURCE) or _LOCATION.match(message) is not None


def _count_items(max_texts: int, texts_per_item: int) -> int:
    """Return how many items a request has at most: at least one, of whatever size."""
    return max(1, max_texts // texts_per_item)


def _make_verification(verify: bool | str | Path) -> bool | ssl.SSLContext:
    """Return httpx's option for `verify`; read the file if it is one."""
    if isinstance(verify, bool):
        return verify
    try:
        return ssl.create_default_context(cafile=str(verify))
    except FileNotFoundError:
        raise SettingsError("no such file", where=str(verify)) from None
    except OSError as error:  # `ssl.SSLError` is one
        raise SettingsError(
            f"has no certificates that can be read ({error})",
            where=str(verify),
            fix="Give a PEM file.",
        ) from None


def retry_delay(answer: httpx.Response, number: int) -> float:
    """Return the seconds to wait before the next try.

    This is the delay that the server suggests, doubled at each try, plus a random part of up to a
    half, so that clients that were refused together do not all try again together.
    """
    try:
        delay = float(answer.headers["retry-after-ms"]) / 1000
    except (KeyError, ValueError):
        delay = 1.0
    least = min(_MAX_RETRY_SECONDS, delay * (1 << min(number, 6)))
    return least * random.uniform(1.0, 1.5)


def _encode(body: Body) -> bytes:
    """Encode a request as JSON.

    Raises:
        DataError: a value has no form in JSON.
    """

    def plain(value: Any) -> Any:
        if hasattr(value, "tolist"):  # an array or number of numpy
            return value.tolist()
        raise TypeError(f"a value of the type {type(value).__name__}")

    try:
        try:
            return json.dumps(body, default=plain, ensure_ascii=False).encode()
        except UnicodeEncodeError:  # a lone surrogate: the server's error names its text
            return json.dumps(body, default=plain).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"cannot be sent as JSON ({error})") from None

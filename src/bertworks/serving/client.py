"""A client of `bertworks serve` with the methods of `Model`; `AsyncClient` is its async version.

client = bw.Client("http://127.0.0.1:8080", key="…")
client.embed(["a text", "another"])          # numpy [2, hidden_size], as Model.embed
client.fill_mask("The door was [MASK].")
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import re
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypedDict, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from ..errors import BertworksError, DataError, SettingsError, need
from ..literals import Combine, Pooling, Precision
from ..tables.rows import unframed

if TYPE_CHECKING:
    import httpx

P = ParamSpec("P")
T = TypeVar("T")
_Body = Mapping[str, Any]
Texts = str | Iterable[str]
Rows = str | Iterable[Any]
"""One text; or several texts, pairs of texts or rows; or a data frame."""

_PART = 512
_PART_CHARACTERS = 1 << 18
"""The most texts, and their characters, in a request; more texts are sent in several requests.

The server counts up to three tokens for a character, and its queue holds 1 << 20 by default.
"""

_MOST_WAIT = 60.0
_JSON = {"content-type": "application/json"}
_PLACE = re.compile(r"^(inputs|rows|texts)\[(\d+)\]")


class ServerError(BertworksError):
    """A server cannot be reached, or returns an error; `status` is the HTTP status, 0 if none."""

    status: int = 0


class EncodeKeywords(TypedDict, total=False):
    """Keywords of `embed`; the server has defaults for all. `truncate` truncates long texts."""

    pooling: Pooling
    layers: Sequence[int]
    combine: Combine
    normalize: bool
    precision: Precision
    truncate: bool


class GenerationKeywords(TypedDict, total=False):
    """Keywords of `generate`, as in `Model.generate`."""

    max_new_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    stop_ids: Sequence[int]
    seed: int


class _Connection(ABC):
    """The common base of both clients.

    Args:
        url: the server's address.
        key: an API key.
        model: name of a served model; the server's first model if omitted.
        timeout: seconds to wait for a response; connecting may take at most five seconds.
        retries: how often a request is sent again while the server is busy (429); `_wait` computes
            the delays.

    Raises:
        SettingsError: the address does not begin with http:// or https://.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        key: str | None = None,
        *,
        model: str | None = None,
        timeout: float = 300.0,
        retries: int = 8,
    ) -> None:
        need("httpx", "serve", "the client")
        if not url.startswith(("http://", "https://")):
            raise SettingsError("the address must begin with http:// or https://", where=url)
        self.url, self.model, self.retries = url.rstrip("/"), model, retries
        self._headers = {} if key is None else {b"authorization": f"Bearer {key}".encode()}
        self._timeout = timeout
        self._open()

    @abstractmethod
    def _open(self) -> None:
        """Create the HTTP client; it opens connections when they are needed."""

    def _options(self) -> dict[str, Any]:
        import httpx

        timeout = httpx.Timeout(self._timeout, connect=5.0)
        return {"base_url": self.url, "headers": self._headers, "timeout": timeout}

    def _body(self, **values: Any) -> dict[str, Any]:
        """Return the body of a request, without values that are None."""
        given = {"model": self.model, **values}
        return {name: value for name, value in given.items() if value is not None}

    def _checked(self, answer: httpx.Response, first: int = 0) -> Any:
        """Return the JSON value of a response.

        Args:
            first: the number of the request's first text among those of the call, for errors.

        Raises:
            ServerError: the response is an error.
        """
        if answer.is_success:
            return answer.json()
        try:
            said = answer.json().get("error", "")
            message = said.get("message", "") if isinstance(said, dict) else str(said)
        except ValueError:
            message = ""
        if answer.status_code == 401:
            message = "the API key is missing or wrong"
        message = _PLACE.sub(lambda found: f"{found[1]}[{int(found[2]) + first}]", message)
        error = ServerError(message or f"status {answer.status_code}", where=self.url)
        error.status = answer.status_code
        raise error

    def _failure(self, error: Exception) -> ServerError:
        import httpx

        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return ServerError("cannot be reached", where=self.url, fix="Is the server running?")
        if isinstance(error, httpx.TimeoutException):
            return ServerError(f"no answer in {self._timeout:g} seconds", where=self.url)
        return ServerError(f"the connection broke ({type(error).__name__})", where=self.url)


class Client(_Connection):
    """A synchronous client; see `_Connection` for its arguments, and the module for an example.

    Raises:
        BertworksError: httpx is not installed.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        import httpx

        self._http = httpx.Client(**self._options())

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def embed(self, texts: Texts, **settings: Unpack[EncodeKeywords]) -> NDArray[np.float32]:
        """One vector per text: float32 `[texts, width]`, as `Model.embed`.

        Args:
            texts: one text, or any number.
            settings: `pooling`, `layers`, `combine`, `normalize`, `precision`; and `truncate=True`
                to truncate texts that are too long; otherwise they are an error.

        Raises:
            ServerError: the server cannot be reached, or returns an error; so in all methods.
        """
        bodies = [
            self._body(texts=part, encoding_format="base64", **settings) for part in _parts(texts)
        ]

        def read(answers: list[Any]) -> NDArray[np.float32]:
            coded = [row for answer in answers for row in answer["results"]]
            rows = [np.frombuffer(base64.b64decode(row), "<f4") for row in coded]
            return np.stack(rows) if rows else np.empty((0, 0), np.float32)

        return self._send("/encode", bodies, read)

    def similarity(
        self, texts: Texts, others: Texts, **settings: Unpack[EncodeKeywords]
    ) -> NDArray[np.float32]:
        """The cosine of each text with each of the others: float32 `[texts, others]`."""
        settings["normalize"] = True
        cosines: NDArray[np.float32] = (
            self.embed(texts, **settings) @ self.embed(others, **settings).T
        )
        return cosines

    def predict(self, rows: Rows) -> list[dict[str, Any]]:
        """The task's prediction for each text, pair of texts or row, as `Model.predict`."""
        given = [rows] if isinstance(rows, str | Mapping) else rows
        bodies = [self._body(rows=part) for part in _parts(given)]
        return self._send("/predict-rows", bodies, _joined)

    def fill_mask(
        self, text: str, *, top_k: int = 5, candidates: Sequence[str] | None = None
    ) -> list[list[dict[str, Any]]]:
        """The most likely pieces for each mask, or the probabilities of candidates."""
        words = None if candidates is None else list(candidates)
        body = self._body(inputs=text, top_k=top_k, candidates=words)
        field = "masks" if candidates is None else "candidates"
        return self._send("/fill-mask", [body], lambda answers: answers[0][0][field])

    def next_sentence(self, first: str, second: str) -> float:
        """The probability that the second text follows the first."""
        body = self._body(inputs=[first, second])
        name = "next_sentence_probability"
        return self._send("/next-sentence", [body], lambda answers: float(answers[0][0][name]))

    def generate(self, prompts: Texts, **settings: Unpack[GenerationKeywords]) -> list[str]:
        """The continuation of each prompt by a causal model, as `Model.generate`."""
        bodies, seen = [], Counter[Any]()
        for part in _parts(prompts):
            copies = {text: seen[text] for text in part if isinstance(text, str) and text in seen}
            bodies.append(self._body(inputs=part, copies=copies or None, **settings))
            seen.update(text for text in part if isinstance(text, str))
        return self._send(
            "/generate", bodies, lambda answers: [one["generated"] for one in _joined(answers)]
        )

    def rerank(
        self, query: str, texts: Iterable[str], *, truncate: bool = False
    ) -> list[tuple[int, float]]:
        """Each text's index and score, best first."""
        body = self._body(query=query, texts=list(texts), truncate=truncate)
        return self._send(
            "/rerank", [body], lambda answers: [(one["index"], one["score"]) for one in answers[0]]
        )

    def tokenize(self, texts: Texts) -> list[list[dict[str, Any]]]:
        """The tokens of each text, with their byte offsets in it."""
        return self._send("/tokenize", [self._body(inputs=part) for part in _parts(texts)], _joined)

    def info(self) -> dict[str, Any]:
        """The model, and the server's limits."""
        import httpx

        try:
            asked = {} if self.model is None else {"model": self.model}
            found: dict[str, Any] = self._checked(self._http.get("/info", params=asked))
        except httpx.HTTPError as error:
            raise self._failure(error) from None
        return found

    def _send(self, path: str, bodies: Sequence[_Body], read: Callable[[list[Any]], T]) -> T:
        """Send requests, and return the value that `read` makes from their responses."""
        return read([self._post(path, body, first) for first, body in _numbered(bodies)])

    def _post(self, path: str, body: _Body, first: int) -> Any:
        import httpx

        content = _encoded(body)
        for number in range(self.retries + 1):
            try:
                answer = self._http.post(path, content=content, headers=_JSON)
            except httpx.HTTPError as error:
                raise self._failure(error) from None
            if answer.status_code != 429 or number == self.retries:
                return self._checked(answer, first)
            time.sleep(_wait(answer, number))
        raise AssertionError("the last try returns")


def _awaited(
    verb: Callable[Concatenate[Client, P], T],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """Type a method of `Client` for `AsyncClient`, whose `_send`, and so the method, is async."""
    return verb  # type: ignore[return-value]


class AsyncClient(_Connection):
    """A client with async methods; arguments and methods are those of `Client`, except `info`.

    Raises:
        BertworksError: httpx is not installed.
    """

    embed = _awaited(Client.embed)
    predict = _awaited(Client.predict)
    fill_mask = _awaited(Client.fill_mask)
    next_sentence = _awaited(Client.next_sentence)
    generate = _awaited(Client.generate)
    rerank = _awaited(Client.rerank)
    tokenize = _awaited(Client.tokenize)

    def _open(self) -> None:
        import httpx

        self._http = httpx.AsyncClient(**self._options())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def similarity(
        self, texts: Texts, others: Texts, **settings: Unpack[EncodeKeywords]
    ) -> NDArray[np.float32]:
        """See `Client.similarity`."""
        settings["normalize"] = True
        parts = (self.embed(part, **settings) for part in (texts, others))
        one, other = await asyncio.gather(*parts)
        cosines: NDArray[np.float32] = one @ other.T
        return cosines

    async def _send(self, path: str, bodies: Sequence[_Body], read: Callable[[list[Any]], T]) -> T:
        return read([await self._post(path, body, first) for first, body in _numbered(bodies)])

    async def _post(self, path: str, body: _Body, first: int) -> Any:
        import httpx

        content = _encoded(body)
        for number in range(self.retries + 1):
            try:
                answer = await self._http.post(path, content=content, headers=_JSON)
            except httpx.HTTPError as error:
                raise self._failure(error) from None
            if answer.status_code != 429 or number == self.retries:
                return self._checked(answer, first)
            await asyncio.sleep(_wait(answer, number))
        raise AssertionError("the last try returns")


def _wait(answer: httpx.Response, number: int) -> float:
    """Return the seconds to wait before the next try.

    This is the delay that the server asks for, doubled at each try, plus a random part of up to a
    half, so that clients that were refused together do not all try again together.
    """
    try:
        asked = float(answer.headers["retry-after-ms"]) / 1000
    except (KeyError, ValueError):
        asked = 1.0
    least = min(_MOST_WAIT, asked * (1 << min(number, 6)))
    return least * random.uniform(1.0, 1.5)


def _encoded(body: _Body) -> bytes:
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


def _parts(texts: Any) -> list[list[Any]]:
    """Split texts into lists that fit in one request each.

    Raises:
        DataError: `texts` is neither a text nor iterable.
    """
    if isinstance(texts, str):
        return [[texts]]
    if not isinstance(texts, Iterable):
        raise DataError(f"expected a text, or several, got {type(texts).__name__}")
    parts: list[list[Any]] = []
    characters = 0
    for one in unframed(texts):  # iterating over a data frame yields its columns' names
        size = len(one) if isinstance(one, str) else len(str(one))
        if not parts or len(parts[-1]) == _PART or characters + size > _PART_CHARACTERS:
            parts.append([])
            characters = 0
        parts[-1].append(one)
        characters += size
    return parts


def _numbered(bodies: Sequence[_Body]) -> Iterator[tuple[int, _Body]]:
    """Yield requests, each with the number of its first text or row among those of all."""
    first = 0
    for body in bodies:
        yield first, body
        first += len(body.get("texts") or body.get("rows") or body.get("inputs") or ())


def _joined(answers: list[Any]) -> list[Any]:
    return [one for answer in answers for one in answer]

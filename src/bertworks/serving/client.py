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
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    NamedTuple,
    ParamSpec,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
)

import numpy as np
from numpy.typing import NDArray

from ..data.rows import Rows as TableRows
from ..data.rows import unframed
from ..errors import BertworksError, DataError, SettingsError, import_optional
from ..inference.similarity import similarities
from ..settings.literals import Combine, Pooling, Precision

if TYPE_CHECKING:
    import httpx

P = ParamSpec("P")
T = TypeVar("T")
_Body = Mapping[str, Any]


class _Reply(NamedTuple):
    """A response: its JSON value, and the columns that rows were read from, if it names them."""

    value: Any
    columns: list[str] | None = None


_Asking = Generator[tuple[str, _Body | None, int], _Reply, T]
"""Yields requests (path; body, None for GET; number of the first text), and receives their
responses; returns the result of a verb."""

Texts = str | Iterable[str]
Rows = str | Iterable[Any]
"""One text; or several texts, pairs of texts or rows; or a data frame."""

_PART = 512
_PART_CHARACTERS = 1 << 18
"""The most texts, and their characters, in a request; more texts are sent in several requests.

A server that refuses so many (`max_texts`) is asked for its limit.
The server counts up to three tokens for a character, and its queue holds 1 << 20 by default.
"""

_MOST_WAIT = 60.0
_INFO = "/info"
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
        import_optional("httpx", "serve", "the client")
        if not url.startswith(("http://", "https://")):
            raise SettingsError("the address must begin with http:// or https://", where=url)
        self.url, self.model, self.retries = url.rstrip("/"), model, retries
        self._most = _PART
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

    def _one(self, path: str, body: _Body | None, read: Callable[[Any], T]) -> _Asking[T]:
        """Ask one thing."""
        return read((yield path, body, 0).value)

    def _many(
        self,
        path: str,
        texts: Any,
        body: Callable[[list[Any], list[Any]], _Body],
        read: Callable[[list[Any]], T],
        *,
        reads_neighbours: bool = False,
    ) -> _Asking[T]:
        """Ask about any number of texts.

        Args:
            body: returns the request of some texts, which is given those of earlier requests too.
            read: makes the result from the values of their responses.
            reads_neighbours: whether the answer about a row may depend on the rows beside it.
        """
        texts = _listed(texts)
        while True:
            parts, answers, first = _parts(texts, self._most), [], 0
            try:
                if reads_neighbours and len(parts) > 1:
                    info = (yield _INFO, None, 0).value
                    parts = _with_neighbours(parts, info.get("row_context"))
                columns: list[str] | None = None
                for part in parts:
                    asked = part if columns is None else _in_columns(part, columns)
                    reply = yield path, body(asked, texts[:first]), first
                    answers.append(reply.value)
                    columns = columns or reply.columns
                    first += len(part)
                return read(answers)
            except ServerError as error:
                if error.status != 413:
                    raise
                info = (yield _INFO, None, 0).value
                limit = info.get("max_client_batch_size", self._most)
                if max(map(len, parts)) <= limit:  # something else is too large
                    raise
                self._most = limit

    def _request(self, path: str, body: _Body | None) -> dict[str, Any]:
        """Return a request as keywords for `httpx`."""
        if body is None:
            return {"method": "GET", "url": path, "params": self._body()}
        return {"method": "POST", "url": path, "content": _encoded(body), "headers": _JSON}

    def _checked(self, answer: httpx.Response, first: int = 0) -> _Reply:
        """Return the content of a response.

        Args:
            first: the number of the request's first text among those of the call, for errors.

        Raises:
            ServerError: the response is an error.
        """
        if answer.is_success:
            columns = answer.headers.get("x-columns")
            return _Reply(answer.json(), None if columns is None else json.loads(columns))
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

        def body(part: list[Any], _: list[Any]) -> _Body:
            return self._body(texts=part, encoding_format="base64", **settings)

        def read(answers: list[Any]) -> NDArray[np.float32]:
            coded = [row for answer in answers for row in answer["results"]]
            rows = [np.frombuffer(base64.b64decode(row), "<f4") for row in coded]
            return np.stack(rows) if rows else np.empty((0, 0), np.float32)

        return self._send(self._many("/encode", texts, body, read))

    def similarity(
        self, texts: Texts, others: Texts, **settings: Unpack[EncodeKeywords]
    ) -> NDArray[np.float32]:
        """The similarity of each text with each of the others, as `Model.similarity`: float32
        `[texts, others]`."""
        function = self.info()["similarity_fn_name"]
        one, other = (self.embed(part, **settings) for part in (texts, others))
        return similarities(one, other, function)

    def predict(self, rows: Rows) -> list[dict[str, Any]]:
        """The task's prediction for each text, pair of texts or row, as `Model.predict`."""
        given = [rows] if isinstance(rows, str | Mapping) else rows

        def body(part: list[Any], _: list[Any]) -> _Body:
            return self._body(rows=part)

        return self._send(self._many("/predict-rows", given, body, _joined, reads_neighbours=True))

    def fill_mask(
        self, text: str, *, top_k: int = 5, candidates: Sequence[str] | None = None
    ) -> list[list[dict[str, Any]]]:
        """The most likely pieces for each mask, or the probabilities of candidates."""
        words = None if candidates is None else list(candidates)
        body = self._body(inputs=text, top_k=top_k, candidates=words)
        field = "masks" if candidates is None else "candidates"
        return self._send(self._one("/fill-mask", body, lambda answer: answer[0][field]))

    def next_sentence(self, first: str, second: str) -> float:
        """The probability that the second text follows the first."""
        body = self._body(inputs=[first, second])
        name = "next_sentence_probability"
        return self._send(self._one("/next-sentence", body, lambda answer: float(answer[0][name])))

    def generate(self, prompts: Texts, **settings: Unpack[GenerationKeywords]) -> list[str]:
        """The continuation of each prompt by a causal model, as `Model.generate`."""

        def body(part: list[Any], earlier: list[Any]) -> _Body:
            seen = Counter(text for text in earlier if isinstance(text, str))
            copies = {text: seen[text] for text in part if isinstance(text, str) and text in seen}
            return self._body(inputs=part, copies=copies or None, **settings)

        def read(answers: list[Any]) -> list[str]:
            return [one["generated"] for one in _joined(answers)]

        return self._send(self._many("/generate", prompts, body, read))

    def rerank(
        self, query: str, texts: Iterable[str], *, truncate: bool = False
    ) -> list[tuple[int, float]]:
        """Each text's index and score, best first."""
        body = self._body(query=query, texts=list(texts), truncate=truncate)
        return self._send(
            self._one(
                "/rerank", body, lambda answer: [(one["index"], one["score"]) for one in answer]
            )
        )

    def tokenize(self, texts: Texts) -> list[list[dict[str, Any]]]:
        """The tokens of each text, with their byte offsets in it."""

        def body(part: list[Any], _: list[Any]) -> _Body:
            return self._body(inputs=part)

        return self._send(self._many("/tokenize", texts, body, _joined))

    def info(self) -> dict[str, Any]:
        """The model, and the server's limits."""
        return self._send(self._one(_INFO, None, dict))

    def _send(self, asking: _Asking[T]) -> T:
        """Send the requests of `asking`, and return its result."""
        try:
            request = next(asking)
            while True:
                try:
                    answer = self._ask(*request)
                except ServerError as error:
                    request = asking.throw(error)
                else:
                    request = asking.send(answer)
        except StopIteration as end:
            found: T = end.value
            return found

    def _ask(self, path: str, body: _Body | None, first: int) -> _Reply:
        import httpx

        request = self._request(path, body)
        for number in range(self.retries + 1):
            try:
                answer = self._http.request(**request)
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
        info = self._send(self._one(_INFO, None, dict))
        parts = (self.embed(part, **settings) for part in (texts, others))
        facts, one, other = await asyncio.gather(info, *parts)
        return similarities(one, other, facts["similarity_fn_name"])

    async def _send(self, asking: _Asking[T]) -> T:
        try:
            request = next(asking)
            while True:
                try:
                    answer = await self._ask(*request)
                except ServerError as error:
                    request = asking.throw(error)
                else:
                    request = asking.send(answer)
        except StopIteration as end:
            found: T = end.value
            return found

    async def _ask(self, path: str, body: _Body | None, first: int) -> _Reply:
        import httpx

        request = self._request(path, body)
        for number in range(self.retries + 1):
            try:
                answer = await self._http.request(**request)
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


def _listed(texts: Any) -> list[Any]:
    """Return one or several texts as a list.

    Raises:
        DataError: `texts` is neither a text nor iterable.
    """
    if isinstance(texts, str):
        return [texts]
    rows = unframed(texts)  # iterating over a data frame yields its columns' names
    if not isinstance(rows, Iterable):
        raise DataError(f"expected a text, or several, got {type(texts).__name__}")
    return list(rows)


def _parts(texts: Sequence[Any], most: int) -> list[list[Any]]:
    """Split texts into lists of at most `most` that fit in one request each."""
    parts: list[list[Any]] = []
    characters = 0
    for one in texts:
        size = len(one) if isinstance(one, str) else len(str(one))
        if not parts or len(parts[-1]) == most or characters + size > _PART_CHARACTERS:
            parts.append([])
            characters = 0
        parts[-1].append(one)
        characters += size
    return parts


def _with_neighbours(parts: list[list[Any]], context: Mapping[str, Any] | None) -> list[list[Any]]:
    """Give rows the words of their document that are in the rows of other requests.

    Args:
        context: `row_context` of `/info`.

    Raises:
        DataError: a row has no list of words, or which rows belong together is not known.
    """
    if context is None:
        return parts
    if not context:
        count = sum(map(len, parts))
        raise DataError(
            f"the task reads neighbouring rows, and these {count:,} need several requests",
            fix=f"Send at most {len(parts[0])} rows in a call, all that belong together.",
        )
    from ..data.tables import rows_in_memory
    from ..tasks.tagging.columns import WordColumns, add_context, columns_of_table

    def placed_rows(rows: Iterable[Any], first: int = 0) -> TableRows:
        values = [row if isinstance(row, Mapping) else {"text": row} for row in rows]
        return rows_in_memory(values, "rows", place=lambda at: f"rows[{first + at}]")

    columns = columns_of_table(
        placed_rows(chain.from_iterable(parts)),
        WordColumns(word=context["word"], document=context["document"]),
        labelled=False,
        document_context=True,
    )

    def seen(rows: Iterable[Any], first: int) -> Iterator[Any]:
        """Yield each row as the task sees it beside these rows, which begin with number `first`."""
        placed = placed_rows(rows, first)
        return (values for _, values in add_context(placed, columns, context["words"]))

    found, first = [], 0
    whole = seen(chain.from_iterable(parts), first)
    for part in parts:
        pairs = zip(part, seen(part, first), whole, strict=False)
        found.append([row if alone == values else values for row, alone, values in pairs])
        first += len(part)
    return found


def _in_columns(rows: Sequence[Any], columns: Sequence[str]) -> list[Any]:
    """Return rows with these columns only, so that the server reads them from no others.

    A server detects columns by the rows of a request; those of the first one hold for all.
    """
    return [
        {name: row[name] for name in columns if name in row} if isinstance(row, Mapping) else row
        for row in rows
    ]


def _joined(answers: list[Any]) -> list[Any]:
    return [one for answer in answers for one in answer]

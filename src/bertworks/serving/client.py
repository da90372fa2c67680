"""A client of `bertworks serve` with the methods of `Model`; `AsyncClient` is its async version.

client = bw.Client("http://127.0.0.1:8080", key="…")
client.embed(["a text", "another"])          # numpy [2, hidden_size], as Model.embed
client.fill_mask("The door was [MASK].")
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import (
    Any,
    Concatenate,
    ParamSpec,
    Self,
    TypedDict,
    Unpack,
)

import numpy as np
from numpy.typing import NDArray

from ..data.text_inputs import as_texts
from ..errors import SettingsError, did_you_mean
from ..inference.similarity import similarities
from ..settings.literals import Combine, InferencePrecision, Pooling
from .client_base import INFO_PATH, Body, ClientBase, Requests, T

P = ParamSpec("P")

Texts = str | Iterable[str]
Rows = str | Iterable[Any]
"""One text; or several texts, pairs of texts or rows; or a data frame."""


class EncodeKeywords(TypedDict, total=False):
    """Keywords of `embed`; the server has defaults for all. `truncate` truncates long texts."""

    pooling: Pooling
    layers: Sequence[int]
    combine: Combine
    normalize: bool
    is_query: bool
    precision: InferencePrecision
    truncate: bool


class GenerationKeywords(TypedDict, total=False):
    """Keywords of `generate`, as in `Model.generate`."""

    max_new_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    stop_ids: Sequence[int]
    seed: int


class Client(ClientBase):
    """A synchronous client; see `ClientBase` for its arguments, and the module for an example.

    Raises:
        BertworksError: httpx is not installed.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        import httpx

        self._http = httpx.Client(**self._make_options())

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def embed(self, texts: Texts, **settings: Unpack[EncodeKeywords]) -> NDArray[np.float32]:
        """One vector per text: float32 `[texts, width]`, as `Model.embed`.

        Args:
            texts: one text, or any number.
            settings: `pooling`, `layers`, `combine`, `normalize`, `is_query`, `precision`; and
                `truncate=True` to truncate texts that are too long; otherwise they are an error.

        Raises:
            ServerError: the server cannot be reached, or returns an error; so in all methods.
            SettingsError: a setting is unknown.
        """
        return self._send(_request_vectors(self, texts, settings))

    def embed_sparse(self, texts: Texts, *, truncate: bool = False) -> list[dict[int, float]]:
        """The sparse vector of each text (of a SPLADE model): its numbers by the ids of pieces."""

        def body(part: list[Any], _: int) -> Body:
            return self._make_body(inputs=part, truncate=truncate)

        def read(answers: list[Any]) -> list[dict[int, float]]:
            rows = _concatenate(answers)
            return [{entry["index"]: entry["value"] for entry in row} for row in rows]

        return self._send(self._request_many("/embed_sparse", texts, body, read))

    def similarity(
        self, texts: Texts, others: Texts, **settings: Unpack[EncodeKeywords]
    ) -> NDArray[np.float32]:
        """The similarity of each text with each of the others, as `Model.similarity`: float32
        `[texts, others]`.

        The server compares sparse vectors (SPLADE) and late interaction (ColBERT): each of `texts`
        takes requests with all `others`.

        Args:
            settings: as in `embed`; for sparse vectors and late interaction only `truncate`.
        """
        return self._send(_request_similarities(self, texts, others, settings))

    def predict(self, rows: Rows) -> list[dict[str, Any]]:
        """The task's prediction for each text, pair of texts or row, as `Model.predict`."""

        def body(part: list[Any], _: int) -> Body:
            return self._make_body(rows=part)

        return self._send(
            self._request_many("/predict-rows", rows, body, _concatenate, reads_neighbours=True)
        )

    def fill_mask(
        self, text: str, *, top_k: int = 5, candidates: Sequence[str] | None = None
    ) -> list[list[dict[str, Any]]]:
        """The most likely pieces for each mask, or the probabilities of candidates."""
        words = None if candidates is None else list(candidates)
        body = self._make_body(inputs=text, top_k=top_k, candidates=words)
        field = "masks" if candidates is None else "candidates"
        return self._send(self._request_one("/fill-mask", body, lambda answer: answer[0][field]))

    def next_sentence(self, first: str, second: str) -> float:
        """The probability that the second text follows the first."""
        body = self._make_body(inputs=[first, second])
        name = "next_sentence_probability"
        return self._send(
            self._request_one("/next-sentence", body, lambda answer: float(answer[0][name]))
        )

    def answer(
        self, questions: Texts, *, passages: int = 5, top_k: int = 1
    ) -> list[list[dict[str, Any]]]:
        """For each question its best answers from the corpus of the server, best first.

        Args:
            passages: number of passages that are read for a question.
            top_k: answers per question, with different texts.
        """

        def body(part: list[Any], _: int) -> Body:
            questions = [{"question": text} for text in part]
            return self._make_body(inputs=questions, passages=passages, n_best=top_k)

        def read(replies: list[Any]) -> list[list[dict[str, Any]]]:
            return [reply["alternatives"] for reply in _concatenate(replies)]

        requests = self._request_many(
            "/answer", questions, body, read, texts_per_item=max(1, passages)
        )
        return self._send(requests)

    def generate(self, prompts: Texts, **settings: Unpack[GenerationKeywords]) -> list[str]:
        """The continuation of each prompt by a causal model, as `Model.generate`."""

        counts: Counter[str] = Counter()  # of the prompts of earlier requests

        def body(part: list[Any], first: int) -> Body:
            if first == 0:  # also when all are sent again, in smaller requests
                counts.clear()
            texts = [text for text in part if isinstance(text, str)]
            copies = {text: counts[text] for text in texts if text in counts}
            counts.update(texts)
            return self._make_body(inputs=part, copies=copies or None, **settings)

        def read(answers: list[Any]) -> list[str]:
            return [answer["generated_text"] for answer in _concatenate(answers)]

        return self._send(self._request_many("/generate", prompts, body, read))

    def rerank(
        self, query: str, texts: Iterable[str], *, truncate: bool = False
    ) -> list[tuple[int, float]]:
        """Each text's index and score, best first."""
        body = self._make_body(query=query, texts=list(texts), truncate=truncate)
        return self._send(
            self._request_one(
                "/rerank",
                body,
                lambda answer: [(entry["index"], entry["score"]) for entry in answer],
            )
        )

    def tokenize(self, texts: Texts) -> list[list[dict[str, Any]]]:
        """The tokens of each text, with their byte offsets in it."""

        def body(part: list[Any], _: int) -> Body:
            return self._make_body(inputs=part)

        return self._send(self._request_many("/tokenize", texts, body, _concatenate))

    def info(self) -> dict[str, Any]:
        """The model, and the server's limits."""
        return self._send(self._request_one(INFO_PATH, None, dict))

    def _send(self, requests: Requests[T]) -> T:
        """Send the requests that a generator yields, and return its result."""
        import httpx

        answer: httpx.Response | None = None
        try:
            while True:
                step = requests.send(answer)
                if isinstance(step, float):
                    time.sleep(step)
                    answer = None
                else:
                    answer = self._http.request(**step)
        except httpx.HTTPError as error:
            raise self._connection_error(error) from None
        except StopIteration as end:
            result: T = end.value
            return result


def _as_async(
    method: Callable[Concatenate[Client, P], T],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """Type a method of `Client` for `AsyncClient`, whose `_send`, and so the method, is async."""
    return method  # type: ignore[return-value]


class AsyncClient(ClientBase):
    """A client with async methods; arguments and methods are those of `Client`.

    Raises:
        BertworksError: httpx is not installed.
    """

    embed = _as_async(Client.embed)
    similarity = _as_async(Client.similarity)
    predict = _as_async(Client.predict)
    fill_mask = _as_async(Client.fill_mask)
    next_sentence = _as_async(Client.next_sentence)
    answer = _as_async(Client.answer)
    generate = _as_async(Client.generate)
    embed_sparse = _as_async(Client.embed_sparse)
    rerank = _as_async(Client.rerank)
    tokenize = _as_async(Client.tokenize)
    info = _as_async(Client.info)

    def _open(self) -> None:
        import httpx

        self._http = httpx.AsyncClient(**self._make_options())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _send(self, requests: Requests[T]) -> T:
        import httpx

        answer: httpx.Response | None = None
        try:
            while True:
                step = requests.send(answer)
                if isinstance(step, float):
                    await asyncio.sleep(step)
                    answer = None
                else:
                    answer = await self._http.request(**step)
        except httpx.HTTPError as error:
            raise self._connection_error(error) from None
        except StopIteration as end:
            result: T = end.value
            return result


def _request_vectors(
    client: ClientBase, texts: Texts, settings: EncodeKeywords
) -> Requests[NDArray[np.float32]]:
    """Request what `embed` returns."""
    _check_names(settings)

    def body(part: list[Any], _: int) -> Body:
        return client._make_body(texts=part, encoding_format="base64", **settings)

    def read(answers: list[Any]) -> NDArray[np.float32]:
        coded = [row for answer in answers for row in answer["results"]]
        rows = [np.frombuffer(base64.b64decode(row), "<f4") for row in coded]
        return np.stack(rows) if rows else np.empty((0, 0), np.float32)

    return (yield from client._request_many("/encode", texts, body, read))


def _request_similarities(
    client: ClientBase, texts: Texts, others: Texts, settings: EncodeKeywords
) -> Requests[NDArray[np.float32]]:
    """Request what `similarity` returns."""
    _check_names(settings)
    info = yield from client._request_one(INFO_PATH, None, dict[str, Any])
    function, of_queries = info["similarity_fn_name"], settings
    is_sparse = "embed-sparse" in info["capabilities"] and settings.get("pooling") is None
    if is_sparse or function == "maxsim":
        return (yield from _request_comparisons(client, texts, others, settings))
    if info["compares_queries"]:
        of_queries = {**settings, "is_query": True}
    vectors = yield from _request_vectors(client, texts, of_queries)
    other_vectors = yield from _request_vectors(client, others, settings)
    return similarities(vectors, other_vectors, function)


def _request_comparisons(
    client: ClientBase, texts: Texts, others: Texts, settings: EncodeKeywords
) -> Requests[NDArray[np.float32]]:
    """Request similarities that the server computes, for vectors that /encode does not make."""
    names = {name for name, value in settings.items() if value is not None} - {"truncate"}
    if names:
        what = f"{min(names)}: the server compares sparse vectors and late interaction without it"
        raise SettingsError(what, where=client.url, fix="Leave it out, or use Model.similarity.")
    parameters = {"truncate": settings.get("truncate", False)}
    rows: list[list[float]] = []
    texts, others = list(as_texts(texts)), list(as_texts(others))
    for text in texts:

        def body(part: list[Any], _: int, text: str = text) -> Body:
            inputs = {"source_sentence": text, "sentences": part}
            return client._make_body(inputs=inputs, parameters=parameters)

        rows.append((yield from client._request_many("/similarity", others, body, _concatenate)))
    return np.array(rows, np.float32).reshape(len(texts), len(others))


def _check_names(settings: EncodeKeywords) -> None:
    """Refuse a setting that `embed` does not have."""
    for name in settings.keys() - EncodeKeywords.__annotations__.keys():
        fix = did_you_mean(name, EncodeKeywords.__annotations__)
        raise SettingsError(f"unknown setting {name!r}", fix=f"{fix}.")


def _concatenate(answers: list[Any]) -> list[Any]:
    return [entry for answer in answers for entry in answer]

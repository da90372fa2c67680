"""The API of text-embeddings-inference."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from fastapi import Request as HTTPRequest
from fastapi import Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from ...errors import DataError
from ...text.tokenizer import Tokenizer
from ..job import Job, open_job
from ..request_error import RequestError, invalid_field_error
from ..runners import ScoredPrediction
from ..task_operations import output_scores, rerank, score
from ..vector_operations import embed, get_prompt, similarity
from .base import (
    Dialect,
    Fields,
    Ids,
    Prompt,
    Request,
    Side,
    Truncate,
    Usage,
    encode_vectors,
    respond,
)
from .info import describe_model_type

_TEXT = "What is deep learning?"


class SparseValue(BaseModel):
    """A number of a sparse vector; `index` is a piece's id."""

    index: int
    value: float


class LabelScore(BaseModel):
    label: str
    score: float


class Rank(BaseModel):
    index: int
    score: float
    text: str | None = None


class InfinityRank(BaseModel):
    index: int
    relevance_score: float
    document: str | None


class InfinityRanks(BaseModel):
    object: Literal["rerank"]
    id: str
    created: int
    model: str
    results: list[InfinityRank]
    usage: Usage


class Token(BaseModel):
    """A token; `start` and `stop` are byte offsets in the text."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class TextOptions(Fields):
    """Options for texts."""

    truncate: bool | None = Truncate
    truncation_direction: Side | None = Field(
        None, description="The side at which texts are truncated; the tokenizer's if omitted."
    )
    prompt_name: str | None = Prompt

    @property
    def options(self) -> dict[str, Any]:
        """The options, as arguments of `embed`."""
        return {
            "truncate": self.truncate,
            "side": self.truncation_direction and self.truncation_direction.lower(),
            "prompt_name": self.prompt_name,
        }


class EmbeddingRequest(Request, TextOptions):
    """Fields that requests for vectors have in common."""

    operation: ClassVar = "embed"

    inputs: str | list[str] | Ids | list[Ids] = Field(description="A text, or several.")

    async def encode(self, results: Any, job: Job) -> Any:  # noqa: ARG002
        return await encode_vectors(results)


class PairsRequest(Request, TextOptions):
    """Fields that requests for labels and ranks have in common."""

    operation: ClassVar = "predict"

    raw_scores: bool = Field(False, description="Logits instead of probabilities.")
    prompt_name: str | None = Field(None, description="Refused: prompts are for vectors.")

    def check_options(self, job: Job) -> None:
        """Refuse a prompt, and truncation on another side, for rows that may be pairs."""
        if self.prompt_name is not None:
            raise invalid_field_error(
                "prompt_name", "prompts are for vectors, not for labels and ranks"
            )
        side = job.model.tokenizer.truncation_side
        if self.options["side"] not in (None, side):
            raise invalid_field_error(
                "truncation_direction", f"rows of labels and ranks are truncated on the {side}"
            )


dialect = Dialect("text-embeddings-inference", errors="tei")


@dialect.request(
    "/embed",
    answer=list[list[float]],
    example={"inputs": ["A first text.", "And a second one."]},
)
class EmbedRequest(EmbeddingRequest):
    """Vectors of texts."""

    normalize: bool = True
    dimensions: int | None = None

    def decode(self, job: Job) -> Awaitable[Any]:
        texts = job.read_texts("inputs", self.inputs)
        options = {**self.options, "dimensions": self.dimensions}
        return embed(job, texts, normalize=self.normalize, **options)


@dialect.request("/embed_all", answer=list[list[list[float]]], example={"inputs": _TEXT})
class EmbedAllRequest(EmbeddingRequest):
    """A vector for each token."""

    def decode(self, job: Job) -> Awaitable[Any]:
        return embed(job, job.read_texts("inputs", self.inputs), form="tokens", **self.options)


@dialect.request(
    "/embed_sparse",
    answer=list[list[SparseValue]],
    example={"inputs": _TEXT},
    needs="embed-sparse",
)
class EmbedSparseRequest(EmbeddingRequest):
    """Sparse vectors of texts."""

    def decode(self, job: Job) -> Awaitable[Any]:
        return embed(job, job.read_texts("inputs", self.inputs), form="sparse", **self.options)

    async def encode(self, results: Any, job: Job) -> Any:  # noqa: ARG002
        return [
            [
                {"index": index, "value": value}
                for index, value in zip(vector.indices.tolist(), vector.data.tolist(), strict=True)
            ]
            for vector in results
        ]


@dialect.request(
    "/predict",
    answer=list[LabelScore] | list[list[LabelScore]],
    example={"inputs": [["A fine film."], ["A dull one."]]},
)
class PredictRequest(PairsRequest):
    """Labels of texts or pairs of texts; `["a", "b"]` is one pair."""

    capability: ClassVar = "classify"

    inputs: str | list[str] | list[list[str]] = Field(
        description="A text, a pair of texts, or a list of lists of one or two texts."
    )
    parameters: dict[str, Any] = Field(
        {}, max_length=0, description="Empty: huggingface_hub's client sends it so."
    )

    def decode(self, job: Job) -> Awaitable[Any]:
        rows = job.read_rows(self.inputs)
        self.check_options(job)
        return score(job, rows, truncate=self.truncate)

    async def encode(self, results: Any, job: Job) -> Any:
        labels = [rank_labels(job.model.labels, each, raw=self.raw_scores) for each in results]
        is_single = isinstance(self.inputs, str) or isinstance(self.inputs[0], str)
        return labels[0] if is_single else labels


@dialect.request(
    "/rerank",
    answer=list[Rank] | InfinityRanks,
    example={"query": _TEXT, "texts": ["It learns features.", "A river is deep."]},
    needs="rerank",
)
class RerankRequest(PairsRequest):
    """How well texts (or, in infinity's format, documents) answer a query."""

    query: str
    texts: list[str] | None = None
    return_text: bool = False
    documents: list[str] | None = Field(
        None, description="The texts in infinity's format, which the response then has."
    )
    return_documents: bool = Field(False, description="The same as return_text.")
    top_n: Annotated[int, Field(ge=1)] | None = None

    def decode(self, job: Job) -> Awaitable[Any]:
        self.check_options(job)
        if self.texts is None and self.documents is None:
            raise invalid_field_error("texts", "must be given", 422)
        if self.texts is not None and self.documents is not None:
            raise invalid_field_error(
                "documents", "cannot be given with texts: it is their name in infinity", 422
            )
        field = "texts" if self.documents is None else "documents"
        options: dict[str, Any] = {"truncate": self.truncate, "raw": self.raw_scores}
        return rerank(job, self.query, getattr(self, field), field=field, **options)

    async def encode(self, results: Any, job: Job) -> Any:
        ranking = results[: self.top_n]
        has_text = self.return_text or self.return_documents
        if self.documents is not None:
            return _in_infinity_format(job, self.documents, ranking, has_text=has_text)
        assert self.texts is not None
        return [
            {"index": index, "score": score, **({"text": self.texts[index]} if has_text else {})}
            for index, score in ranking
        ]


class SimilarityInput(Fields):
    source_sentence: str
    sentences: list[str]


class SimilarityParameters(TextOptions):
    """Options for the texts of a similarity request."""


@dialect.request(
    "/similarity",
    answer=list[float],
    example={"inputs": {"source_sentence": _TEXT, "sentences": ["What is learning?", "A river."]}},
)
class SimilarityRequest(Request):
    """Similarities between one text and others: cosines, or as the model's files say.

    The one text is a query if the model has other vectors for queries.
    """

    operation: ClassVar = "embed"

    inputs: SimilarityInput
    parameters: SimilarityParameters | None = None

    def decode(self, job: Job) -> Awaitable[Any]:
        (text,) = job.read_texts("source_sentence", self.inputs.source_sentence)
        others = job.read_texts("sentences", self.inputs.sentences)
        parameters = self.parameters or SimilarityParameters()
        return similarity(job, text, others, **parameters.options)

    async def encode(self, results: Any, job: Job) -> Any:  # noqa: ARG002
        return results[0]


@dialect.request(
    "/tokenize", answer=list[list[Token]], example={"inputs": "Unaffable words are split."}
)
class TokenizeRequest(Request):
    """Tokens of texts."""

    inputs: str | list[str]
    add_special_tokens: bool = True
    prompt_name: str | None = Prompt

    def decode(self, job: Job) -> Awaitable[Any]:
        prompt = get_prompt(job, self.prompt_name) if self.prompt_name else ""
        texts = [prompt + text.text for text in job.read_texts("inputs", self.inputs)]
        return asyncio.to_thread(
            describe_tokens, job.model.tokenizer, texts, special=self.add_special_tokens
        )


@dialect.request("/decode", answer=list[str], example={"ids": [[5, 6, 7]]})
class DecodeRequest(Request):
    """Texts of token ids."""

    ids: Ids | list[Ids]
    skip_special_tokens: bool = True

    async def decode(self, job: Job) -> Any:
        ids: Any = self.ids if self.ids and isinstance(self.ids[0], list) else [self.ids]
        job.check_texts("ids", ids)
        decode, skips = job.model.tokenizer.decode, self.skip_special_tokens
        try:
            return await asyncio.to_thread(
                lambda: [decode(row, skip_special_tokens=skips) for row in ids]
            )
        except DataError as error:
            raise invalid_field_error("ids", str(error), 422, "Tokenizer") from None


@dialect.post("/", include_in_schema=False)
@dialect.post("/invocations", include_in_schema=False)
async def predict_by_model_type(request: HTTPRequest) -> Response:
    """Return vectors, labels or ranks, depending on the model's type."""
    try:
        body = await request.json()
    except json.JSONDecodeError as error:
        reason = f"the body is not valid JSON: {error.msg}"
        raise RequestError(400, "Validation", reason) from None
    except (ValueError, RecursionError) as error:
        raise HTTPException(400) from error
    if not isinstance(body, dict):
        raise RequestError(422, "Validation", "the body must be a JSON object")
    name = body.get("model")
    job = await open_job(request, name if isinstance(name, str) else None)
    kinds: Mapping[str, type[Request]] = {"reranker": RerankRequest, "classifier": PredictRequest}
    kind = kinds.get(next(iter(describe_model_type(job.loaded_model))), EmbedRequest)
    if kind is EmbedRequest and isinstance(body.get("inputs"), dict):
        kind = SimilarityRequest  # of huggingface_hub's client
    return await respond(kind.model_validate(body), request)


def rank_labels(
    labels: Sequence[str], prediction: ScoredPrediction, *, raw: bool
) -> list[dict[str, Any]]:
    """Return each label and its score, the highest first."""
    names = labels or ("LABEL_0",)
    scores = output_scores(prediction, raw=raw)
    # Calibration may change the order of logits; these decide where probabilities are equal.
    order = np.lexsort((-prediction.logits, -np.array(scores))).tolist()
    return [{"score": scores[index], "label": names[index]} for index in order]


def describe_tokens(
    tokenizer: Tokenizer, texts: Sequence[str], *, special: bool
) -> list[list[dict[str, Any]]]:
    """Return the tokens of each text, with their byte offsets in it."""
    tokens_of_texts = []
    locations = [f"inputs[{index}]" for index in range(len(texts))]
    for text, encoding in zip(texts, tokenizer.encode_batch(texts, where=locations), strict=True):
        byte_offsets = np.cumsum([0, *(len(letter.encode()) for letter in text)]).tolist()
        tokens = []
        for number, (start, end), is_special in zip(
            encoding.input_ids.tolist(),
            encoding.offsets.tolist(),
            encoding.special_tokens_mask.tolist(),
            strict=True,
        ):
            if is_special and not special:
                continue
            tokens.append(
                {
                    "id": number,
                    "text": tokenizer.id_to_token(number) if is_special else text[start:end],
                    "special": is_special,
                    "start": None if is_special else byte_offsets[start],
                    "stop": None if is_special else byte_offsets[end],
                }
            )
        tokens_of_texts.append(tokens)
    return tokens_of_texts


def _in_infinity_format(
    job: Job, documents: Sequence[str], ranking: Sequence[tuple[int, float]], *, has_text: bool
) -> dict[str, Any]:
    """Return ranked documents as infinity returns them."""
    results = [
        {
            "index": index,
            "relevance_score": score,
            "document": documents[index] if has_text else None,
        }
        for index, score in ranking
    ]
    return {
        "object": "rerank",
        "id": job.context.id,
        "created": int(time.time()),
        "model": job.loaded_model.name,
        "results": results,
        "usage": Usage.of(job),
    }

"""The API of text-embeddings-inference."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import Request, Response
from pydantic import BaseModel, Field

from ... import __version__
from ...errors import DataError
from ...inference.similarity import similarities
from ...tasks.tagging.task import TaggingTask
from ...tasks.task import Task
from ...text.tokenizer import Tokenizer
from ..job import Job, open_job, read_rows
from ..models import LoadedModel, WrongModelError
from ..request_error import RequestError, invalid_field_error
from ..responses import encode_vectors, reply
from ..runners import SparseRunner, Text, TokenStatesRunner
from ..scores import rank_labels, rank_texts, score_texts
from ..service import Service
from .base import Ids, LenientRequest, Prompt, ProtocolRouter, Side, Truncate, Usage


class TEIParameters(LenientRequest):
    """Options for texts."""

    truncate: bool | None = Truncate
    truncation_direction: Side = "Right"
    prompt_name: str | None = Prompt


class TEIRequest(TEIParameters):
    """Fields that requests have in common."""

    model: str | None = None


class PairsRequest(TEIRequest):
    """Fields that requests for labels and ranks have in common."""

    raw_scores: bool = Field(False, description="Logits instead of probabilities.")
    prompt_name: str | None = Field(None, description="Refused: prompts are for vectors.")


class EmbedAllRequest(TEIRequest):
    """A vector for each token."""

    inputs: str | list[str] | Ids | list[Ids] = Field(description="A text, or several.")


class EmbedRequest(EmbedAllRequest):
    """Vectors of texts."""

    normalize: bool = True
    dimensions: int | None = None


class SparseValue(BaseModel):
    """A number of a sparse vector; `index` is a piece's id."""

    index: int
    value: float


class PredictRequest(PairsRequest):
    """Labels of texts or pairs of texts; `["a", "b"]` is one pair."""

    inputs: str | list[str] | list[list[str]] = Field(
        description="A text, a pair of texts, or a list of lists of one or two texts."
    )


class LabelScore(BaseModel):
    label: str
    score: float


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


class SimilarityInput(LenientRequest):
    source_sentence: str
    sentences: list[str]


class SimilarityParameters(TEIParameters):
    """Options for the texts of a similarity request."""


class SimilarityRequest(LenientRequest):
    """Cosines between one text and others."""

    inputs: SimilarityInput
    parameters: SimilarityParameters | None = None
    model: str | None = None


class TokenizeRequest(LenientRequest):
    """Tokens of texts."""

    inputs: str | list[str]
    add_special_tokens: bool = True
    prompt_name: str | None = Prompt
    model: str | None = None


class Token(BaseModel):
    """A token; `start` and `stop` are byte offsets in the text."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class DecodeRequest(LenientRequest):
    """Texts of token ids."""

    ids: Ids | list[Ids]
    skip_special_tokens: bool = True
    model: str | None = None


router = ProtocolRouter("text-embeddings-inference", errors="tei")


@router.post("/embed", responses={200: {"model": list[list[float]]}})
async def embed(body: EmbedRequest, request: Request) -> Response:
    job = await open_job(request, body.model, "embed")
    vectors = await job.embed(
        job.read_texts("inputs", body.inputs),
        normalize=body.normalize,
        truncate=body.truncate,
        side=body.truncation_direction,
        dimensions=body.dimensions,
        prompt_name=body.prompt_name,
    )
    return reply(request, await encode_vectors(vectors))


@router.post("/embed_all", responses={200: {"model": list[list[list[float]]]}})
async def embed_all(body: EmbedAllRequest, request: Request) -> Response:
    job = await open_job(request, body.model, "embed")
    vectors = await job.embed(
        job.read_texts("inputs", body.inputs),
        kind=TokenStatesRunner,
        normalize=False,
        truncate=body.truncate,
        side=body.truncation_direction,
        prompt_name=body.prompt_name,
    )
    return reply(request, await encode_vectors(vectors))


@router.post("/embed_sparse", responses={200: {"model": list[list[SparseValue]]}})
async def embed_sparse(body: EmbedAllRequest, request: Request) -> Response:
    job = await open_job(request, body.model, "embed")
    vectors = await _embed_sparse(
        job,
        job.read_texts("inputs", body.inputs),
        truncate=body.truncate,
        side=body.truncation_direction,
        prompt_name=body.prompt_name,
    )
    rows = [
        [
            {"index": index, "value": value}
            for index, value in zip(vector.indices.tolist(), vector.data.tolist(), strict=True)
        ]
        for vector in vectors
    ]
    return reply(request, rows)


async def _embed_sparse(job: Job, items: Sequence[Text], **options: Any) -> list[Any]:
    """Compute the sparse vectors of texts."""
    loaded_model = job.loaded_model
    if not loaded_model.makes_sparse_vectors:
        raise WrongModelError(
            f"the model {loaded_model.name!r} makes no sparse vectors (it has no SPLADE pooling)",
            fix="Use /embed.",
        )
    normalizes = loaded_model.normalizes
    return await job.embed(items, kind=SparseRunner, normalize=normalizes, **options)


@router.post("/predict", responses={200: {"model": list[LabelScore] | list[list[LabelScore]]}})
async def predict(body: PredictRequest, request: Request) -> Response:
    job = await open_job(request, body.model, "predict")
    job.loaded_model.check_capability("classify")
    rows = read_rows(job.service, body.inputs)
    check_pairs(body)
    predictions = await score_texts(job, "classify", rows, truncate=body.truncate)
    labels = [
        rank_labels(job.loaded_model, prediction, raw=body.raw_scores) for prediction in predictions
    ]
    return reply(request, labels[0] if rows[0].where == "inputs" else labels)


@router.post("/rerank", responses={200: {"model": list[Rank] | InfinityRanks}})
async def rerank(body: RerankRequest, request: Request) -> Response:
    job = await open_job(request, body.model, "predict")
    check_pairs(body)
    if body.texts is None and body.documents is None:
        raise invalid_field_error("texts", "must be given", 422)
    if body.texts is not None and body.documents is not None:
        raise invalid_field_error(
            "documents", "cannot be given with texts: it is their name in infinity", 422
        )
    texts = body.documents if body.texts is None else body.texts
    assert texts is not None, "one of both is given"
    ranking = await rank_texts(
        job,
        body.query,
        texts,
        field="documents" if body.texts is None else "texts",
        truncate=body.truncate,
        raw=body.raw_scores,
    )
    ranking = ranking[: body.top_n]
    has_text = body.return_text or body.return_documents
    if body.texts is None:
        return reply(request, in_infinity_format(job, texts, ranking, has_text=has_text))
    answer = [
        {"index": index, "score": score, **({"text": texts[index]} if has_text else {})}
        for index, score in ranking
    ]
    return reply(request, answer)


@router.post("/similarity", responses={200: {"model": list[float]}})
async def similarity(body: SimilarityRequest, request: Request) -> Response:
    job = await open_job(request, body.model, "embed")
    inputs, parameters = body.inputs, body.parameters or SimilarityParameters()
    texts = [
        *job.read_texts("source_sentence", inputs.source_sentence),
        *job.read_texts("sentences", inputs.sentences),
    ]
    options: dict[str, Any] = {
        "truncate": parameters.truncate,
        "side": parameters.truncation_direction,
        "prompt_name": parameters.prompt_name,
    }
    if job.loaded_model.makes_sparse_vectors:
        vectors = await _embed_sparse(job, texts, **options)
    else:
        vectors = await job.embed(texts, normalize=job.loaded_model.normalizes, **options)
    matrix = job.loaded_model.get_embed_runner().embedder.concatenate(
        [vector.reshape(1, -1) for vector in vectors]
    )
    (scores,) = similarities(matrix[:1], matrix[1:], job.loaded_model.model.similarity_function)
    return reply(request, scores)


@router.post("/tokenize", responses={200: {"model": list[list[Token]]}})
async def tokenize(body: TokenizeRequest, request: Request) -> Response:
    job = await open_job(request, body.model)
    prompt = job.get_prompt(body.prompt_name) if body.prompt_name else ""
    texts = [prompt + text.text for text in job.read_texts("inputs", body.inputs)]
    tokens = await asyncio.to_thread(
        describe_tokens, job.loaded_model.model.tokenizer, texts, special=body.add_special_tokens
    )
    return reply(request, tokens)


@router.post("/decode", responses={200: {"model": list[str]}})
async def decode(body: DecodeRequest, request: Request) -> Response:
    job = await open_job(request, body.model)
    ids: Any = body.ids if body.ids and isinstance(body.ids[0], list) else [body.ids]
    job.service.check_texts("ids", ids)
    decode_one = partial(
        job.loaded_model.model.tokenizer.decode, skip_special_tokens=body.skip_special_tokens
    )
    try:
        texts = await asyncio.to_thread(lambda: [decode_one(row) for row in ids])
    except DataError as error:
        raise invalid_field_error("ids", str(error), 422, "Tokenizer") from None
    return reply(request, texts)


@router.post("/", include_in_schema=False)
@router.post("/invocations", include_in_schema=False)
async def predict_by_model_type(request: Request) -> Response:
    """Return vectors, labels or ranks, depending on the model's type."""
    try:
        body = await request.json()
    except (ValueError, RecursionError):
        raise RequestError(400, "Validation", "the body is not valid JSON") from None
    if not isinstance(body, dict):
        raise RequestError(422, "Validation", "the body must be a JSON object")
    name = body.get("model")
    job = await open_job(request, name if isinstance(name, str) else None)
    kind = next(iter(describe_model_type(job.loaded_model)))
    if kind == "reranker":
        return await rerank(RerankRequest.model_validate(body), request)
    if kind == "classifier":
        return await predict(PredictRequest.model_validate(body), request)
    if isinstance(body.get("inputs"), dict):  # a similarity request of huggingface_hub's client
        return await similarity(SimilarityRequest.model_validate(body), request)
    return await embed(EmbedRequest.model_validate(body), request)


def check_pairs(body: PairsRequest) -> None:
    """Refuse a prompt, and truncation on the left, for rows that may be pairs."""
    if body.prompt_name is not None:
        raise invalid_field_error(
            "prompt_name", "prompts are for vectors, not for labels and ranks"
        )
    if body.truncation_direction.lower() == "left":
        raise invalid_field_error(
            "truncation_direction", "rows of labels and ranks are truncated on the right"
        )


def describe_tokens(
    tokenizer: Tokenizer, texts: Sequence[str], *, special: bool
) -> list[list[dict[str, Any]]]:
    """Return the tokens of each text, with their byte offsets in it."""
    tokens_of_texts = []
    locations = [f"inputs[{index}]" for index in range(len(texts))]
    for text, encoding in zip(texts, tokenizer.encode_batch(texts, where=locations), strict=True):
        byte_offsets = [0]
        if not text.isascii():
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
            start_byte, end_byte = (
                (start, end) if text.isascii() else (byte_offsets[start], byte_offsets[end])
            )
            tokens.append(
                {
                    "id": number,
                    "text": tokenizer.id_to_token(number) if is_special else text[start:end],
                    "special": is_special,
                    "start": None if is_special else start_byte,
                    "stop": None if is_special else end_byte,
                }
            )
        tokens_of_texts.append(tokens)
    return tokens_of_texts


def in_infinity_format(
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
    tokens = job.context.tokens
    return {
        "object": "rerank",
        "id": job.context.id,
        "created": int(time.time()),
        "model": job.loaded_model.name,
        "results": results,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def describe_server(service: Service, loaded_model: LoadedModel) -> dict[str, Any]:
    """Return the content of `/info` for a model."""
    limits = service.settings
    parameter = next(loaded_model.model.network.parameters())
    return {
        "model_id": loaded_model.source,
        "model_sha": None,
        "model_dtype": str(parameter.dtype).removeprefix("torch."),
        "served_model_name": loaded_model.name,
        "model_type": describe_model_type(loaded_model),
        "max_concurrent_requests": limits.max_concurrent_requests,
        "max_input_length": loaded_model.get_embed_runner().embedder.limit,
        "max_batch_tokens": service.queue.batch_tokens,
        "max_batch_requests": None,
        "max_client_batch_size": limits.max_texts,
        "auto_truncate": False,
        "tokenization_workers": 1,
        "version": __version__,
        "sha": None,
        "docker_label": None,
        "task": None if loaded_model.task is None else loaded_model.task.name,
        "verbs": sorted(loaded_model.capabilities),
        "precision": loaded_model.make_engine_settings().precision,
        "prompts": dict(loaded_model.prompts.texts),
        "default_prompt_name": loaded_model.prompts.default,
        "similarity_fn_name": loaded_model.model.similarity_function,
        "models": service.models.available,
        "unavailable_models": {
            name: str(failure.error) for name, failure in service.models.failures.items()
        },
        "row_context": describe_row_context(loaded_model.task),
    }


def describe_row_context(task: Task[Any] | None) -> dict[str, Any] | None:
    """Return on which neighbouring rows a prediction depends, for clients that split rows.

    Returns:
        None: on none. Else the columns of a row's words and document, and the number of its
        document's words on each side that are read; empty for a user's task, whose rows are not
        known.
    """
    method = None if task is None else type(task).add_context
    if isinstance(task, TaggingTask) and method is TaggingTask.add_context:
        settings, columns = task.settings, task.settings.columns
        if not settings.document_context:
            return None
        words = settings.max_seq_length
        return {"word": columns.word, "document": columns.document, "words": words}
    return None if method in (None, Task.add_context) else {}


def describe_model_type(loaded_model: LoadedModel) -> dict[str, Any]:
    """Return the model's type in text-embeddings-inference's format."""
    labels = loaded_model.model.labels or ("LABEL_0",)
    names = {
        "id2label": {str(number): name for number, name in enumerate(labels)},
        "label2id": {name: number for number, name in enumerate(labels)},
    }
    if "rerank" in loaded_model.capabilities:
        return {"reranker": names}
    if "classify" in loaded_model.capabilities:
        return {"classifier": names}
    pooling = loaded_model.get_embed_runner().embedder.pooling
    return {"embedding": {"pooling": pooling}}

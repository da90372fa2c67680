"""Routes of the APIs of text-embeddings-inference and bert-as-service."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response

from ... import __version__
from ...errors import DataError
from ...inference.similarity import similarities
from ...tasks.tagging.task import TaggingTask
from ...tasks.task import Task
from ...text.tokenizer import Tokenizer
from ..failures import RequestError, invalid
from ..job import encoded, job_of, placed, reply
from ..models import Served, WrongModelError
from ..runners import Text, TokenStatesRunner
from ..schemas import (
    DecodeRequest,
    EmbedAllRequest,
    EmbedRequest,
    EncodeAnswer,
    EncodeRequest,
    InfinityRanks,
    LabelScore,
    PairsRequest,
    PredictRequest,
    Rank,
    RerankRequest,
    SimilarityParameters,
    SimilarityRequest,
    Token,
    TokenizeRequest,
)
from ..scores import label_scores, ranks, score_texts
from ..service import Service
from .rerank import infinity_ranks

router = APIRouter(tags=["text-embeddings-inference"])


@router.post("/embed", responses={200: {"model": list[list[float]]}})
async def embed(body: EmbedRequest, request: Request) -> Response:
    job = await job_of(request, body.model, "embed")
    found = await job.vectors(
        job.texts("inputs", body.inputs),
        normalize=body.normalize,
        truncate=body.truncate,
        side=body.truncation_direction,
        dimensions=body.dimensions,
        prompt_name=body.prompt_name,
    )
    return reply(request, await encoded(found))


@router.post("/embed_all", responses={200: {"model": list[list[list[float]]]}})
async def embed_all(body: EmbedAllRequest, request: Request) -> Response:
    job = await job_of(request, body.model, "embed")
    found = await job.vectors(
        job.texts("inputs", body.inputs),
        kind=TokenStatesRunner,
        normalize=False,
        truncate=body.truncate,
        side=body.truncation_direction,
        prompt_name=body.prompt_name,
    )
    return reply(request, await encoded(found))


@router.post("/embed_sparse")
async def embed_sparse(body: EmbedAllRequest, request: Request) -> Response:
    """Always an error: no model here makes sparse vectors."""
    job = await job_of(request, body.model)
    raise WrongModelError(
        f"the model {job.served.name!r} makes no sparse vectors (it has no SPLADE pooling)",
        fix="Use /embed.",
    )


@router.post("/predict", responses={200: {"model": list[LabelScore] | list[list[LabelScore]]}})
async def predict(body: PredictRequest, request: Request) -> Response:
    job = await job_of(request, body.model, "predict")
    job.served.check("classify")
    rows = text_rows(job.service, body.inputs)
    check_pairs(body)
    found = await score_texts(job, "classify", rows, truncate=body.truncate)
    labels = [label_scores(job.served, scored, raw=body.raw_scores) for scored in found]
    return reply(request, labels[0] if rows[0].where == "inputs" else labels)


@router.post("/rerank", responses={200: {"model": list[Rank] | InfinityRanks}})
async def rerank(body: RerankRequest, request: Request) -> Response:
    job = await job_of(request, body.model, "predict")
    check_pairs(body)
    if body.texts is None and body.documents is not None:
        return await infinity_ranks(job, body, request)
    if body.texts is None:
        raise invalid("texts", "must be given", 422)
    if body.documents is not None:
        raise invalid("documents", "cannot be given with texts: it is their name in infinity", 422)
    found = await ranks(
        job,
        body.query,
        body.texts,
        field="texts",
        truncate=body.truncate,
        raw=body.raw_scores,
    )
    has_text = body.return_text or body.return_documents
    answer = [
        {"index": at, "score": score, **({"text": body.texts[at]} if has_text else {})}
        for at, score in found[: body.top_n]
    ]
    return reply(request, answer)


@router.post("/similarity", responses={200: {"model": list[float]}})
async def similarity(body: SimilarityRequest, request: Request) -> Response:
    job = await job_of(request, body.model, "embed")
    given, more = body.inputs, body.parameters or SimilarityParameters()
    first, *others = await job.vectors(
        [
            *job.texts("source_sentence", given.source_sentence),
            *job.texts("sentences", given.sentences),
        ],
        normalize=job.served.normalizes,
        truncate=more.truncate,
        side=more.truncation_direction,
        prompt_name=more.prompt_name,
    )
    function = job.served.model.similarity_function
    (found,) = similarities(first[None], np.stack(others), function)
    return reply(request, found)


@router.post("/tokenize", responses={200: {"model": list[list[Token]]}})
async def tokenize(body: TokenizeRequest, request: Request) -> Response:
    job = await job_of(request, body.model)
    prompt = job.prompt(body.prompt_name) if body.prompt_name else ""
    texts = [prompt + one.text for one in job.texts("inputs", body.inputs)]
    found = await asyncio.to_thread(
        tokens_of, job.served.model.tokenizer, texts, special=body.add_special_tokens
    )
    return reply(request, found)


@router.post("/decode", responses={200: {"model": list[str]}})
async def decode(body: DecodeRequest, request: Request) -> Response:
    job = await job_of(request, body.model)
    ids: Any = body.ids if body.ids and isinstance(body.ids[0], list) else [body.ids]
    job.service.check_texts("ids", ids)
    decode_one = partial(
        job.served.model.tokenizer.decode, skip_special_tokens=body.skip_special_tokens
    )
    try:
        texts = await asyncio.to_thread(lambda: [decode_one(row) for row in ids])
    except DataError as error:
        raise invalid("ids", str(error), 422, "Tokenizer") from None
    return reply(request, texts)


@router.post("/", include_in_schema=False)
@router.post("/invocations", include_in_schema=False)
async def of_kind(request: Request) -> Response:
    """Return vectors, labels or ranks, depending on the model's type."""
    try:
        body = await request.json()
    except (ValueError, RecursionError):
        raise RequestError(400, "Validation", "the body is not valid JSON") from None
    if not isinstance(body, dict):
        raise RequestError(422, "Validation", "the body must be a JSON object")
    name = body.get("model")
    job = await job_of(request, name if isinstance(name, str) else None)
    kind = next(iter(model_type(job.served)))
    if kind == "reranker":
        return await rerank(RerankRequest.model_validate(body), request)
    if kind == "classifier":
        return await predict(PredictRequest.model_validate(body), request)
    if isinstance(body.get("inputs"), dict):  # a similarity request of huggingface_hub's client
        return await similarity(SimilarityRequest.model_validate(body), request)
    return await embed(EmbedRequest.model_validate(body), request)


@router.post("/encode", responses={200: {"model": EncodeAnswer}}, tags=["bert-as-service"])
async def encode(body: EncodeRequest, request: Request) -> Response:
    job = await job_of(request, body.model, "embed")
    if any(isinstance(text, list) != body.is_tokenized for text in body.texts):
        kind = "lists of words" if body.is_tokenized else "texts"
        raise invalid("texts", f"must be {kind}, with is_tokenized={body.is_tokenized}", 422)
    job.service.check_texts("texts", ["".join(text) for text in body.texts])
    settings: dict[str, Any] = {"combine": body.combine}
    if body.layers is not None:
        settings["layers"] = tuple(body.layers)
    if body.pooling is not None:
        settings["pooling"] = body.pooling
    found = await job.vectors(
        placed("texts", body.texts),
        normalize=job.served.normalizes if body.normalize is None else body.normalize,
        truncate=body.truncate,
        precision=body.precision,
        **settings,
    )
    results = await encoded(found, body.encoding_format)
    return reply(request, {"id": body.id, "results": results, "status": 200})


def info(service: Service, served: Served) -> dict[str, Any]:
    """Return the content of `/info` for a model."""
    limits = service.settings
    parameter = next(served.model.network.parameters())
    return {
        "model_id": served.source,
        "model_sha": None,
        "model_dtype": str(parameter.dtype).removeprefix("torch."),
        "served_model_name": served.name,
        "model_type": model_type(served),
        "max_concurrent_requests": limits.max_concurrent_requests,
        "max_input_length": served.embed().embedder.limit,
        "max_batch_tokens": service.queue.batch_tokens,
        "max_batch_requests": None,
        "max_client_batch_size": limits.max_texts,
        "auto_truncate": False,
        "tokenization_workers": 1,
        "version": __version__,
        "sha": None,
        "docker_label": None,
        "task": None if served.task is None else served.task.name,
        "verbs": sorted(served.verbs),
        "precision": served.engine().precision,
        "prompts": dict(served.prompts.texts),
        "default_prompt_name": served.prompts.default,
        "similarity_fn_name": served.model.similarity_function,
        "models": service.models.available,
        "unavailable_models": {
            name: str(failure.error) for name, failure in service.models.failures.items()
        },
        "row_context": row_context(served.task),
    }


def row_context(task: Task[Any] | None) -> dict[str, Any] | None:
    """Return on which rows beside a row its prediction depends, for clients that split rows.

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


def model_type(served: Served) -> dict[str, Any]:
    """Return the model's type in text-embeddings-inference's format."""
    labels = served.model.labels or ("LABEL_0",)
    names = {
        "id2label": {str(number): name for number, name in enumerate(labels)},
        "label2id": {name: number for number, name in enumerate(labels)},
    }
    if "rerank" in served.verbs:
        return {"reranker": names}
    if "classify" in served.verbs:
        return {"classifier": names}
    pooling = served.embed().embedder.pooling
    return {"embedding": {"pooling": pooling}}


def text_rows(service: Service, given: str | list[str] | list[list[str]]) -> list[Text]:
    """Check rows of one or two texts; return them with their places (`inputs` for a single one)."""
    single = isinstance(given, str) or (bool(given) and isinstance(given[0], str))
    if single and len(given) == 1 and isinstance(given, list):
        raise invalid("inputs", "a list of strings is a pair; a batch is a list of lists", 422)
    if single:
        rows = [Text("inputs", [given] if isinstance(given, str) else given)]
    else:
        rows = placed("inputs", given)
    for place, row in rows:
        if not 1 <= len(row) <= 2:
            raise invalid(place, f"one text or two, not {len(row)}", 422)
        service.check_texts(place, row)
    service.check_count("inputs", len(rows))
    return rows


def check_pairs(body: PairsRequest) -> None:
    """Refuse a prompt, and truncation on the left, for rows that may be pairs."""
    if body.prompt_name is not None:
        raise invalid("prompt_name", "prompts are for vectors, not for labels and ranks")
    if body.truncation_direction.lower() == "left":
        raise invalid("truncation_direction", "rows of labels and ranks are truncated on the right")


def tokens_of(
    tokenizer: Tokenizer, texts: Sequence[str], *, special: bool
) -> list[list[dict[str, Any]]]:
    """Return the tokens of each text, with their byte offsets in it."""
    found = []
    places = [f"inputs[{at}]" for at in range(len(texts))]
    for text, encoding in zip(texts, tokenizer.encode_batch(texts, where=places), strict=True):
        data = [0]
        if not text.isascii():
            data = np.cumsum([0, *(len(letter.encode()) for letter in text)]).tolist()
        tokens = []
        for number, (start, end), is_special in zip(
            encoding.input_ids.tolist(),
            encoding.offsets.tolist(),
            encoding.special_tokens_mask.tolist(),
            strict=True,
        ):
            if is_special and not special:
                continue
            first, past = (start, end) if text.isascii() else (data[start], data[end])
            tokens.append(
                {
                    "id": number,
                    "text": tokenizer.id_to_token(number) if is_special else text[start:end],
                    "special": is_special,
                    "start": None if is_special else first,
                    "stop": None if is_special else past,
                }
            )
        found.append(tokens)
    return found

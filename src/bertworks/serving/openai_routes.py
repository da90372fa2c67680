"""What OpenAI's clients ask for, and reranking as Cohere and Jina have it."""

from __future__ import annotations

from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response

from .failures import invalid
from .schemas import (
    EmbeddingsAnswer,
    EmbeddingsRequest,
    ModelEntry,
    ModelList,
    V1RerankAnswer,
    V1RerankRequest,
)
from .scores import pair_scores
from .service import Service, context_of, encoded, placed, reply, service_of, truncating

MOST_TOKENS = 300_000
_IDS = (
    "token ids are refused, because most clients use another model's tokenizer (in LangChain, "
    "check_embedding_ctx_length=False sends texts); start the server with token_ids=true"
)


router = APIRouter(tags=["OpenAI"])


@router.post("/v1/embeddings", responses={200: {"model": EmbeddingsAnswer}})
@router.post("/embeddings", responses={200: {"model": EmbeddingsAnswer}})
async def embeddings(body: EmbeddingsRequest, request: Request) -> Response:
    service = service_of(request)
    served = await service.model(request, body.model)
    context = context_of(request)
    context.verb = "embed"
    values, single = texts_or_ids(service, "input", body.input)
    runner = served.embed()
    service.check_dimensions(served, runner.embedder.width, body.dimensions)
    truncating(request, body.truncate)
    context.truncation.max_tokens = MOST_TOKENS
    found = await service.vectors(
        request,
        runner,
        placed("input", values, single=single),
        normalize=True,
        dimensions=body.dimensions,
        prompt=service.prompt(served, body.prompt_name),
    )
    data = [
        {
            "object": "embedding",
            "index": at,
            "embedding": vector,
        }
        for at, vector in enumerate(await encoded(found, body.encoding_format))
    ]
    usage = {"prompt_tokens": context.tokens, "total_tokens": context.tokens}
    value = {"object": "list", "data": data, "model": served.name, "usage": usage}
    return reply(request, value)


@router.get("/v1/models", responses={200: {"model": ModelList}})
async def models(request: Request) -> Response:
    service = service_of(request)
    data = [_entry(service, name) for name in service.models.sources]
    return reply(request, {"object": "list", "data": data})


@router.get("/v1/models/{name:path}", responses={200: {"model": ModelEntry}})
async def model(name: str, request: Request) -> Response:
    service = service_of(request)
    return reply(request, _entry(service, service.models.name(name)))


def _entry(service: Service, name: str) -> dict[str, object]:
    created = service.started_at
    return {"id": name, "object": "model", "created": created, "owned_by": "bertworks"}


@router.post("/v1/rerank", responses={200: {"model": V1RerankAnswer}}, tags=["Cohere, Jina"])
async def rerank(body: V1RerankRequest, request: Request) -> Response:
    service = service_of(request)
    served = await service.model(request, body.model)
    documents = [one if isinstance(one, str) else one.text for one in body.documents]
    scores = await pair_scores(
        service,
        request,
        served,
        body.query,
        documents,
        field="documents",
        truncate=body.truncate,
        raw=body.raw_scores,
    )
    order = np.argsort([-score for score in scores], kind="stable")[: body.top_n].tolist()
    results = [
        {
            "index": at,
            "relevance_score": scores[at],
            **({"document": {"text": documents[at]}} if body.return_documents else {}),
        }
        for at in order
    ]
    tokens = context_of(request).tokens
    value = {
        "object": "rerank",
        "id": context_of(request).id,
        "model": served.name,
        "results": results,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return reply(request, value)


def texts_or_ids(
    service: Service, field: str, given: str | list[str] | list[int] | list[list[int]]
) -> tuple[list[str] | list[list[int]], bool]:
    """Texts, or lists of token ids where the server takes them; and whether it is one alone.

    Raises:
        RequestError: there are none, too many, or ids are not taken.
    """
    single = isinstance(given, str) or (bool(given) and isinstance(given[0], int))
    values: list[Any] = [given] if single else list(given)
    if values and isinstance(values[0], list):
        if not service.settings.token_ids:
            raise invalid(field, _IDS)
        texts = ["x" * len(ids) for ids in values]
        service.check_texts(field, texts, single=single)
    else:
        service.check_texts(field, values, single=single)
    return values, single

"""Routes of OpenAI's API, and reranking in the format of Cohere and Jina."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from ..job import encoded, job_of, reply, service_of
from ..schemas import (
    EmbeddingsAnswer,
    EmbeddingsRequest,
    ModelEntry,
    ModelList,
    V1RerankAnswer,
    V1RerankRequest,
)
from ..scores import ranks
from ..service import Service

MOST_TOKENS = 300_000

router = APIRouter(tags=["OpenAI"])


@router.post("/v1/embeddings", responses={200: {"model": EmbeddingsAnswer}})
@router.post("/embeddings", responses={200: {"model": EmbeddingsAnswer}})
async def embeddings(body: EmbeddingsRequest, request: Request) -> Response:
    job = await job_of(request, body.model, "embed")
    context = job.context
    context.truncation.max_tokens = MOST_TOKENS
    found = await job.vectors(
        job.texts("input", body.input),
        normalize=True,
        truncate=body.truncate,
        dimensions=body.dimensions,
        prompt_name=body.prompt_name,
    )
    data = [
        {"object": "embedding", "index": at, "embedding": vector}
        for at, vector in enumerate(await encoded(found, body.encoding_format))
    ]
    usage = {"prompt_tokens": context.tokens, "total_tokens": context.tokens}
    value = {"object": "list", "data": data, "model": job.served.name, "usage": usage}
    return reply(request, value)


@router.get("/v1/models", responses={200: {"model": ModelList}})
async def models(request: Request) -> Response:
    service = service_of(request)
    data = [_entry(service, name) for name in service.models.available]
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
    job = await job_of(request, body.model, "predict")
    documents = [one if isinstance(one, str) else one.text for one in body.documents]
    found = await ranks(
        job,
        body.query,
        documents,
        field="documents",
        truncate=body.truncate,
        raw=body.raw_scores,
    )
    results = [
        {
            "index": at,
            "relevance_score": score,
            **({"document": {"text": documents[at]}} if body.return_documents else {}),
        }
        for at, score in found[: body.top_n]
    ]
    tokens = job.context.tokens
    value = {
        "object": "rerank",
        "id": job.context.id,
        "model": job.served.name,
        "results": results,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return reply(request, value)

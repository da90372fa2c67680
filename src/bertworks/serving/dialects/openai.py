"""OpenAI's API: embeddings and the list of models."""

from __future__ import annotations

from typing import Literal

from fastapi import Request, Response
from pydantic import BaseModel, Field

from ..job import open_job
from ..responses import encode_vectors, reply
from ..service import Service, get_service
from .base import Ids, LenientRequest, Prompt, ProtocolRouter, Truncate, Usage


class EmbeddingsRequest(LenientRequest):
    """A request for embeddings in OpenAI's format."""

    model: str | None = Field(None, description="A served model's name; the first if omitted.")
    input: str | list[str] | Ids | list[Ids] = Field(description="A text, or several.")
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    user: str | None = None
    truncate: bool | None = Truncate
    prompt_name: str | None = Prompt


class Embedding(BaseModel):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingsAnswer(BaseModel):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage


class ModelEntry(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelEntry]


MAX_TOKENS = 300_000

router = ProtocolRouter("OpenAI", errors="openai")


@router.post("/v1/embeddings", responses={200: {"model": EmbeddingsAnswer}})
@router.post("/embeddings", responses={200: {"model": EmbeddingsAnswer}})
async def embeddings(body: EmbeddingsRequest, request: Request) -> Response:
    job = await open_job(request, body.model, "embed")
    context = job.context
    context.truncation.max_tokens = MAX_TOKENS
    vectors = await job.embed(
        job.read_texts("input", body.input),
        normalize=True,
        truncate=body.truncate,
        dimensions=body.dimensions,
        prompt_name=body.prompt_name,
    )
    data = [
        {"object": "embedding", "index": index, "embedding": vector}
        for index, vector in enumerate(await encode_vectors(vectors, body.encoding_format))
    ]
    usage = {"prompt_tokens": context.tokens, "total_tokens": context.tokens}
    value = {"object": "list", "data": data, "model": job.loaded_model.name, "usage": usage}
    return reply(request, value)


@router.get("/v1/models", responses={200: {"model": ModelList}})
async def models(request: Request) -> Response:
    service = get_service(request)
    data = [_entry(service, name) for name in service.models.available]
    return reply(request, {"object": "list", "data": data})


@router.get("/v1/models/{name:path}", responses={200: {"model": ModelEntry}})
async def model(name: str, request: Request) -> Response:
    service = get_service(request)
    return reply(request, _entry(service, service.models.resolve_name(name)))


def _entry(service: Service, name: str) -> dict[str, object]:
    created = service.start_time
    return {"id": name, "object": "model", "created": created, "owned_by": "bertworks"}

"""OpenAI's API: embeddings and the list of models."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, ClassVar, Literal

from fastapi import Request as HTTPRequest
from fastapi import Response
from pydantic import BaseModel, Field

from ..job import Job, get_service, reply
from ..metrics import get_context
from ..request_error import invalid_field_error
from ..service import Service
from ..vector_operations import embed
from .base import (
    QUANTIZATIONS,
    Dialect,
    EncodingFormat,
    Ids,
    Prompt,
    Request,
    Truncate,
    Usage,
    encode_vectors,
)

MAX_TOKENS = 300_000


class Embedding(BaseModel):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | list[int] | str


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


dialect = Dialect("OpenAI", errors="openai")


@dialect.request(
    "/v1/embeddings",
    "/embeddings",
    answer=EmbeddingsAnswer,
    example={"input": ["A first text.", "And a second one."]},
)
class EmbeddingsRequest(Request):
    """A request for embeddings in OpenAI's format."""

    operation: ClassVar = "embed"
    ignored_fields: ClassVar = frozenset({"user"})

    input: str | list[str] | Ids | list[Ids] = Field(description="A text, or several.")
    encoding_format: EncodingFormat = Field(
        "float", description="int8 and bits (signed or unsigned bytes): if cosines are compared."
    )
    dimensions: int | None = None
    modality: Literal["text"] = Field("text", description="Of infinity's format.")
    truncate: bool | None = Truncate
    prompt_name: str | None = Prompt
    input_type: str | None = Field(
        None, description="Of other servers; refused if the model has prompts, which it may mean."
    )

    def decode(self, job: Job) -> Awaitable[Any]:
        prompts = ", ".join(job.loaded_model.prompts.texts)
        if self.input_type is not None and prompts:
            raise invalid_field_error(
                "input_type", f"choose a prompt of the model by prompt_name: {prompts}"
            )
        quantization = QUANTIZATIONS.get(self.encoding_format, "none")
        if quantization != "none":
            function = job.model.similarity_function
            if function != "cosine":
                what = f"the model compares vectors by {function}, which needs their lengths"
                raise invalid_field_error("encoding_format", what)
        job.context.request_tokens.max_tokens = MAX_TOKENS
        return embed(
            job,
            job.read_texts("input", self.input),
            normalize=True,
            truncate=self.truncate,
            dimensions=self.dimensions,
            quantization=quantization,
            prompt_name=self.prompt_name,
        )

    async def encode(self, results: Any, job: Job) -> Any:
        data = [
            {"object": "embedding", "index": index, "embedding": vector}
            for index, vector in enumerate(await encode_vectors(results, self.encoding_format))
        ]
        model = job.loaded_model.name
        return {"object": "list", "data": data, "model": model, "usage": Usage.of(job)}


@dialect.get("/v1/models", responses={200: {"model": ModelList}})
async def models(request: HTTPRequest) -> Response:
    service = get_service(request)
    data = [_entry(service, name) for name in service.models.available]
    return reply(get_context(request), {"object": "list", "data": data})


@dialect.get("/v1/models/{name:path}", responses={200: {"model": ModelEntry}})
async def model(name: str, request: HTTPRequest) -> Response:
    service = get_service(request)
    return reply(get_context(request), _entry(service, service.models.resolve_name(name)))


def _entry(service: Service, name: str) -> dict[str, object]:
    created = service.start_time
    return {"id": name, "object": "model", "created": created, "owned_by": "bertworks"}

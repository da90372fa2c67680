"""Reranking in Cohere's two formats; Jina has the first."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import Request, Response
from pydantic import BaseModel, Field

from ...text.tokenizer import Tokenizer
from ..job import locate_texts, open_job
from ..responses import reply
from ..scores import rank_texts
from .base import LenientRequest, ProtocolRouter, Truncate, Usage


class Document(BaseModel):
    text: str


class V1RerankRequest(LenientRequest):
    """A request for reranking in the format of Cohere and Jina."""

    model: str | None = None
    query: str
    documents: list[str | Document]
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool = False
    raw_scores: bool = False
    truncate: bool | None = Truncate


class RankedDocument(BaseModel):
    index: int
    relevance_score: float
    document: Document | None = None


class V1RerankAnswer(BaseModel):
    object: Literal["rerank"]
    id: str
    model: str
    results: list[RankedDocument]
    usage: Usage


class V2RerankRequest(LenientRequest):
    """A request for reranking in the format of Cohere's second version."""

    model: str | None = None
    query: str
    documents: list[str | Document]
    top_n: Annotated[int, Field(ge=1)] | None = None
    max_tokens_per_doc: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Truncate documents that are longer; else they are an error."
    )
    truncate: bool | None = Truncate


class V2RankedDocument(BaseModel):
    index: int
    relevance_score: float


class V2RerankAnswer(BaseModel):
    id: str
    results: list[V2RankedDocument]
    meta: dict[str, Any]


router = ProtocolRouter("Cohere, Jina", errors="cohere")
# Clients of `/v1/rerank` are Jina's and those of other servers, which expect OpenAI's errors.
v1_router = ProtocolRouter("Cohere, Jina", errors="openai")


@v1_router.post("/v1/rerank", responses={200: {"model": V1RerankAnswer}}, name="rerank")
async def rerank_v1(body: V1RerankRequest, request: Request) -> Response:
    job = await open_job(request, body.model, "predict")
    documents = [
        document if isinstance(document, str) else document.text for document in body.documents
    ]
    ranking = await rank_texts(
        job,
        body.query,
        documents,
        field="documents",
        truncate=body.truncate,
        raw=body.raw_scores,
    )
    results = [
        {
            "index": index,
            "relevance_score": score,
            **({"document": {"text": documents[index]}} if body.return_documents else {}),
        }
        for index, score in ranking[: body.top_n]
    ]
    tokens = job.context.tokens
    value = {
        "object": "rerank",
        "id": job.context.id,
        "model": job.loaded_model.name,
        "results": results,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return reply(request, value)


@router.post("/v2/rerank", responses={200: {"model": V2RerankAnswer}}, name="rerank")
async def rerank_v2(body: V2RerankRequest, request: Request) -> Response:
    job = await open_job(request, body.model, "predict")
    documents = [
        document if isinstance(document, str) else document.text for document in body.documents
    ]
    truncate = body.truncate
    if body.max_tokens_per_doc is not None:
        job.loaded_model.check_capability("rerank")
        job.service.check_texts("documents", documents)
        full_documents = documents
        documents = await asyncio.to_thread(
            _truncate_texts,
            job.loaded_model.model.tokenizer,
            full_documents,
            body.max_tokens_per_doc,
        )
        job.context.truncation.truncated += sum(map(operator.ne, full_documents, documents))
        truncate = True if truncate is None else truncate
    ranking = await rank_texts(
        job, body.query, documents, field="documents", truncate=truncate, raw=False
    )
    value = {
        "id": job.context.id,
        "results": [
            {"index": index, "relevance_score": score} for index, score in ranking[: body.top_n]
        ],
        "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 0}},
    }
    return reply(request, value)


def _truncate_texts(tokenizer: Tokenizer, texts: Sequence[str], max_tokens: int) -> list[str]:
    """Return texts without what follows their first `max_tokens` tokens."""
    locations = [text.where for text in locate_texts("documents", texts)]
    truncated_texts = []
    for text, segment in zip(texts, tokenizer.segments(texts, where=locations), strict=True):
        end = int(segment[:max_tokens].offsets[-1, 1]) if len(segment) > max_tokens else len(text)
        truncated_texts.append(text[:end])
    return truncated_texts

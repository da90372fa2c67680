"""Reranking in the formats of Cohere's second version and of infinity; others: `ranks`."""

from __future__ import annotations

import asyncio
import operator
import time
from collections.abc import Sequence

from fastapi import APIRouter, Request, Response

from ...text.tokenizer import Tokenizer
from ..job import Job, job_of, placed, reply
from ..schemas import RerankRequest, V2RerankAnswer, V2RerankRequest
from ..scores import ranks

router = APIRouter(tags=["Cohere, Jina"])


@router.post("/v2/rerank", responses={200: {"model": V2RerankAnswer}})
async def rerank(body: V2RerankRequest, request: Request) -> Response:
    job = await job_of(request, body.model, "predict")
    documents = [one if isinstance(one, str) else one.text for one in body.documents]
    truncate = body.truncate
    if body.max_tokens_per_doc is not None:
        job.served.check("rerank")
        job.service.check_texts("documents", documents)
        whole = documents
        documents = await asyncio.to_thread(
            _shortened, job.served.model.tokenizer, whole, body.max_tokens_per_doc
        )
        job.context.truncation.truncated += sum(map(operator.ne, whole, documents))
        truncate = True if truncate is None else truncate
    found = await ranks(job, body.query, documents, field="documents", truncate=truncate, raw=False)
    value = {
        "id": job.context.id,
        "results": [{"index": at, "relevance_score": score} for at, score in found[: body.top_n]],
        "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 0}},
    }
    return reply(request, value)


def _shortened(tokenizer: Tokenizer, texts: Sequence[str], most: int) -> list[str]:
    """Return texts without what follows their first `most` tokens."""
    places = [text.where for text in placed("documents", texts)]
    shortened = []
    for text, segment in zip(texts, tokenizer.segments(texts, where=places), strict=True):
        end = int(segment[:most].offsets[-1, 1]) if len(segment) > most else len(text)
        shortened.append(text[:end])
    return shortened


async def infinity_ranks(job: Job, body: RerankRequest, request: Request) -> Response:
    """Return infinity's answer to a request with `documents`."""
    documents = body.documents
    assert documents is not None
    found = await ranks(
        job,
        body.query,
        documents,
        field="documents",
        truncate=body.truncate,
        raw=body.raw_scores,
    )
    has_text = body.return_text or body.return_documents
    results = [
        {
            "index": at,
            "relevance_score": score,
            "document": documents[at] if has_text else None,
        }
        for at, score in found[: body.top_n]
    ]
    tokens = job.context.tokens
    value = {
        "object": "rerank",
        "id": job.context.id,
        "created": int(time.time()),
        "model": job.served.name,
        "results": results,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return reply(request, value)

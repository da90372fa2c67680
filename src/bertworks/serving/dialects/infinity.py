"""Reranking in infinity's format."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel

from ..job import Job
from .base import Usage


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

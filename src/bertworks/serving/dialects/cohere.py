"""Reranking in Cohere's two formats; Jina has the first."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Awaitable, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field

from ...text.tokenizer import Tokenizer
from ..job import Job, locate_texts
from ..task_operations import rerank
from .base import Dialect, Request, Truncate, Usage

_EXAMPLE = {
    "query": "What is deep learning?",
    "documents": ["It learns layers of features.", "A river is deep."],
}


class Document(BaseModel):
    text: str


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


class V2RankedDocument(BaseModel):
    index: int
    relevance_score: float


class V2RerankAnswer(BaseModel):
    id: str
    results: list[V2RankedDocument]
    meta: dict[str, Any]


class CohereRequest(Request):
    """Fields that both formats have."""

    operation: ClassVar = "predict"

    query: str
    documents: list[str | Document]
    top_n: Annotated[int, Field(ge=1)] | None = None
    truncate: bool | None = Truncate

    @property
    def texts(self) -> list[str]:
        """The texts of the documents."""
        return [one if isinstance(one, str) else one.text for one in self.documents]


dialect = Dialect("Cohere, Jina", errors="cohere")
# Clients of `/v1/rerank` are Jina's and those of other servers, which expect OpenAI's errors.
v1_dialect = Dialect("Cohere, Jina", errors="openai")


@v1_dialect.request("/v1/rerank", answer=V1RerankAnswer, example=_EXAMPLE, needs="rerank")
class V1RerankRequest(CohereRequest):
    """A request for reranking in the format of Cohere and Jina."""

    return_documents: bool = False
    raw_scores: bool = False

    def decode(self, job: Job) -> Awaitable[Any]:
        options: dict[str, Any] = {"truncate": self.truncate, "raw": self.raw_scores}
        return rerank(job, self.query, self.texts, field="documents", **options)

    async def encode(self, results: Any, job: Job) -> Any:
        texts = self.texts
        ranks = [
            {
                "index": index,
                "relevance_score": score,
                **({"document": {"text": texts[index]}} if self.return_documents else {}),
            }
            for index, score in results[: self.top_n]
        ]
        return {
            "object": "rerank",
            "id": job.context.id,
            "model": job.loaded_model.name,
            "results": ranks,
            "usage": Usage.of(job),
        }


@dialect.request("/v2/rerank", answer=V2RerankAnswer, example=_EXAMPLE, needs="rerank")
class V2RerankRequest(CohereRequest):
    """A request for reranking in the format of Cohere's second version."""

    ignored_fields: ClassVar = frozenset({"priority", "return_documents"})

    max_tokens_per_doc: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Truncate documents that are longer; else they are an error."
    )

    async def decode(self, job: Job) -> Any:
        texts, truncate = self.texts, self.truncate
        if self.max_tokens_per_doc is not None:
            job.loaded_model.check_capability("rerank")
            job.check_texts("documents", texts)
            tokenizer = job.model.tokenizer
            truncated_texts = await asyncio.to_thread(
                _truncate_texts, tokenizer, texts, self.max_tokens_per_doc
            )
            job.context.request_tokens.truncated += sum(map(operator.ne, texts, truncated_texts))
            texts, truncate = truncated_texts, True if truncate is None else truncate
        return await rerank(job, self.query, texts, field="documents", truncate=truncate, raw=False)

    async def encode(self, results: Any, job: Job) -> Any:
        return {
            "id": job.context.id,
            "results": [
                {"index": index, "relevance_score": score} for index, score in results[: self.top_n]
            ],
            "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 0}},
        }


def _truncate_texts(tokenizer: Tokenizer, texts: Sequence[str], max_tokens: int) -> list[str]:
    """Return texts without what follows their first `max_tokens` tokens."""
    locations = [text.where for text in locate_texts("documents", texts)]
    truncated_texts = []
    for text, segment in zip(texts, tokenizer.segments(texts, where=locations), strict=True):
        end = int(segment[:max_tokens].offsets[-1, 1]) if len(segment) > max_tokens else len(text)
        truncated_texts.append(text[:end])
    return truncated_texts

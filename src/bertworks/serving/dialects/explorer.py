"""The explorer: its page at `/`, the page's files, and a route for each view.

Views do not use the queue: a separate thread computes them, one at a time. A view takes up to
seconds, and its texts are not batched with those of other requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import Request, Response
from pydantic import BaseModel, ConfigDict, Field

from ... import explorer
from ...explorer.available_views import view_error
from ...explorer.comparing import Claim
from ...explorer.explaining import LIMITS
from ...explorer.layers import Matrix
from ...explorer.page import POLICY, assets
from ..job import open_job
from ..models import Models
from ..request_error import RequestError
from ..responses import reply
from ..security import PAGE_FILES
from ..service import Service, get_service
from .base import ProtocolRouter, StrictRequest

Number = Annotated[int, Field(ge=0, le=100_000)]
Numbers = Annotated[list[Number], Field(max_length=128)]
Two = Annotated[list[Number], Field(min_length=2, max_length=2)]
AblatedHeads: Any = Field(
    [], max_length=10_000, description="[layer, head] of heads that are switched off."
)

_HEADERS = {
    "cache-control": "no-cache",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "content-security-policy": POLICY,
}

router = ProtocolRouter("explorer", errors="tei")


def get_page(request: Request) -> Response | None:
    """Return the explorer's page if the client accepts HTML, else None."""
    return _file("index.html") if "text/html" in request.headers.get("accept", "") else None


@router.get(PAGE_FILES + "{name:path}", include_in_schema=False)
async def file(name: str) -> Response:
    """Return a file of the explorer's page."""
    return _file(name)


def _file(name: str) -> Response:
    if name not in assets():
        raise RequestError(404, "NotFound", "no such file")
    content, media_type = assets()[name]
    return Response(content, 200, _HEADERS, media_type)


class TargetChoice(BaseModel):
    """The probability that a view explains; an omitted field means the most likely choice."""

    model_config = ConfigDict(strict=True, extra="forbid")

    kind: (
        Literal["blank", "next", "next-sentence", "label", "value", "tag", "answer", "replaced"]
        | None
    ) = None
    blank: Number | None = None
    token: str | None = None
    label: str | None = None
    word: Number | None = None
    tag: str | None = None
    start: Number | None = None
    end: Number | None = None
    position: Number | None = None


class PiecesRequest(StrictRequest):
    text: str
    pair: str | None = None


class MaskedRequest(PiecesRequest):
    words: Numbers = Field([], description="Numbers of words that are masked.")


class TargetRequest(MaskedRequest):
    target: TargetChoice | None = None


class FillRequest(MaskedRequest):
    top_k: Annotated[int, Field(ge=1, le=50)] = 10
    candidates: list[str] = Field([], max_length=50, description="Words to score.")
    layers: bool = True
    left: bool = True
    ablated_heads: list[Two] = AblatedHeads
    checkpoint: int | None = Field(None, description="A step of the model's training run.")


class AttentionRequest(MaskedRequest):
    ablated_heads: list[Two] = AblatedHeads


class LayerRequest(MaskedRequest):
    layer: Number = 0


class WeightsRequest(StrictRequest):
    layer: Number
    matrix: Matrix
    row: Number


class PredictRequest(TargetRequest):
    ablated_heads: list[Two] = AblatedHeads


class PairRequest(PiecesRequest):
    other: str
    target: TargetChoice | None = None


class ContextsRequest(StrictRequest):
    word: str
    texts: list[str]


class ClaimRequest(StrictRequest):
    texts: list[str]
    claim: Claim = "previous"
    links: list[list[Two]] = Field([], description="For each text, words: [from, to].")


VIEWS: dict[str, tuple[type[StrictRequest], Callable[..., dict[str, Any]]]] = {
    "pieces": (PiecesRequest, explorer.pieces),
    "fill": (FillRequest, explorer.fill),
    "attention": (AttentionRequest, explorer.attention),
    "layer": (LayerRequest, explorer.layer),
    "weights": (WeightsRequest, explorer.weights),
    "predict": (PredictRequest, explorer.predict),
    "heads": (TargetRequest, explorer.heads),
    "occlusion": (TargetRequest, explorer.occlusion),
    "steps": (TargetRequest, explorer.steps),
    "pair": (PairRequest, explorer.minimal_pair),
    "contexts": (ContextsRequest, explorer.contexts),
    "claim": (ClaimRequest, explorer.claim),
}
"""The request of each view, and the function that computes it; its docstring is the route's."""


@router.get("/explore/models")
async def models(request: Request, model: str | None = None) -> Response:
    """List the models with their views, and why they lack the others; load `model` first."""
    service = get_service(request)
    if model is not None:
        await open_job(request, model)
    served_models = service.models
    entries = await asyncio.to_thread(
        lambda: [_entry(served_models, name) for name in served_models.sources]
    )
    return reply(request, {**LIMITS, "models": entries})


def _entry(served_models: Models, name: str) -> dict[str, Any]:
    loaded_model = next((each for each in served_models.list_loaded() if each.name == name), None)
    entry = {
        "name": name,
        "default": name == served_models.default,
        "loaded": loaded_model is not None,
    }
    if loaded_model is None:
        return entry
    description = explorer.describe(loaded_model.model, name)
    for view, reason in description["views"].items():
        description["views"][view] = reason and reason + _other_models(served_models, view)
    return {
        **entry,
        **description,
        "source": loaded_model.source,
        "verbs": sorted(loaded_model.capabilities),
    }


def _other_models(served_models: Models, view: str) -> str:
    """Return a sentence that names the loaded models with a view; empty if there are none."""
    names = [
        each.name for each in served_models.list_loaded() if view_error(each.model, view) is None
    ]
    return f" On this server: {', '.join(names)}." if names else ""


def _add(view: str, schema: type[StrictRequest], compute: Callable[..., dict[str, Any]]) -> None:
    async def answer(body: Any, request: Request) -> Response:
        job = await open_job(request, body.model)
        values = body.model_dump(exclude={"model"})
        if values.get("target") is not None:
            values["target"] = {k: v for k, v in values["target"].items() if v is not None}
        _check(job.service, values)
        if (reason := view_error(job.loaded_model.model, view, job.loaded_model.name)) is not None:
            message = str(reason) + _other_models(job.service.models, view)
            raise RequestError(424, "Backend", message, "model")
        result = await job.service.view_executor.run(
            lambda: compute(job.loaded_model.model, **values), job.context.deadline
        )
        return reply(request, result)

    answer.__annotations__["body"] = schema
    answer.__doc__ = (compute.__doc__ or "").partition("\n")[0]
    router.add_api_route(f"/explore/{view}", answer, methods=["POST"], name=f"explore_{view}")


def _check(service: Service, values: dict[str, Any]) -> None:
    """Refuse texts that are empty or too long."""
    for field in ("text", "pair", "other", "word"):
        if values.get(field) is not None:
            service.check_text(field, values[field])
    if "texts" in values:
        service.check_texts("texts", values["texts"])


for _view, (_schema, _compute) in VIEWS.items():
    _add(_view, _schema, _compute)

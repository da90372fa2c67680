"""The explorer: its page at `/`, the page's files, and a route for each view.

Views do not use the queue: a separate thread computes them, one at a time. A view takes up to
seconds, and its texts are not batched with those of other requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from fastapi import Request as HTTPRequest
from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field, create_model

from ... import explorer
from ...errors import WrongModelError
from ...explorer.available_views import NETWORK_VIEWS, view_error
from ...explorer.description import describe
from ...explorer.limits import LIMITS, Claim, Matrix
from ...explorer.page import assets
from ..job import Job, get_service, open_job, reply
from ..loaded_model import LoadedModel
from ..metrics import get_context
from ..models import Models
from ..pages import accepts_html, make_file_response
from ..request_error import RequestError
from ..security import PAGE_FILES
from ..service import Service
from .base import Dialect, Request

Number = Annotated[int, Field(ge=0, le=100_000)]
Numbers = Annotated[list[Number], Field(max_length=128)]
Two = Annotated[list[Number], Field(min_length=2, max_length=2)]
AblatedHeads: Any = Field(
    [], max_length=10_000, description="[layer, head] of heads that are switched off."
)

_FUNCTIONS = {"pair": "minimal_pair"}

dialect = Dialect("explorer", errors="tei")


def get_page(request: HTTPRequest) -> Response | None:
    """Return the explorer's page if the client accepts HTML, else None."""
    return make_file_response("index.html") if accepts_html(request.headers.get("accept")) else None


@dialect.get(PAGE_FILES + "{name:path}", include_in_schema=False)
async def file(name: str) -> Response:
    """Return a file of the explorer's page."""
    if name not in assets():
        raise RequestError(404, "NotFound", "no such file")
    return make_file_response(name)


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


class ViewRequest(Request):
    """A request for a view of a model, and perhaps of texts.

    Attributes:
        view: its name, which is also that of the function in `explorer` that returns it for a
            model, but for `_FUNCTIONS`; the fields of the request are the function's arguments.
    """

    view: ClassVar[str]

    def decode(self, job: Job) -> Awaitable[Any]:
        values = self.model_dump(exclude={"model"})
        if values.get("target") is not None:
            values["target"] = {k: v for k, v in values["target"].items() if v is not None}
        for field in ("text", "pair", "other", "word"):
            if values.get(field) is not None:
                job.check_text(field, values[field])
        if "texts" in values:
            job.check_texts("texts", values["texts"])
        loaded_model, view = job.loaded_model, self.view
        if (reason := _view_error(loaded_model, view)) is not None:
            message = str(reason) + _other_models(job.service.models, view)
            raise RequestError(424, "Backend", message, "model")

        def compute() -> Any:
            model = loaded_model.network_model if view in NETWORK_VIEWS else loaded_model.model
            return getattr(explorer, _FUNCTIONS.get(view, view))(model, **values)

        return job.service.view_executor.run(compute, job.context.deadline)


class PiecesRequest(ViewRequest):
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


class WeightsRequest(ViewRequest):
    layer: Number
    matrix: Matrix
    row: Number


class PredictRequest(TargetRequest):
    ablated_heads: list[Two] = AblatedHeads


class PairRequest(PiecesRequest):
    other: str
    target: TargetChoice | None = None


class ContextsRequest(ViewRequest):
    word: str
    texts: list[str]


class ClaimRequest(ViewRequest):
    texts: list[str]
    claim: Claim = "previous"
    links: list[list[Two]] = Field([], description="For each text, words: [from, to].")


_SENTENCE, _MASKED = {"text": "She opened the door."}, {"text": "The door was {mask}."}

VIEWS: Mapping[str, tuple[type[ViewRequest], str, Mapping[str, Any]]] = {
    "pieces": (
        PiecesRequest,
        "The tokens and words of a text, or of a pair.",
        {"text": "Unaffable words are split."},
    ),
    "fill": (
        FillRequest,
        "Predict each blank: from both sides, from the left alone, and at every layer.",
        {**_MASKED, "top_k": 3},
    ),
    "attention": (
        AttentionRequest,
        "The attention weights of all heads, and measures that describe each head.",
        _SENTENCE,
    ),
    "layer": (
        LayerRequest,
        "One layer's numbers for a text: queries, keys, values, the output of each map, the norms.",
        {**_SENTENCE, "layer": 0},
    ),
    "weights": (
        WeightsRequest,
        "One row of a weight matrix: its product with the input, plus a bias, is an output.",
        {"layer": 0, "matrix": "query", "row": 0},
    ),
    "predict": (
        PredictRequest,
        "The model's prediction, with heads switched off; the target is chosen with all heads on.",
        {**_MASKED, "ablated_heads": [[0, 0]]},
    ),
    "heads": (
        TargetRequest,
        "How much a prediction changes when one head is switched off, for each head.",
        _MASKED,
    ),
    "occlusion": (
        TargetRequest,
        "How much a prediction changes when a word is hidden, for each word but a predicted blank.",
        _MASKED,
    ),
    "steps": (
        TargetRequest,
        "One prediction step by step: the embeddings, every layer, logits, probabilities.",
        _SENTENCE,
    ),
    "pair": (
        PairRequest,
        "Compare two texts: the prediction, vectors and attention.",
        {**_SENTENCE, "other": "She opened a door."},
    ),
    "contexts": (
        ContextsRequest,
        "Compare a word's vectors in several texts: cosines by layer, and a map of two dimensions.",
        {"word": "bank", "texts": ["The bank of the river.", "The bank lends money."]},
    ),
    "claim": (
        ClaimRequest,
        "How often each head attends most to the claimed word, next to the best fixed offset.",
        {"texts": ["She opened the door."], "claim": "previous"},
    ),
}
"""The request of each view, what it does, and an example."""


@dialect.get("/explore/models")
async def models(request: HTTPRequest, model: str | None = None) -> Response:
    """List the models with their views, and why they lack the others; load `model` first."""
    service = get_service(request)
    if model is not None:
        await open_job(request, model)
    entries = await asyncio.to_thread(
        lambda: [_entry(service, name) for name in service.models.sources]
    )
    return reply(get_context(request), {**LIMITS, "models": entries})


def _entry(service: Service, name: str) -> dict[str, Any]:
    served_models = service.models
    loaded_model = next((each for each in served_models.list_loaded() if each.name == name), None)
    entry = {
        "name": name,
        "default": name == served_models.default,
        "loaded": loaded_model is not None,
    }
    if loaded_model is None:
        return entry
    model: Any = loaded_model.model
    description = describe(model, name)
    for view, reason in description["views"].items():
        description["views"][view] = reason and reason + _other_models(served_models, view)
    views = description["views"]
    without_corpus = "The server has no corpus: bertworks serve MODEL --corpus FILE."
    if service.corpus is None:
        views["corpus"] = views["corpus"] or without_corpus
    return {
        **entry,
        **description,
        "source": loaded_model.source,
        "capabilities": sorted(loaded_model.capabilities),
    }


def _view_error(loaded_model: LoadedModel, view: str) -> WrongModelError | None:
    model: Any = loaded_model.model
    return view_error(model, view, loaded_model.name)


def _other_models(served_models: Models, view: str) -> str:
    """Return a sentence that names the loaded models with a view; empty if there are none."""
    names = [each.name for each in served_models.list_loaded() if _view_error(each, view) is None]
    return f" On this server: {', '.join(names)}." if names else ""


def _add(view: str, schema: type[ViewRequest], what: str, example: Mapping[str, Any]) -> None:
    name = f"{view.title()}Request"
    kind = create_model(name, __base__=schema, __doc__=what, __module__=__name__)
    kind.view = view
    needs = "fill-mask" if "{mask}" in example.get("text", "") else "embed"
    dialect.request(f"/explore/{view}", example=example, needs=needs)(kind)


for _view, _arguments in VIEWS.items():
    _add(_view, *_arguments)

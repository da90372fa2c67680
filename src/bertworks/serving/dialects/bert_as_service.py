"""The API of bert-as-service's HTTP server: vectors, and the status for its tools."""

from __future__ import annotations

import platform
import time
from typing import Any, Literal

from fastapi import Request, Response
from pydantic import BaseModel, Field

from ... import __version__
from ...inference.features import TextEmbedder
from ...settings.literals import Precision
from ...settings.pooling import PoolingName
from ..job import locate_texts, open_job
from ..request_error import invalid_field_error
from ..responses import encode_vectors, reply
from ..service import Service, get_service
from .base import LenientRequest, ProtocolRouter, Truncate

Words = list[str]


class EncodeRequest(LenientRequest):
    """Vectors of texts, with a choice of layers and pooling."""

    id: int = 0
    texts: list[str] | list[Words]
    is_tokenized: bool = Field(False, description="Each text is a list of words.")
    pooling: PoolingName | None = None
    layers: list[int] | None = Field(None, description="-1: the last; 0: the embeddings.")
    combine: Literal["concat", "sum", "mean"] = "concat"
    normalize: bool | None = Field(None, description="As in the model's files if omitted.")
    precision: Precision | None = None
    encoding_format: Literal["float", "base64"] = "float"
    truncate: bool | None = Truncate
    model: str | None = None


class EncodeAnswer(BaseModel):
    id: int
    results: list[list[float] | str]
    status: int


class ServerStatus(BaseModel):
    """The fields of bert-as-service's status that this server has."""

    status: int
    client: str
    model_dir: str
    ckpt_name: str
    max_seq_len: int
    pooling_layer: list[int]
    pooling_strategy: int | None
    cpu: bool
    fp16: bool
    do_lower_case: bool
    mask_cls_sep: bool
    show_tokens_to_client: bool
    num_worker: int
    num_process: int
    num_concurrent_socket: int
    http_max_connect: int
    max_batch_size: int
    http_port: int
    port: int
    port_out: int
    python_version: str
    server_version: str
    server_start_time: str
    server_current_time: str
    statistic: dict[str, int]


class ClientStatus(BaseModel):
    """The fields of the status of bert-as-service's client that this server has."""

    status: int
    client_version: str
    server_ip: str
    port: int
    port_out: int
    output_fmt: str
    num_request: int
    num_pending_request: int
    pending_request: list[int]
    timeout: int


_STRATEGIES = {"max": 1, "mean": 2, "mean+max": 3, "cls": 4, "sep": 5}
"""bert-as-service's numbers of its pooling strategies."""

router = ProtocolRouter("bert-as-service", errors="tei")


@router.post("/encode", responses={200: {"model": EncodeAnswer}})
async def encode(body: EncodeRequest, request: Request) -> Response:
    job = await open_job(request, body.model, "embed")
    if any(isinstance(text, list) != body.is_tokenized for text in body.texts):
        kind = "lists of words" if body.is_tokenized else "texts"
        raise invalid_field_error(
            "texts", f"must be {kind}, with is_tokenized={body.is_tokenized}", 422
        )
    job.service.check_texts("texts", ["".join(text) for text in body.texts])
    settings: dict[str, Any] = {"combine": body.combine}
    if body.layers is not None:
        settings["layers"] = tuple(body.layers)
    if body.pooling is not None:
        settings["pooling"] = body.pooling
    vectors = await job.embed(
        locate_texts("texts", body.texts),
        normalize=job.loaded_model.normalizes if body.normalize is None else body.normalize,
        truncate=body.truncate,
        precision=body.precision,
        **settings,
    )
    results = await encode_vectors(vectors, body.encoding_format)
    return reply(request, {"id": body.id, "results": results, "status": 200})


@router.get("/status/server", responses={200: {"model": ServerStatus}})
async def server_status(request: Request, model: str | None = None) -> Response:
    """Describe a model and the server's limits in bert-as-service's format."""
    job = await open_job(request, model)
    service, loaded_model = job.service, job.loaded_model
    embedder: TextEmbedder = loaded_model.get_embed_runner().embedder
    layers = loaded_model.model.encoder.config.num_hidden_layers
    port = _port(request)
    value = {
        "status": 200,
        "client": job.context.client,
        "model_dir": loaded_model.source,
        "ckpt_name": loaded_model.name,
        "max_seq_len": embedder.limit,
        "pooling_layer": [layer - layers - 1 for layer in embedder.layers],
        "pooling_strategy": _STRATEGIES.get(embedder.pooling),
        "cpu": loaded_model.device == "cpu",
        "fp16": False,
        "do_lower_case": loaded_model.model.tokenizer.lowercase,
        "mask_cls_sep": False,
        "show_tokens_to_client": False,
        "num_worker": 1,
        "num_process": 1,
        "num_concurrent_socket": len(service.connections),
        "http_max_connect": service.connections.limit,
        "max_batch_size": service.settings.max_texts,
        "http_port": port,
        "port": port,
        "port_out": port,
        "python_version": platform.python_version(),
        "server_version": __version__,
        "server_start_time": _clock(service.start_time),
        "server_current_time": _clock(time.time()),
        "statistic": {
            "num_data_request": service.metrics.count_requests("/encode"),
            "num_total_request": service.metrics.count_requests(),
        },
    }
    return reply(request, value)


@router.get("/status/client", responses={200: {"model": ClientStatus}})
async def client_status(request: Request) -> Response:
    """Count the requests of /encode. (In bert-as-service its own client sends them.)"""
    service: Service = get_service(request)
    port = _port(request)
    address: Any = request.scope.get("server") or ("", 0)
    value = {
        "status": 200,
        "client_version": __version__,
        "server_ip": str(address[0]),
        "port": port,
        "port_out": port,
        "output_fmt": "list",
        "num_request": service.metrics.count_requests("/encode"),
        "num_pending_request": service.queue.load.requests,
        "pending_request": [],
        "timeout": -1,
    }
    return reply(request, value)


def _port(request: Request) -> int:
    """Return the port to which a request was sent; 0 if the server does not know it."""
    return (request.scope.get("server") or ("", None))[1] or 0


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))

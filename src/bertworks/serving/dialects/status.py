"""The status routes of bert-as-service's HTTP server: GET, for its tools and dashboards."""

from __future__ import annotations

import platform
import time
from typing import Any

from fastapi import APIRouter, Request, Response

from ... import __version__
from ...inference.features import Embedder
from ..job import job_of, reply, service_of
from ..schemas import ClientStatus, ServerStatus
from ..service import Service

_STRATEGIES = {"max": 1, "mean": 2, "mean+max": 3, "cls": 4, "sep": 5}
"""bert-as-service's numbers of its pooling strategies."""

router = APIRouter(tags=["bert-as-service"])


@router.get("/status/server", responses={200: {"model": ServerStatus}})
async def server_status(request: Request, model: str | None = None) -> Response:
    """Describe a model and the server's limits in bert-as-service's format."""
    job = await job_of(request, model)
    service, served = job.service, job.served
    embedder: Embedder = served.embed().embedder
    layers = served.model.encoder.config.num_hidden_layers
    port = _port(request)
    value = {
        "status": 200,
        "client": job.context.client,
        "model_dir": served.source,
        "ckpt_name": served.name,
        "max_seq_len": embedder.limit,
        "pooling_layer": [layer - layers - 1 for layer in embedder.layers],
        "pooling_strategy": _STRATEGIES.get(embedder.pooling),
        "cpu": served.device == "cpu",
        "fp16": False,
        "do_lower_case": served.model.tokenizer.lowercase,
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
        "server_start_time": _clock(service.started_at),
        "server_current_time": _clock(time.time()),
        "statistic": {
            "num_data_request": service.metrics.requests("/encode"),
            "num_total_request": service.metrics.requests(),
        },
    }
    return reply(request, value)


@router.get("/status/client", responses={200: {"model": ClientStatus}})
async def client_status(request: Request) -> Response:
    """Count the requests of /encode. (In bert-as-service its own client sends them.)"""
    service: Service = service_of(request)
    port = _port(request)
    address: Any = request.scope.get("server") or ("", 0)
    value = {
        "status": 200,
        "client_version": __version__,
        "server_ip": str(address[0]),
        "port": port,
        "port_out": port,
        "output_fmt": "list",
        "num_request": service.metrics.requests("/encode"),
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

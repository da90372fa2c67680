"""The API of bert-as-service's HTTP server: vectors, and the status for its tools."""

from __future__ import annotations

import platform
import time
from collections.abc import Awaitable
from typing import Annotated, Any, ClassVar, Literal

from fastapi import Request as HTTPRequest
from fastapi import Response
from pydantic import BaseModel, Field

from ... import __version__
from ...inference.text_embedding import TextEmbedder
from ...settings.literals import Combine, InferencePrecision
from ...settings.pooling import NO_POOLING, SPARSE_POOLINGS, PoolingName
from ..job import Job, get_service, locate_texts, open_job, reply
from ..metrics import get_context
from ..request_error import invalid_field_error
from ..service import Service
from ..vector_operations import embed
from .base import Dialect, Request, Truncate, encode_vectors

Words = list[str]


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

dialect = Dialect("bert-as-service", errors="tei")


@dialect.request(
    "/encode",
    answer=EncodeAnswer,
    example={"id": 1, "texts": ["hello world", "good day"], "pooling": "mean", "layers": [-1]},
)
class EncodeRequest(Request):
    """Vectors of texts, with a choice of layers and pooling."""

    operation: ClassVar = "embed"

    id: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] = 0  # JSON is written with 64 bits
    texts: list[str] | list[Words]
    is_tokenized: bool = Field(False, description="Each text is a list of words.")
    pooling: PoolingName | None = None
    layers: list[int] | None = Field(None, description="-1: the last; 0: the embeddings.")
    combine: Combine | None = Field(None, description="As in the model's files, or concat.")
    normalize: bool | None = Field(None, description="As in the model's files if omitted.")
    is_query: bool = Field(False, description="The texts are queries: see `embed`.")
    precision: InferencePrecision | None = None
    encoding_format: Literal["float", "base64"] = "float"
    truncate: bool | None = Truncate

    def decode(self, job: Job) -> Awaitable[Any]:
        if any(isinstance(text, list) != self.is_tokenized for text in self.texts):
            kind = "lists of words" if self.is_tokenized else "texts"
            raise invalid_field_error(
                "texts", f"must be {kind}, with is_tokenized={self.is_tokenized}", 422
            )
        if self.pooling in (*SPARSE_POOLINGS, NO_POOLING):
            raise invalid_field_error("pooling", f"{self.pooling} gives no dense vector", 422)
        job.check_texts("texts", ["".join(text) for text in self.texts])
        settings: dict[str, Any] = {"pooling": self.pooling, "combine": self.combine}
        settings["layers"] = None if self.layers is None else tuple(self.layers)
        return embed(
            job,
            locate_texts("texts", self.texts),
            normalize=self.normalize,
            truncate=self.truncate,
            is_query=self.is_query,
            precision=self.precision,
            **{name: value for name, value in settings.items() if value is not None},
        )

    async def encode(self, results: Any, job: Job) -> Any:  # noqa: ARG002
        vectors = await encode_vectors(results, self.encoding_format)
        return {"id": self.id, "results": vectors, "status": 200}


@dialect.get("/status/server", responses={200: {"model": ServerStatus}})
async def server_status(request: HTTPRequest, model: str | None = None) -> Response:
    """Describe a model and the server's limits in bert-as-service's format."""
    job = await open_job(request, model)
    service, loaded_model = job.service, job.loaded_model
    embedder: TextEmbedder = loaded_model.get_embed_runner().embedder
    layers = loaded_model.model.config.num_hidden_layers
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
    return reply(job.context, value)


@dialect.get("/status/client", responses={200: {"model": ClientStatus}})
async def client_status(request: HTTPRequest) -> Response:
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
    return reply(get_context(request), value)


def _port(request: HTTPRequest) -> int:
    """Return the port to which a request was sent; 0 if the server does not know it."""
    return (request.scope.get("server") or ("", None))[1] or 0


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))

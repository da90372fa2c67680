"""Routes for health, readiness, metrics, and information about models and routes."""

from __future__ import annotations

from fastapi import Request, Response
from starlette.responses import HTMLResponse, PlainTextResponse

from ..job import get_service, open_job, reply
from ..openapi import docs_page
from ..request_error import RequestError
from . import explorer
from .base import Dialect
from .info import describe_server

dialect = Dialect("status", errors="tei")


@dialect.get("/", include_in_schema=False)
async def root(request: Request) -> Response:
    """Return the explorer's page to a browser, and the health status to other clients."""
    return explorer.get_page(request) or await health(request)


@dialect.get("/health", response_class=Response)
@dialect.get("/ping", include_in_schema=False)
async def health(request: Request) -> Response:
    """Return 200 if the server is alive, else 503."""
    if get_service(request).queue.fatal_error is not None:
        raise RequestError(503, "Unhealthy", "unhealthy")
    return Response(status_code=200)


@dialect.get("/ready", response_class=Response)
async def ready(request: Request) -> Response:
    """Return 200 if the server is ready for requests, else 503.

    It is ready when the models are loaded (with `lazy`, at once), and until it starts to stop.
    """
    service = get_service(request)
    if not service.ready or service.draining or service.queue.fatal_error is not None:
        raise RequestError(503, "Unhealthy", "not ready")
    return Response(status_code=200)


@dialect.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Return the metrics for Prometheus, or as OpenMetrics to those who accept that."""
    accept = request.headers.get("accept", "")
    text, media_type = get_service(request).metrics.to_text(accept)
    return Response(text, headers={"content-type": media_type})


@dialect.get("/docs", include_in_schema=False, response_class=HTMLResponse)
async def docs(request: Request) -> Response:
    """Return a page that lists every route with an example."""
    model = next(iter(get_service(request).models.sources))
    return HTMLResponse(docs_page(request.app.openapi(), str(request.base_url), model))


@dialect.get("/info")
async def info(request: Request, model: str | None = None) -> Response:
    """Describe a model and the server's limits."""
    job = await open_job(request, model)
    return reply(job.context, describe_server(job.service, job.loaded_model))

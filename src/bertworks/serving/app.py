"""The FastAPI application: routes, one-line errors, health checks, metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.routing import Route

from .. import __version__
from ..errors import BertworksError
from .dialects import bert, explorer, openai, rerank, status, tei
from .failures import RequestError, error_of
from .job import context_of, job_of, reply, service_of
from .middleware import Gate
from .models import Models
from .openapi import described, docs_page
from .security import Keys
from .service import Service
from .settings import ServeSettings

operations = APIRouter(tags=["operations"])
"""Routes for health, readiness, metrics and information about models."""


@operations.get("/", include_in_schema=False)
async def root(request: Request) -> Response:
    """Return the explorer's page to a browser, and the health status to other clients."""
    return explorer.page_of(request) or await health(request)


@operations.get("/health", response_class=Response)
@operations.get("/ping", include_in_schema=False)
async def health(request: Request) -> Response:
    """Return 200 if the server is alive, else 503."""
    if service_of(request).queue.broken is not None:
        raise RequestError(503, "Unhealthy", "unhealthy")
    return Response(status_code=200)


@operations.get("/ready", response_class=Response)
async def ready(request: Request) -> Response:
    """Return 200 if the server is ready for requests, else 503.

    It is ready when the models are loaded (with `lazy`, at once), and until it starts to stop.
    """
    service = service_of(request)
    if not service.ready or service.draining or service.queue.broken is not None:
        raise RequestError(503, "Unhealthy", "not ready")
    return Response(status_code=200)


@operations.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Return the metrics for Prometheus."""
    text = service_of(request).metrics.text()
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


@operations.get("/docs", include_in_schema=False, response_class=HTMLResponse)
async def docs(request: Request) -> Response:
    """Return a page that lists every route with an example."""
    model = next(iter(service_of(request).models.sources))
    return HTMLResponse(docs_page(request.app.openapi(), str(request.base_url), model))


@operations.get("/info")
async def info(request: Request, model: str | None = None) -> Response:
    """Describe a model and the server's limits."""
    job = await job_of(request, model)
    return reply(request, tei.info(job.service, job.served))


ROUTERS = (
    openai.router,
    rerank.router,
    tei.router,
    status.router,
    bert.router,
    explorer.router,
    operations,
)


def make_app(
    models: Models,
    settings: ServeSettings | None = None,
    keys: Keys | None = None,
    *,
    local: bool = True,
) -> FastAPI:
    """Create the application that serves some models.

    Args:
        keys: accepted API keys; if omitted, no key is needed.
        local: whether the server listens only to this machine.
    """
    paths = {route.path for one in ROUTERS for route in one.routes if isinstance(route, Route)}
    service = Service(models, settings or ServeSettings(), sorted(paths))
    keys = keys or Keys()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            service.queue.start()
            await asyncio.to_thread(service.load_models)
        except Exception as error:
            service.failure = error  # the server only says that the application failed
            raise
        yield
        service.ready = False
        await asyncio.to_thread(service.lane.close)
        await asyncio.to_thread(service.queue.close)

    app = FastAPI(
        title="bertworks",
        version=__version__,
        description=f"Serves {', '.join(models.sources)}.",
        lifespan=lifespan,
        docs_url=None,  # our page loads nothing from other hosts
        redoc_url=None,
    )
    app.state.service = service
    for kind in (
        BertworksError,
        RequestError,
        RequestValidationError,
        ValidationError,
        HTTPException,
    ):
        app.add_exception_handler(kind, _answer_error)
    for router in ROUTERS:
        app.include_router(router)
    app.add_middleware(Gate, service=service, keys=keys, local=local)
    app.openapi = described(app, models, with_keys=bool(keys))  # type: ignore[method-assign]
    return app


async def _answer_error(request: Request, error: Exception) -> Response:
    """Return the response for an error, and note its kind for the log."""
    failure = error_of(error)
    context_of(request).error = failure.kind
    return failure.response(request.url.path)

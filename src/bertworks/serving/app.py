"""The application: routes, errors in one line, health, metrics, and the OpenAPI page."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from .. import __version__
from ..errors import BertworksError
from . import bert_routes, openai_routes, tei_routes
from .examples import runnable
from .failures import RequestError, error_of
from .gate import Gate
from .metrics import Metrics
from .models import Models
from .runners import Text
from .schemas import OpenAIError, TEIError
from .security import Keys
from .service import Service, asking_of, reply, service_of
from .settings import ServeSettings

ERRORS = {
    400: "A value is impossible, or the body is no JSON.",
    401: "No valid API key.",
    403: "The request names another host.",
    404: "No such model.",
    408: "The deadline passed.",
    413: "Too many texts, or too long.",
    422: "A value of a wrong type, or a text that cannot be tokenised.",
    424: "The model was not trained for it, or its output is not finite.",
    429: "The server is busy; see Retry-After.",
    503: "The server stops.",
}


operations = APIRouter(tags=["operations"])
"""Health, readiness, metrics, and what is served."""


@operations.get("/", include_in_schema=False)
@operations.get("/health", response_class=Response)
@operations.get("/ping", include_in_schema=False)
async def health(request: Request) -> Response:
    """Whether the server is alive."""
    if service_of(request).queue.broken is not None:
        raise RequestError(503, "Unhealthy", "unhealthy")
    return Response(status_code=200)


@operations.get("/ready", response_class=Response)
async def ready(request: Request) -> Response:
    """Whether requests should be sent here: models are loaded, and it is not about to stop."""
    service = service_of(request)
    if not service.ready or service.draining or service.queue.broken is not None:
        raise RequestError(503, "Unhealthy", "not ready")
    return Response(status_code=200)


@operations.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Metrics for Prometheus."""
    text = service_of(request).metrics.text()
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


@operations.get("/info")
async def info(request: Request, model: str | None = None) -> Response:
    """A model, and the server's limits."""
    service = service_of(request)
    return reply(request, tei_routes.info(service, await service.model(request, model)))


def make_app(
    models: Models,
    settings: ServeSettings | None = None,
    keys: Keys | None = None,
    *,
    local: bool = True,
) -> FastAPI:
    """The application of some models.

    Args:
        models: what is served.
        settings: limits.
        keys: who may ask; everybody, if left out.
        local: whether it listens to this machine alone.
    """
    service = Service(models, settings or ServeSettings())
    keys = keys or Keys()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.queue.start()
        if not service.settings.lazy:
            await asyncio.to_thread(_load_all, service)
        service.ready = True
        yield
        service.ready = False
        await asyncio.to_thread(service.queue.close)

    app = FastAPI(
        title="bertworks",
        version=__version__,
        description=f"Serves {', '.join(models.sources)}.",
        lifespan=lifespan,
        responses={code: {"description": text} for code, text in ERRORS.items()},
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
    routers = (openai_routes.router, tei_routes.router, bert_routes.router, operations)
    for router in routers:
        app.include_router(router)
    service.metrics = Metrics(
        sorted({route.path for one in routers for route in one.routes if isinstance(route, Route)}),
        lambda: service.queue.load.requests,
        lambda: service.queue.load.tokens,
    )
    app.add_middleware(
        Gate,
        settings=service.settings,
        keys=keys,
        local=local,
        metrics=lambda: service.metrics,
        is_draining=lambda: service.draining,
    )
    app.openapi = _described(app, service, with_keys=bool(keys))  # type: ignore[method-assign]
    return app


async def _answer_error(request: Request, error: Exception) -> Response:
    """The response of an error."""
    failure = error_of(error)
    asking_of(request).error = failure.kind
    return failure.response(request.url.path)


def _load_all(service: Service) -> None:
    """Load all models, and run each once, so that the first request is a quick one."""
    for name in service.models.sources:
        served = service.models.get(name)
        runner = served.embed()
        runner.run(runner.prepare([Text("warm-up", "a first text")]))


def _described(app: FastAPI, service: Service, *, with_keys: bool) -> Callable[[], dict[str, Any]]:
    """The OpenAPI description, made when it is first asked for and models are loaded."""
    usual = app.openapi

    def openapi() -> dict[str, Any]:
        described = copy.deepcopy(usual())
        schemas = described["components"]["schemas"]
        for model in (TEIError, OpenAIError):
            own = model.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas |= own.pop("$defs", {})
            schemas[model.__name__] = own
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        for path, verbs in tuple(described["paths"].items()):
            for operation in verbs.values():
                _describe(operation, path, with_keys=with_keys)
            if "post" in verbs:
                example = runnable(service.models, path)
                if example is None:
                    del described["paths"][path]
                    continue
                content = verbs["post"]["requestBody"]["content"]["application/json"]
                content["example"] = example
        if with_keys:
            described["components"]["securitySchemes"] = {
                "key": {"type": "http", "scheme": "bearer"}
            }
        return described

    return openapi


def _describe(operation: dict[str, Any], path: str, *, with_keys: bool) -> None:
    """Say what errors look like, and which routes need a key."""
    kind = "OpenAIError" if path.startswith("/v1/") else "TEIError"
    schema = {"schema": {"$ref": f"#/components/schemas/{kind}"}}
    for code in map(str, ERRORS):
        if code != "401" or kind == "OpenAIError":
            content = {"application/json": schema}
            operation["responses"][code] = {"description": ERRORS[int(code)], "content": content}
    if with_keys and path not in ("/health", "/ready"):
        operation["security"] = [{"key": []}]

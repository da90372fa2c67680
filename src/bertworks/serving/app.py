"""The FastAPI application: its routes, errors and middleware."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from .. import __version__
from ..errors import BertworksError
from .dialects import bert, bert_as_service, cohere, explorer, openai, status, tei
from .error_conversion import to_request_error
from .job import get_service
from .metrics import get_context
from .middleware import RequestMiddleware
from .models import Models
from .openapi import make_openapi
from .request_error import RequestError
from .security import Keys
from .service import Service
from .settings import ServeSettings

if TYPE_CHECKING:
    from ..analysis.retrieval.text_index import TextIndex

DIALECTS = (
    openai.dialect,
    cohere.dialect,
    cohere.v1_dialect,
    tei.dialect,
    bert_as_service.dialect,
    bert.dialect,
    explorer.dialect,
    status.dialect,
)

EXAMPLES = {path: example for dialect in DIALECTS for path, example in dialect.examples.items()}
"""For each route with a body, the capability of a model that answers the example, and it."""


def make_app(
    models: Models,
    settings: ServeSettings | None = None,
    keys: Keys | None = None,
    *,
    local: bool = True,
    open_corpus: Callable[[], TextIndex] | None = None,
) -> FastAPI:
    """Create the application that serves some models.

    Args:
        keys: accepted API keys; if omitted, no key is needed.
        local: whether the server listens only to this machine.
        open_corpus: opens the texts from which questions are answered.
    """
    routes = [
        (route, dialect.error_format)
        for dialect in DIALECTS
        for route in dialect.routes
        if isinstance(route, Route)
    ]
    keys = keys or Keys()
    service = Service(models, settings or ServeSettings(), routes, keys, open_corpus)

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
        await asyncio.to_thread(service.view_executor.close)
        await asyncio.to_thread(service.corpus_executor.close)
        await asyncio.to_thread(service.queue.close)
        await asyncio.to_thread(service.traces.close)

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
    for dialect in DIALECTS:
        app.include_router(dialect)
    app.add_middleware(RequestMiddleware, service=service, local=local)
    if service.settings.cors_origins:  # outermost: a browser asks for permission without a key
        app.add_middleware(
            CORSMiddleware,
            allow_origins=service.settings.cors_origins,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            expose_headers=("x-request-id", "traceparent", "retry-after"),
        )
    # As FastAPI documents it.
    app.openapi = make_openapi(app, service, EXAMPLES)  # type: ignore[method-assign]
    return app


async def _answer_error(request: Request, error: Exception) -> Response:
    """Return the response for an error, and store its kind for the log."""
    failure = to_request_error(error)
    get_context(request).error = failure.kind
    return failure.to_response(get_service(request).error_formats.find(request.url.path))

"""Serve models over HTTP: `serve`."""

from __future__ import annotations

import gc
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..errors import import_optional
from ..serving.signals import signals_at_start
from ..utils.environment import SERVE_PREFIX
from .application import verb
from .devices import Engine, EngineOption
from .models import BM25, Adapters, ModelSource, use_each
from .options import SettingsOption
from .outputs import check_present
from .texts import Column

if TYPE_CHECKING:
    from ..analysis.retrieval.text_index import TextIndex


@verb(
    "serve",
    "bertworks serve sentence-transformers/all-MiniLM-L6-v2",
    "bertworks serve tickets=runs/tickets minilm=models/minilm lazy=true",
    "bertworks serve runs/tickets --host 0.0.0.0 --api-keys keys.txt",
    "bertworks serve runs/squad --corpus passages.txt --retriever mini-sentences",
    variable_prefix=SERVE_PREFIX,
)
def serve(
    ctx: typer.Context,
    models: list[str],
    *,
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8080,
    api_keys: Path | None = None,
    no_auth: bool = False,
    tls_key: Path | None = None,
    tls_certificate: Path | None = None,
    log_level: Literal["debug", "info", "warning"] = "info",
    corpus: str | None = None,
    retriever: str = BM25,
    column: Column = None,
    settings: SettingsOption,
    adapters: Adapters,
    engine: EngineOption,
) -> None:
    """Serve models over HTTP.

    Clients of OpenAI and text-embeddings-inference can connect. All routes are documented at
    /docs. Without API keys, only this machine can connect.

    Args:
        models (MODEL…): Model directories or names on the hub; NAME=MODEL sets the name. The first
            is the default.
        host (ADDRESS): Address to listen on.
        port (N): Port; 0: any free port.
        api_keys (FILE): API keys, one NAME:KEY per line; also read from BERTWORKS_API_KEYS,
            comma-separated.
        no_auth: Listen to other machines without API keys.
        tls_key (FILE): For HTTPS: private key (PEM file).
        tls_certificate (FILE): For HTTPS: certificate (PEM file).
        log_level: debug: also health checks. Texts and keys are never logged.
        corpus (FILE): Passages from which a model for questions answers: .txt with one on each
            line, a table, or a store that `index` wrote, which keeps their vectors.
        retriever (MODEL): Model that ranks the passages, or bm25.
    """
    open_corpus = None
    if corpus is not None:
        open_corpus = partial(_open_corpus, corpus, column, ModelSource(retriever), engine)
    elif column is not None or retriever != BM25:
        ctx.fail("--retriever and --column need --corpus FILE.")
    import_optional("fastapi", "serve", "serve")
    import_optional("uvicorn", "serve", "serve")

    # Collecting garbage would take a quarter of the start; once started, the server does it again.
    gc.disable()
    try:
        with signals_at_start():
            from ..serving.models import Models, parse_sources
            from ..serving.security import read_keys
            from ..serving.server import serve as run
            from ..serving.settings import ServeSettings

            serve_settings = ServeSettings.resolve(**settings)
            check_present([tls_key, tls_certificate])
            served_models = Models(
                parse_sources(models),
                device=engine.device,
                backend=engine.backend,
                adapters=adapters,
                precision=serve_settings.precision,
                deterministic=serve_settings.deterministic,
                max_memory=serve_settings.max_memory and serve_settings.max_memory * 1_000_000,
            )
            tls = {"ssl_keyfile": tls_key, "ssl_certfile": tls_certificate}
            run(
                served_models,
                serve_settings,
                read_keys(api_keys),
                host=host,
                port=port,
                no_auth=no_auth,
                log_level=log_level,
                open_corpus=open_corpus,
                **{name: str(file) for name, file in tls.items() if file is not None},
            )
    finally:
        gc.enable()


def _open_corpus(
    corpus: str, column: str | None, retriever: ModelSource, engine: Engine
) -> TextIndex:
    from ..analysis.retrieval.opening import open_index

    def open_with(retrievers: list[Any]) -> TextIndex:
        return open_index(retrievers, corpus, column=column)

    return use_each([retriever], open_with, engine)

"""Serve models over HTTP: `serve`."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Annotated, Literal

import typer

from ..errors import import_optional
from .app import verb
from .devices import Device, Threads, set_threads
from .options import Adapters, SettingsFile, read_settings
from .outputs import check_present


@verb(
    "serve",
    "bertworks serve sentence-transformers/all-MiniLM-L6-v2",
    "bertworks serve tickets=runs/tickets minilm=models/minilm lazy=true",
    "bertworks serve runs/tickets --host 0.0.0.0 --api-keys keys.txt",
)
def serve(
    ctx: typer.Context,
    *,
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL…",
            help="Model directories or names on the hub; NAME=MODEL sets the name. The first "
            "is the default.",
            show_default=False,
        ),
    ],
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="N", help="Port; 0: any free port.")
    ] = 8080,
    api_keys: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="API keys, one NAME:KEY per line; also read from BERTWORKS_API_KEYS, "
            "comma-separated.",
        ),
    ] = None,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Listen to other machines without API keys.")
    ] = False,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="For HTTPS: private key (PEM file).")
    ] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="For HTTPS: certificate (PEM file).")
    ] = None,
    log_level: Annotated[
        Literal["debug", "info", "warning"],
        typer.Option(help="debug: also health checks. Texts and keys are never logged."),
    ] = "info",
    settings_file: SettingsFile = None,
    adapters: Adapters,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Serve models over HTTP.

    Clients of OpenAI and text-embeddings-inference can connect. All routes are documented at
    /docs. Without API keys, only this machine can connect.
    """
    import_optional("fastapi", "serve", "serve")
    import_optional("uvicorn", "serve", "serve")
    # Imported and loaded objects stay: garbage collection of them would take a quarter of the
    # start. The server enables collection again once it has started.
    gc.disable()
    try:
        set_threads(threads)
        from ..serving.models import Models, parse_sources
        from ..serving.security import read_keys
        from ..serving.server import serve as run
        from ..serving.settings import ServeSettings

        settings = ServeSettings.resolve(**read_settings(ctx, settings_file))
        keys = read_keys(api_keys)
        check_present([tls_key, tls_certificate])
        served_models = Models(
            parse_sources(models),
            device=device,
            adapters=adapters,
            precision=settings.precision,
            deterministic=settings.deterministic,
            max_memory=settings.max_memory and settings.max_memory * 1_000_000,
        )
        tls = {"ssl_keyfile": tls_key, "ssl_certfile": tls_certificate}
        run(
            served_models,
            settings,
            keys,
            host=host,
            port=port,
            no_auth=no_auth,
            log_level=log_level,
            **{name: str(file) for name, file in tls.items() if file is not None},
        )
    finally:
        gc.enable()

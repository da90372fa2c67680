"""Models over HTTP: `serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ..errors import need
from .app import Device, Precision, Threads, set_threads, verb


@verb(
    "serve",
    "bertworks serve sentence-transformers/all-MiniLM-L6-v2",
    "bertworks serve tickets=runs/tickets embed=models/minilm --port 8000",
    "bertworks serve runs/tickets --host 0.0.0.0 --api-keys keys.txt",
)
def serve(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL…",
            help="Directories or names on the hub, NAME=MODEL to name one; the first is the "
            "default.",
            show_default=False,
        ),
    ],
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="N", help="Where to listen.")
    ] = 8080,
    api_keys: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Keys, NAME:KEY a line; also read from BERTWORKS_API_KEYS, comma between.",
        ),
    ] = None,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Listen to other machines without any key.")
    ] = False,
    lazy: Annotated[
        bool, typer.Option("--lazy", help="Load a model when it is first asked for.")
    ] = False,
    max_memory: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="MB", help="Of weights; beyond, the least recently used are unloaded."
        ),
    ] = None,
    drain_delay: Annotated[
        float,
        typer.Option(min=0, metavar="S", help="Seconds that requests are taken after SIGTERM."),
    ] = 0.0,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Any setting of the server, such as max_texts=512; docs/serving.md lists them.",
        ),
    ] = None,
    any_dimensions: Annotated[
        bool, typer.Option("--any-dimensions", help="Vectors of any model may be cut.")
    ] = False,
    token_ids: Annotated[
        bool, typer.Option("--token-ids", help="Texts may be ids of the model's vocabulary.")
    ] = False,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="For HTTPS.")] = None,
    tls_certificate: Annotated[Path | None, typer.Option(metavar="FILE", help="For HTTPS.")] = None,
    log_level: Annotated[
        Literal["debug", "info", "warning"],
        typer.Option(help="debug: also health checks. No text and no key is logged."),
    ] = "info",
    device: Device = "auto",
    threads: Threads = None,
    precision: Precision = "fp32",
) -> None:
    """Serve models over HTTP, as OpenAI's and text-embeddings-inference's clients ask for them.

    The description of all routes is at /docs. Without keys it listens to this machine alone.
    """
    need("fastapi", "serve", "serve")
    need("uvicorn", "serve", "serve")
    set_threads(threads)
    from ..serving.models import Models, named_sources
    from ..serving.security import read_keys
    from ..serving.server import serve as run
    from ..serving.settings import ServeSettings

    given = {"drain_delay": drain_delay}
    given |= {"any_dimensions": True} if any_dimensions else {}
    given |= {"token_ids": True} if token_ids else {}
    settings = ServeSettings.resolve(None, limit or (), **given)
    keys = read_keys(api_keys)
    served = Models(
        named_sources(models),
        device=device,
        precision=precision,
        max_memory=None if max_memory is None else max_memory * 1_000_000,
    )
    tls = {"ssl_keyfile": tls_key, "ssl_certfile": tls_certificate}
    run(
        served,
        settings,
        keys,
        host=host,
        port=port,
        no_auth=no_auth,
        lazy=lazy,
        log_level=log_level,
        **{name: str(file) for name, file in tls.items() if file is not None},
    )

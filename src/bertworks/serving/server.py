"""The server process: sockets, signals, threads, logs."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI

from ..errors import BertworksError
from ..utils.threads import count_usable_cpus, num_threads, set_num_threads
from .app import make_app
from .connections import LimitedProtocol, Listener, bind, limit_connections, listen
from .logs import log, log_to_stderr
from .models import Models
from .security import Keys, check_host, is_loopback, read_keys
from .service import Service
from .settings import ServeSettings
from .signals import receive_hangups
from .tls import make_tls_context, replace_tls_context

if TYPE_CHECKING:
    from ..analysis.retrieval.text_index import TextIndex

_LAST_SECONDS = 0.25


class Server(uvicorn.Server):
    """uvicorn's server, with signal handlers that lose no request.

    After SIGTERM or SIGINT, `/ready` returns 503 at once, requests are accepted for `drain_delay`
    seconds, and then all accepted requests are answered. A second signal stops the server at once.
    SIGHUP loads models, keys and certificate again: all of them, or none if one cannot be.
    """

    def __init__(
        self, config: uvicorn.Config, service: Service, listeners: Sequence[Listener]
    ) -> None:
        super().__init__(config)
        self.service, self.listeners = service, listeners
        self._reloading = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        receive_hangups()
        yield

    async def startup(self, sockets: object = None) -> None:  # noqa: ARG002
        """Start the application, accept connections, log the address.

        Existing objects are excluded from garbage collection. Torch and the models have a quarter
        of a million objects: a collection that visits them takes 0.15 s, in which no request is
        answered.

        Raises:
            BertworksError: another server listens on the port.
        """
        await super().startup(sockets=[])  # uvicorn's own sockets have no limits
        connections = self.service.connections
        protocol = partial(
            LimitedProtocol,
            connections,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        try:
            self.servers = [
                await listen(listener, protocol, ssl=self.config.ssl) for listener in self.listeners
            ]
        except OSError as error:
            raise listen_error(self.config, error) from None
        self._start(connections.watch())
        gc.freeze()
        gc.enable()
        log(
            logging.INFO,
            "listening",
            url=format_url(self.config, self.listeners[0].getsockname()[1]),
            explorer="/",
            api="/docs",
            models=self.service.models.available,
        )

    def _stop(self) -> None:
        if self.service.draining:
            self.force_exit = self.should_exit = True
            return
        self.service.draining = True
        log(logging.INFO, "draining", seconds=self.service.settings.drain_delay)
        asyncio.get_running_loop().call_later(self.service.settings.drain_delay, self._exit)

    def _exit(self) -> None:
        """Accept no more connections; wait for requests that may be on their way on open ones."""
        for listening in self.servers:
            listening.close()
        asyncio.get_running_loop().call_later(_LAST_SECONDS, self._finish)

    def _finish(self) -> None:
        self.should_exit = True

    def _reload(self) -> None:
        self._start(self._load_again())

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _load_again(self) -> None:
        """Load models, keys and certificate, and replace all of them at once."""
        service, config = self.service, self.config
        async with self._reloading:
            try:
                keys = read_keys(service.keys.file) if service.keys else Keys()
                context = make_tls_context(config)
                new_models = await asyncio.to_thread(service.models.load_again)
            except BertworksError as error:
                service.metrics.record_reload(is_done=False)
                log(logging.ERROR, "reload failed", reason=str(error), kept="all as it was")
                return
            service.keys.accept(keys)
            service.quotas.use(keys.quotas)
            if context is not None and config.ssl is not None:
                replace_tls_context(config.ssl, context)
            await asyncio.to_thread(service.models.swap_in, new_models)
            service.metrics.record_reload(is_done=True)
        log(
            logging.INFO,
            "reloaded",
            models={model.name: model.digest for model in new_models},
            keys=service.keys.names,
            certificate=config.ssl_certfile,
        )


def serve(
    models: Models,
    settings: ServeSettings,
    keys: Keys,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    no_auth: bool = False,
    log_level: str = "info",
    open_corpus: Callable[[], TextIndex] | None = None,
    **options: Any,
) -> None:
    """Serve models until a signal stops the server.

    Args:
        no_auth: serve other machines without API keys.
        log_level: "debug" also logs health checks.
        open_corpus: opens the texts from which questions are answered.
        options: other options of uvicorn, such as `ssl_keyfile` and `ssl_certfile`.

    Raises:
        SettingsError: other machines could send requests without a key; or the files for HTTPS are
            not valid.
        BertworksError: the server cannot listen on the port; or no model can be loaded, or, with
            `require_all`, one cannot.
    """
    check_host(host, keys, no_auth=no_auth)
    configure_threads()
    log_to_stderr(log_level)
    local = is_loopback(host)
    app = make_app(models, settings, keys, local=local and not no_auth, open_corpus=open_corpus)
    options["timeout_keep_alive"] = math.ceil(settings.keep_alive_seconds)
    config, service = _config(app, host, port, options), app.state.service
    service.connections.limit = limit_connections(settings.max_connections)
    try:
        listeners = bind(host, port, service.connections)  # before the models are loaded
    except OSError as error:
        raise listen_error(config, error) from None
    with ExitStack() as opened:
        for listener in listeners:
            opened.enter_context(listener)
        _run(Server(config, service, listeners))


def _config(app: FastAPI, host: str, port: int, options: dict[str, Any]) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",  # no route is a WebSocket, whose connections would have no limits
        **options,
    )
    make_tls_context(config)  # before the models are loaded, which takes longer
    config.load()
    return config


def format_url(config: uvicorn.Config, port: int) -> str:
    """Return the URL of a server that listens on a port."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"{'https' if config.is_ssl else 'http'}://{host}:{port}"


def _run(server: Server) -> None:
    service = server.service
    service.load_models()
    try:
        server.run()
    except SystemExit:  # uvicorn's, if the application cannot start
        raise service.failure or BertworksError("the server cannot start") from None


def listen_error(config: uvicorn.Config, error: OSError) -> BertworksError:
    """Return the error for a host and port on which the server cannot listen."""
    fix = f"The system says: {error.strerror or error}."
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        fix = f"{config.host} is no address of this machine; give another --host."
    elif error.errno == errno.EADDRINUSE:
        fix = "Another server may be there; give another --port."
    return BertworksError(f"cannot listen on {config.host}:{config.port}", fix=fix)


def configure_threads() -> None:
    """Use one processor for HTTP and the others for models, unless OMP_NUM_THREADS is set.

    On two processors, a server with one torch thread answers 1.2 to 1.4 times as many requests as
    with two (docs/decisions.md). Also switch between Python's threads more often than by default:
    otherwise the network's thread delays responses, even of health checks, by 5 ms at a time.
    """
    sys.setswitchinterval(0.001)
    if "OMP_NUM_THREADS" not in os.environ:
        set_num_threads(max(1, min(num_threads(), count_usable_cpus() - 1)))

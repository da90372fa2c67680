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
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from ..errors import BertworksError, SettingsError
from .app import make_app
from .gate import LOG, log
from .models import Models
from .security import Keys, check_host, check_tls, is_loopback
from .service import Service
from .settings import ServeSettings

_LAST_SECONDS = 0.25


class Server(uvicorn.Server):
    """uvicorn's server, with signal handlers that lose no request.

    After SIGTERM or SIGINT, `/ready` returns 503 at once, requests are accepted for `drain_delay`
    seconds, and then all accepted requests are answered. A second signal stops the server at once.
    SIGHUP loads the models again.
    """

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service = service
        self._tasks: set[asyncio.Task[None]] = set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        if hasattr(signal, "SIGHUP"):
            loop.add_signal_handler(signal.SIGHUP, self._reload)
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start uvicorn, exclude existing objects from garbage collection, log the address.

        Torch and the models have a quarter of a million objects: a collection that visits them
        takes 0.15 s, in which no request is answered.
        """
        await super().startup(sockets)
        gc.freeze()
        gc.enable()
        _, port, *_ = self.servers[0].sockets[0].getsockname()  # chosen by the system for port 0
        log(
            logging.INFO,
            "listening",
            url=url_of(self.config, port),
            explorer="/",
            api="/docs",
            models=list(self.service.models.sources),
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
        task = asyncio.get_running_loop().create_task(self._reload_models())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reload_models(self) -> None:
        try:
            names = await asyncio.to_thread(self.service.models.reload)
            log(logging.INFO, "reloaded", models=names)
        except BertworksError as error:
            log(logging.ERROR, "reload failed", reason=str(error))


def serve(
    models: Models,
    settings: ServeSettings,
    keys: Keys,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    no_auth: bool = False,
    log_level: str = "info",
    **options: Any,
) -> None:
    """Serve models until a signal stops the server.

    Args:
        no_auth: serve other machines without API keys.
        log_level: "debug" also logs health checks.
        options: other options of uvicorn, such as `ssl_keyfile` and `ssl_certfile`.

    Raises:
        SettingsError: other machines could send requests without a key; or the files for HTTPS are
            not valid.
        BertworksError: the server cannot listen on the port, or a model cannot be loaded.
    """
    check_host(host, keys, no_auth=no_auth)
    check_tls(options.get("ssl_keyfile"), options.get("ssl_certfile"))
    use_threads()
    log_to_stderr(log_level)
    local = is_loopback(host)
    app = make_app(models, settings, keys, local=local and not no_auth)
    server = Server(_config(app, host, port, options), app.state.service)
    _run(server)


def _config(app: FastAPI, host: str, port: int, options: dict[str, Any]) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=2048,
        timeout_keep_alive=30,
        **options,
    )
    try:
        config.load()  # before the models are loaded, which takes longer
    except ssl.SSLError as error:
        files = (config.ssl_certfile, config.ssl_keyfile)
        raise SettingsError(
            f"no certificate with its private key ({error.reason or error})",
            where=", ".join(str(file) for file in files if file is not None),
            fix="Give PEM files that belong together.",
        ) from None
    return config


def url_of(config: uvicorn.Config, port: int) -> str:
    """Return the URL of a server that listens on a port."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"{'https' if config.is_ssl else 'http'}://{host}:{port}"


def _run(server: Server) -> None:
    try:
        if not server.service.settings.lazy:
            # Before the port is opened: the command fails if a model cannot be loaded.
            for name in server.service.models.sources:
                server.service.models.get(name)
        server.run()
    except SystemExit as error:
        # uvicorn raises this while it handles an error of the system.
        host, reason = server.config.host, error.__context__
        number = reason.errno if isinstance(reason, OSError) else None
        fix = "Another server may be there; give another --port."
        if isinstance(reason, socket.gaierror) or number == errno.EADDRNOTAVAIL:
            fix = f"{host} is no address of this machine; give another --host."
        elif number not in (None, errno.EADDRINUSE):
            fix = f"The system says: {os.strerror(number)}."
        raise BertworksError(f"cannot listen to {host}:{server.config.port}", fix=fix) from None


def log_to_stderr(level: str) -> None:
    """Write the log to standard error, without uvicorn's messages below CRITICAL."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    LOG.handlers[:] = [handler]
    LOG.propagate = False
    LOG.setLevel(level.upper())
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)


def usable_cpus() -> int:
    """Return how many processors this process may use, by its affinity and its cgroup's quota."""
    count = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(count, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no cgroup, or no limit
        return count


def use_threads() -> None:
    """Use one processor for HTTP and the others for torch, unless OMP_NUM_THREADS is set.

    On two processors, a server with one torch thread answers 1.2 to 1.4 times as many requests as
    with two (docs/decisions.md). Also switch between Python's threads more often than by default:
    otherwise the network's thread delays responses, even of health checks, by 5 ms at a time.
    """
    import torch

    sys.setswitchinterval(0.001)
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, min(torch.get_num_threads(), usable_cpus() - 1)))

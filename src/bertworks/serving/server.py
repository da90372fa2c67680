"""The process: sockets, signals, threads, logs."""

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
    """uvicorn's, with signals that lose no request.

    SIGTERM and SIGINT: `/ready` is 503 at once, requests are taken for `drain_delay` seconds, and
    then all that were taken are answered; a second one ends at once. SIGHUP: models are loaded
    anew.
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
        """As uvicorn's; then what is there by now is left out of Python's garbage collections, and
        the log says where the server listens.

        Torch and its models are a quarter of a million objects: to search them takes 0.15 s, in
        which nobody is answered.
        """
        await super().startup(sockets)
        gc.freeze()
        gc.enable()
        _, port, *_ = self.servers[0].sockets[0].getsockname()  # any, if 0 was asked for
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
        """Take no more connections; a request may still be on its way on an open one."""
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
    """Serve models until a signal ends it.

    Args:
        no_auth: listen to other machines without a key.
        log_level: "debug" also notes health checks.
        options: more of uvicorn's, such as `ssl_keyfile` and `ssl_certfile`.

    Raises:
        SettingsError: the host is not this machine alone, and nobody needs a key; or the files
            for HTTPS are not what they should be.
        BertworksError: the port cannot be listened to, or a model cannot be loaded.
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
        config.load()  # before the models, which take longer
    except ssl.SSLError as error:
        files = (config.ssl_certfile, config.ssl_keyfile)
        raise SettingsError(
            f"no certificate with its private key ({error.reason or error})",
            where=", ".join(str(file) for file in files if file is not None),
            fix="Give PEM files that belong together.",
        ) from None
    return config


def url_of(config: uvicorn.Config, port: int) -> str:
    """The address of a server that listens to a port, as a client gives it."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"{'https' if config.is_ssl else 'http'}://{host}:{port}"


def _run(server: Server) -> None:
    try:
        if not server.service.settings.lazy:
            # Before the port is opened: what cannot be loaded is an error of the command.
            for name in server.service.models.sources:
                server.service.models.get(name)
        server.run()
    except SystemExit as error:
        # uvicorn ends so while it handles what the system says.
        host, reason = server.config.host, error.__context__
        number = reason.errno if isinstance(reason, OSError) else None
        fix = "Another server may be there; give another --port."
        if isinstance(reason, socket.gaierror) or number == errno.EADDRNOTAVAIL:
            fix = f"{host} is no address of this machine; give another --host."
        elif number not in (None, errno.EADDRINUSE):
            fix = f"The system says: {os.strerror(number)}."
        raise BertworksError(f"cannot listen to {host}:{server.config.port}", fix=fix) from None


def log_to_stderr(level: str) -> None:
    """Have lines of the log, and nothing of uvicorn's below a warning, go to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    LOG.handlers[:] = [handler]
    LOG.propagate = False
    LOG.setLevel(level.upper())
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)


def usable_cpus() -> int:
    """The processors that this process may use: by its affinity, and by its group's quota."""
    count = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(count, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no such group, or no limit
        return count


def use_threads() -> None:
    """Leave a processor to HTTP, and the others to torch, unless OMP_NUM_THREADS says how many.

    On two processors a server with one thread of torch answers 1.2 to 1.4 times as many requests as
    one with two (docs/decisions.md). Python's threads take turns more often than usual: the
    network's would otherwise hold up answers, health checks among them, for 5 ms at a time.
    """
    import torch

    sys.setswitchinterval(0.001)
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, min(torch.get_num_threads(), usable_cpus() - 1)))

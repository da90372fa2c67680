"""Functions in processes of their own, forked from one that has imported everything.

A process that imports PyTorch and the package takes seconds until it begins.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.warm"])


class _Worker(ForkServerProcess):
    """A process with the environment of its parent, as one that is started anew has it."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._environment = dict(os.environ)

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self._environment)
        super().run()


class WorkerContext(ForkServerContext):
    """Starts the workers of `bertworks.jobs.parallel` in the tests."""

    Process = _Worker


def start(function: Callable[..., object], *args: Any) -> BaseProcess:
    """Start a function of a module."""
    process = CONTEXT.Process(target=function, args=args)
    process.start()
    return process


def launch(function: Callable[..., object], *args: Any, processes: int, logs: Path) -> str:
    """Run a function in several processes, as `torchrun --standalone` does.

    Args:
        logs: a directory for what they print.

    Returns:
        What they print to standard output.

    Raises:
        ChildFailedError: a process failed.
    """
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.1,
        start_method="forkserver",
        logs_specs=DefaultLogsSpecs(log_dir=str(logs), redirects=Std.ALL),
    )
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    try:
        elastic_launch(config, function)(*args)
    finally:
        for number, handler in handlers.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)
    return read_output(logs)


def read_output(logs: Path) -> str:
    """What the processes of `launch` have printed."""
    return "".join(file.read_text() for file in sorted(logs.rglob("stdout.log")))

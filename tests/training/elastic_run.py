"""The toy task on two machines (agents of `torchrun`), of which one meets with an accident.

    torchrun … -m tests.training.elastic_run OUT none|worker|agent|hang

The first time that rank 1 makes its third block, it kills itself or its agent too, or hangs.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from pathlib import Path

import torch

from bertworks.errors import TrainingError
from bertworks.runs.run_directory import RunDirectory
from bertworks.training.distributed import process_group
from bertworks.training.fit import fit
from bertworks.training.plan import Phase

from .distributed_run import SETTINGS
from .toy import ToySource, ToyTask, measure, toy_network
from .toy_source import ToyExample


class Accident(ToySource):
    """Blocks of which the third is made once only."""

    def __init__(self, kind: str, marker: Path) -> None:
        super().__init__(1)
        self.kind, self.marker = kind, marker
        self.num_blocks_read = 0

    def block(self, epoch: int, block: int) -> list[ToyExample]:
        self.num_blocks_read += 1
        if self.num_blocks_read == 3 and not self.marker.exists():
            self.marker.touch()
            if self.kind == "hang":
                signal.signal(
                    signal.SIGTERM, signal.SIG_DFL
                )  # or the agent waits for half a minute
                time.sleep(600)
            if self.kind == "agent":
                os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().block(epoch, block)


def main(out: Path, kind: str) -> None:
    timeout = 3.0 if kind == "hang" else 60.0
    settings = SETTINGS.with_values(checkpoint_every=2, rank_timeout=timeout)
    with process_group("cpu", timeout) as group:
        is_struck = group.rank == 1 and kind != "none"
        source = Accident(kind, out.with_suffix(".happened")) if is_struck else ToySource(1)
        with RunDirectory.open(out, settings, is_main=group.is_main) as run:
            phases = [Phase(source, steps=20)]
            result = fit(
                toy_network(), ToyTask(), phases, settings=settings, run=run, evaluate=measure
            )
        if group.is_main:
            print("resumed from", result.resumed_step, "ended at", result.state.step, flush=True)


def run(out: Path, kind: str) -> None:
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    try:
        main(out, kind)
    except TrainingError as error:
        print(f"error: {error}", flush=True)
        sys.exit(1)


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2])

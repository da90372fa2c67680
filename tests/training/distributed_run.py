"""The toy task on several processes; rank 1 asks to stop on the way, and then all go on. Then a
classifier whose layers learn one after the other, until rank 0 sees that it gets no better."""

from __future__ import annotations

import os
import signal
import warnings
from pathlib import Path

import torch

from bertworks.runs.run_directory import RunDirectory
from bertworks.tasks.best_metric import BestMetric
from bertworks.training.distributed import process_group
from bertworks.training.fit import fit
from bertworks.training.plan import Phase
from bertworks.training.row_source import RowSource
from bertworks.training.settings import FitSettings
from bertworks.training.signals import RunInterrupted
from bertworks.training.state import FitResult

from .letters import SETTINGS as LETTERS
from .letters import TASK, examples, letters_network
from .toy import ToyNetwork, ToySource, ToyTask, measure, toy_network
from .toy_source import ToyExample

SETTINGS = FitSettings.parse(
    {
        "batch_size": 16,
        "micro_batch_tokens": 40,
        "learning_rate": 0.01,
        "warmup": 0.1,
        "log_every": 3,
        "eval_every": 5,
        "checkpoint_every": 50,
        "tensorboard": False,
    }
)


class StoppingSource(ToySource):
    """Sends its own process a SIGTERM with its n-th block."""

    def __init__(self, blocks: int) -> None:
        super().__init__(1)
        self.left = blocks

    def block(self, epoch: int, block: int) -> list[ToyExample]:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().block(epoch, block)


def distributed_run(
    out: Path, blocks: int = -1, dropout: float = 0.0
) -> tuple[ToyNetwork, FitResult]:
    network = toy_network(dropout=dropout)
    with process_group("cpu") as group:
        run = RunDirectory.open(out, SETTINGS, is_main=group.is_main)
        source = StoppingSource(blocks if group.rank == 1 else -1)
        phases = [Phase(source, steps=20)]
        result = fit(
            network, ToyTask(), phases, settings=SETTINGS, run=run, evaluate=measure, device="cpu"
        )
        run.close()
        return network, result


def unfreezing_run(out: Path) -> FitResult:
    network = letters_network(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    settings = FitSettings.parse(
        {
            **LETTERS,
            "precision": "fp32",  # in both processes, whatever is faster here
            "micro_batch_size": 3,
            "freeze_embeddings": True,
            "unfreeze_every": 2,
            "ema": 0.5,
            "gradient_checkpointing": True,
        }
    )
    scores = iter([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.5, 0.4, 0.3])
    with process_group("cpu") as group:
        run = RunDirectory.open(out, settings, is_main=group.is_main)
        result = fit(
            network,
            TASK,
            [Phase(RowSource(examples(), seed=0, batch_size=8), steps=20)],
            settings=settings,
            run=run,
            evaluate=lambda network: {"score": next(scores)},
            best=BestMetric("score", patience=3),
        )
        run.close()
        return result


def main(out: Path) -> None:
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    with process_group("cpu"):
        try:
            distributed_run(out, blocks=4)
        except RunInterrupted as error:
            print(error.status, error)
        _, result = distributed_run(out)
        print("went on from", result.resumed_step)
        result = unfreezing_run(out / "unfreezing")
        print("unfroze until", result.state.step)

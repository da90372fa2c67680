"""A probe of a frozen encoder: how well a BiLSTM tags by some of its hidden states alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import Field

from ..inference.evaluate import evaluate
from ..model.config import EncoderConfig
from ..settings import with_default
from ..tasks.tagging.examples import TaggingExample
from ..tasks.tagging.probe import LstmSettings, ProbeNetwork, ProbeTask
from .best import Best
from .checkpoint import load_weights
from .fit import fit
from .journal import RunDirectory
from .plan import Phase
from .progress import Progress
from .random_state import seed_everything
from .row_source import RowSource
from .settings import FitSettings, TrainingSettings


class ProbeSettings(LstmSettings):
    """How a probe is trained. The paper says nothing of it; this is usual for an LSTM."""

    epochs: float = Field(10.0, gt=0, description="how often each row is learned from")
    batch_size: int = with_default(TrainingSettings, "batch_size", 32)
    learning_rate: float = Field(1e-3, gt=0, description="of Adam; falls to 0 on a line")
    max_grad_norm: float = with_default(TrainingSettings, "max_grad_norm", 1.0)
    bucket_batches: int = Field(
        16, ge=0, description="as in fine-tuning; an LSTM takes as many steps as the longest row"
    )

    def fit_settings(self, seed: int, steps_per_epoch: int) -> FitSettings:
        """What of this the training loop is told."""
        return FitSettings(
            seed=seed,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            weight_decay=0.0,
            warmup=0.0,
            max_grad_norm=self.max_grad_norm,
            eval_every=steps_per_epoch,
            checkpoint_every=min(steps_per_epoch, 500),
            keep_checkpoints=1,
            tensorboard=False,
        )


@dataclass(frozen=True)
class ProbeResult:
    """What a probe says.

    Attributes:
        metrics: on dev, of the best epoch.
        best_step: the step of these.
        shares: each layer's in a learned sum; empty where there is none.
    """

    metrics: Mapping[str, float]
    best_step: int
    shares: list[float]


def train_probe(
    task: ProbeTask,
    config: EncoderConfig,
    train: Sequence[TaggingExample],
    dev: Sequence[TaggingExample],
    *,
    out: Path,
    settings: ProbeSettings,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> ProbeResult:
    """Train a probe and measure it; called again, it goes on where it stopped.

    Args:
        task: what is learned, with the hidden states of all windows of `train` and `dev`.
        config: the frozen encoder's.
        train: rows to learn from.
        dev: rows to measure on; they choose the epoch.
        out: the run directory.
        settings: how.
        seed: of weights, dropout and order.
        device: where to compute.
        progress: shows how it goes.

    Raises:
        TrainingError, OutputError, Interrupted: as `fit` does.
    """
    pieces = [piece for example in train for piece in task.training_examples(example)]
    seed_everything(seed)
    network = task.network(config)
    size = settings.batch_size
    source = RowSource(pieces, seed=seed, batch_size=size, bucket_batches=settings.bucket_batches)
    metric = task.best_metric
    description: dict[str, Any] = {
        "layers": list(task.choice.layers),
        "mixed": task.choice.mixed,
        "seed": seed,
        **settings.model_dump(mode="json"),
    }
    with RunDirectory.open(out, description) as run:
        state = fit(
            network,
            task,
            [Phase(source, math.ceil(settings.epochs * len(pieces) / size))],
            settings=settings.fit_settings(seed, math.ceil(len(pieces) / size)),
            run=run,
            evaluate=lambda network: evaluate(network, task, dev).metrics,
            best=Best(metric, metric in task.lower_is_better),
            device=device,
            progress=progress,
        ).state
        assert state.best_step is not None, "it was measured at the end, if not before"
        return ProbeResult(
            _metrics(run, state.best_step), state.best_step, _shares(run, network, state.best_step)
        )


def _metrics(run: RunDirectory, step: int) -> dict[str, float]:
    """What was measured after a step."""
    (found,) = (
        line["metrics"] for line in run.lines() if line["kind"] == "eval" and line["step"] == step
    )
    metrics: dict[str, float] = found
    return metrics


def _shares(run: RunDirectory, network: ProbeNetwork, best_step: int) -> list[float]:
    """Each layer's share in the learned sum of the best epoch."""
    if network.mix is None:
        return []
    load_weights(run.best_weights(best_step), network)
    shares: list[float] = network.mix.weights.tolist()
    return shares

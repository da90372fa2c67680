"""A classifier of letters, small enough to look at every weight after every step of `fit`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertworks.inference.engine import labelled_examples
from bertworks.model.config import EncoderConfig
from bertworks.tasks.classification import ClassificationNetwork, ClassificationTask
from bertworks.tasks.rows import read_rows
from bertworks.tasks.task import Network
from bertworks.training.fit import FitResult, FitSettings, Phase, fit
from bertworks.training.journal import RunDirectory
from bertworks.training.row_source import RowSource

from .test_finetune import CONFIG, PIECES, TRAIN, Tokenizer

SETTINGS: dict[str, Any] = {
    "batch_size": 8,
    "optimizer": {"lr": 0.01, "warmup": 0, "weight_decay": 0.1},
    "log_every": 1,
    "eval_every": 1,
    "checkpoint_every": 3,
    "tensorboard": False,
}
ROWS = read_rows(TRAIN[:40])
TASK = ClassificationTask.from_table(
    Tokenizer.from_vocabulary(PIECES),
    ROWS,
    ClassificationTask.options.parse({"max_seq_length": 32}),
)

Weights = dict[str, Tensor]


class StopError(Exception):
    """Stands for a kill: nothing after it is run."""


def examples() -> list[Any]:
    return list(labelled_examples(TASK, ROWS))


def letters_network(seed: int = 0, **geometry: Any) -> ClassificationNetwork:
    torch.manual_seed(seed)
    config: EncoderConfig = CONFIG.with_values(**{"num_hidden_layers": 3, **geometry})
    return TASK.network(config)


def weights_of(network: Network) -> Weights:
    return {name: own.detach().clone() for name, own in network.named_parameters()}


def equal(one: Weights, other: Weights) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def fit_letters(
    path: Path,
    network: Network,
    *,
    steps: int = 10,
    stop_at: int | None = None,
    note: Callable[[Network], None] | None = None,
    **settings: Any,
) -> tuple[list[Weights], FitResult]:
    """Train, and return the weights that each evaluation was made of.

    Args:
        path: the run directory.
        network: of `letters_network`.
        steps: of the run.
        stop_at: the evaluation, from 1, at which the run is killed.
        note: told of the network at each evaluation.
        settings: over `SETTINGS`.
    """
    seen: list[Weights] = []

    def evaluate(measured: Network) -> dict[str, float]:
        seen.append(weights_of(measured))
        if note is not None:
            note(measured)
        if len(seen) == stop_at:
            raise StopError
        return {"loss": 1.0}

    resolved = FitSettings.parse({**SETTINGS, **settings})
    source = RowSource(examples(), seed=0, batch_size=8)
    run = RunDirectory.open(path, resolved)
    try:
        phases = [Phase(source, steps)]
        result = fit(network, TASK, phases, settings=resolved, run=run, evaluate=evaluate)
        return seen, result
    finally:
        run.close()

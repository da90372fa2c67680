"""A pre-training run of seconds, also in a process of its own that can be killed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from bertworks.training.pretrain import PretrainResult, pretrain
from bertworks.utils import directories
from bertworks.utils.progress import Progress

STEPS = 40


def tiny_run(data: Path, out: Path, **values: Any) -> PretrainResult:
    """Two phases, dropout, bfloat16, evaluations and checkpoints: all that a run has."""
    settings: dict[str, Any] = {
        "data": str(data),
        "model": {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2}
        | {"intermediate_size": 32},
        "steps": STEPS,
        "batch_size": 8,
        "micro_batch_tokens": 200,
        "phases": [{"max_seq_length": 24, "share": 0.8}, {"max_seq_length": 48, "share": 0.2}],
        "precision": "bf16",
        "learning_rate": 1e-3,
        "log_every": 3,
        "eval_every": 8,
        "checkpoint_every": 5,
        "held_out": {"documents": 5, "sequences": 8},
        "tensorboard": False,
    }
    return pretrain(out=out, **{**settings, **values})


class StopAt(Progress):
    """Ends a run at a step as an error would."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def train(self, step: int, *_: Any, **__: Any) -> None:
        if step == self.step:
            raise InterruptedError


def run_slowly(data: Path, out: Path, seconds: float) -> None:
    """The run in a process of its own, in which each file of a checkpoint takes some seconds to be
    synchronised, so that a kill can be aimed at the writing of one."""
    torch.set_num_threads(1)
    synchronise = directories.fsync

    def sync_slowly(path: Path) -> None:
        if path.parent.name.startswith(".step-") and not path.name.startswith("."):
            time.sleep(seconds)
        synchronise(path)

    directories.fsync = sync_slowly
    tiny_run(data, out)

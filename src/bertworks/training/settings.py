"""The settings of training: the same words in every verb that trains.

Verbs differ in defaults alone (`settings.with_default`). Nothing here imports torch, so that help
on settings is fast.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from ..literals import Precision
from ..settings import Settings, with_default

Schedule = Literal[
    "linear", "linear-from-peak", "constant", "slanted-triangular", "warmup-stable-decay"
]

_DECAY_SHARE = 0.2  # of warmup-stable-decay
_RATIO = 32  # of the highest rate of a slanted triangle to the lowest


class OptimizerSettings(Settings):
    """The optimizer and the learning rate."""

    optimizer: Literal["adamw", "lamb"] = Field(
        "adamw", description="lamb is for very large batches (You et al. 2019)"
    )
    learning_rate: float = Field(1e-4, gt=0, description="the highest of the run")
    warmup: float = Field(
        0.01, ge=0, description="steps of linear warm-up, or below 1: their share of all steps"
    )
    schedule: Schedule = Field(
        "linear",
        description="after the warm-up: `linear` follows the line from learning_rate at step 0 to "
        "zero at the last step, as the original code does; `linear-from-peak` goes from "
        "learning_rate at the end of the warm-up to zero, as Hugging Face does; `constant` stays; "
        "`slanted-triangular` is ULMFiT's (Howard and Ruder 2018, equation 3), from "
        "learning_rate / 32 up to learning_rate and down again; `warmup-stable-decay` stays, then "
        "falls linearly to zero over the last steps (Hu et al. 2024, §4), and with warmup in steps "
        "such a run can be extended: its steps may be raised later",
    )
    decay_share: float | None = Field(
        None,
        gt=0,
        le=1,
        description="the share of all steps in which the rate of warmup-stable-decay falls; "
        f"{_DECAY_SHARE}, if left out",
    )
    weight_decay: float = Field(
        0.01, ge=0, description="of all weights but biases and those of norms"
    )
    layer_decay: float = Field(
        1.0,
        gt=0,
        le=1,
        description="each layer learns at this share of the rate of the layer above it; heads at "
        "the full rate (Howard and Ruder 2018, §3.2; Clark et al. 2020)",
    )
    betas: tuple[float, float] = Field(
        (0.9, 0.999), description="decay of the averages of gradients and of their squares"
    )
    eps: float = Field(1e-6, gt=0, description="added to the root of the squares' average")
    bias_correction: bool = Field(
        True, description="false: the averages are used as they are, as the original code does"
    )
    max_grad_norm: float = Field(1.0, gt=0, description="gradients are cut to this norm")

    @model_validator(mode="after")
    def _check_betas(self) -> Self:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas={self.betas}: both must lie in [0, 1)")
        return self

    def check_decay_share(self) -> None:
        """See that `decay_share` is given only where there is a decay.

        Raises:
            ValueError: it is given with another schedule.
        """
        if self.decay_share is not None and self.schedule != "warmup-stable-decay":
            raise ValueError(
                f"decay_share={self.decay_share} does nothing without schedule=warmup-stable-decay"
            )

    def rate(self, step: int, total: int) -> float:
        """The learning rate of update number `step`, counted from 0, of `total`."""
        highest = self.learning_rate
        warmup = self.warmup if self.warmup >= 1 else self.warmup * total
        if (decay_start := self.decay_start(total)) is not None:
            rise = step / warmup if step < warmup else 1.0
            return highest * min(rise, max(0.0, (total - step) / (total - decay_start)))
        if self.schedule == "slanted-triangular":
            return highest * _slanted_triangle(step, math.floor(warmup), total)
        if step < warmup:
            return highest * step / warmup
        if self.schedule == "constant":
            return highest
        if self.schedule == "linear":
            return highest * max(0.0, 1 - step / total)
        return highest * max(0.0, (total - step) / max(1.0, total - warmup))

    def decay_start(self, total: int) -> int | None:
        """The steps before the decay of `warmup-stable-decay`, of `total`; None of other schedules.

        The update after them is the last one at the full rate.
        """
        if self.schedule != "warmup-stable-decay":
            return None
        return total - max(1, round((self.decay_share or _DECAY_SHARE) * total))


def _slanted_triangle(step: int, cut: int, total: int) -> float:
    """The rate's share of the highest one: up for `cut` steps, then down to 1/32.

    Howard and Ruder (2018), equation 3, whose `cut · (1/cut_frac - 1)` is `total - cut` where no
    rounding comes in between.
    """
    height = step / cut if step < cut else 1 - (step - cut) / max(1, total - cut)
    return (1 + height * (_RATIO - 1)) / _RATIO


class FreezingSettings(Settings):
    """Freezing; heads, poolers and a last norm always learn."""

    freeze_embeddings: bool = Field(
        False, description="the embeddings, and an output layer that is tied to them"
    )
    freeze_layers: int = Field(0, ge=0, description="so many of the lowest, and the embeddings too")
    unfreeze_every: int | None = Field(
        None,
        ge=1,
        description="steps: heads begin alone; each time so many are done, one layer more learns, "
        "from the top; the embeddings come last",
    )

    def shortfall(self, layers: int, steps: int) -> str | None:
        """What to say where gradual unfreezing does not come to all that is to learn.

        Args:
            layers: how many the encoder has.
            steps: how many the run has.
        """
        if self.unfreeze_every is None:
            return None
        with_embeddings = not self.freeze_layers and not self.freeze_embeddings
        thawed = (steps - 1) // self.unfreeze_every
        if thawed >= layers - self.freeze_layers + with_embeddings:
            return None
        return f"gradual unfreezing: the top {thawed} of {layers} layers come to learn"


class TrainingSettings(OptimizerSettings, FreezingSettings):
    """Batches, evaluations and checkpoints."""

    seed: int = Field(0, ge=0, description="of fresh weights, dropout and the order of the data")
    batch_size: int | None = Field(None, ge=1, description="rows (examples) of a step")
    micro_batch_size: int | None = Field(
        None, ge=1, description="rows that go through the network at once; all, if left out"
    )
    micro_batch_tokens: int | None = Field(
        None, ge=1, description="tokens that go through the network at once; all, if left out"
    )
    precision: Precision = Field(
        "auto",
        description="bf16: computed in bfloat16, with weights and their sums in float32; auto: "
        "that, if the device is faster at it, and a run is resumed in the precision it was begun "
        "with",
    )
    gradient_checkpointing: bool = Field(
        False,
        description="layers keep nothing for the backward pass and compute it again: less memory, "
        "a third more time, the same bits",
    )
    ema: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="a running average of the weights with this decay, such as 0.999, is measured "
        "and kept in their place",
    )
    log_every: int = Field(10, ge=1, description="steps between lines of the journal")
    eval_every: int | None = Field(
        None, ge=1, description="steps between evaluations; an epoch, if left out"
    )
    checkpoint_every: int | None = Field(
        None, ge=1, description="steps between checkpoints; as eval_every, at most 500, if left out"
    )
    keep_checkpoints: int = Field(2, ge=1, description="how many of the newest are kept")
    deterministic: bool = Field(False, description="the same bits every time on CUDA too; slower")
    tensorboard: bool = Field(True, description="write events too, where it is installed")


class FitSettings(TrainingSettings):
    """Batches and data."""

    former: ClassVar = {
        "optimizer.name": "optimizer",
        "optimizer.lr": "learning_rate",
        **{
            f"optimizer.{key}": key
            for key in OptimizerSettings.model_fields.keys()
            - {"optimizer", "learning_rate", "max_grad_norm"}
        },
        "freezing.embeddings": "freeze_embeddings",
        "freezing.layers": "freeze_layers",
        "freezing.unfreeze_every": "unfreeze_every",
    }

    batch_tokens: int | None = Field(None, ge=1, description="instead: tokens of a step, at most")
    eval_every: int = with_default(
        TrainingSettings, "eval_every", 500, description="steps between evaluations"
    )
    checkpoint_every: int = with_default(
        TrainingSettings, "checkpoint_every", 500, description="steps between checkpoints"
    )
    eval_first: bool = Field(False, description="evaluate before the first step too")
    loader_workers: int = Field(0, ge=0, description="processes that make data ahead of time")

    @model_validator(mode="after")
    def _check_batches_and_decay(self) -> Self:
        if self.batch_size is not None and self.batch_tokens is not None:
            raise ValueError("batch_size and batch_tokens exclude each other; set one to null")
        self.check_decay_share()
        return self

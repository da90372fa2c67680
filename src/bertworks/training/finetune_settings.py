"""The settings of a fine-tuning run: how it is trained, and what the task wants to be told."""

from __future__ import annotations

from typing import Any, Self, cast

from pydantic import Field, create_model, model_validator

from ..errors import SettingsError
from ..literals import Precision
from ..settings import Settings
from ..tasks.labelled import LabelledTask
from .adapters import AdapterSettings
from .freezing import FreezingSettings
from .optimizer import OptimizerSettings, Schedule, check_decay_share
from .plan import FitSettings

_NEEDED = {
    "lora_rank": ("lora_alpha", "lora_dropout", "lora_targets"),
    "teacher": ("temperature",),
}
"""Settings by the one that they need beside them."""


class FinetuneSettings(Settings):
    """How a model is fine-tuned. The defaults are the paper's.

    Of the paper's three learning rates 2e-5 is the one of the original code's examples, and the
    least likely to spoil a run; a small encoder wants a higher one (tiny: about 3e-4).
    """

    epochs: float = Field(3.0, gt=0)
    batch_size: int = Field(32, ge=1)
    learning_rate: float = Field(2e-5, gt=0)
    warmup: float = Field(0.1, ge=0, description="steps; below 1: share of all steps")
    schedule: Schedule = Field("linear", description="see `OptimizerSettings`")
    decay_share: float | None = Field(
        None, gt=0, le=1, description="of warmup-stable-decay (see `OptimizerSettings`)"
    )
    weight_decay: float = Field(0.01, ge=0)
    layer_decay: float = Field(
        1.0, gt=0, le=1, description="each layer learns at this share of the rate of the one above"
    )
    freeze_embeddings: bool = Field(False, description="they keep their weights")
    freeze_layers: int = Field(
        0, ge=0, description="so many of the lowest keep their weights, and the embeddings too"
    )
    unfreeze_epochs: float | None = Field(
        None,
        gt=0,
        description="the head begins alone; each time so many have passed, one layer more learns, "
        "from the top; the embeddings come last",
    )
    lora_rank: int | None = Field(
        None,
        ge=1,
        description="low-rank adapters learn in place of the layers (see `AdapterSettings`), at "
        "higher rates than these would: 2e-4 to 5e-4 in Hu et al. (2021), table 9",
    )
    lora_alpha: float | None = Field(None, gt=0, description="twice the rank, if left out")
    lora_dropout: float = Field(0.0, ge=0, lt=1)
    lora_targets: tuple[str, ...] = Field(("attention.query_key_value",), min_length=1)
    bias_correction: bool = True
    max_grad_norm: float = Field(1.0, gt=0)
    seed: int = Field(0, ge=0)
    ema: float | None = Field(
        None, gt=0, lt=1, description="average the weights with this decay (see `FitSettings`)"
    )
    gradient_checkpointing: bool = Field(
        False, description="less memory, for a second forward pass (see `FitSettings`)"
    )
    precision: Precision = Field("fp32", description="auto: bf16, if the device is fast at it")
    micro_batch_tokens: int | None = Field(None, ge=1, description="tokens that go through at once")
    bucket_batches: int = Field(
        0, ge=0, description="batches over which rows are sorted by length; 0: none (see RowSource)"
    )
    eval_every: int | None = Field(None, ge=1, description="steps; each epoch, if left out")
    best_metric: str | None = Field(None, description="chooses the weights that are kept")
    early_stopping: int | None = Field(
        None, ge=1, description="the run ends after so many evaluations without a better one"
    )
    log_every: int = Field(10, ge=1)
    checkpoint_every: int | None = Field(
        None, ge=1, description="steps; as eval_every, at most 500"
    )
    keep_checkpoints: int = Field(1, ge=1)
    dev_seed: int = Field(
        0,
        ge=0,
        description="of the rows that a share for dev takes (dev=0.1), whatever the seed: runs "
        "with other seeds are measured on the same rows",
    )
    deterministic: bool = False
    teacher: str | None = Field(
        None, description="a fine-tuned classifier to learn from; rows then need no labels"
    )
    temperature: float = Field(1.0, gt=0, description="of teacher and student, in their loss")
    reinitialize: bool = Field(
        False, description="begin with random weights of the same geometry, as a baseline"
    )
    reinitialize_layers: int = Field(
        0,
        ge=0,
        description="so many of the top begin with random weights, and all that stands on them: "
        "pooler and head (Zhang et al. 2021, §5)",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.reinitialize and self.reinitialize_layers:
            raise ValueError("reinitialize begins with random weights in all layers; leave out one")
        if self.lora_rank is not None and (self.reinitialize or self.reinitialize_layers):
            raise ValueError("with lora_rank random layers would never learn; leave out one")
        if self.reinitialize and (self.freeze_embeddings or self.freeze_layers):
            raise ValueError("reinitialize: what is frozen would be random and never learn")
        return self

    def check_together(self) -> None:
        """See that no setting waits for one that is not given, or for an epoch that never comes.

        No validator, since a grid reads its settings one by one; and `lora_rank=null` is given: a
        grid may have it beside other ranks.

        Raises:
            SettingsError: one does.
        """
        try:
            check_decay_share(self.decay_share, self.schedule)
        except ValueError as error:
            raise SettingsError(str(error)) from None
        if self.unfreeze_epochs is not None and self.unfreeze_epochs > self.epochs:
            raise SettingsError(
                f"unfreeze_epochs={self.unfreeze_epochs:g} is more than epochs={self.epochs:g}: "
                "only the head would learn",
                fix="Give fewer, or more epochs.",
            )
        for key, others in _NEEDED.items():
            for other in others:
                value = getattr(self, other)
                is_given = value != type(self).model_fields[other].default
                if is_given and key not in self.model_fields_set:
                    raise SettingsError(
                        f"{other}={value} does nothing without {key}", fix=f"Give {key} too."
                    )

    def adapter_settings(self) -> AdapterSettings | None:
        """The adapters that are wanted, if any."""
        if self.lora_rank is None:
            return None
        return AdapterSettings(
            rank=self.lora_rank,
            alpha=self.lora_alpha or 2.0 * self.lora_rank,
            dropout=self.lora_dropout,
            targets=self.lora_targets,
        )

    def fit_settings(self, steps_per_epoch: int) -> FitSettings:
        """What of this the training loop is told."""
        eval_every = self.eval_every or steps_per_epoch
        unfreeze_every = None
        if self.unfreeze_epochs is not None:
            unfreeze_every = max(1, round(self.unfreeze_epochs * steps_per_epoch))
        return FitSettings(
            seed=self.seed,
            batch_size=self.batch_size,
            micro_batch_tokens=self.micro_batch_tokens,
            optimizer=OptimizerSettings(
                lr=self.learning_rate,
                weight_decay=self.weight_decay,
                layer_decay=self.layer_decay,
                warmup=self.warmup,
                schedule=self.schedule,
                decay_share=self.decay_share,
                bias_correction=self.bias_correction,
            ),
            freezing=FreezingSettings(
                embeddings=self.freeze_embeddings,
                layers=self.freeze_layers,
                unfreeze_every=unfreeze_every,
            ),
            ema=self.ema,
            gradient_checkpointing=self.gradient_checkpointing,
            precision=self.precision,
            max_grad_norm=self.max_grad_norm,
            log_every=self.log_every,
            eval_every=eval_every,
            checkpoint_every=self.checkpoint_every or min(eval_every, 500),
            keep_checkpoints=self.keep_checkpoints,
            deterministic=self.deterministic,
        )


def settings_of(task: type[LabelledTask[Any]]) -> type[FinetuneSettings]:
    """The settings of fine-tuning for a task: those of `FinetuneSettings`, and the task's own."""
    both = create_model(f"{task.__name__}Settings", __base__=(FinetuneSettings, task.options))
    return cast(type[FinetuneSettings], both)

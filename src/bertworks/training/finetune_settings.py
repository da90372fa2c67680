"""The settings of a fine-tuning run: how it is trained, and what the task needs to know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from pydantic import Field, create_model, model_validator

from ..errors import SettingsError
from ..settings import Settings, with_default
from .settings import FitSettings, TrainingSettings

if TYPE_CHECKING:
    from ..tasks.labelled import LabelledTask

_NEEDED = {
    "lora_rank": ("lora_alpha", "lora_dropout", "lora_targets"),
    "teacher": ("temperature",),
}
"""Settings by the one that they need beside them."""


class AdapterSettings(Settings):
    """Low-rank adapters (LoRA), which learn in place of the layers."""

    lora_rank: int | None = Field(
        None,
        ge=1,
        description="of the adapters, such as 8; they want higher rates than the layers: 2e-4 to "
        "5e-4 in Hu et al. (2021), table 9",
    )
    lora_alpha: float | None = Field(
        None,
        gt=0,
        description="the adapters' product is multiplied by lora_alpha / lora_rank; twice the "
        "rank, if left out",
    )
    lora_dropout: float = Field(0.0, ge=0, lt=1, description="of what an adapter takes in")
    lora_targets: tuple[str, ...] = Field(
        ("attention.query_key_value",),
        min_length=1,
        description="the matrices of a layer that get an adapter",
    )


class FinetuneSettings(TrainingSettings, AdapterSettings):
    """How long is trained, and from what; the defaults are the paper's.

    Of the paper's three learning rates 2e-5 is the one of the original code's examples, and the
    least likely to spoil a run; a small encoder needs a higher one (tiny: about 3e-4).
    """

    common: ClassVar = (
        *("epochs", "batch_size", "learning_rate", "warmup", "weight_decay", "freeze_layers"),
        *("lora_rank", "seed", "precision", "micro_batch_tokens", "eval_every", "best_metric"),
        *("early_stopping", "teacher"),
    )

    epochs: float = Field(3.0, gt=0, description="how often each row is learned from")
    batch_size: int = with_default(TrainingSettings, "batch_size", 32)
    learning_rate: float = with_default(TrainingSettings, "learning_rate", 2e-5)
    warmup: float = with_default(TrainingSettings, "warmup", 0.1)
    keep_checkpoints: int = with_default(TrainingSettings, "keep_checkpoints", 1)
    unfreeze_epochs: float | None = Field(
        None, gt=0, description="as unfreeze_every, in epochs (the two exclude each other)"
    )
    bucket_batches: int = Field(
        0, ge=0, description="batches over which rows are sorted by length; 0: none (see RowSource)"
    )
    best_metric: str | None = Field(
        None, description="chooses the weights that are kept; the task's usual, if left out"
    )
    early_stopping: int | None = Field(
        None, ge=1, description="the run ends after so many evaluations without a better one"
    )
    dev_seed: int = Field(
        0,
        ge=0,
        description="of the rows that a share for dev takes (dev=0.1), whatever the seed: runs "
        "with other seeds are measured on the same rows",
    )
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
        description="so many of the top begin with random weights, and all that uses them: pooler "
        "and head (Zhang et al. 2021, §5)",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.reinitialize and self.reinitialize_layers:
            raise ValueError("reinitialize begins with random weights in all layers; leave out one")
        if self.lora_rank is not None and (self.reinitialize or self.reinitialize_layers):
            raise ValueError("with lora_rank random layers would never learn; leave out one")
        if self.reinitialize and (self.freeze_embeddings or self.freeze_layers):
            raise ValueError("reinitialize: what is frozen would be random and never learn")
        if self.unfreeze_epochs is not None and self.unfreeze_every is not None:
            raise ValueError("unfreeze_epochs and unfreeze_every exclude each other")
        return self

    def check_together(self) -> None:
        """See that no setting waits for one that is not given, or for an epoch that never comes.

        No validator, since a grid reads its settings one by one; and `lora_rank=null` is given: a
        grid may have it beside other ranks.

        Raises:
            SettingsError: one does.
        """
        try:
            self.check_decay_share()
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

    def fit_settings(self, steps_per_epoch: int) -> FitSettings:
        """The settings of the training loop, in which an epoch is so many steps."""
        eval_every = self.eval_every or steps_per_epoch
        unfreeze_every = self.unfreeze_every
        if self.unfreeze_epochs is not None:
            unfreeze_every = max(1, round(self.unfreeze_epochs * steps_per_epoch))
        shared = self.model_dump(include=set(TrainingSettings.model_fields))
        return FitSettings.parse(
            {
                **shared,
                "eval_every": eval_every,
                "checkpoint_every": self.checkpoint_every or min(eval_every, 500),
                "unfreeze_every": unfreeze_every,
            }
        )


def settings_of(task: type[LabelledTask[Any]]) -> type[FinetuneSettings]:
    """The settings of fine-tuning for a task: those of `FinetuneSettings`, and the task's own."""
    both = create_model(f"{task.__name__}Settings", __base__=(FinetuneSettings, task.options))
    return cast(type[FinetuneSettings], both)

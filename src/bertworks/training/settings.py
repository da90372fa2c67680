"""Settings of training, with the same names in all commands that train.

Commands differ only in defaults (`settings.with_default`). Nothing here imports torch, so that help
on settings is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, cast

from pydantic import Field, create_model, model_validator

from ..errors import SettingsError
from ..settings.base import Need, Settings, with_default
from ..settings.literals import Precision

if TYPE_CHECKING:
    from ..tasks.labelled import LabelledTask

TrackerKind = Literal["mlflow", "wandb"]
Schedule = Literal[
    "linear", "linear-from-peak", "constant", "slanted-triangular", "warmup-stable-decay"
]

# A step's examples are all held in memory.
MOST_EXAMPLES = 2**20
MOST_TOKENS = 2**30
MAX_STEPS = 10**8 - 1  # names of checkpoints have eight digits, and are ordered as texts
MAX_EPOCHS = 10**6

SMALL = 256
"""The largest hidden_size that needs a higher learning rate in fine-tuning than the paper's."""

_RATE_OF_SMALL = 3e-4

DECAY_SHARE = 0.2
"""The default of `decay_share`."""


def suitable_rate(hidden_size: int) -> float | None:
    """Return the rate that suits fine-tuning a model pre-trained here; None: the usual one.

    `docs/decisions.md` has measurements. Some need a higher one: mini carries 1e-3.
    """
    return _RATE_OF_SMALL if hidden_size <= SMALL else None


class OptimizerSettings(Settings):
    """Optimizer and learning rate."""

    needs: ClassVar[tuple[Need, ...]] = (
        Need(
            ("decay_share",),
            "without schedule=warmup-stable-decay",
            lambda own: own.schedule == "warmup-stable-decay",
        ),
    )

    optimizer: Literal["adamw", "lamb"] = Field(
        "adamw", description="lamb is for very large batches (You et al. 2019)"
    )
    learning_rate: float = Field(1e-4, gt=0, le=10, description="peak learning rate")
    warmup: float = Field(
        0.01, ge=0, description="steps of linear warm-up, or below 1: their share of all steps"
    )
    schedule: Schedule = Field(
        "linear",
        description="after the warm-up. linear: on the line from learning_rate at step 0 to "
        "zero at the last step, as in the original code; linear-from-peak: from "
        "learning_rate at the end of the warm-up to zero, as in Hugging Face; "
        "constant: unchanged; slanted-triangular: ULMFiT (Howard and Ruder 2018, "
        "equation 3), from learning_rate / 32 up to learning_rate and down again; "
        "warmup-stable-decay: constant, then linear to zero over the last steps "
        "(Hu et al. 2024, §4), and with warmup in steps such a run can be extended "
        "with more steps later",
    )
    decay_share: float | None = Field(
        None,
        gt=0,
        le=1,
        description="share of all steps in which warmup-stable-decay lowers the rate; "
        f"{DECAY_SHARE} if omitted",
    )
    weight_decay: float = Field(
        0.01, ge=0, le=100, description="weight decay of all weights except biases and norms"
    )
    layer_decay: float = Field(
        1.0,
        gt=0,
        le=1,
        description="learning rate of a layer as a share of that of the layer above; heads use "
        "the full rate (Howard and Ruder 2018, §3.2; Clark et al. 2020)",
    )
    betas: tuple[float, float] = Field(
        (0.9, 0.999), description="decay rates of the averages of gradients and squared gradients"
    )
    eps: float = Field(
        1e-6, gt=0, le=1, description="added to the root of the average of squared gradients"
    )
    bias_correction: bool = Field(
        True, description="false: no bias correction of the averages, as in the original code"
    )
    max_grad_norm: float = Field(1.0, gt=0, description="gradients are clipped to this norm")

    @model_validator(mode="after")
    def _check_betas(self) -> Self:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas={self.betas}: both must lie in [0, 1)")
        return self

    def check_warmup(self, total: int) -> None:
        """Check that the warm-up ends within a run of `total` steps.

        Raises:
            SettingsError: it does not, so that `learning_rate` would never be reached.
        """
        if self.warmup > total:
            raise SettingsError(
                f"warmup={self.warmup:g} is more than the {total:,} steps of the run: "
                f"learning_rate={self.learning_rate:g} would never be reached",
                fix="Give fewer steps, or their share, such as warmup=0.1.",
            )


class FreezingSettings(Settings):
    """Freezing; heads, poolers and a final norm are always trained."""

    freeze_embeddings: bool = Field(
        False, description="freeze the embeddings, and an output layer that is tied to them"
    )
    freeze_layers: int = Field(
        0, ge=0, description="number of lowest layers to freeze, along with the embeddings"
    )
    unfreeze_every: int | None = Field(
        None,
        ge=1,
        description="gradual unfreezing, in steps: heads are trained alone first; at each "
        "interval the next layer joins, from the top; the embeddings come last",
    )

    def shortfall(self, layers: int, steps: int) -> str | None:
        """The message if gradual unfreezing does not reach all trainable layers; otherwise None.

        Args:
            layers: the number of layers of the encoder.
            steps: the number of all steps.
        """
        if self.unfreeze_every is None:
            return None
        with_embeddings = not self.freeze_layers and not self.freeze_embeddings
        num_unfrozen = (steps - 1) // self.unfreeze_every
        if num_unfrozen >= layers - self.freeze_layers + with_embeddings:
            return None
        return f"gradual unfreezing reaches only the top {num_unfrozen} of {layers} layers"


class TrainingSettings(OptimizerSettings, FreezingSettings):
    """Batches, evaluations and checkpoints."""

    seed: int = Field(
        0, ge=0, lt=2**63, description="random seed of new weights, dropout and data order"
    )
    batch_size: int | None = Field(
        None,
        ge=1,
        le=MOST_EXAMPLES,
        description="rows (examples) per step; fine-tuning takes at most all of them",
    )
    micro_batch_size: int | None = Field(
        None, ge=1, description="rows per forward pass; all if omitted"
    )
    micro_batch_tokens: int | None = Field(
        None, ge=1, description="tokens per forward pass; all if omitted"
    )
    precision: Precision = Field(
        "auto",
        description="bf16: compute in bfloat16, keep weights and their sums in float32; fp16: "
        "likewise in float16 with a scaled loss, on CUDA; tf32: fp32 with rounded factors in "
        "products, on CUDA; auto: bf16 if the device is faster with "
        "it, fp16 on CUDA cards without bfloat16; a resumed run keeps its precision",
    )
    gradient_checkpointing: bool = Field(
        False,
        description="recompute activations in the backward pass: less memory, a third more "
        "time, identical bits",
    )
    ema: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="decay of a running average of the weights, such as 0.999, which is "
        "evaluated and saved in their place",
    )
    log_every: int = Field(10, ge=1, description="steps between journal entries")
    eval_every: int | None = Field(
        None, ge=1, description="steps between evaluations; an epoch if omitted"
    )
    checkpoint_every: int | None = Field(
        None, ge=1, description="steps between checkpoints; as eval_every, at most 500, if omitted"
    )
    keep_checkpoints: int = Field(2, ge=1, description="number of newest checkpoints to keep")
    deterministic: bool = Field(False, description="bitwise reproducible on CUDA too; slower")
    cuda_graphs: bool = Field(
        True,
        description="on one GPU, launch an encoder's kernels together for batches of up to 8,192 "
        "tokens, which are padded by up to an eighth: several times faster for small batches",
    )
    sharding: Literal["none", "full"] = Field(
        "none",
        description="full: of several processes (torchrun), each keeps only its part of "
        "weights, gradients and averages (FSDP2); none: each keeps all",
    )
    rank_timeout: float = Field(
        1800.0,
        gt=0,
        le=30 * 86400,
        description="seconds that processes (torchrun) wait for each other before the run ends "
        "and names the one that hangs",
    )
    tensorboard: bool = Field(
        True, description="also write TensorBoard events, if TensorBoard is installed"
    )
    tracking: TrackerKind | None = Field(
        None,
        description="also send settings and numbers to MLflow or Weights & Biases (wandb), as "
        "their environment variables say; if omitted, nothing is sent",
    )


class FitSettings(TrainingSettings):
    """Batches and data."""

    batch_tokens: int | None = Field(
        None, ge=1, le=MOST_TOKENS, description="maximum tokens per step, in place of batch_size"
    )
    eval_every: int = with_default(
        TrainingSettings, "eval_every", 500, description="steps between evaluations"
    )
    checkpoint_every: int = with_default(
        TrainingSettings, "checkpoint_every", 500, description="steps between checkpoints"
    )
    eval_first: bool = Field(False, description="evaluate before the first step too")
    loader_workers: int = Field(
        0, ge=0, le=1024, description="processes that prepare data ahead of time"
    )

    @model_validator(mode="after")
    def _check_batches_and_decay(self) -> Self:
        if self.batch_size is not None and self.batch_tokens is not None:
            raise ValueError("batch_size and batch_tokens exclude each other; set one to null")
        return self


class AdapterSettings(Settings):
    """Low-rank adapters (LoRA), trained in place of the layers."""

    needs: ClassVar[tuple[Need, ...]] = (
        # An explicit `lora_rank=null` counts, since a grid may list it with other ranks.
        Need(
            ("lora_alpha", "lora_dropout", "lora_targets"),
            "without lora_rank",
            lambda own: "lora_rank" in own.model_fields_set,
        ),
    )

    lora_rank: int | None = Field(
        None,
        ge=1,
        le=2**16,
        description="adapter rank, such as 8; adapters need higher learning rates than layers: "
        "2e-4 to 5e-4 in Hu et al. (2021), table 9",
    )
    lora_alpha: float | None = Field(
        None,
        gt=0,
        le=10_000,
        description="the adapters' product is scaled by lora_alpha / lora_rank; twice the rank "
        "if omitted",
    )
    lora_dropout: float = Field(0.0, ge=0, lt=1, description="dropout on the input of adapters")
    lora_targets: tuple[str, ...] = Field(
        ("attention.query_key_value",),
        min_length=1,
        description="matrices of a layer that get an adapter",
    )


class FinetuneSettings(TrainingSettings, AdapterSettings):
    """Fine-tuning; the defaults are the paper's.

    Of the paper's three learning rates, 2e-5 is that of the original code's examples, and the
    least likely to make a run diverge. A small encoder needs a higher one: models that were
    pre-trained here carry it (`suitable_rate`), and it is the default for them.
    """

    is_checked_later = True
    needs: ClassVar[tuple[Need, ...]] = (
        Need(("temperature",), "without teacher", lambda own: "teacher" in own.model_fields_set),
    )
    common: ClassVar = (
        *("epochs", "batch_size", "learning_rate", "warmup", "weight_decay", "freeze_layers"),
        *("lora_rank", "seed", "precision", "micro_batch_tokens", "eval_every", "best_metric"),
        *("early_stopping", "teacher"),
    )

    epochs: float = Field(3.0, gt=0, le=MAX_EPOCHS, description="passes over the training rows")
    batch_size: int = with_default(TrainingSettings, "batch_size", 32)
    learning_rate: float = with_default(
        TrainingSettings,
        "learning_rate",
        2e-5,
        description="peak learning rate; if omitted, the rate that the model carries, if any",
    )
    warmup: float = with_default(TrainingSettings, "warmup", 0.1)
    keep_checkpoints: int = with_default(TrainingSettings, "keep_checkpoints", 1)
    unfreeze_epochs: float | None = Field(
        None, gt=0, description="as unfreeze_every, in epochs; mutually exclusive with it"
    )
    bucket_batches: int = Field(
        0,
        ge=0,
        description="number of batches whose rows are sorted by length; 0: none (see RowSource)",
    )
    table_sampling: Literal["proportional", "round-robin"] = Field(
        "proportional",
        description="of several training tables: batches in proportion to their rows, or as many "
        "of each as the smallest has, in turn. A batch has rows of one table",
    )
    best_metric: str | None = Field(
        None, description="metric that selects the weights to keep; the task's usual one if omitted"
    )
    early_stopping: int | None = Field(
        None, ge=1, description="stop after this many evaluations without improvement"
    )
    dev_seed: int = Field(
        0,
        ge=0,
        lt=2**63,
        description="selects the rows of a dev share (dev=0.1); independent of seed, so that "
        "runs with other seeds are measured on the same rows",
    )
    teacher: str | None = Field(
        None,
        description="model to learn from, without labels: a fine-tuned classifier; for "
        "retrieval a sentence encoder, whose text vectors are learned",
    )
    temperature: float = Field(
        1.0, gt=0, le=1000, description="temperature of teacher and student in their loss"
    )
    reinitialize: bool = Field(
        False, description="start from random weights of the same geometry, as a baseline"
    )
    reinitialize_layers: int = Field(
        0,
        ge=0,
        description="number of top layers to start from random weights, with pooler and head "
        "(Zhang et al. 2021, §5)",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.reinitialize and self.reinitialize_layers:
            raise ValueError("reinitialize starts all layers from random weights; leave out one")
        if self.lora_rank is not None and (self.reinitialize or self.reinitialize_layers):
            raise ValueError("with lora_rank, random layers would never be trained; leave out one")
        if self.lora_rank is not None and self.sharding == "full":
            raise ValueError("sharding=full has no benefit with lora_rank; leave out one")
        if self.reinitialize and (self.freeze_embeddings or self.freeze_layers):
            raise ValueError("reinitialize: frozen weights would be random and never trained")
        if self.unfreeze_epochs is not None and self.unfreeze_every is not None:
            raise ValueError("unfreeze_epochs and unfreeze_every exclude each other")
        return self

    def check_together(self) -> None:
        """Check that each given setting has an effect together with the others.

        Raises:
            SettingsError: a setting needs one that is not given, or an epoch that is never reached.
        """
        super().check_together()
        if self.unfreeze_epochs is not None and self.unfreeze_epochs > self.epochs:
            raise SettingsError(
                f"unfreeze_epochs={self.unfreeze_epochs:g} is more than epochs={self.epochs:g}: "
                "only the head would learn",
                fix="Lower it, or give more epochs.",
            )

    def fit_settings(self, steps_per_epoch: int) -> FitSettings:
        """Return settings of the training loop, with epochs converted to steps."""
        eval_every = self.eval_every or steps_per_epoch
        unfreeze_every = self.unfreeze_every
        if self.unfreeze_epochs is not None:
            unfreeze_every = max(1, round(self.unfreeze_epochs * steps_per_epoch))
        training_values = self.model_dump(include=set(TrainingSettings.model_fields))
        return FitSettings.parse(
            {
                **training_values,
                "eval_every": eval_every,
                "checkpoint_every": self.checkpoint_every or min(eval_every, 500),
                "unfreeze_every": unfreeze_every,
            }
        )


def settings_of(task: type[LabelledTask[Any]]) -> type[FinetuneSettings]:
    """Return the class of a task's fine-tuning settings: `FinetuneSettings` and the task's."""
    bases = (FinetuneSettings, task.user_settings())
    return cast(type[FinetuneSettings], create_model(f"{task.__name__}Settings", __base__=bases))

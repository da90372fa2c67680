"""Pre-training recipes: all settings of a run, and the recipes included in the package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, Unpack

from pydantic import (
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    field_serializer,
    field_validator,
    model_validator,
)

from ..errors import CheckpointError, SettingsError, did_you_mean
from ..inference.settings import HeldOutSettings
from ..nn.config import STATIC_SETTINGS, EncoderConfig
from ..nn.encoder_geometry import HEAD_DROPOUTS
from ..settings.base import Need, Settings
from ..settings.keywords import PretrainKeywords
from ..settings.literals import InitialAttention, Objective
from ..tasks.pretraining.instances import InstanceSettings
from ..tasks.pretraining.masking import MaskingSettings
from ..tasks.pretraining.settings import (
    PREDICTED_SHARE,
    DistillationSettings,
    ReplacedTokensSettings,
    SkipGramSettings,
)
from .settings import MAX_STEPS, MOST_EXAMPLES, MOST_TOKENS, FitSettings

_WITHOUT_PAIRS = {
    "causal": "the [CLS] of a causal encoder sees only itself, and cannot predict next sentences",
    "replaced_tokens": "replaced_tokens does not use pairs",
    "skip_gram": "skip_gram does not use pairs",
    "permutation": "permutation does not use pairs",
    "masked_permutation": "masked_permutation does not use pairs",
}

_FAMILIES = {"permutation": "xlnet", "masked_permutation": "mpnet"}
"""The family that an objective was made for: the default."""

_NO_GEOMETRY = {
    *HEAD_DROPOUTS,
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range", "size"),
}
"""Settings that may differ from those of a checkpoint: its weights do not depend on them.

`size` is one of them, because the settings that it stands for are compared themselves.
"""


class ModelSettings(EncoderConfig):
    """Geometry, given by a family, a released size and individual settings.

    If `vocab_size` is omitted, it is the size of the tokenizer.
    """

    size: Literal["tiny", "mini", "small", "medium", "base", "large"] | None = Field(
        None, description="a released geometry; other model settings override it"
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: Any) -> Any:
        return cls.fill_in_values(values) if isinstance(values, Mapping) else values

    @classmethod
    def fill_in_values(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the given settings and those that follow from the family and the size."""
        settings: dict[str, Any] = {}
        family = None
        if isinstance(name := values.get("family"), str) and name != "bert":
            from ..checkpoints.families import find_family  # loads torch

            family = find_family(name)
            if name == "static":
                raise CheckpointError(
                    "a static model is not pre-trained in its family's layout",
                    where="model.family=static",
                    fix="Give objective=skip_gram without a family; `bertworks neighbours RUN "
                    "--out DIR` then writes that layout.",
                )
            usual = family.read_config({}, where=name)
            settings |= usual.model_dump(exclude={"vocab_size"}, exclude_unset=True)
        if isinstance(size := values.get("size"), str):
            settings |= EncoderConfig.from_size(size).model_dump(exclude_unset=True)
        settings |= values
        return settings if family is None else dict(family.adjust_settings(settings))

    def config(self, tokenizer_size: int) -> EncoderConfig:
        """Return the encoder's geometry for a tokenizer with `tokenizer_size` pieces.

        Raises:
            SettingsError: `vocab_size` is given and is smaller than the tokenizer.
        """
        values = self.model_dump(exclude={"size"})
        if "vocab_size" not in self.model_fields_set:
            values["vocab_size"] = tokenizer_size
        elif self.vocab_size < tokenizer_size:
            raise SettingsError(
                f"model.vocab_size={self.vocab_size}: the tokenizer has {tokenizer_size} pieces",
                fix="Leave it out, or give a larger one.",
            )
        return EncoderConfig.parse(values)

    def of_checkpoint(self, config: EncoderConfig, *, where: str) -> ModelSettings:
        """Return a checkpoint's geometry, with dropout and initializer range from these settings.

        Raises:
            SettingsError: a setting of the geometry is given and differs from the checkpoint's.
        """
        own_values, theirs = self.model_dump(include=self.model_fields_set), config.model_dump()
        if (key := first_difference(own_values, theirs)) is not None:
            raise SettingsError(
                f"model.{key}={own_values[key]}, but the checkpoint has {theirs[key]}",
                where=where,
                fix="Use a recipe that does not set it, such as adapt.",
            )
        free = {key: own_values[key] for key in own_values.keys() & _NO_GEOMETRY}
        return ModelSettings.parse({**theirs, **free})


def first_difference(
    own_values: Mapping[str, Any], checkpoint_values: Mapping[str, Any]
) -> str | None:
    """Return the first setting of the geometry that differs; None if none does."""
    keys = sorted(own_values.keys() - _NO_GEOMETRY)
    return next((key for key in keys if own_values[key] != checkpoint_values[key]), None)


class PhaseSettings(Settings):
    """Phases of the run, each with one sequence length (paper, appendix A.2)."""

    max_seq_length: int = Field(128, ge=8, description="maximum tokens per sequence")
    share: float = Field(1.0, gt=0, le=1, description="share of all steps")
    batch_size: int | None = Field(
        None,
        ge=1,
        le=MOST_EXAMPLES,
        description="batch size of this phase, if it differs from the run's",
    )
    batch_tokens: int | None = Field(
        None,
        ge=1,
        le=MOST_TOKENS,
        description="maximum tokens per step, in place of batch_size",
    )

    @model_validator(mode="after")
    def _one_batch_size(self) -> Self:
        if self.batch_size is not None and self.batch_tokens is not None:
            raise ValueError("batch_size and batch_tokens of a phase exclude each other")
        return self


def _has_other_format(format: str, settings: PretrainSettings) -> bool:
    return settings.instances.format != format


def _needs_other_objective(objective: str, what: str, *keys: str) -> Need:
    """What has no effect with an objective."""
    reason = f"with objective={objective}, which {what}"
    return Need(
        tuple(f"masking.{key}" for key in keys), reason, lambda own: own.objective != objective
    )


_NEEDS = (
    _needs_other_objective("causal", "masks nothing", *MaskingSettings.model_fields),
    _needs_other_objective("skip_gram", "masks nothing", *MaskingSettings.model_fields),
    _needs_other_objective(
        "permutation", "replaces nothing", "mask_ratio", "random_ratio", "replace"
    ),
    Need(
        ("masking.span_lengths", "masking.max_span_words", "masking.span_geometric_p"),
        "without masking.unit=span",
        lambda own: own.masking.unit == "span",
    ),
    Need(("masking.dupe_factor",), "without masking.static=true", lambda own: own.masking.static),
    *(
        Need(
            ("instances.short_seq_prob", "instances.next_sentence_balance"),
            f"with instances.format={format}",
            partial(_has_other_format, format),
        )
        for format in ("full-sentences", "doc-sentences")
    ),
)


class PretrainSettings(FitSettings):
    """Data, objective and length of the run.

    In a recipe file, the value `REQUIRED` marks a setting that the user must give as `key=value`.
    """

    needs: ClassVar[tuple[Need, ...]] = _NEEDS
    data: str = Field(description="directory written by `prepare`")
    objective: Objective = Field(
        "mlm",
        description="mlm: predict masked tokens; causal: predict the next token; "
        "replaced_tokens (ELECTRA): detect tokens replaced by a small generator; "
        "distillation: masked tokens, with a teacher; skip_gram (word2vec): static "
        "vectors, from tokens near each other; permutation (XLNet): predict tokens in a random "
        "order, each from those before it; masked_permutation (MPNet): the same, with [MASK]s at "
        "the positions of later ones",
    )
    model: ModelSettings = ModelSettings()
    init_checkpoint: str | None = Field(
        None, description="model to start from; its geometry and vocabulary are kept"
    )
    init_generator: str | None = Field(
        None,
        description="model to start the generator of replaced_tokens from, with init_checkpoint",
    )
    initial_attention: InitialAttention = Field(
        "random",
        description="attention of new weights. neighbours: heads of the first layer start by "
        "attending to adjacent tokens, and the loss of masked tokens falls much "
        "sooner; random: as in the paper",
    )
    allow_leak: bool = Field(
        False,
        description="allow objective=causal with model.attention=bidirectional, where each "
        "next token is visible, to show that nothing else is learned (bertworks "
        "lab run cheating)",
    )
    steps: int = Field(
        ge=1,
        le=MAX_STEPS,
        description="total updates; a run can be resumed with more if no past step changes",
    )
    phases: tuple[PhaseSettings, ...] = (PhaseSettings(),)
    instances: InstanceSettings = InstanceSettings()
    masking: MaskingSettings = MaskingSettings()
    held_out: HeldOutSettings = HeldOutSettings()
    distillation: DistillationSettings | None = Field(
        None, description="for objective=distillation: the teacher and its losses"
    )
    replaced_tokens: ReplacedTokensSettings | None = Field(
        None, description="for objective=replaced_tokens: the generator"
    )
    skip_gram: SkipGramSettings | None = Field(
        None, description="for objective=skip_gram: windows and sampling"
    )
    eval_first: bool = Field(True, description="evaluate before the first step too")

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        """Add the settings and groups that the objective needs, unless they are given."""
        if not isinstance(values, Mapping):
            return values
        settings = dict(values)
        objective, model = settings.get("objective"), settings.get("model") or {}
        if objective == "replaced_tokens" and settings.get("replaced_tokens") is None:
            settings["replaced_tokens"] = {}
        if objective == "permutation":
            masking = settings.get("masking") or {}
            if isinstance(masking, Mapping):
                settings["masking"] = {"mlm_probability": PREDICTED_SHARE, **masking}
        if objective == "skip_gram":
            settings["skip_gram"] = settings.get("skip_gram") or {}
        if isinstance(model, Mapping):
            if (
                objective == "causal"
                and ModelSettings.fill_in_values(model).get("attention") is None
            ):
                settings["model"] = {**model, "attention": "causal"}
            if objective == "skip_gram":
                settings["model"] = {**STATIC_SETTINGS, **model}
            if objective in _FAMILIES and settings.get("init_checkpoint") is None:
                settings["model"] = {"family": _FAMILIES[objective], **model}
        return settings

    @model_validator(mode="wrap")
    @classmethod
    def _geometry_is_kept(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Explain an invalid geometry given together with `init_checkpoint`.

        The given settings are checked with the defaults, not with the checkpoint's values, so the
        original error may be misleading.
        """
        try:
            return handler(values)
        except ValidationError as error:
            first = error.errors()[0]
            begins = isinstance(values, Mapping) and values.get("init_checkpoint") is not None
            if not (begins and first["loc"] == ("model",) and first["type"] == "value_error"):
                raise
        named = ", ".join(f"model.{key}" for key in first["input"])
        raise ValueError(f"the geometry of init_checkpoint is kept: leave out {named}")

    @field_validator("data", "init_checkpoint", "init_generator", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        return str(value) if isinstance(value, Path) else value

    @model_validator(mode="after")
    def _phases_fit(self) -> Self:
        if abs(sum(phase.share for phase in self.phases) - 1) > 1e-6:
            raise ValueError("the phases' shares must add up to 1")
        if "max_seq_length" in self.instances.model_fields_set:
            raise ValueError("instances.max_seq_length is set by each phase's max_seq_length")
        is_known = "max_position_embeddings" in self.model.model_fields_set
        if self.init_checkpoint is not None and not is_known:
            return self  # checked again once the checkpoint's geometry is known
        if self.max_seq_length > self.model.max_seqlen:
            raise ValueError(
                f"max_seq_length={self.max_seq_length} is longer than the "
                f"{self.model.max_seqlen} tokens that "
                f"model.max_position_embeddings={self.model.max_position_embeddings} allows"
            )
        return self

    @model_validator(mode="after")
    def _objectives_fit(self) -> Self:
        objective, begins = self.objective, self.init_checkpoint is not None
        for group in ("distillation", "replaced_tokens", "skip_gram"):
            if objective != group and getattr(self, group) is not None:
                raise ValueError(
                    f"{group} needs objective={group}, but objective is {objective!r}: change "
                    "it, or leave the group out"
                )
        if objective == "distillation" and self.distillation is None:
            raise ValueError("objective=distillation needs distillation.teacher=MODEL")
        if begins and self.distillation is not None and self.distillation.initialize:
            raise ValueError("with init_checkpoint, set distillation.initialize=false")
        copied = self.distillation is not None and self.distillation.initialize
        if self.initial_attention != "random" and (begins or copied):
            raise ValueError(
                "initial_attention is for new weights, but this model starts from another one: "
                "leave it out"
            )
        if self.init_generator is not None and (not begins or self.replaced_tokens is None):
            raise ValueError("init_generator needs init_checkpoint and objective=replaced_tokens")
        is_known = not begins or "attention" in self.model.model_fields_set
        if is_known and (self.model.attention == "bidirectional") == (objective == "causal"):
            asked = "causal (or two-way)" if objective == "causal" else "bidirectional"
            if not (self.allow_leak and objective == "causal"):
                raise ValueError(f"objective={objective} needs model.attention={asked}")
        static = ("num_hidden_layers", "positions")
        if objective == "skip_gram" and any(
            getattr(self.model, k) != STATIC_SETTINGS[k] for k in static
        ):
            raise ValueError("objective=skip_gram needs num_hidden_layers=0 and positions=none")
        is_known = not begins or "score_bias" in self.model.model_fields_set
        if is_known and self.model.is_transformer_xl != (objective == "permutation"):
            raise ValueError(
                "objective=permutation and model.family=xlnet need each other: only XLNet has the "
                "query stream, which only this objective trains"
            )
        if self.instances.next_sentence and objective in _WITHOUT_PAIRS:
            raise ValueError(
                f"instances.format={self.instances.format} with objective={objective}: "
                f"{_WITHOUT_PAIRS[objective]}; set instances.format to full-sentences or "
                "doc-sentences"
            )
        return self

    @field_serializer("instances")
    def _without_length(self, instances: InstanceSettings) -> dict[str, Any]:
        return instances.model_dump(exclude={"max_seq_length"})

    @field_serializer("model")
    def _without_own_vocabulary(self, model: ModelSettings) -> dict[str, Any]:
        default = {"vocab_size"} - model.model_fields_set
        return {"size": model.size, **model.model_dump(exclude=default)}

    @property
    def max_seq_length(self) -> int:
        """The maximum sequence length over all phases."""
        return max(phase.max_seq_length for phase in self.phases)

    def phase_steps(self) -> list[int]:
        """The number of steps of each phase; they add up to `steps` in spite of rounding."""
        ends, share = [], 0.0
        for phase in self.phases:
            share += phase.share
            ends.append(round(share * self.steps))
        return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def find_recipe(name: str | Path) -> Path:
    """Return the file of a recipe, given a path or the name of a recipe of the package.

    Raises:
        SettingsError: there is no such file or recipe.
    """
    if Path(name).is_file():
        return Path(name)
    package = Path(str(resources.files("bertworks")))  # an installation, or a source checkout
    folders = (package.parents[1] / "recipes", package / "recipes")
    recipes = {path.stem: path for folder in folders for path in folder.glob("*.yaml")}
    if str(name) in recipes:
        return recipes[str(name)]
    fix = did_you_mean(str(name), recipes) if not str(name).endswith(".yaml") else None
    raise SettingsError("no such recipe", where=str(name), fix=fix)


def read_recipe(
    recipe: str | Path | None, overrides: Sequence[str] = (), **values: Unpack[PretrainKeywords]
) -> PretrainSettings:
    """Read settings from a recipe, then keyword values, then `key=value` words; later ones win.

    Raises:
        SettingsError: the recipe is missing, or a key or value is not valid.
    """
    file = None if recipe is None else find_recipe(recipe)
    return PretrainSettings.resolve(file, overrides, **values)

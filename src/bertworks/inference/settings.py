"""Settings of inference.

Nothing here imports torch, so that help on settings is fast.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from ..data.reading import TableOptions
from ..settings.base import Need, Settings, with_default
from ..settings.literals import Combine, InferencePrecision, Quantization
from ..settings.pooling import PoolingName


class EngineSettings(Settings):
    """Inference; only `precision` and `deterministic` affect the results."""

    batch_tokens: int | None = Field(
        None,
        ge=1,
        description="maximum tokens per batch; by default 8,192; 32,768 for vectors on CUDA",
    )
    window_rows: int = Field(4096, ge=1, description="rows read and sorted by length at a time")
    precision: InferencePrecision = Field(
        "auto",
        description="precision of the encoder. auto: bf16 if the device is faster with it, "
        "else fp32; tf32, fp16: on CUDA; int8: fastest, approximate, on CPUs",
    )
    deterministic: bool = Field(
        False,
        description="bitwise equal results whatever a text is batched with, also where PyTorch "
        "computes in bf16 with AMX, which it slows down; elsewhere on CPUs they always are; not on "
        "GPUs",
    )

    def max_batch_tokens(self, device_type: str = "cpu") -> int:
        """The maximum number of tokens of a batch: as set, or what suits a type of device."""
        return self.batch_tokens or (32_768 if device_type == "cuda" else 8192)


class PredictSettings(EngineSettings):
    """Predictions."""

    needs: ClassVar[tuple[Need, ...]] = (
        Need(("hypothesis_template",), "without labels", lambda own: bool(own.labels)),
        Need(("coverage",), "with labels", lambda own: not own.labels),
    )

    coverage: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="also predict a set of labels for each row, which has the row's label with "
        "this probability; for classifiers that were calibrated on dev",
    )
    labels: tuple[str, ...] = Field(
        (),
        description="names of labels to choose from, separated by commas, by a model that was not "
        "trained for them: of entailment, or a sentence encoder",
    )
    hypothesis_template: str = Field(
        "This example is {}.",
        description="with a model of entailment, the sentence that a text entails if it has the "
        "label {}",
    )


class LayerSettings(Settings):
    """Hidden states to use, and maximum length."""

    needs: ClassVar[tuple[Need, ...]] = (
        Need(("layer_weights",), "without combine=mean", lambda own: own.combine == "mean"),
        Need(("combine",), "with a single layer", lambda own: len(own.layers) > 1),
    )
    layers: tuple[int, ...] = Field(
        (-1,),
        min_length=1,
        description="layers whose vectors are used; 0: the embeddings, -1: the last layer",
    )
    combine: Combine = Field(
        "concat", description="how several layers are combined: side by side, added or averaged"
    )
    layer_weights: tuple[float, ...] | None = Field(
        None, description="weights of the layers, for combine=mean; equal if omitted"
    )
    max_seq_length: int | None = Field(None, ge=1, description="maximum tokens per text")
    truncation: Literal["longest_first", "error"] = Field(
        "longest_first", description="truncate longer texts and report how many, or stop at them"
    )

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        weights = self.layer_weights
        if weights is None:
            return self
        if len(weights) != len(self.layers) or not sum(weights):
            raise ValueError(f"layer_weights: one for each of {len(self.layers)} layers, sum not 0")
        return self


class EmbedSettings(LayerSettings):
    """Text vectors."""

    pooling: PoolingName = Field(
        "mean",
        description="how token vectors become a text vector: mean, cls, max, mean-sqrt, "
        "weighted-mean, sep or pooler, or several side by side, such as cls+max; or a sparse "
        "vector with a number for each piece: splade-max, splade-sum, splade-max-log, "
        "splade-sum-log, piece-weights; none: a matrix for late interaction (ColBERT); if "
        "omitted, as saved with the model, or mean",
    )
    dimensions: int | None = Field(
        None,
        ge=1,
        description="keep only the first so many numbers of a vector; for models trained with "
        "dimensions (Matryoshka)",
    )
    quantization: Quantization = Field(
        "none",
        description="int8: vectors as 8-bit integers; binary: as bits of their signs, in bytes; "
        "both keep directions alone, for models that compare cosines",
    )
    normalize: bool = Field(
        False, description="scale vectors to length 1; if omitted, as saved with the model"
    )
    prompt: str = Field(
        "",
        description='prefix of each text, such as "query: "; if omitted, as saved with the model',
    )
    is_query: bool = Field(
        False,
        description="whether texts are queries: they have their own prompt, in late interaction "
        "their own form, and some models have other modules for them",
    )
    include_prompt: bool = Field(
        True,
        description="whether pooling includes the prompt's tokens; if omitted, as saved with the "
        "model",
    )


class TokenSettings(LayerSettings):
    """Token and word vectors."""

    needs: ClassVar[tuple[Need, ...]] = (
        Need(("pieces",), "without unit=words", lambda own: own.unit == "words"),
    )
    unit: Literal["tokens", "words"] = Field(
        "tokens", description="one vector per token, without special tokens, or one per word"
    )
    pieces: Literal["first", "mean"] = Field(
        "first", description="vector of a word: that of its first piece, or the mean of its pieces"
    )


class GenerationSettings(Settings):
    """Sampling."""

    needs: ClassVar[tuple[Need, ...]] = (
        Need(
            ("top_k", "top_p"),
            "with temperature=0, which takes the most likely token (temperature=1 samples)",
            lambda own: own.temperature > 0,
        ),
    )
    max_new_tokens: int = Field(40, ge=1, description="maximum number of new tokens")
    temperature: float = Field(
        0.0, ge=0, description="sampling temperature; 0: always the most likely token"
    )
    top_k: int | None = Field(
        None, ge=1, description="sample only from this many of the most likely tokens"
    )
    top_p: float | None = Field(
        None,
        gt=0,
        le=1,
        description="sample only from the most likely tokens that have this "
        "share of the probability",
    )
    stop_ids: tuple[int, ...] = Field((), description="ids of tokens that end a text")
    seed: int = Field(0, description="of the draws")


class HeldOutSettings(Settings):
    """Held-out documents, for evaluation."""

    documents: int | float = Field(
        0.01, gt=0, description="number of documents; below 1: their share"
    )
    sequences: int = Field(1024, ge=1, description="number of sequences per evaluation")
    seed: int | None = Field(
        None,
        ge=0,
        description="selects the documents and the masking of their tokens; the run's seed if "
        "omitted. Runs with different seeds can only be compared with the same "
        "value here",
    )


class HeldOutEvaluationSettings(HeldOutSettings):
    """Held-out part of a corpus; if omitted, as in the model's run."""

    seed: int = with_default(
        HeldOutSettings,
        "seed",
        0,
        description="selects the documents and the masking of their tokens; the run's seed if "
        "the model is in a run directory",
    )
    max_seq_length: int = Field(128, ge=8, description="maximum tokens per sequence")


class EvaluateSettings(HeldOutEvaluationSettings, EngineSettings):
    """The settings of `evaluate`."""


class EmbeddingSettings(EmbedSettings, EngineSettings):
    """The settings of `embed`."""


class FeatureSettings(TokenSettings, EngineSettings):
    """The settings of `features`."""

    window_rows: int = with_default(EngineSettings, "window_rows", 256)  # memory: all vectors


class GenerateSettings(GenerationSettings, EngineSettings):
    """The settings of `generate`."""


class TextProbeSettings(EmbedSettings, TableOptions):
    """Classifier on text vectors."""

    text_column: str | None = Field(None, description="column name or number; detected if omitted")
    label_column: str | None = Field(None, description="column name or number; detected if omitted")
    precision: InferencePrecision = Field("auto", description="precision of the encoder")
    inverse_regularization: float = Field(1.0, gt=0, description="scikit-learn's C")
    max_iterations: int = Field(10_000, ge=1, description="maximum iterations of the solver")

    def of_vectors(self) -> dict[str, Any]:
        """The vector settings that were given; the others are those saved with the model."""
        return self.model_dump(include=self.model_fields_set & set(EmbedSettings.model_fields))

    def of_solver(self) -> dict[str, Any]:
        """The settings of `fit_logistic_regression`."""
        return self.model_dump(include={"inverse_regularization", "max_iterations"})

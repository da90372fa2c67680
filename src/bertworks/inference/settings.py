"""The settings of what is computed with a model.

Nothing here imports torch, so that help on settings is fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from ..literals import Combine, InferencePrecision, Pooling
from ..settings import Settings, with_default
from ..tables.reading import TableOptions

_LATER = {"deterministic": False, "prompt": ""}
"""Settings that earlier releases did not have, as those computed."""


def noted(settings: Settings) -> dict[str, Any]:
    """What a note beside results says of settings; that of an earlier release says the same."""
    found = settings.model_dump(mode="json")
    return {name: value for name, value in found.items() if _LATER.get(name) != value}


def setting_in(note: Mapping[str, Any], name: str) -> Any:
    """What a note says of a setting."""
    return note.get(name, _LATER.get(name))


class EngineSettings(Settings):
    """How rows are run through a network; `precision` and `deterministic` alone change answers."""

    former: ClassVar = {
        f"engine.{name}": name for name in ("batch_tokens", "window_rows", "precision")
    }

    batch_tokens: int = Field(8192, ge=1, description="tokens that go through at once, at most")
    window_rows: int = Field(4096, ge=1, description="rows that are held and sorted at a time")
    precision: InferencePrecision = Field(
        "auto",
        description="what the encoder computes in; auto: bf16 where the device is faster at it, "
        "else fp32; int8: the fastest, and approximate",
    )
    deterministic: bool = Field(
        False,
        description="a text's numbers have the same bits whatever it is batched with, also in bf16 "
        "on processors with AMX, where that takes longer; on other CPUs they have anyway",
    )


class LayerSettings(Settings):
    """Which hidden states are taken, and of how much of a text."""

    layers: tuple[int, ...] = Field(
        (-1,), min_length=1, description="whose vectors are taken; 0: the embeddings, -1: the last"
    )
    combine: Combine = Field(
        "concat", description="what is done with several layers: laid side by side, or added up"
    )
    max_seq_length: int | None = Field(None, ge=1, description="the most tokens of a text")
    truncation: Literal["cut", "error"] = Field(
        "cut", description="what becomes of longer texts; how many are cut is said"
    )


class EmbedSettings(LayerSettings):
    """How texts become vectors."""

    pooling: Pooling = Field(
        "mean", description="from tokens to a text; what the model is saved with, or mean"
    )
    normalize: bool = Field(
        False, description="whether vectors have length 1; as the model was saved"
    )
    prompt: str = Field(
        "", description='put before each text, such as "query: "; as the model was saved'
    )


class TokenSettings(LayerSettings):
    """Which vectors are taken of a text."""

    of: Literal["tokens", "words"] = Field("tokens", description="special tokens are left out")
    pieces: Literal["first", "mean"] = Field(
        "first", description="of a word's pieces, the first one's vector, or the mean of all"
    )

    @model_validator(mode="after")
    def _pieces_are_of_words(self) -> Self:
        if self.pieces == "mean" and self.of != "words":
            raise ValueError("pieces=mean is for of=words")
        return self


class GenerationSettings(Settings):
    """How the next token is chosen."""

    max_new_tokens: int = Field(40, ge=1, description="the most tokens that are added")
    temperature: float = Field(0.0, ge=0, description="0: always the likeliest token")
    top_k: int | None = Field(None, ge=1, description="only so many of the likeliest are drawn")
    top_p: float | None = Field(
        None, gt=0, le=1, description="only the likeliest that make up this share are drawn"
    )
    stop_ids: tuple[int, ...] = Field((), description="tokens that end a text")
    seed: int = Field(0, description="of the draws")

    @model_validator(mode="after")
    def _draws_are_drawn(self) -> Self:
        if not self.temperature and (self.top_k is not None or self.top_p is not None):
            raise ValueError(
                "top_k and top_p are of draws, and temperature=0 takes the likeliest token; "
                "temperature=1 draws"
            )
        return self


class HeldOutSettings(Settings):
    """What is never trained on, to measure by."""

    documents: int | float = Field(0.01, gt=0, description="how many; below 1: which share")
    sequences: int = Field(1024, ge=1, description="how many of them an evaluation takes")
    seed: int | None = Field(
        None,
        ge=0,
        description="which documents, and how their tokens are masked; the run's seed if left out. "
        "Runs of different seeds compare only with the same one here",
    )


class MeasuredSettings(HeldOutSettings):
    """Which part of a corpus a pre-trained model is measured on; what is left out is its run's."""

    seed: int = with_default(
        HeldOutSettings,
        "seed",
        0,
        description="which documents, and how their tokens are masked; the run's, where the model "
        "is in a run's directory",
    )
    max_seq_length: int = Field(128, ge=8, description="the most tokens of a sequence")


class EvaluateSettings(MeasuredSettings, EngineSettings):
    """The settings of `evaluate`."""


class EmbeddingSettings(EmbedSettings, EngineSettings):
    """The settings of `embed`."""


class FeatureSettings(TokenSettings, EngineSettings):
    """The settings of `features`."""

    window_rows: int = with_default(EngineSettings, "window_rows", 256)  # with all their vectors


class GenerateSettings(GenerationSettings, EngineSettings):
    """The settings of `generate`."""


class TextProbeSettings(EmbedSettings, TableOptions):
    """The classifier on vectors."""

    text_column: str | None = Field(None, description="name or number; guessed if left out")
    label_column: str | None = Field(None, description="name or number; guessed if left out")
    precision: InferencePrecision = Field("auto", description="what the encoder computes in")
    inverse_regularization: float = Field(1.0, gt=0, description="scikit-learn's C")
    max_iterations: int = Field(10_000, ge=1, description="of the solver, which stops sooner")

    def of_vectors(self) -> dict[str, Any]:
        """What is said of the vectors; the rest is the model's own."""
        return self.model_dump(include=self.model_fields_set & set(EmbedSettings.model_fields))

"""Settings of particular pre-training objectives, in addition to the common ones."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ...settings.base import Settings

DRAW_BITS = 31
"""The number of random bits that a replacement is drawn from."""

PREDICTED_SHARE = 1 / 6
"""Of a sequence's tokens, with objective=permutation (Yang et al. 2019, §2.3: K = 6)."""


class DistillationSettings(Settings):
    """How a student learns from a teacher."""

    teacher: str = Field(description="model with the same vocabulary and an MLM head")
    temperature: float = Field(
        2.0, gt=0, le=1000, description="divides the logits of teacher and student in the soft loss"
    )
    soft_weight: float = Field(
        5.0, ge=0, description="weight of the cross-entropy between teacher and student"
    )
    mlm_weight: float = Field(2.0, ge=0, description="weight of the masked-language-model loss")
    cosine_weight: float = Field(
        1.0, ge=0, description="weight of one minus the cosine of the last hidden states"
    )
    initialize: bool = Field(
        True, description="start from the teacher's embeddings, heads and evenly spaced layers"
    )


class SkipGramSettings(Settings):
    """How static vectors are trained to predict neighbours; the defaults are word2vec's."""

    window: int = Field(
        5,
        ge=1,
        le=1000,
        description="maximum distance between two tokens of a pair; drawn for each token",
    )
    negatives: int = Field(5, ge=1, le=1000, description="number of pieces drawn for each pair")
    subsample: float = Field(
        1e-3, gt=0, description="pieces with a larger share of the corpus are dropped at random"
    )


class ReplacedTokensSettings(Settings):
    """How a generator and a discriminator are trained together; the defaults are the paper's."""

    weight: float = Field(
        50.0, ge=0, description="weight of the discriminator's loss relative to the MLM loss"
    )
    generator_share: float = Field(
        0.25, gt=0, le=1, description="width of the generator, as a share of hidden size and heads"
    )
    generator_layers: float = Field(
        1.0,
        gt=0,
        le=1,
        description="depth of the generator, as a share of the discriminator's layers",
    )
    sharing: Literal["tied", "gradient-disentangled"] = Field(
        "tied",
        description="embeddings of both networks; tied: the same ones (ELECTRA); "
        "gradient-disentangled: the discriminator's are the generator's, without a gradient, plus "
        "a difference that it learns (DeBERTa v3, He et al. 2021)",
    )

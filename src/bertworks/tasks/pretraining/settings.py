"""The settings of objectives of pre-training that have some beside those of all."""

from __future__ import annotations

from pydantic import Field

from ...settings import Settings


class DistillationSettings(Settings):
    """How a student learns from a teacher."""

    teacher: str = Field(description="a model of the same vocabulary, with its MLM head")
    temperature: float = Field(
        2.0, gt=0, description="divides the logits of teacher and student in the soft loss"
    )
    soft_weight: float = Field(
        5.0, ge=0, description="of the cross-entropy between teacher and student"
    )
    mlm_weight: float = Field(2.0, ge=0, description="of the masked-language-model loss")
    cosine_weight: float = Field(
        1.0, ge=0, description="of one minus the cosine of the last hidden states"
    )
    initialize: bool = Field(
        True, description="begin with the teacher's embeddings, heads, and every so many layers"
    )


class SkipGramSettings(Settings):
    """How static vectors are learned from neighbours; the defaults are word2vec's."""

    window: int = Field(
        5, ge=1, description="how far apart two tokens of a pair are at most; drawn for each token"
    )
    negatives: int = Field(5, ge=1, description="pieces drawn for each pair")
    subsample: float = Field(
        1e-3, gt=0, description="pieces of a larger share of the corpus are left out at random"
    )


class ReplacedTokensSettings(Settings):
    """How a generator and a discriminator are trained together; the defaults are the paper's."""

    weight: float = Field(50.0, ge=0, description="of the discriminator's loss beside the MLM loss")
    generator_share: float = Field(
        0.25, gt=0, le=1, description="how wide the generator is: of hidden size and of heads"
    )
    generator_layers: float = Field(
        1.0, gt=0, le=1, description="how deep it is, as a share of the discriminator's layers"
    )

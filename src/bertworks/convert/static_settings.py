"""The settings of static models that are made from other models."""

from __future__ import annotations

from pydantic import Field

from ..nn.part_settings import MAX_COLUMNS
from ..settings.base import Settings


class StaticSettings(Settings):
    """Static models."""

    width: int = Field(
        256, ge=1, le=MAX_COLUMNS, description="width of the vectors; the model's, if that is less"
    )
    sif: float | None = Field(
        1e-4,
        gt=0,
        description="weight of a piece of probability p: sif / (sif + p), where p is estimated "
        "by Zipf's law from its rank in the vocabulary; null: equal weights",
    )


class StaticTrainingSettings(Settings):
    """Training on the model's vectors of texts (--data)."""

    ridge: float = Field(
        0.02,
        gt=0,
        le=1e6,
        description="with texts: weight of the squared distance between a piece's vector and its "
        "vector before the training; rare pieces stay near it",
    )


class DistilSettings(StaticSettings, StaticTrainingSettings):
    """Static models, and their training."""

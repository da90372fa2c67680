"""The settings of static models that are made from other models."""

from __future__ import annotations

from pydantic import Field

from ..nn.config import MAX_COLUMNS
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

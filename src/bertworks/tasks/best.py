"""The metric that selects the best weights of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Best:
    """The metric that selects the best weights."""

    metric: str
    lower_is_better: bool = False
    # the run stops after this many consecutive evaluations without improvement; None: never
    patience: int | None = None

    def is_better(self, value: float, before: float | None) -> bool:
        """Whether a value is better than the best one so far; an equal value is not."""
        if before is None or math.isnan(before):
            return True
        return value < before if self.lower_is_better else value > before

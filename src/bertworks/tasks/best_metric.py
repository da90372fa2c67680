"""The metric that selects the best weights of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class BestMetric:
    """The metric that selects the best weights."""

    metric: str
    lower_is_better: bool = False
    # the run stops after this many consecutive evaluations without improvement; None: never
    patience: int | None = None

    def is_better(self, value: float, best_value: float | None) -> bool:
        """Whether a value is better than the best one so far; an equal value is not."""
        if best_value is None or math.isnan(best_value):
            return True
        return value < best_value if self.lower_is_better else value > best_value

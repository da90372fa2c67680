"""Which weights of a run are kept: those with the best of one metric."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Best:
    """Which metric of the evaluations chooses the weights that are kept.

    Attributes:
        metric: its name.
        lower_is_better: whether less of it is better.
        patience: after how many evaluations in a row that are no better the run ends.
    """

    metric: str
    lower_is_better: bool = False
    patience: int | None = None

    def is_better(self, value: float, before: float | None) -> bool:
        """Whether a value beats the best one before; the first of equals stays the best."""
        if before is None or math.isnan(before):
            return True
        return value < before if self.lower_is_better else value > before

    def has_waited(self, step: int, since: int, every: int) -> bool:
        """Whether enough evaluations, one every so many steps, were no better since a step."""
        return self.patience is not None and step // every - since // every >= self.patience

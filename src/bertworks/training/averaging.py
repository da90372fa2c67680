"""A running average of the weights, which is measured and kept in their place.

    average ← d · average + (1 - d) · weights,   d = min(decay, (1 + t) / (10 + t)) at update t

The average of the last steps is often better than the last step, and steadier from one evaluation
to the next. Early on it forgets faster, or a short run would end where it began. Source: Polyak and
Juditsky (1992); the form is that of TensorFlow's `ExponentialMovingAverage`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class Average:
    """The averages of all that an optimizer has ever updated; what it has not is its own average.

    They stand in the optimizer's state beside its own, so that every checkpoint has them.

    Args:
        optimizer: whose parameters.
        decay: how much of the average is kept at each update; None: there is no average.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, decay: float | None) -> None:
        self._state, self._decay = optimizer.state, decay

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after update number `step`, counted from 1."""
        if self._decay is None:
            return
        for parameter, state in self._state.items():
            if "average" not in state:
                state["average"] = parameter.detach().clone()
        weights, averages = self._pairs()
        decay = min(self._decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(averages, weights, 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Have the network's weights be their averages until the block ends."""
        weights = self._pairs()[0]
        before = [weight.clone() for weight in weights]
        self.keep()
        try:
            yield
        finally:
            for weight, own in zip(weights, before, strict=True):
                weight.copy_(own)

    def keep(self) -> None:
        """Replace the network's weights by their averages."""
        for weight, average in zip(*self._pairs(), strict=True):
            weight.copy_(average)

    def _pairs(self) -> tuple[list[Tensor], list[Tensor]]:
        """The weights that have an average, and the averages."""
        found = [
            (parameter.detach(), state["average"])
            for parameter, state in self._state.items()
            if "average" in state
        ]
        return [weight for weight, _ in found], [average for _, average in found]

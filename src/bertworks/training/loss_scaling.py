"""Scaling of the loss in float16, in which small gradients would be zero.

    scale · loss ─► backward ─► gradients / scale ─► clipping ─► update

If the gradients overflow, the step is computed again with half the scale, from the same weights and
examples: no step is left out. After `GROWTH_INTERVAL` steps without an overflow, the scale doubles.

The training loop reads the norm of the gradients at the end of each step, and so knows whether they
are finite without another wait for the device; PyTorch's `GradScaler` would wait once more.

Source: Micikevicius et al. (2018), "Mixed Precision Training", §3.2. The numbers are those of
PyTorch's `GradScaler`.
"""

from __future__ import annotations

from dataclasses import dataclass

INITIAL_SCALE = 2.0**16
GROWTH_INTERVAL = 2000
_LOWEST = 1.0  # with it float16 has no more range than the loss needs: the gradients are at fault
_HIGHEST = 2.0**32


@dataclass
class LossScale:
    """The factor of the loss; part of each checkpoint."""

    value: float = INITIAL_SCALE
    num_steps: int = 0  # steps since the factor changed
    num_overflows: int = 0  # gradients that overflowed, in the whole run

    def grow(self) -> None:
        """Count a step whose gradients were finite."""
        self.num_steps += 1
        if self.num_steps == GROWTH_INTERVAL:
            self.value, self.num_steps = min(2 * self.value, _HIGHEST), 0

    def shrink(self) -> bool:
        """Halve the factor after an overflow; return whether it could be lower."""
        if self.value <= _LOWEST:
            return False
        self.num_overflows += 1
        self.value, self.num_steps = self.value / 2, 0
        return True

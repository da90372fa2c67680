"""What is asked of a training run: settings, phases, and which weights to keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from typing import Any, Self

from ..errors import SettingsError
from ..tasks.task import Source
from .settings import FitSettings, OptimizerSettings
from .stream import BatchSize


@dataclass(frozen=True)
class Phase:
    """A stretch of a run with a source of its own.

    Attributes:
        source: where its examples come from.
        steps: how many updates it has.
        name: what the journal calls it.
        batch_size: examples of a step, where they differ from the settings'.
        batch_tokens: the like for tokens.
    """

    source: Source[Any]
    steps: int
    name: str = "train"
    batch_size: int | None = None
    batch_tokens: int | None = None

    def batch(self, settings: FitSettings) -> BatchSize:
        """The size of the phase's batches: its own, else the settings'.

        Raises:
            SettingsError: neither says.
        """
        of = self if self.batch_size is not None or self.batch_tokens is not None else settings
        if of.batch_size is None and of.batch_tokens is None:
            raise SettingsError("no batch size", fix="Give batch_size or batch_tokens.")
        return BatchSize(
            of.batch_size, of.batch_tokens, settings.micro_batch_size, settings.micro_batch_tokens
        )


@dataclass(frozen=True)
class Plan:
    """The phase and the learning rate of each step of a run.

    A run may be resumed with another number of steps, if that changes no step that was done.

    Attributes:
        phase_steps: the steps of each phase.
        optimizer: the settings of the learning rate.
    """

    phase_steps: tuple[int, ...]
    optimizer: OptimizerSettings

    @classmethod
    def of(cls, phases: Sequence[Phase], optimizer: OptimizerSettings) -> Self:
        """The plan of these phases."""
        return cls(tuple(phase.steps for phase in phases), optimizer)

    @property
    def total(self) -> int:
        """The steps of all phases."""
        return sum(self.phase_steps)

    def to_dict(self) -> dict[str, Any]:
        """What a checkpoint notes of it, for `difference`."""
        return {"phase_steps": list(self.phase_steps)}

    @property
    def decay_start(self) -> int | None:
        """As `OptimizerSettings.decay_start`."""
        return self.optimizer.decay_start(self.total)

    def difference(self, state: Mapping[str, Any]) -> str | None:
        """Why a checkpoint cannot be resumed with this plan; None if it can.

        Args:
            state: the checkpoint's state, as `save_state` writes it.
        """
        done = state["train"]["step"]
        if "plan" not in state:  # written before plans were noted: its plan could not be changed
            return None
        before = type(self)(tuple(state["plan"]["phase_steps"]), self.optimizer)
        if before == self:
            return None
        if done > self.total:
            return f"step {done} was done already"
        for end_before, end in zip_longest(before._ends(), self._ends(), fillvalue=done):
            if min(end_before, done) != min(end, done):
                return f"step {min(end_before, end) + 1} was in another phase"
        for step in range(done):
            was, now = (self.optimizer.rate(step, plan.total) for plan in (before, self))
            if was != now:
                return f"the learning rate of step {step + 1} was {was:.6g}, and would be {now:.6g}"
        return None

    def _ends(self) -> list[int]:
        return list(accumulate(self.phase_steps))

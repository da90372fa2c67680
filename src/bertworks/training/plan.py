"""The plan of a run: its phases, and the learning rate of each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from typing import TYPE_CHECKING, Any, Self

from ..errors import SettingsError
from ..tasks.task import Source
from .optimizer import decay_start, learning_rate
from .settings import FitSettings, OptimizerSettings
from .stream import BatchSize

if TYPE_CHECKING:
    from .recipe import PhaseSettings


@dataclass(frozen=True)
class Phase:
    """A part of a run, with its source of examples."""

    source: Source[Any]
    steps: int  # number of updates
    name: str = "train"  # the name in the journal
    batch_size: int | None = None  # examples per step, if they differ from the settings
    batch_tokens: int | None = None  # tokens per step, likewise


def batch_of(phase: Phase | PhaseSettings, settings: FitSettings) -> BatchSize:
    """Return the batch size of a phase: its own if given, otherwise that of the settings.

    Raises:
        SettingsError: neither gives one.
    """
    owner = phase if phase.batch_size is not None or phase.batch_tokens is not None else settings
    if owner.batch_size is None and owner.batch_tokens is None:
        raise SettingsError("no batch size", fix="Give batch_size or batch_tokens.")
    return BatchSize(
        owner.batch_size, owner.batch_tokens, settings.micro_batch_size, settings.micro_batch_tokens
    )


@dataclass(frozen=True)
class Plan:
    """The phase and the learning rate of each step of a run.

    A run may be resumed with another number of steps if that changes no step already done.
    """

    phase_steps: tuple[int, ...]  # the steps of each phase
    optimizer: OptimizerSettings  # determines the learning rate

    @classmethod
    def from_phases(cls, phases: Sequence[Phase], optimizer: OptimizerSettings) -> Self:
        """Return the plan of these phases.

        Raises:
            SettingsError: the warm-up is longer than the run.
        """
        plan = cls(tuple(phase.steps for phase in phases), optimizer)
        optimizer.check_warmup(plan.total)
        return plan

    @property
    def total(self) -> int:
        """The number of steps of all phases."""
        return sum(self.phase_steps)

    @property
    def decay_start(self) -> int | None:
        """See `optimizer.decay_start`."""
        return decay_start(self.optimizer, self.total)

    def difference(self, state: Mapping[str, Any]) -> str | None:
        """Return why a checkpoint cannot be resumed with this plan; None if it can.

        Args:
            state: the checkpoint's state, as `Checkpointer` writes it.
        """
        num_done = state["train"]["step"]
        previous_plan = type(self)(tuple(state["plan"]["phase_steps"]), self.optimizer)
        if previous_plan == self:
            return None
        if num_done > self.total:
            return f"the earliest checkpoint is of step {num_done} already"
        for end_before, end in zip_longest(
            previous_plan._phase_ends(), self._phase_ends(), fillvalue=num_done
        ):
            if min(end_before, num_done) != min(end, num_done):
                return f"that puts step {min(end_before, end) + 1} into another phase"
        for step in range(num_done):
            was, now = (
                learning_rate(self.optimizer, step, plan.total) for plan in (previous_plan, self)
            )
            if was != now:
                return (
                    f"that changes the learning rate from step {step + 1} on "
                    f"({was:.3g}, now {now:.3g})"
                )
        return None

    def _phase_ends(self) -> list[int]:
        return list(accumulate(self.phase_steps))

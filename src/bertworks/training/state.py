"""The plan of a run, and its state, which is saved to checkpoints and restored from them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate, zip_longest
from typing import TYPE_CHECKING, Any, Self

import torch

from ..errors import SettingsError, TrainingError
from ..runs.run_directory import RunDirectory
from ..tasks.task import Network, Source
from .checkpoint import (
    ResumeWarning,
    checkpoint_states,
    load_newest,
    remove_after,
    remove_old,
    restore,
    save_checkpoint,
    write_tensors,
)
from .distributed import ProcessGroup
from .random_state import get_random_state, seed_everything, set_random_state
from .settings import FitSettings, OptimizerSettings
from .sharding import is_sharded
from .stream import BatchSize, Position

if TYPE_CHECKING:
    from .recipe import PhaseSettings


@dataclass
class TrainState:
    """The state of a run, except weights, optimizer state and random states."""

    step: int = 0  # number of updates done
    phase: int = 0  # index of the current phase
    position: Position = field(default_factory=Position)  # the next position in its stream
    tokens: int = 0  # number of tokens trained on, over all ranks; `examples` likewise
    examples: int = 0
    seconds: float = 0.0  # time of the run so far; the only value that is not reproducible
    # sums over the steps since the last journal line
    recent: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)  # of the last evaluation
    best_step: int | None = None  # the step of the best evaluation; `best_value` is its metric
    best_value: float | None = None
    best_sha256: str | None = None  # checksum of the file of the best weights; only on rank 0


@dataclass(frozen=True)
class FitResult:
    """The final state of a run, and the step from which this session resumed, if any."""

    state: TrainState
    resumed_step: int | None

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the last evaluation."""
        return self.state.metrics


@dataclass(frozen=True)
class Checkpointer:
    """Saves and restores a `TrainState` and everything else that a checkpoint contains."""

    run: RunDirectory
    network: Network
    optimizer: torch.optim.Optimizer
    group: ProcessGroup
    facts: Mapping[str, Any]  # of the machine; the exact results depend on them
    plan: Plan
    # how many of the newest checkpoints are kept, in addition to the one before the learning rate
    # decays, from which the run can be extended
    keep: int

    def save(self, state: TrainState) -> None:
        """Write a checkpoint of everything that the next step depends on.

        Every rank must call it. Rank 0 writes; of a sharded network, each rank writes its part.

        Raises:
            OutputError: the disk is full or not writable; earlier checkpoints are untouched.
        """
        run, group = self.run, self.group
        random = group.gather(get_random_state(group.device))
        if is_sharded(self.network) and not group.is_main:
            directory: Any = group.gather(None)[0]  # from rank 0
            write_tensors(directory, self.network, self.optimizer)
        elif group.is_main:
            rest = {
                "train": asdict(state),
                "random": random,
                "journal_bytes": run.sync_journal(),
                "journal_crc32": run.journal_checksum(),
                "facts": dict(self.facts),
                "plan": {"phase_steps": list(self.plan.phase_steps)},
            }
            save_checkpoint(
                run.checkpoints,
                state.step,
                self.network,
                self.optimizer,
                rest,
                keep=self.keep,
                keep_step=self.plan.decay_start,
                announce=group.gather if is_sharded(self.network) else lambda _: None,
            )
            _forget_best(run, state.step)

    def resume(self, seed: int) -> TrainState | None:
        """Restore the newest checkpoint that fits the plan.

        Later checkpoints (damaged, or of a plan that has changed) are deleted, and so are later
        best weights: those steps are done again, and the result may differ.

        Args:
            seed: the run's seed; used if there is no random state for this rank.

        Returns:
            The checkpoint's state; None if there is no checkpoint, and the run starts from the
            beginning.

        Raises:
            CheckpointError: there are checkpoints, but all are damaged, belong to another network,
                or do not fit the plan.
            TrainingError: the ranks see different checkpoints.
        """
        run, group, plan = self.run, self.group, self.plan
        checkpoint = load_newest(run.checkpoints, lambda state: plan.difference(state) is None)
        found = group.gather(checkpoint and checkpoint.path.name)  # each rank reads for itself
        if len(set(found)) > 1:
            names = ", ".join(f"{rank}: {name or 'none'}" for rank, name in enumerate(found))
            raise TrainingError(
                f"the ranks see different checkpoints ({names})",
                where=str(run.checkpoints),
                fix="Put the run directory on a file system that all machines share.",
            )
        if checkpoint is None:
            seed_everything(seed, group.rank)
            if group.is_main:  # of an earlier run
                run.outcome_file.unlink(missing_ok=True)
            run.truncate_journal(0)
            return None
        restore(checkpoint, self.network, self.optimizer)
        saved_state = checkpoint.state
        position = Position(*saved_state["train"]["position"])
        state = TrainState(**{**saved_state["train"], "position": position})
        if group.is_main:
            _warn_of_changes(saved_state["facts"], self.facts)
        if group.rank < len(saved_state["random"]):
            set_random_state(saved_state["random"][group.rank], group.device)
        else:
            seed_everything(seed + state.step, group.rank)
        if group.is_main:
            remove_after(run.checkpoints, state.step)
            if state.step < plan.total:  # a finished run is extended
                run.outcome_file.unlink(missing_ok=True)
        run.truncate_journal(saved_state["journal_bytes"], saved_state["journal_crc32"])
        if group.is_main:  # also what a killed `save` did not delete
            remove_old(run.checkpoints, keep=self.keep, keep_step=plan.decay_start)
            _forget_best(run, state.step)
        return state


def find_plan_conflict(run: RunDirectory, plan: Plan) -> str | None:
    """Return why a run cannot be resumed with a plan of other steps; None if it can."""
    differences = [plan.difference(state) for state in checkpoint_states(run.checkpoints)]
    if not differences or None in differences:
        return None
    return f"{differences[-1]}, so this run cannot be resumed with it"


def _forget_best(run: RunDirectory, step: int) -> None:
    """Delete best weights older than those of the oldest checkpoint, or later than `step`."""
    *_, oldest = checkpoint_states(run.checkpoints)
    first = run.best_weights(oldest["train"]["best_step"] or 0)
    for file in run.best.glob("step-*.safetensors"):
        if not first <= file <= run.best_weights(step):
            file.unlink()


def _warn_of_changes(previous_facts: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    changes = [
        f"{key} {previous_facts[key]} → {now[key]}"
        for key in now
        if previous_facts.get(key, now[key]) != now[key]
    ]
    if changes:
        warnings.warn(
            f"the run resumes with {', '.join(changes)}: it will not be the same, bit for bit, "
            "as an uninterrupted one",
            ResumeWarning,
            stacklevel=2,
        )


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
        """See `OptimizerSettings.decay_start`."""
        return self.optimizer.decay_start(self.total)

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
            was, now = (self.optimizer.rate(step, plan.total) for plan in (previous_plan, self))
            if was != now:
                return (
                    f"that changes the learning rate from step {step + 1} on "
                    f"({was:.3g}, now {now:.3g})"
                )
        return None

    def _phase_ends(self) -> list[int]:
        return list(accumulate(self.phase_steps))

"""The state of a run, which is saved to checkpoints and restored from them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from ..errors import TrainingError
from ..runs.run_directory import RunDirectory
from ..tasks.network import Network
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
from .loss_scaling import LossScale
from .plan import Plan
from .random_state import get_random_state, seed_everything, set_random_state
from .sharding import is_sharded
from .stream import Position


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
    loss_scale: LossScale | None = None  # in float16

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainState:
        """Return the state of a checkpoint, as `asdict` made it."""
        scale = values["loss_scale"]
        own = {
            "position": Position(*values["position"]),
            "loss_scale": None if scale is None else LossScale(**scale),
        }
        return cls(**{**values, **own})


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
        checkpoint_name = checkpoint and checkpoint.path.name
        checkpoint_names = group.gather(checkpoint_name)  # each rank reads for itself
        if len(set(checkpoint_names)) > 1:
            names = ", ".join(
                f"{rank}: {name or 'none'}" for rank, name in enumerate(checkpoint_names)
            )
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
        state = TrainState.from_dict(saved_state["train"])
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

"""Where a run stands, into a checkpoint and out of it again."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from .. import files
from ..tasks.task import Network
from .checkpoint import (
    ResumeWarning,
    checkpoint_states,
    load_newest,
    remove_after,
    restore,
    save_checkpoint,
)
from .distributed import Team
from .journal import RunDirectory
from .plan import Plan
from .random_state import get_random_state, seed_everything, set_random_state
from .stream import Position


@dataclass
class TrainState:
    """Where a run stands, but for weights, optimizer and random states.

    Attributes:
        step: updates done.
        phase: the phase that it is in.
        position: where that phase's stream goes on.
        tokens: tokens learned from, over all ranks; `examples` likewise.
        seconds: what it has taken so far; the one entry that depends on the clock.
        recent: sums over the steps since the last line of the journal.
        metrics: of the last evaluation.
        best_step: the step of the best evaluation, and `best_value` its metric.
    """

    step: int = 0
    phase: int = 0
    position: Position = field(default_factory=Position)
    tokens: int = 0
    examples: int = 0
    seconds: float = 0.0
    recent: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    best_step: int | None = None
    best_value: float | None = None


@dataclass(frozen=True)
class FitResult:
    """How a run ended: where it stands, and the step that this session went on from, if any."""

    state: TrainState
    resumed_from: int | None

    @property
    def metrics(self) -> dict[str, float]:
        """Those of the last evaluation."""
        return self.state.metrics


def save_state(
    state: TrainState,
    run: RunDirectory,
    network: Network,
    optimizer: torch.optim.Optimizer,
    team: Team,
    facts: Mapping[str, Any],
    plan: Plan,
    *,
    keep: int,
) -> None:
    """Write a checkpoint of everything that the next step depends on.

    Every rank calls it; rank 0 writes. The newest `keep` checkpoints are kept, and the one before
    the learning rate decays, from which the run can be extended.

    Raises:
        OutputError: the disk is full or not writable; earlier checkpoints are untouched.
    """
    random = team.gather(get_random_state(team.device))
    if team.is_main:
        rest = {
            "train": asdict(state),
            "random": random,
            "journal_bytes": run.sync_journal(),
            "facts": dict(facts),
            "plan": plan.to_dict(),
        }
        save_checkpoint(
            run.checkpoints,
            state.step,
            network,
            optimizer,
            rest,
            keep=keep,
            keep_step=plan.decay_start,
        )
        _forget_best(run)


def resume_state(
    run: RunDirectory,
    network: Network,
    optimizer: torch.optim.Optimizer,
    team: Team,
    facts: Mapping[str, Any],
    plan: Plan,
    *,
    seed: int,
) -> TrainState | None:
    """Go back to the newest checkpoint whose steps are those of the plan.

    Later checkpoints, which are damaged or of a plan that was changed, are deleted, and so are
    later best weights: those steps are done again, maybe with another outcome.

    Returns:
        The checkpoint's state; None if there is none, and everything begins afresh.

    Raises:
        CheckpointError: there are checkpoints, but all are damaged, of another network, or do not
            fit the plan.
    """
    checkpoint = load_newest(run.checkpoints, lambda state: plan.difference(state) is None)
    if checkpoint is None:
        seed_everything(seed, team.rank)
        if team.is_main:  # an earlier run's; this one is not finished
            run.outcome_file.unlink(missing_ok=True)
        run.cut_journal(0)
        return None
    restore(checkpoint, network, optimizer)
    saved = checkpoint.state
    position = Position(*saved["train"]["position"])
    state = TrainState(**{**saved["train"], "position": position})
    if team.is_main:
        _warn_of_changes(saved["facts"], facts)
    if team.rank < len(saved["random"]):
        set_random_state(saved["random"][team.rank], team.device)
    else:
        seed_everything(seed + state.step, team.rank)
    team.gather(None)  # every rank has read its checkpoint
    if team.is_main:
        remove_after(run.checkpoints, state.step)
        _adopt_best(run, state)
        for file in run.best.glob("step-*.safetensors"):
            if file > run.best_weights(state.step):
                file.unlink()
        if state.step < plan.total:  # it was finished, and is extended
            run.outcome_file.unlink(missing_ok=True)
    run.cut_journal(saved["journal_bytes"])
    return state


def refusal(run: RunDirectory, plan: Plan) -> str | None:
    """Why a run cannot be resumed with a plan that has other steps; None if it can."""
    differences = [
        plan.difference(state) if "plan" in state else "it was written by an older version"
        for state in checkpoint_states(run.checkpoints)
    ]
    if not differences or None in differences:
        return None
    return f"no checkpoint fits: of the earliest, {differences[-1]}"


def _forget_best(run: RunDirectory) -> None:
    """Delete the best weights that were beaten before the oldest checkpoint."""
    *_, oldest = checkpoint_states(run.checkpoints)
    if (best_step := oldest["train"]["best_step"]) is not None:
        for file in run.best.glob("step-*.safetensors"):
            if file < run.best_weights(best_step):
                file.unlink()


def _adopt_best(run: RunDirectory, state: TrainState) -> None:
    """Give the best weights the name of their step, where an older version called them otherwise.

    It kept one file. If that is of an evaluation after the checkpoint, the evaluation is done again
    and finds the same weights best.
    """
    old = run.best / "weights.safetensors"
    if state.best_step is not None and old.exists():
        files.rename(old, run.best_weights(state.best_step))


def _warn_of_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    changes = [
        f"{key} {before.get(key)} → {now[key]}" for key in now if before.get(key) != now[key]
    ]
    if changes:
        warnings.warn(
            f"the run resumes with {', '.join(changes)}: it will not be the same, bit for bit, as "
            "an unbroken one",
            ResumeWarning,
            stacklevel=2,
        )

"""Where a run stands, into a checkpoint and out of it again."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from ..tasks.task import Network
from .checkpoint import ResumeWarning, load_newest, restore, save_checkpoint
from .distributed import Team
from .journal import RunDirectory
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
    *,
    keep: int,
) -> None:
    """Write a checkpoint of everything that the next step depends on.

    Every rank calls it; rank 0 writes.

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
        }
        save_checkpoint(run.checkpoints, state.step, network, optimizer, rest, keep=keep)


def resume_state(
    run: RunDirectory,
    network: Network,
    optimizer: torch.optim.Optimizer,
    team: Team,
    facts: Mapping[str, Any],
    *,
    seed: int,
) -> TrainState | None:
    """Go back to the newest checkpoint; None if there is none, and everything begins afresh.

    Raises:
        CheckpointError: there are checkpoints, but all are damaged or of another network.
    """
    checkpoint = load_newest(run.checkpoints)
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
    run.cut_journal(saved["journal_bytes"])
    return state


def _warn_of_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    changes = [
        f"{key} {before.get(key)} → {now[key]}" for key in now if before.get(key) != now[key]
    ]
    if changes:
        warnings.warn(
            f"the run goes on with {', '.join(changes)}: it will not be the same, bit for bit, as "
            "an unbroken one",
            ResumeWarning,
            stacklevel=2,
        )

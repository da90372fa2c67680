"""A search: optuna says what to try next; what was tried is in the grid's own journal.

Optuna's storage is not used. Its sampler draws anew for each trial, from the seed, the trial's
number and the results so far, and so has no state that a kill could lose.

Source: Bergstra et al. 2011, "Algorithms for Hyper-Parameter Optimization" (TPE).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import need
from .space import Axis, Point, Range, Space

STARTUP = 10
"""So many trials are drawn at random, before the search looks at results."""


def require_optuna() -> None:
    """See that a search can be made.

    Raises:
        BertworksError: optuna is not installed.
    """
    need("optuna", "optuna", "A search")


def propose(
    space: Space,
    count: int,
    results: Sequence[tuple[Point, float | None]],
    *,
    seed: int,
    lower_is_better: bool,
) -> list[Point]:
    """The next points to try.

    Args:
        space: what they are drawn from.
        count: how many are wanted; they know the results alike, and keep away from one another.
        results: the points tried so far, in order, with their values; None for one that failed.
        seed: of the draws.
        lower_is_better: of the values.

    Raises:
        BertworksError: optuna is not installed.
    """
    optuna: Any = need("optuna", "optuna", "A search")
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # what it would tell, we do
    distributions = {name: _distribution(optuna, axis) for name, axis in space.axes.items()}
    study = optuna.create_study(direction="minimize" if lower_is_better else "maximize")
    for point, value in results:
        state = optuna.trial.TrialState
        params = {name: _parameter(axis, point[name]) for name, axis in space.axes.items()}
        study.add_trial(
            optuna.trial.create_trial(
                params=params,
                distributions=distributions,
                value=value,
                state=state.FAIL if value is None else state.COMPLETE,
            )
        )
    found = []
    for number in range(len(results), len(results) + count):
        # A prime between the seeds: no two searches share a row of draws.
        study.sampler = optuna.samplers.TPESampler(
            seed=(seed * 1_000_003 + number) % 2**32, n_startup_trials=STARTUP
        )
        found.append(_point(space.axes, study.ask(distributions).params))
    return found


def _distribution(optuna: Any, axis: Axis) -> Any:
    if not isinstance(axis, Range):
        return optuna.distributions.CategoricalDistribution(range(len(axis)))
    if axis.is_whole:
        return optuna.distributions.IntDistribution(int(axis.low), int(axis.high))
    return optuna.distributions.FloatDistribution(axis.low, axis.high, log=True)


def _parameter(axis: Axis, value: Any) -> Any:
    """A point's value as optuna has it: of a list, which one, since its values may be lists too."""
    if isinstance(axis, Range):
        return value
    return axis.index(tuple(value) if isinstance(value, list) else value)  # as a journal has it


def _point(axes: Mapping[str, Axis], parameters: Mapping[str, Any]) -> Point:
    """The point with numbers that people can read: three digits are enough for a search."""
    return {name: _value(axis, parameters[name]) for name, axis in axes.items()}


def _value(axis: Axis, parameter: Any) -> Any:
    if not isinstance(axis, Range):
        return axis[parameter]
    if axis.is_whole:
        return parameter
    return min(max(float(f"{parameter:.3g}"), axis.low), axis.high)

"""The space of a grid or a search: the varied settings, their values, and optuna's proposals.

Users give it in words. The values of a setting replace those of `paper` and of a search:

    paper                       the grid of the paper's appendix A.3
    learning_rate=1e-5,3e-5     these values of a setting
    learning_rate=1e-5..1e-4    for a search: any value between (whole numbers, if both ends are)
    optuna:20                   a search of 20 trials, instead of all combinations
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import quote

from ..errors import SettingsError, did_you_mean, import_optional
from ..training.settings import FinetuneSettings

Grid: TypeAlias = str | Sequence[str] | Mapping[str, str | Sequence[Any]]
"""A grid as users give it: words, or the values of each setting."""

Point: TypeAlias = dict[str, Any]
"""A value for each varied setting."""

PAPER = {"batch_size": "16,32", "learning_rate": "5e-5,3e-5,2e-5", "epochs": "2,3,4"}
SEARCH = {"batch_size": "16,32", "learning_rate": "1e-5..1e-4", "epochs": "2..4"}

_MAX_BYTES = 200  # of a directory's name; file systems allow 255

_CONSTANT_SETTINGS = {
    "seed": "Give seeds instead.",
    "best_metric": "It ranks the runs: give one for all of them.",
    "dev_seed": "All runs are measured on the same rows: give one for all of them.",
}


@dataclass(frozen=True)
class Range:
    """All values of an interval: whole numbers, or any numbers, sampled on a logarithmic scale."""

    low: float  # the bounds, both included
    high: float
    is_whole: bool  # whether it contains only whole numbers

    def __str__(self) -> str:
        return f"{format_value(self.low)}..{format_value(self.high)}"


Axis: TypeAlias = tuple[Any, ...] | Range


@dataclass(frozen=True)
class Space:
    """The varied settings, each with its values."""

    axes: Mapping[str, Axis]  # by name of the setting; ranges only in a search
    trials: int | None = None  # number of points that a search tries; None: all combinations

    @classmethod
    def parse(
        cls, grid: Grid, settings: type[FinetuneSettings], constants: Mapping[str, Any]
    ) -> Space:
        """Read a grid as users give it.

        Args:
            settings: the class that validates the settings.
            constants: settings that are not varied. A preset (`paper`, or the default space of a
                search) does not vary these.

        Raises:
            SettingsError: a word is neither a preset nor a setting with values; a setting is
                unknown, has an impossible value, or is also constant; two values of a grid exclude
                each other; or there is a range without a search.
        """
        reader = _Reader(settings, constants)
        axes_text: Mapping[str, Any]
        if isinstance(grid, Mapping):
            axes_text, presets = grid, []
        else:
            words = [grid] if isinstance(grid, str) else list(grid)
            parts = [word.partition("=") for word in words]
            axes_text = {name: text for name, is_named, text in parts if is_named}
            for name in axes_text:
                if sum(other == name for other, _, _ in parts) > 1:
                    raise SettingsError(f"{name} is given twice in the grid", fix="Leave one out.")
            presets = [word for word in words if "=" not in word]
        axes = {name: reader.axis(name, values) for name, values in axes_text.items()}
        trials = None
        for word in presets:
            found = re.fullmatch(r"optuna:([1-9]\d*)", word)
            if found:
                trials = int(found[1])
            elif word != "paper":
                raise SettingsError(
                    f"unknown grid {word!r}",
                    fix=f"{did_you_mean(word, ('paper', 'optuna:20'))}; or name a setting's "
                    "values, like learning_rate=1e-5,3e-5.",
                )
        preset = PAPER if "paper" in presets else SEARCH if trials else {}
        usual = {
            name: reader.axis(name, text) for name, text in preset.items() if name not in constants
        }
        for name, axis in axes.items():
            if isinstance(axis, Range) and trials is None:
                raise SettingsError(
                    f"{name}={axis} is a range, which only a search can draw from",
                    fix="Add the word optuna:20 for a search of 20 trials, or list the values.",
                )
        space = cls({**usual, **axes}, trials)
        if trials is None:
            for point in space.points():
                settings.parse(
                    {**constants, **point}, where=name_of(point) or None
                ).check_together()
        return space

    def points(self) -> list[Point]:
        """All combinations, the last setting varying fastest; one point if nothing is varied."""
        values = [axis for axis in self.axes.values() if isinstance(axis, tuple)]
        assert len(values) == len(self.axes), "ranges are for searches"
        return [dict(zip(self.axes, each, strict=True)) for each in itertools.product(*values)]

    def describe(self) -> dict[str, Any]:
        """The axes as values for JSON."""
        return {
            name: str(axis) if isinstance(axis, Range) else list(axis)
            for name, axis in self.axes.items()
        }


class _Reader:
    """Parses the values of settings with the settings' class."""

    def __init__(self, settings: type[FinetuneSettings], constants: Mapping[str, Any]) -> None:
        self._settings, self._constants = settings, constants

    def axis(self, name: str, values: Any) -> Axis:
        """Parse the values of a setting: a text with a list or a range, or a sequence of values."""
        if name in _CONSTANT_SETTINGS:
            raise SettingsError(f"{name} cannot be set in a grid", fix=_CONSTANT_SETTINGS[name])
        if name in self._constants:
            raise SettingsError(
                f"{name} is in the grid, and also given as "
                f"{name}={format_value(self._constants[name])}"
            )
        if not isinstance(values, Sequence):
            raise SettingsError(
                f"{name}={format_value(values)} in the grid", fix="Give a list of values."
            )
        if not values or (isinstance(values, str) and not all(values.split(","))):
            raise SettingsError(f"{name} has an empty value in the grid")
        if not isinstance(values, str):
            found = [self._settings.parse({**self._constants, name: value}) for value in values]
            return tuple(dict.fromkeys(getattr(one, name) for one in found))
        if ".." in values:
            return self._range(name, values)
        return tuple(dict.fromkeys(self._value(name, part) for part in values.split(",")))

    def _range(self, name: str, text: str) -> Range:
        ends = text.split("..", 1)
        is_whole = all(re.fullmatch(r"\d+", end) for end in ends)
        low, high = (self._value(name, end) for end in ends)
        are_numbers = isinstance(low, int | float) and isinstance(high, int | float)
        if not are_numbers or low >= high or (low <= 0 and not is_whole):
            raise SettingsError(
                f"{name}={text}: a range is of two numbers, the lower first; both over 0, or whole"
            )
        return Range(low, high, is_whole)

    def _value(self, name: str, text: str) -> Any:
        read = self._settings.resolve(overrides=[f"{name}={text}"], **self._constants)
        return getattr(read, name)


def format_value(value: Any) -> str:
    """A value as text for names and tables, unique for each: 16, 3e-05, gelu, one+other."""
    if isinstance(value, list | tuple):
        return "+".join(map(format_value, value))
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return str(value)


def name_of(point: Mapping[str, Any]) -> str:
    """A directory name for a point, different for each point: `batch_size=16,epochs=2`."""
    name = ",".join(f"{setting}={format_value(value)}" for setting, value in point.items())
    name = re.sub(r"[^\w.,=+-]", lambda found: quote(found[0], safe=""), name)
    if len(name.encode()) <= _MAX_BYTES:
        return name
    digest = hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
    return f"{name.encode()[: _MAX_BYTES - 20].decode(errors='ignore')}...{digest}"


STARTUP = 10
"""The number of random trials before a search uses results."""


def propose(
    space: Space,
    count: int,
    results: Sequence[tuple[Point, float | None]],
    *,
    seed: int,
    lower_is_better: bool,
) -> list[Point]:
    """Ask optuna for the next points to try.

    Optuna's storage is not used. A new sampler for each trial depends only on the seed, the trial's
    number and the results so far, so there is no state that a kill could lose.

    Args:
        count: number of points; based on the same results, but sampled away from one another.
        results: the points tried so far, in order, with their values; None for a failed point.

    Source: Bergstra et al. (2011), "Algorithms for Hyper-Parameter Optimization" (TPE).

    Raises:
        BertworksError: optuna is not installed.
    """
    optuna: Any = import_optional("optuna", "optuna", "A search")
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # the grid shows its own messages
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
    points = []
    for number in range(len(results), len(results) + count):
        # Seeds are a large prime apart: two searches do not share a sequence of samples.
        study.sampler = optuna.samplers.TPESampler(
            seed=(seed * 1_000_003 + number) % 2**32,
            n_startup_trials=STARTUP,
            constant_liar=True,  # points that are tried at the same time keep their distance
        )
        drawn = study.ask(distributions).params
        points.append({name: _value(axis, drawn[name]) for name, axis in space.axes.items()})
    return points


def _distribution(optuna: Any, axis: Axis) -> Any:
    if not isinstance(axis, Range):
        return optuna.distributions.CategoricalDistribution(range(len(axis)))
    if axis.is_whole:
        return optuna.distributions.IntDistribution(int(axis.low), int(axis.high))
    return optuna.distributions.FloatDistribution(axis.low, axis.high, log=True)


def _parameter(axis: Axis, value: Any) -> Any:
    """A point's value for optuna: for a list, the index, since the values may be lists too."""
    if isinstance(axis, Range):
        return value
    return axis.index(tuple(value) if isinstance(value, list) else value)  # JSON has no tuples


def _value(axis: Axis, parameter: Any) -> Any:
    """The value for a parameter of optuna, rounded to three digits to be readable."""
    if not isinstance(axis, Range):
        return axis[parameter]
    if axis.is_whole:
        return parameter
    return min(max(float(f"{parameter:.3g}"), axis.low), axis.high)

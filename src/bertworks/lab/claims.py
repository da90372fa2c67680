"""Claims about BERT, how they are tested, and the rule for verdicts.

`claims.tsv` has for each claim a quotation, its source, what is measured, and what is expected if
the claim is right. The functions that measure claims are in other modules, by the same names.
"""

from __future__ import annotations

import csv
import importlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Literal, NamedTuple

from ..errors import SettingsError, did_you_mean

if TYPE_CHECKING:
    from .bench import Lab

Verdict = Literal["shown", "not shown", "contradicted"]
Arms = Mapping[str, float]
"""The measurements of one case: a number for each arm of the experiment."""

Measure = Callable[["Lab", int], Mapping[str, Arms]]
"""Measures a claim with a seed, and returns numbers by case and arm."""

SPREADS = 2.0
"""An effect counts if it differs from zero by more than this many spreads."""


class Expect(NamedTuple):
    """The expectation that the number of arm `more` exceeds `times` that of arm `less`."""

    more: str
    less: str
    times: float = 1.0

    @classmethod
    def parse(cls, text: str) -> Expect:
        """Parse `ARM > ARM` or `ARM > NUMBER × ARM`."""
        more, _, rest = text.partition(" > ")
        times, cross, less = rest.partition(" × ")
        return cls(more, less, float(times)) if cross else cls(more, rest)

    def __str__(self) -> str:
        share = "" if self.times == 1 else f"{self.times:g} × "
        return f"{self.more} > {share}{self.less}"


class Finding(NamedTuple):
    """The result of one expectation.

    Attributes:
        expected: the expectation.
        effect: the mean over the cases of `more - times * less`.
        spread: the effect's standard deviation over seeds, or its standard error over the items of
            an experiment without randomness (zero with one item); None with one seed.
        verdict: decided with `SPREADS`.
    """

    expected: Expect
    effect: float
    spread: float | None
    verdict: Verdict


@dataclass(frozen=True)
class Claim:
    """A claim and its experiment.

    Attributes:
        name: its name on the command line.
        minutes: the cost of one seed, on one core.
        has_seeds: whether it is random; if not, it is measured once, and its cases are items.
        source: the source of the quotation.
        says: the quotation, at most a dozen words.
        method: what is measured.
        rule: what is expected if the claim is right.
        measure: the function that measures it.
    """

    name: str
    minutes: float
    has_seeds: bool
    source: str
    says: str
    method: str
    rule: tuple[Expect, ...]
    measure: Measure

    def decide(self, cases: Sequence[Arms]) -> list[Finding]:
        """Return the result of each expectation of the rule, over the cases of all seeds."""
        return [_finding(expected, cases, self.has_seeds) for expected in self.rule]

    def seeds(self, numbers: Sequence[int]) -> Sequence[int]:
        """Return those of the given seeds with which it is measured."""
        return numbers if self.has_seeds else numbers[:1]


MEASURES: dict[str, Measure] = {}
"""The function that measures each claim, by the claim's name."""

ARMS: dict[str, frozenset[str]] = {}
"""The arms of each claim that compares runs."""


def measures(measure: Measure) -> Measure:
    """Register the function that measures the claim of its name."""
    MEASURES[measure.__name__.replace("_", "-")] = measure
    return measure


def compare_arms(name: str, arms: Mapping[str, Callable[[Lab, int], float]]) -> None:
    """Register a claim that compares runs with several seeds, with a function for each arm."""

    def measure(lab: Lab, seed: int) -> Mapping[str, Arms]:
        return {f"seed {seed}": {arm: number(lab, seed) for arm, number in arms.items()}}

    MEASURES[name], ARMS[name] = measure, frozenset(arms)


def find_claims(names: Sequence[str] = ()) -> list[Claim]:
    """Return claims by their names; without names all of them, the cheapest first.

    Raises:
        SettingsError: no claim has one of the names.
    """
    for module in ("counting", "looking", "learning", "pretraining"):
        importlib.import_module(f"{__package__}.{module}")
    text = resources.files(__package__ or "").joinpath("claims.tsv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)
    claims = {
        row["name"]: Claim(
            row["name"],
            float(row["minutes"]),
            row["seeds"] == "yes",
            row["source"],
            row["says"],
            row["method"],
            tuple(map(Expect.parse, row["rule"].split("; "))),
            MEASURES[row["name"]],
        )
        for row in rows
    }
    for name in names:
        if name not in claims:
            fix = f"{did_you_mean(name, claims)}. For all: bertworks lab list"
            raise SettingsError(f"no claim is called {name!r}", fix=fix)
    if names:
        return [claims[name] for name in names]
    return sorted(claims.values(), key=lambda one: one.minutes)


def overall(findings: Sequence[Finding]) -> Verdict:
    """Return "contradicted" if any expectation is, "shown" if all are, else "not shown"."""
    verdicts = {finding.verdict for finding in findings}
    if "contradicted" in verdicts:
        return "contradicted"
    return "shown" if verdicts == {"shown"} else "not shown"


def _finding(expected: Expect, cases: Sequence[Arms], is_seeded: bool) -> Finding:
    more, less, times = expected
    effects = [arms[more] - times * arms[less] for arms in cases]
    effect = statistics.fmean(effects)
    if len(effects) > 1:
        deviation = statistics.stdev(effects)
        deviation_of_effects: float | None = (
            deviation if is_seeded else deviation / len(effects) ** 0.5
        )
    else:
        deviation_of_effects = None if is_seeded else 0.0
    if deviation_of_effects is None or abs(effect) <= SPREADS * deviation_of_effects or not effect:
        verdict: Verdict = "not shown"
    else:
        verdict = "shown" if effect > 0 else "contradicted"
    return Finding(expected, effect, deviation_of_effects, verdict)

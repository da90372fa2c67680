"""Claims: what was said, how it is tried, and the rule that decides.

`claims.tsv` has the words: of each claim a quotation, its source, what is measured, and what is
expected if it is right. The modules beside it have what measures them, by the same names.
"""

from __future__ import annotations

import csv
import importlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Literal, NamedTuple

from ..errors import SettingsError, nearest

if TYPE_CHECKING:
    from .bench import Lab

Verdict = Literal["shown", "not shown", "contradicted"]
Arms = Mapping[str, float]
"""What was measured in one case: a number for each arm of the experiment."""

Measure = Callable[["Lab", int], Mapping[str, Arms]]
"""Measures a claim with a seed: numbers by case and arm."""

SPREADS = 2.0
"""An effect counts if it is more than so many spreads from zero."""


class Expect(NamedTuple):
    """One arm's number is larger than another's, or than so many times another's."""

    more: str
    less: str
    times: float = 1.0

    @classmethod
    def parse(cls, text: str) -> Expect:
        """From `ARM > ARM` or `ARM > NUMBER × ARM`."""
        more, _, rest = text.partition(" > ")
        times, cross, less = rest.partition(" × ")
        return cls(more, less, float(times)) if cross else cls(more, rest)

    def __str__(self) -> str:
        share = "" if self.times == 1 else f"{self.times:g} × "
        return f"{self.more} > {share}{self.less}"


class Finding(NamedTuple):
    """What came of one expectation.

    Attributes:
        expected: the expectation.
        effect: the mean over the cases of `more - times * less`.
        spread: of the effect: the standard deviation over seeds, or the standard error over the
            items of an experiment without chance (zero, if there is one item); None with one seed.
        verdict: by `SPREADS`.
    """

    expected: Expect
    effect: float
    spread: float | None
    verdict: Verdict


@dataclass(frozen=True)
class Claim:
    """A claim and its experiment.

    Attributes:
        name: what the command line calls it.
        minutes: the cost of a seed, on one core.
        seeded: whether chance is part of it; if not, it is measured once, and its cases are items.
        source: who said it.
        says: a quotation, a dozen words at most.
        how: what is measured.
        rule: what is expected if the claim is right.
        measure: measures it.
    """

    name: str
    minutes: float
    seeded: bool
    source: str
    says: str
    how: str
    rule: tuple[Expect, ...]
    measure: Measure

    def decide(self, cases: Sequence[Arms]) -> list[Finding]:
        """What each expectation of the rule came to, over the cases of all seeds."""
        return [_finding(expected, cases, self.seeded) for expected in self.rule]

    def seeds(self, asked: Sequence[int]) -> Sequence[int]:
        """The seeds that it is measured with, of those asked."""
        return asked if self.seeded else asked[:1]


MEASURES: dict[str, Measure] = {}
"""What measures each claim."""

ARMS: dict[str, frozenset[str]] = {}
"""The arms of the claims that compare runs."""


def measures(measure: Measure) -> Measure:
    """Declare what measures the claim of its name."""
    MEASURES[measure.__name__.replace("_", "-")] = measure
    return measure


def compared(name: str, arms: Mapping[str, Callable[[Lab, int], float]]) -> None:
    """Declare a claim whose arms are runs with several seeds; of each arm, what measures it."""

    def measure(lab: Lab, seed: int) -> Mapping[str, Arms]:
        return {f"seed {seed}": {arm: number(lab, seed) for arm, number in arms.items()}}

    MEASURES[name], ARMS[name] = measure, frozenset(arms)


def find_claims(names: Sequence[str] = ()) -> list[Claim]:
    """Claims by their names; all of them, the cheapest first, if none is given.

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
            row["how"],
            tuple(map(Expect.parse, row["rule"].split("; "))),
            MEASURES[row["name"]],
        )
        for row in rows
    }
    for name in names:
        if name not in claims:
            fix = f"{nearest(name, claims)}. For all: bertworks lab list"
            raise SettingsError(f"no claim is called {name!r}", fix=fix)
    if names:
        return [claims[name] for name in names]
    return sorted(claims.values(), key=lambda one: one.minutes)


def overall(findings: Sequence[Finding]) -> Verdict:
    """Contradicted if any expectation is, shown if all are."""
    verdicts = {finding.verdict for finding in findings}
    if "contradicted" in verdicts:
        return "contradicted"
    return "shown" if verdicts == {"shown"} else "not shown"


def _finding(expected: Expect, cases: Sequence[Arms], seeded: bool) -> Finding:
    more, less, times = expected
    effects = [arms[more] - times * arms[less] for arms in cases]
    effect = statistics.fmean(effects)
    if len(effects) > 1:
        deviation = statistics.stdev(effects)
        spread: float | None = deviation if seeded else deviation / len(effects) ** 0.5
    else:
        spread = None if seeded else 0.0
    if spread is None or abs(effect) <= SPREADS * spread or not effect:
        verdict: Verdict = "not shown"
    else:
        verdict = "shown" if effect > 0 else "contradicted"
    return Finding(expected, effect, spread, verdict)

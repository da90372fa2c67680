"""Which curves a run has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .charts import Curve
from .facts import RunFacts
from .page import is_share, label, majority_of

SMOOTHED_OVER = 40
"""A mean is taken over this part of a curve's values; so fewer values are not smoothed."""


@dataclass(frozen=True)
class Chart:
    """A chart's title, what its axes are, and its curves."""

    title: str
    caption: str
    curves: Sequence[Curve]
    is_percent: bool = False
    from_zero: bool = False


def charts_of(facts: RunFacts) -> Iterator[Chart]:
    """The charts of a run that has logged at least one step: losses, metrics, rate, speed."""
    at = [line["step"] for line in facts.evaluations]
    metrics = {
        name: [line["metrics"].get(name) for line in facts.evaluations]
        for name in facts.metric_names
    }
    steps = [line["step"] for line in facts.train]
    for loss in facts.loss_names:
        values = [line["losses"].get(loss) for line in facts.train]
        is_only = len(facts.loss_names) == 1
        held_out = "loss" if is_only and f"{loss}_loss" not in metrics else f"{loss}_loss"
        curves = [Curve("training", steps, values)]
        if len(values) > SMOOTHED_OVER:
            curves = [
                Curve("training", steps, values, "faint"),
                Curve("smoothed", steps, smoothed(values)),
            ]
        if held_out in metrics:
            curves.append(Curve("held out", at, metrics.pop(held_out), "second", dots=True))
        yield Chart("Loss" if is_only else f"{label(loss)} loss", "mean in nats, by step", curves)
    for name, values in metrics.items():
        if name == "loss" or name.endswith(("perplexity", "majority")):
            continue  # the sum of losses shown, the exponential of one, and a line beside another
        curves = [Curve("held out", at, values, "second", dots=True)]
        majority = metrics.get(majority_of(name))
        if majority is not None:
            curves.append(Curve("majority", at, majority, "third", dashed=True))
        yield Chart(label(name), "held-out rows, by step", curves, is_percent=is_share(name))
    rates = [line["lr"] for line in facts.train]
    yield Chart("Learning rate", "by step", [Curve("", steps, rates)], from_zero=True)
    speeds = [line["time"]["tokens_per_second"] for line in facts.train]
    yield Chart("Tokens a second", "by step", [Curve("", steps, speeds)], from_zero=True)


def smoothed(values: Sequence[float | None]) -> list[float | None]:
    """An exponential mean over about a fortieth of the values; it starts at the first of them."""
    weight = 1 - 1 / max(1.0, len(values) / SMOOTHED_OVER)
    out: list[float | None] = []
    total = norm = 0.0
    for value in values:
        if value is not None:
            total, norm = weight * total + (1 - weight) * value, weight * norm + 1 - weight
        out.append(total / norm if norm else None)
    return out

"""The results of an evaluation, in the words of scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Self

from pydantic_core import to_json

from ..utils.formatting import escape_surrogates, format_count, format_metrics, html_facts
from .breakdown import Breakdown, Confusion, Mistake
from .measures import Measure


class HasResults:
    """The results of an evaluation, under the names of scikit-learn."""

    metrics: Mapping[str, float]
    notes: list[str]
    breakdown: Breakdown

    @property
    def confusion(self) -> Confusion | None:
        """How often each label was predicted for each gold label (`confusion.matrix`)."""
        return self.breakdown.confusion

    @property
    def errors(self) -> tuple[Mistake, ...]:
        """The worst mistakes, at most `MAX_MISTAKES`, the worst first."""
        return self.breakdown.mistakes

    @property
    def report(self) -> str:
        """The metrics, then the scores by label or kind, as text."""
        width = max(map(len, self.metrics), default=0)
        lines = [f"{name:<{width}}  {value:.4g}" for name, value in self.metrics.items()]
        tables = [str(table) for table in self.breakdown.tables]
        return "\n\n".join(["\n".join([*lines, *self.notes]), *tables])


@dataclass(frozen=True)
class Evaluation(HasResults):
    """The outcome of an evaluation.

    Attributes:
        metrics: the metrics by name.
        rows: the number of evaluated examples.
        notes: for the user, in addition to the metrics.
        breakdown: confusions, calibration, mistakes.
    """

    metrics: dict[str, float]
    rows: int
    notes: list[str] = field(default_factory=list)
    breakdown: Breakdown = field(default_factory=Breakdown)

    @classmethod
    def from_measure(cls, measure: Measure, rows: int) -> Self:
        """Return the results of a measure over `rows` rows."""
        return cls(measure.result(), rows, measure.notes(), measure.breakdown())

    def __repr__(self) -> str:
        shown = format_metrics(self.metrics, self.notes)
        return f"<Evaluation of {format_count(self.rows, 'row')}: {shown}>"

    def _repr_html_(self) -> str:
        title = f"Evaluation of {format_count(self.rows, 'row')}"
        return html_facts(title, self.metrics, self.notes)

    def to_json(self, data: str) -> str:
        """Return the evaluation as JSON; `data` names the table. Non-finite numbers become null."""
        tree = {
            "data": escape_surrogates(data),
            **{field.name: getattr(self, field.name) for field in fields(self)},
        }
        return to_json(tree, indent=1, inf_nan_mode="null").decode()

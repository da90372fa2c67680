"""The outcome of an evaluation, whether of a model or of predictions in a file."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from pydantic_core import to_json

from ..wording import measured, printable
from .breakdown import Breakdown


@dataclass(frozen=True)
class Evaluation:
    """The outcome of an evaluation.

    Attributes:
        metrics: by name.
        rows: how many examples were measured.
        remarks: what people should know beside the metrics.
        breakdown: what the metrics are made of.
    """

    metrics: dict[str, float]
    rows: int
    remarks: list[str] = field(default_factory=list)
    breakdown: Breakdown = field(default_factory=Breakdown)

    def __repr__(self) -> str:
        return f"<Evaluation of {self.rows:,} rows: {measured(self.metrics, self.remarks)}>"

    def to_json(self, data: str) -> str:
        """The evaluation as JSON; `data` names the table. What is not finite is null."""
        tree = {
            "data": printable(data),
            **{own.name: getattr(self, own.name) for own in fields(self)},
        }
        return to_json(tree, indent=1, inf_nan_mode="null").decode()

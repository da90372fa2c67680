"""What an ablation found: a table beside the paper's figures, and the same as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import files
from ..wording import markdown

Outcome = dict[str, Any]
"""What was measured with one seed: `metrics` by name, and whatever else is worth keeping."""


@dataclass(frozen=True)
class ResultRow:
    """A row of the table.

    Attributes:
        name: what was tried.
        paper: the paper's figure for it, in percent.
        outcomes: by seed.
    """

    name: str
    paper: float
    outcomes: Mapping[int, Outcome]

    def scores(self, metric: str) -> list[float]:
        """The metric with each seed, in percent."""
        return [100 * outcome["metrics"][metric] for outcome in self.outcomes.values()]


@dataclass
class Results:
    """The rows so far, and their files.

    Attributes:
        path: the directory of `table.md` and `results.json`.
        title: over the table.
        metric: the one in the table.
        paper_data: what the paper measured on.
        rows: in order.
    """

    path: Path
    title: str
    metric: str
    paper_data: str
    rows: list[ResultRow] = field(default_factory=list)

    @property
    def table_file(self) -> Path:
        return self.path / "table.md"

    @property
    def json_file(self) -> Path:
        return self.path / "results.json"

    def add(self, row: ResultRow) -> None:
        """Add a row, and write the files anew."""
        self.rows.append(row)
        files.write(self.table_file, self.markdown())
        files.write_json(self.json_file, self.to_dict(), indent=1)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """The headings and the cells, all as text; with several seeds their standard deviation."""
        seeds = max((len(row.outcomes) for row in self.rows), default=1)
        headings = ["", f"paper, {self.paper_data}", f"dev {self.metric}"]
        cells = []
        for row in self.rows:
            scores = row.scores(self.metric)
            cells.append([row.name, f"{row.paper:.1f}", f"{statistics.fmean(scores):.1f}"])
            if seeds > 1:
                cells[-1].append(f"{statistics.stdev(scores):.1f}")
        return headings + [f"± ({seeds} seeds)"] * (seeds > 1), cells

    def markdown(self) -> str:
        """The table as Markdown."""
        headings, cells = self.table()
        lines = markdown(headings, cells, numbers=len(headings) - 1)
        return "\n".join([f"# {self.title}", "", *lines, ""])

    def to_dict(self) -> dict[str, Any]:
        """All that was measured, as JSON can hold it; scores are shares of 1."""
        rows = [
            {
                "name": row.name,
                "paper": row.paper / 100,
                self.metric: statistics.fmean(row.scores(self.metric)) / 100,
                "seeds": {str(seed): outcome for seed, outcome in row.outcomes.items()},
            }
            for row in self.rows
        ]
        return {"title": self.title, "metric": self.metric, "rows": rows}

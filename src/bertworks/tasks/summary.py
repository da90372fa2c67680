"""A summary of labelled data, shown before training begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..utils.formatting import format_count
from .example import LabelledExample
from .labelled import LabelledTask

PERCENTILES = (50, 90, 95, 99)
MAX_BINS = 40


@dataclass(frozen=True)
class SplitSummary:
    """A summary of one table's rows."""

    name: str  # of the table
    rows: int  # their number
    labels: Mapping[str, int]  # how often each target occurs; empty if targets are numbers
    # tokens per row, including special tokens, before truncation: `min`, `p50`, `p90`, `p95`,
    # `p99`, `max`
    lengths: Mapping[str, int]
    bin_width: int  # tokens per bin of the histograms
    # number of rows by length: 1 to `bin_width` tokens, the next `bin_width` lengths, and so on
    length_histogram: Sequence[int]
    truncated_length_histogram: Sequence[int]  # in the same bins, the truncated rows alone
    num_truncated_rows: int  # truncated rows
    num_truncated_tokens: int  # tokens removed by truncation
    tokens: int  # tokens that remain

    @classmethod
    def from_examples(
        cls, name: str, examples: Sequence[LabelledExample], labels: Mapping[str, int]
    ) -> SplitSummary:
        """Summarise a table's examples; `labels` are the counts of their targets."""
        truncated = np.array([example.truncated_tokens for example in examples])
        lengths = truncated + [example.num_tokens for example in examples]
        bin_width = max(1, -(-int(lengths.max()) // MAX_BINS))
        bins = np.maximum(lengths - 1, 0) // bin_width
        percentiles = np.percentile(lengths, PERCENTILES, method="inverted_cdf")
        return cls(
            name=name,
            rows=len(examples),
            labels=dict(labels),
            lengths={
                "min": int(lengths.min()),
                **{
                    f"p{percentile}": int(length)
                    for percentile, length in zip(PERCENTILES, percentiles, strict=True)
                },
                "max": int(lengths.max()),
            },
            bin_width=bin_width,
            length_histogram=np.bincount(bins).tolist(),
            truncated_length_histogram=np.bincount(
                bins[truncated > 0], minlength=int(bins.max()) + 1
            ).tolist(),
            num_truncated_rows=int((truncated > 0).sum()),
            num_truncated_tokens=int(truncated.sum()),
            tokens=int((lengths - truncated).sum()),
        )

    @property
    def majority_share(self) -> float:
        """The share of the most frequent target: the accuracy of always predicting it."""
        return max(self.labels.values()) / sum(self.labels.values())

    def lines(self, max_seq_length: int, *, of_rows: bool = False) -> list[str]:
        """Return the summary as lines of text.

        Args:
            of_rows: whether shares are of rows instead of labels: a row may have several labels or
                none.
        """
        total = max(1, self.rows if of_rows else sum(self.labels.values()))
        shares = [
            f"{label!r} {count:,} ({count / total:.1%})" for label, count in self.labels.items()
        ]
        if len(shares) > 12:
            shares = [*shares[:10], f"… {len(shares) - 10} more labels"]
        lengths = ", ".join(f"{name} {length}" for name, length in self.lengths.items())
        return [
            f"{self.name}: {format_count(self.rows, 'row')}",
            *([f"  labels: {', '.join(shares)}"] if shares else ()),
            f"  tokens a row: {lengths}",
            f"  max_seq_length={max_seq_length} truncates "
            f"{format_count(self.num_truncated_rows, 'row')} "
            f"({self.num_truncated_rows / self.rows:.1%}) by "
            f"{format_count(self.num_truncated_tokens, 'token')} in total"
            if self.num_truncated_rows
            else f"  max_seq_length={max_seq_length} truncates no row",
        ]


@dataclass(frozen=True)
class DataSummary:
    """A summary of the tables of a fine-tuning run."""

    columns: str  # the columns and their roles, for display
    has_majority_baseline: (
        bool  # whether always predicting the most frequent target is a useful baseline
    )
    max_seq_length: int
    train: SplitSummary
    dev: SplitSummary | None
    # rows of dev whose tokens also occur in train; they make metrics look too good
    num_shared_rows: int

    @classmethod
    def from_examples(
        cls,
        task: LabelledTask[Any],
        train: tuple[str, Sequence[LabelledExample]],
        dev: tuple[str, Sequence[LabelledExample]] | None,
    ) -> DataSummary:
        """Summarise the examples of a task; each table is its name and its examples."""
        train_contents = {example.content for example in train[1]} if dev else set()
        return cls(
            columns=task.columns_text,
            has_majority_baseline=task.has_majority_baseline,
            max_seq_length=task.settings.max_seq_length,
            train=SplitSummary.from_examples(*train, task.count_targets(train[1])),
            dev=SplitSummary.from_examples(*dev, task.count_targets(dev[1])) if dev else None,
            num_shared_rows=sum(example.content in train_contents for example in dev[1])
            if dev
            else 0,
        )

    def lines(self) -> list[str]:
        """Return the summary as lines of text."""
        limit, of_rows = self.max_seq_length, not self.has_majority_baseline
        lines = [f"columns: {self.columns}", *self.train.lines(limit, of_rows=of_rows)]
        if self.dev is not None:
            lines += self.dev.lines(limit, of_rows=of_rows)
            if self.has_majority_baseline and any(self.dev.labels.values()):
                lines.append(f"  majority baseline: {self.dev.majority_share:.1%}")
            missing = [label for label, count in self.dev.labels.items() if not count]
            if missing:
                lines.append(f"  labels that never occur: {', '.join(map(repr, missing))}")
        if self.num_shared_rows:
            lines.append(f"  {self.num_shared_rows:,} of its rows are in the training data too")
        return lines

"""Split a share of the training rows off for dev, if there is no dev table.

The choice of rows depends only on their content and a seed: not on their order, the tokenizer or a
length limit. The runs of a grid therefore evaluate on the same rows.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from ..data.rows import Rows
from ..data.tables import Table
from ..errors import DataError, SettingsError
from ..utils.formatting import format_count
from .example import LabelledExample

if TYPE_CHECKING:
    from .labelled import LabelledTask

Dev: TypeAlias = Table | float
"""The rows for evaluation: a table, or a share of the training rows."""


def check_share(dev: Dev | None) -> None:
    """Raise `SettingsError` if dev is a number that is not a share."""
    if isinstance(dev, int | float) and not 0 < dev < 1:
        raise SettingsError(
            f"dev={dev}: a share of the training rows is between 0 and 1",
            fix="For example 0.1; a file whose name is a number is given as ./NAME.",
        )


@dataclass(frozen=True)
class DevShare:
    """The rows that were split off for dev."""

    share: float  # the requested share
    seed: int  # of the random choice
    # rows with equal values in these columns are all in dev, or all in train
    group_columns: Sequence[str]
    rows: Sequence[int]  # numbers of the dev rows, from 1, ascending

    @classmethod
    def choose(
        cls,
        task: LabelledTask[Any],
        table: Rows,
        examples: Sequence[LabelledExample],
        share: float,
        seed: int,
    ) -> Self:
        """Choose the dev rows of a table.

        Rows of one source (a document, an article) stay together. If there are too few sources to
        come near the share, rows of a smaller source (such as a paragraph) stay together instead.
        Rows that are split by their texts never have the same text in both parts. Of documents,
        only whole ones are moved: a sentence that several of them have may be in both parts, and
        `DataSummary.num_shared_rows` counts such rows.

        Args:
            task: defines the sources, and whether each label keeps its share (`is_stratified`).

        Raises:
            DataError: there are too few rows.
        """
        strata = [example.target_bytes if task.is_stratified else b"" for example in examples]
        groupings = task.source_columns(table)
        for columns in groupings:
            sources = [_source_key(row.values, columns) for row in table]
            rows = _choose_rows(sources, strata, share, seed)
            is_near = abs(len(rows) - share * len(strata)) <= share * len(strata) / 2
            if is_near or (rows and columns == groupings[-1]):
                return cls(share, seed, columns, [row + 1 for row in rows])
        fix = "Give a larger share, or a table."
        if not _choose_rows(sources, strata, 1, seed):
            kept = f"rows with the same {', '.join(groupings[-1])} are kept together"
            fix = f"Give a table: {kept}, and too few others remain for training."
        raise DataError(
            f"dev={share:g} of {len(strata)} rows leaves no row for dev",
            where=table.name,
            fix=fix,
        )

    def divide(
        self, train: Sequence[LabelledExample], dev: Sequence[LabelledExample]
    ) -> tuple[list[LabelledExample], list[LabelledExample]]:
        """Split the examples of all rows into those for training and those for evaluation."""
        dev_rows = set(self.rows)
        return (
            [example for row, example in enumerate(train, 1) if row not in dev_rows],
            [example for row, example in enumerate(dev, 1) if row in dev_rows],
        )

    @property
    def description(self) -> str:
        """A description of the choice for the user."""
        return (
            f"{format_count(len(self.rows), 'row')} split off the training rows "
            f"(dev={self.share:g}, dev_seed={self.seed}); rows with the same "
            f"{', '.join(self.group_columns)} are kept together"
        )


def _source_key(row: Mapping[str, Any], columns: Sequence[str]) -> bytes:
    return repr([row.get(column) for column in columns]).encode("utf-8", "surrogatepass")


def _choose_rows(
    sources: Sequence[bytes], strata: Sequence[Hashable], share: float, seed: int
) -> list[int]:
    """Return the numbers of the chosen rows, from 0, ascending.

    The sources of a stratum are chosen in the order of their digests. If a stratum gets too few
    rows for its share, the next one gets more. One source of each stratum always remains for
    training.

    Args:
        strata: the stratum of each row; a source belongs to the stratum of its first row.
    """
    rows: dict[bytes, list[int]] = defaultdict(list)
    for number, source in enumerate(sources):
        rows[source].append(number)
    groups: dict[Any, list[bytes]] = defaultdict(list)
    for source, members in rows.items():
        groups[strata[members[0]]].append(source)

    def digest(source: bytes) -> bytes:
        return hashlib.blake2b(f"{seed} ".encode() + source, digest_size=16).digest()

    dev_rows: list[int] = []
    target = 0.0
    for stratum in sorted(groups):
        ordered = sorted(groups[stratum], key=digest)
        target += share * sum(len(rows[source]) for source in ordered)
        for source in ordered[:-1]:
            if len(dev_rows) + len(rows[source]) / 2 <= target:
                dev_rows += rows[source]
    return sorted(dev_rows)

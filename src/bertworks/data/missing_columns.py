"""Errors about columns that a table lacks, with advice for the verb that reads it.

`finetune` has an option that names the column of each role. Predicting and evaluating have none:
there the advice is to give the column a name that is understood.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import DataError, truncate_repr
from .rows import Rows, listing


class MissingColumnError(DataError):
    """A table in which a role's column is not found, with advice for those who can name it.

    Attributes:
        rename: what to do where no option names the column, as in predicting and evaluating.
    """

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        fix: str | None = None,
        rename: str | None = None,
    ) -> None:
        super().__init__(what, where=where, fix=fix)
        self.rename = rename

    def without_option(self, fix: str | None = None) -> DataError:
        """Return the error where a verb has no such option, with the advice `fix` or `rename`."""
        return DataError(self.what, where=self.where, fix=fix or self.rename or self.fix)


@contextmanager
def columns_cannot_be_named(fix: str | None = None) -> Iterator[None]:
    """Within the block, errors about missing columns do not advise options of finetune.

    Args:
        fix: what to do instead; if omitted, to rename a column.
    """
    try:
        yield
    except MissingColumnError as error:
        raise error.without_option(fix) from None


def missing_column_error(
    rows: Rows, role: str, fix: str, rename: str | None = None
) -> MissingColumnError:
    """Return the error for a table in which a role's column is not found.

    If the table has only one column, the error shows its content: the format may be wrong.

    Args:
        rename: see `MissingColumnError`; `fix`, if omitted.
    """
    content = listing(rows.columns)
    if len(rows.columns) == 1 and rows.sample:
        only = rows.columns[0]
        content = (
            f"its only column is {only!r}, and begins {truncate_repr(rows.sample[0].get(only))}"
        )
    what = f"cannot tell which column holds the {role}; {content}"
    return MissingColumnError(what, where=rows.name, fix=fix, rename=rename)

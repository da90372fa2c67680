"""The columns that a task reads: its roles, what tables call them, and how they are found.

A user names a role's column as `ROLE_column=NAME`, by its name or its number. A role that is not
named is looked for by the names that public data sets use, then by what the columns hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import Field, create_model

from ..errors import DataError
from .columns import resolve, seen_in
from .placed import Rows

if TYPE_CHECKING:
    from .labelled import TaskOptions

Column = str | tuple[str, ...] | None
"""A role's column; several, where a role has them; None where a table has none."""

RoleColumns = dict[str, Column]
"""The column of each role."""


@dataclass(frozen=True)
class Role:
    """What a task reads from one column.

    Attributes:
        name: what the task calls it.
        names: what tables call such a column, in lower case, the likeliest first; the role's name,
            if left out.
        title: the role for people; its name, if left out.
        of_label: whether it is needed only where targets are read.
        optional: whether a table may lack it.
        many: whether a user may name several columns, with commas between.
        guess: finds the column, or columns, of a table that names it otherwise, from the columns
            that are found already.
        fix: what else to do where it is not found.
    """

    name: str
    names: tuple[str, ...] = ()
    title: str = ""
    of_label: bool = False
    optional: bool = False
    many: bool = False
    guess: Callable[[Rows, RoleColumns], Column] | None = None
    fix: str = ""

    @property
    def option(self) -> str:
        """The setting by which a user names the column."""
        return f"{self.name.removesuffix('s')}_columns" if self.many else f"{self.name}_column"

    @property
    def shown(self) -> str:
        """The role for people."""
        return self.title or self.name

    def lacking(self, rows: Rows) -> DataError:
        """The error of a table in which the role's column is not found."""
        values = "NAME,NAME,…" if self.many else "NAME"
        seen = seen_in(rows.columns, rows.sample)
        return DataError(
            f"cannot tell which column holds the {self.shown}; {seen}",
            where=rows.name,
            fix=f"Name it with {self.option}={values}{self.fix}.",
        )

    def find(self, rows: Rows, named: str | tuple[str, ...] | None, found: RoleColumns) -> Column:
        """The role's column in a table; None if it has none.

        Raises:
            DataError: a column that is named is not there.
        """
        if named is not None and not self.many:
            assert isinstance(named, str), "one column"
            return resolve(rows.columns, named, rows.name)
        if named is not None:
            parts = named.split(",") if isinstance(named, str) else named
            return tuple(resolve(rows.columns, part.strip(), rows.name) for part in parts if part)
        by_name = {name.strip().lower(): name for name in rows.columns}
        known = next((by_name[n] for n in self.names or (self.name,) if n in by_name), None)
        if known is not None:
            return (known,) if self.many else known
        return None if self.guess is None else self.guess(rows, found)


class Schema:
    """The roles of a task's columns.

    Args:
        roles: in the order in which their columns are looked for.
    """

    def __init__(self, *roles: Role) -> None:
        self.roles = roles

    def find(
        self, rows: Rows, named: Mapping[str, Any] | None = None, *, labelled: bool
    ) -> RoleColumns:
        """The columns of a table.

        Args:
            rows: the table.
            named: what a user, or the task so far, calls the columns of some roles.
            labelled: whether the columns of targets must be there.

        Raises:
            DataError: a column that is named is not there; or one is needed and cannot be found.
        """
        found: RoleColumns = {}
        for role in self.roles:
            column = role.find(rows, (named or {}).get(role.name), found)
            if not column and self._is_needed(role, labelled=labelled):
                raise role.lacking(rows)
            found[role.name] = column or None
        return found

    def is_met(self, rows: Rows, columns: RoleColumns, *, labelled: bool) -> bool:
        """Whether a table has the columns that are needed."""
        return all(
            bool(columns[role.name]) and set(names_of(columns[role.name])) <= set(rows.columns)
            for role in self.roles
            if self._is_needed(role, labelled=labelled)
        )

    def text(self, columns: RoleColumns) -> str:
        """Which column holds what, for people."""
        names = {role.shown: names_of(columns[role.name]) for role in self.roles}
        return ", ".join(f"{role} = {', '.join(map(repr, of))}" for role, of in names.items() if of)

    def options(self, name: str, base: type[TaskOptions]) -> type[TaskOptions]:
        """The options of a task, with one for the column of each role.

        Args:
            name: of the class.
            base: the other options.
        """
        fields: dict[str, Any] = {}
        for role in self.roles:
            meaning = f"of the {role.shown}; name or number; guessed if left out"
            fields[role.option] = (str | None, Field(None, description=meaning))
        made: type[TaskOptions] = create_model(name, __base__=base, **fields)
        return made

    @staticmethod
    def _is_needed(role: Role, *, labelled: bool) -> bool:
        return not role.optional and (labelled or not role.of_label)


def names_of(column: Column) -> tuple[str, ...]:
    """The names of a role's columns."""
    if column is None:
        return ()
    return (column,) if isinstance(column, str) else column

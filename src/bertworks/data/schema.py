"""The columns that a task reads: their roles, their usual names, and how they are found.

A user names a role's column as `ROLE_column=NAME`, by its name or its number. Otherwise the column
is searched by the names that public data sets use, then by the content of the columns. If the
result is ambiguous, an error lists the columns.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import Field, create_model

from ..errors import DataError, truncate_repr
from ..settings.base import Settings
from .missing_columns import MissingColumnError, missing_column_error
from .rows import Rows, listing

SettingsT = TypeVar("SettingsT", bound=Settings)

LABEL_TEXT_FIX = (
    "Its lines seem to be a label, a space and a text: "
    '--format label-text (format="label-text") reads them.'
)

PAIR_NAMES = (
    ("text", "pair"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("premise", "hypothesis"),
    ("#1 string", "#2 string"),
    ("text_a", "text_b"),
    ("text1", "text2"),
    ("sentence_a", "sentence_b"),
    ("query", "passage"),
)
TEXT_NAMES = (
    "text",
    "sentence",
    "content",
    "review",
    "document",
    "comment",
    "tweet",
    "utterance",
    "txt",
)
GOLD_NAMES = ("y_true", "gold", "truth", "ground_truth", "gt", "true_label", "true_labels")
LABEL_NAMES = (
    *("label", "labels", "quality", "gold_label", "class", "category", "target", "targets"),
    *GOLD_NAMES,
)
VALUE_NAMES = (
    *("score", "similarity", "similarity_score", "relatedness_score", "value"),
    *LABEL_NAMES,
    *("rating", "stars"),
)
"""Names of a column of numbers to predict; of several such columns, the first is taken."""
QUERY_NAMES = ("query", "anchor", "question")
PREDICTION = "prediction"
"""The column with a model's prediction for a row; in TSV, `prediction.label` and the like."""
PREDICTED_NAMES = (
    *(PREDICTION, "predicted", "predictions", "predicted_label", "predicted_labels", "pred"),
    *("y_pred", "preds", "pred_label", "pred_labels", "y_hat", "yhat", "guess", "guesses"),
    *("output", "outputs"),
)
_ID_NAMES = frozenset({"id", "idx", "index", "unnamed: 0", ""})
_LABEL = re.compile(r"[\w:./+-]+")
_BRACKETS = re.compile(r" ?(\([^()]*\)|\[[^\[\]]*\])$")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_JOINT = re.compile(r"[\s_.-]+")


Column = str | tuple[str, ...] | None
"""A role's column; several for a role with `many`; None if the table has none."""

RoleColumns = dict[str, Column]
"""The column of each role."""


def canonical(name: str) -> str:
    """Return a column's name in lower case, its words joined by `_`, without quotes and brackets.

    `Gold label`, `gold-label` and `goldLabel` become `gold_label`; `Text 1` becomes `text1`.
    """
    plain = _BRACKETS.sub("", name.strip().strip("\"'").strip().rstrip(":*"))
    joined = _JOINT.sub("_", _CAMEL.sub("_", plain)).strip("_").lower()
    return re.sub(r"_(?=\d+$)", "", joined)


def columns_by_name(columns: Sequence[str]) -> dict[str, str]:
    """Return a table's columns by their names in lower case, and by canonical names of only one."""
    counts = Counter(map(canonical, columns))
    by_name = {name: column for column in columns if counts[name := canonical(column)] == 1}
    return by_name | {column.strip().lower(): column for column in columns}


def find_text_columns(
    rows: Rows,
    *,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    labelled: bool = True,
    of_numbers: bool = False,
) -> RoleColumns:
    """Find the columns of the roles `text`, `pair` and `label`, in a task or without one.

    Args:
        text: the text's column, by name or by number (counted from 1); detected if omitted.
        pair: the second text's column; detected only if `text` is detected too.
        label: the label's column; detected if omitted.
        labelled: whether a column of labels is required.
        of_numbers: whether labels are numbers, as in regression.

    Raises:
        DataError: a named column does not exist, or a column cannot be detected.
    """
    given_label = None if label is None else rows.column(label)
    if text is not None:
        found_text, found_pair = rows.column(text), None if pair is None else rows.column(pair)
    elif pair is not None:
        raise DataError("a second text's column is named, but not the first's", where=rows.name)
    else:
        found_text, found_pair = _guess_texts(rows, given_label)
    guess = _guess_values if of_numbers else _guess_label
    found_label = given_label or guess(rows, (found_text, found_pair))
    if labelled and found_label is None:
        fix, names = _label_fix(rows), VALUE_NAMES if of_numbers else LABEL_NAMES
        rename = f"Call it {names[0]}." if "label_column" in fix else fix
        raise missing_column_error(rows, "label", fix, rename)
    _check_apart(rows, {"text": found_text, "second text": found_pair, "label": found_label})
    return {"text": found_text, "pair": found_pair, "label": found_label}


def _check_apart(rows: Rows, columns: Mapping[str, Column]) -> None:
    """Check that no two of several roles have the same column.

    Raises:
        DataError: two have.
    """
    role_of: dict[str, str] = {}
    for role, column in columns.items():
        for name in names_of(column):
            if role_of.setdefault(name, role) != role:
                raise DataError(
                    f"the column {name!r} cannot be both the {role_of[name]} and the {role}",
                    where=rows.name,
                    fix=f"Name another of them; {listing(rows.columns)}.",
                )


def _guess_texts(rows: Rows, label: str | None) -> tuple[str, str | None]:
    first_row = rows.sample[0] if rows.sample else {}
    cells = [value for name, value in first_row.items() if name != "document"]
    if cells and all(map(_is_words, cells)):
        raise DataError(
            "its rows are not texts but lists of words: "
            f"{truncate_repr(next(iter(first_row.values())))}",
            where=rows.name,
            fix="Use them for tagging; for another kind of file, give --format F (format=F).",
        )
    others = [column for column in rows.columns if column != label]
    by_name = columns_by_name(others)
    for first, second in PAIR_NAMES:
        if first in by_name and second in by_name:
            return by_name[first], by_name[second]
    for name in TEXT_NAMES:
        if name in by_name:
            return by_name[name], None
    if len(rows.columns) == 1:
        return rows.columns[0], None
    by_content = text_by_content(others, rows.sample)
    if by_content is None:
        fix = "Name it with text_column=NAME (and pair_column=NAME for a second text)."
        rename = "Call it text (and a second text's column pair)."
        raise missing_column_error(rows, "text", fix, rename)
    return by_content, None


def are_labelled_texts(texts: Sequence[str]) -> bool:
    """Whether each text begins with a label: few different first words occur."""
    words = [text.split(" ", 1) for text in texts if text.strip()]
    if len(words) < 10 or any(len(parts) < 2 for parts in words):
        return False
    counts = Counter(word for word, _ in words)
    is_few = 2 <= len(counts) <= max(2, len(words) // 5)
    is_few = is_few and max(counts.values()) <= 0.9 * len(words)
    return is_few and all(_LABEL.fullmatch(word) for word in counts)


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, str) for part in value)


def _label_fix(rows: Rows) -> str:
    indicators = [
        name for name in rows.columns if {str(row.get(name)) for row in rows.sample} <= {"0", "1"}
    ]
    if len(indicators) > 1:
        return (
            f"Name one of {', '.join(map(repr, indicators))} with label_column=NAME; for all of "
            "them, write the names of those that are 1 into one column: a list, or a,b."
        )
    if len(rows.columns) > 1:
        return "Name it with label_column=NAME."
    if are_labelled_texts([str(row.get(rows.columns[0])) for row in rows.sample]):
        return LABEL_TEXT_FIX
    return "Are its fields separated by something else? Give --format F (format=F)."


def _guess_label(rows: Rows, used_columns: Sequence[str | None]) -> str | None:
    others = [column for column in rows.columns if column not in used_columns]
    by_name = columns_by_name(others)
    known = next((by_name[name] for name in LABEL_NAMES if name in by_name), None)
    return known or label_by_content(others, rows.sample)


def _guess_values(rows: Rows, used_columns: Sequence[str | None]) -> str | None:
    """Return the column of numbers to predict: by its name, or the only column of numbers."""
    others = [column for column in rows.columns if column not in used_columns]
    of_numbers = [name for name in others if _are_numbers([row.get(name) for row in rows.sample])]
    for columns in (of_numbers, others):  # a cell without a number is an error of its row
        by_name = columns_by_name(columns)
        known = next((by_name[name] for name in VALUE_NAMES if name in by_name), None)
        if known is not None:
            return known
    if len(of_numbers) == 1 and of_numbers[0].strip().lower() not in _ID_NAMES:
        return of_numbers[0]
    return label_by_content(others, rows.sample)


def _are_numbers(values: Sequence[Any]) -> bool:
    """Whether all values are finite numbers, or texts of numbers; false if there are none."""
    try:
        return bool(values) and all(
            not isinstance(value, bool) and math.isfinite(float(value)) for value in values
        )
    except (TypeError, ValueError, OverflowError):
        return False


def text_by_content(columns: Sequence[str], sample: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the column of long values that seldom repeat; None if there is not exactly one."""
    text_columns = []
    for column in columns:
        values = [str(row.get(column, "")) for row in sample]
        long = sum(map(len, values)) >= 10 * len(values)
        if values and long and 2 * len(set(values)) > len(values):
            text_columns.append(column)
    return text_columns[0] if len(text_columns) == 1 else None


def label_by_content(columns: Sequence[str], sample: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the only column of few values that repeat, or of several such, of small integers."""
    label_columns, of_integers = [], []
    for column in columns:
        values = [str(row.get(column, "")).strip() for row in sample]
        kinds = set(values)
        if "" in kinds or not 2 <= len(kinds) <= max(2, len(values) // 5):
            continue
        label_columns.append(column)
        if all(kind.isascii() and kind.isdigit() and int(kind) < len(values) for kind in kinds):
            of_integers.append(column)
    best = of_integers or label_columns
    return best[0] if len(best) == 1 else None


@dataclass(frozen=True)
class Role:
    """The role of a column in a task.

    Attributes:
        name: the name of the role.
        names: usual names of such a column, in lower case, the most likely first; the role's name
            if omitted.
        title: the role in messages; its name if omitted.
        of_label: whether it is needed only when targets are read.
        is_text: whether a target is a text, which may be the input too, as of an autoencoder.
        optional: whether a table may lack it.
        many: whether a user may name several columns, comma-separated.
        guess: finds the column or columns of a table with other names, given the columns found so
            far.
        fix: additional advice if it is not found.
    """

    name: str
    names: tuple[str, ...] = ()
    title: str = ""
    of_label: bool = False
    is_text: bool = False
    optional: bool = False
    many: bool = False
    guess: Callable[[Rows, RoleColumns], Column] | None = None
    fix: str = ""

    @property
    def option(self) -> str:
        """The option with which a user names the column."""
        return f"{self.name.removesuffix('s')}_columns" if self.many else f"{self.name}_column"

    @property
    def display_name(self) -> str:
        """The role's name in messages."""
        return self.title or self.name

    def missing_column_error(self, rows: Rows) -> MissingColumnError:
        """Return the error for a table in which the role's column is not found."""
        values = "NAME,NAME,…" if self.many else "NAME"
        return missing_column_error(
            rows,
            self.display_name,
            f"Name it with {self.option}={values}{self.fix}.",
            f"Call it {(self.names or (self.name,))[0]}{self.fix}.",
        )

    def find(
        self, rows: Rows, names: str | tuple[str, ...] | None, other_columns: RoleColumns
    ) -> Column:
        """Return the role's column in a table; None if it has none.

        Raises:
            DataError: a named column does not exist.
        """
        if names is not None and not self.many:
            assert isinstance(names, str), "one column"
            return rows.column(names)
        if names is not None:
            parts = names.split(",") if isinstance(names, str) else names
            return tuple(rows.column(part.strip()) for part in parts if part.strip())
        columns: Sequence[str] = rows.columns
        if self.optional:  # it must not take what another role has
            role_columns = {name for column in other_columns.values() for name in names_of(column)}
            columns = [name for name in columns if name not in role_columns]
        by_name = columns_by_name(columns)
        known = next((by_name[n] for n in self.names or (self.name,) if n in by_name), None)
        if known is not None:
            return (known,) if self.many else known
        return None if self.guess is None else self.guess(rows, other_columns)


class Schema:
    """The roles of a task's columns.

    Args:
        roles: the roles, in the order in which their columns are searched.
    """

    def __init__(self, *roles: Role) -> None:
        self.roles = roles

    def find(
        self, rows: Rows, names: Mapping[str, Any] | None = None, *, labelled: bool
    ) -> RoleColumns:
        """Find the columns of a table.

        Args:
            rows: the table.
            names: columns of some roles that are already known, by role.
            labelled: whether the columns of targets are required.

        Raises:
            DataError: a named column does not exist, or a required one cannot be found.
        """
        columns: RoleColumns = {}
        for role in self.roles:
            column = role.find(rows, (names or {}).get(role.name), columns)
            if not column and self._is_needed(role, labelled=labelled):
                raise role.missing_column_error(rows)
            columns[role.name] = column or None
        for target in (role for role in self.roles if role.of_label and not role.is_text):
            for role in self.roles:
                if not role.of_label:
                    of_both = {r.display_name: columns[r.name] for r in (role, target)}
                    _check_apart(rows, of_both)
        return columns

    def has_required_columns(self, rows: Rows, columns: RoleColumns, *, labelled: bool) -> bool:
        """Whether a table has the required columns."""
        present = columns_present(rows, columns)
        needed = (role for role in self.roles if self._is_needed(role, labelled=labelled))
        return all(present[role.name] for role in needed)

    def text(self, columns: RoleColumns) -> str:
        """Return the columns by role, for messages and reports."""
        names = {role.display_name: names_of(columns[role.name]) for role in self.roles}
        return ", ".join(f"{role} = {', '.join(map(repr, of))}" for role, of in names.items() if of)

    def settings(self, name: str, base: type[SettingsT]) -> type[SettingsT]:
        """Create a settings class: the fields of `base`, and one for the column of each role."""
        fields: dict[str, Any] = {}
        for role in self.roles:
            meaning = f"column of the {role.display_name}, by name or number; detected if omitted"
            kind: Any = str | tuple[str, ...] | None if role.many else str | None
            fields[role.option] = (kind, Field(None, description=meaning))
        made: type[SettingsT] = create_model(name, __base__=base, **fields)
        return made

    @staticmethod
    def _is_needed(role: Role, *, labelled: bool) -> bool:
        return not role.optional and (labelled or not role.of_label)


def names_of(column: Column) -> tuple[str, ...]:
    """Return the names of a role's columns as a tuple."""
    if column is None:
        return ()
    return (column,) if isinstance(column, str) else column


def columns_present(rows: Rows, columns: RoleColumns) -> RoleColumns:
    """Return each role's column if a table has it, or all of several; otherwise None."""
    return {
        role: column if column and set(names_of(column)) <= set(rows.columns) else None
        for role, column in columns.items()
    }

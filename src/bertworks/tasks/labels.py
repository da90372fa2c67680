"""Read labels from rows, as names or as numbers; count and sort them."""

from __future__ import annotations

import difflib
import math
import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..data.rows import (
    NoLabel,
    Row,
    Rows,
    WholeLabel,
    has_lone_surrogate,
    is_missing,
    is_unmarked,
    parse_json_cell,
    value_of,
)
from ..data.schema import canonical
from ..data.unlabelled import UnlabelledError
from ..errors import BertworksWarning, DataError, shorten_list, truncate_repr
from ..text.wordpiece import is_removed

MARKS = ("-", "\u2013", "\u2014", "-1", "-1.0", "-100", "-100.0")
"""Labels that usually mean that a row has no gold label: SNLI's `-`, and numbers below all classes,
also as pandas writes them in a column with empty cells.

They may be classes too: see `find_unlabelled_marks`.
"""

_POSSIBLE_MARKS = frozenset(
    [
        *("?", "na", "n/a", "#n/a", "nan", "nil", "null", "missing", "hidden", "undecided"),
        *("unlabelled", "unlabeled", "unannotated", "not_annotated", "no_label", "nolabel"),
        *("no_gold", "no_gold_label", "no_consensus", "no_agreement"),
    ]
)
"""Words for a row without a gold label, which may also be a class: the user decides."""

_WHOLE_NUMBER, _WHOLE_FLOAT = re.compile(r"-?\d+"), re.compile(r"-?\d+\.0")
_LABEL_NUMBER = re.compile(r"LABEL_(\d+)", re.IGNORECASE)  # as transformers names unnamed classes


def count_labels(
    rows: Rows, column: str, separator: str | None = None, no_label: str | None = None
) -> Counter[str]:
    """Count how often each label occurs in a table, without rows that have no gold label.

    Args:
        separator: the separator between the labels of a row; None if each row has one label.
        no_label: the label that means that a row has no gold label; if None, it is guessed.

    Raises:
        DataError: a row has no label although each must have one; or there are too few different
            labels: two are needed if each row has one, otherwise one.
    """
    counts: Counter[str] = Counter()
    declared_marks: set[str] = set()
    have_several = True  # whether each row has several labels
    for where, row in rows:
        if isinstance(value := row.get(column), NoLabel):
            declared_marks.add(str(value))
            continue
        if separator is None:
            counts[read_label_name(row, column, where)] += 1
        else:
            names = read_label_names(row, column, where, separator)
            counts.update(names)
            have_several &= len(names) > 1
    if have_several and separator is not None and counts and _are_flags(counts):  # of two classes
        raise _multi_hot_error(f"all labels of column {column!r}", rows.name)
    if separator is None:
        warn_about_possible_marks(counts, no_label, rows.name)
        warn_about_absent_mark({*counts, *declared_marks}, no_label, rows.name)
        for mark in find_unlabelled_marks(counts, no_label):
            del counts[mark]
    if len(counts) < (2 if separator is None else 1):
        text = ", ".join(map(repr, counts)) or "none"
        needs = "two different labels" if separator is None else "a label"
        raise DataError(
            f"a classifier needs {needs}, and column {column!r} holds {text}",
            where=rows.name,
        )
    warn_about_misspellings(counts, rows.name)
    return counts


def find_unlabelled_marks(labels: Iterable[str], no_label: str | None = None) -> set[str]:
    """Return those labels of a table that mean that a row has no gold label.

    A dash does if there are two other labels at least and all of them have a letter or a digit:
    with `+`, it is a class. -1 does if the others are the numbers 0, 1, 2, … or 1, 2, 3, … (three
    at least: -1, 0 and 1 are three classes), and -100 with any such numbers.

    Args:
        labels: all labels of the table.
        no_label: the only such label, as set by the user; "" if there is none.
    """
    names = set(labels)
    if no_label is not None:
        return mark_names(no_label) & names
    marks, others = names & set(MARKS), names - set(MARKS)
    numbers = {int(whole) for whole in map(_whole_number, others) if whole.isdecimal()}
    are_numbered = len(numbers) == len(others) and (
        numbers in (set(range(len(others))), set(range(1, len(others) + 1)))
    )
    have_words = all(any(map(str.isalnum, name)) for name in others)
    return {
        mark
        for mark in marks
        if len(others) > (2 if _whole_number(mark) == "-1" else 1)
        and (are_numbered if _whole_number(mark) in ("-1", "-100") else have_words)
    }


def _whole_number(name: str) -> str:
    """Return a label as pandas would write it if it were an integer: `1` for `1.0`."""
    return name.removesuffix(".0") if _WHOLE_FLOAT.fullmatch(name) else name


def mark_names(no_label: str) -> set[str]:
    """Return the labels that are a user's mark: a whole number also as pandas may write it, -1.0.

    Args:
        no_label: the mark; blank if there is none.
    """
    name = _whole_number(no_label.strip())
    return ({name, f"{name}.0"} if _WHOLE_NUMBER.fullmatch(name) else {name}) - {""}


def find_mark(value: Any, marks: Container[str]) -> str | None:
    """Return the mark that says that a row has no gold label; None if its label is no mark.

    Args:
        value: of the column of labels.
        marks: labels that are marks.
    """
    if isinstance(value, NoLabel):
        return str(value)
    name = label_name_of(value)
    return name if name is not None and name in marks else None


def warn_about_possible_marks(
    labels: Iterable[str],
    no_label: str | None,
    where: str,
    predicted: Container[str] = (),
    *,
    is_option: bool = False,
) -> None:
    """Warn of labels that are classes, but may mean that a row has no gold label.

    These are words such as `hidden` and `no consensus`, and -1 next to names or to 0 and 1.

    Args:
        labels: all labels of the table.
        no_label: the label of rows without a gold label, as set by the user.
        where: the table.
        predicted: labels that are predicted, and so are classes.
        is_option: whether the command line has the option --no-label, not the word no_label=.
    """
    names = set(labels)
    if no_label is not None or len(names) < 3:
        return
    for name in sorted(names - find_unlabelled_marks(names)):
        if name in predicted:
            continue
        is_word = not {name.lower(), canonical(name)}.isdisjoint(_POSSIBLE_MARKS)
        if is_word or _is_doubtful_number(name, names - {name}):
            what = f"{where}: the label {name!r} is a class"
            advice = f'no_label="{name}"'  # in Python and in a shell
            if is_option:
                advice = f'--no-label "{name}" ({advice})'
            elif name == "null":  # as a word of the command line, it stands for no value
                advice = f"no_label='\"{name}\"' ({advice} in Python)"
            how = f"if it means that a row has no gold label, give {advice}"
            warnings.warn(f"{what}; {how}", BertworksWarning, stacklevel=3)


def warn_about_absent_mark(labels: Container[str], no_label: str | None, where: str) -> None:
    """Warn of a user's mark that no row has: it is misspelt, perhaps.

    Args:
        labels: all labels of the table, with its marks.
        no_label: the label of rows without a gold label, as set by the user.
        where: the table.
    """
    names = mark_names(no_label or "")
    if names and not any(name in labels for name in names):
        what = f"no row has the label {no_label!r} (no_label), which would mark it as unlabelled"
        warnings.warn(f"{where}: {what}", BertworksWarning, stacklevel=3)


def _is_doubtful_number(name: str, others: set[str]) -> bool:
    """Whether a label is -1 or -100, and the others are names, or 0 and 1."""
    are_names = not any(re.fullmatch(r"[-+]?[\d.]+", other) for other in others)
    number, other_numbers = _whole_number(name), {_whole_number(other) for other in others}
    is_sign = number == "-1" and other_numbers == {"0", "1"}
    return is_sign or (number in ("-1", "-100") and are_names)


def parse_class_numbers(labels: Iterable[str]) -> dict[str, str]:
    """Return the numbers of labels LABEL_0, LABEL_1, …; empty if one is not of this form."""
    names = sorted(labels)
    matches = [_LABEL_NUMBER.fullmatch(name) for name in names]
    numbers = [str(int(match[1])) for match in matches if match is not None]
    return dict(zip(names, numbers, strict=True)) if len(numbers) == len(names) else {}


def find_other_spellings(labels: Sequence[str]) -> dict[str, str]:
    """Return other spellings of a model's labels, as tables of another origin have them.

    transformers calls the classes of a model without names LABEL_0, LABEL_1, …; pandas writes whole
    numbers as 1.0 where other rows have none, and truth values as True, which JSON calls true.

    Args:
        labels: all labels of the model.
    """
    if numbers := parse_class_numbers(labels):
        return {number: label for label, number in numbers.items()}
    if all(_WHOLE_NUMBER.fullmatch(label) for label in labels):
        unnamed = {f"LABEL_{int(label)}": label for label in labels if label.isdecimal()}
        return unnamed | {f"{label}.0": label for label in labels}
    if all(_WHOLE_FLOAT.fullmatch(label) for label in labels):
        return {label.removesuffix(".0"): label for label in labels}
    if sorted(map(str.lower, labels)) == ["false", "true"]:
        return {
            spelling: label
            for label in labels
            for spelling in (label.lower(), label.title(), label.upper())
            if spelling != label
        }
    return {}


def sort_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Sort labels: by value if all are whole numbers, otherwise alphabetically."""
    names = list(labels)
    if all(name.removeprefix("-").isdecimal() for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def find_misspellings(counts: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return labels that are probably misspellings of others, each with the other.

    These are labels of one row that are close to a more frequent one; those of at most a hundredth
    of another's rows that have its letters in another order (`unverified` is also close to
    `verified`); and the rarer of two labels that differ only in letter case, blanks,
    invisible characters, the encoding of a letter in Unicode, or how a number is written. Names
    that differ in a number are different.
    """
    if len(counts) > _MAX_COMPARED_LABELS:
        return []
    by_spelling: dict[str, str] = {}
    pairs = []
    for name in sorted(counts, key=lambda name: (-counts[name], name)):
        other = by_spelling.setdefault(_normalise_spelling(name), name)
        if other == name and len(name) >= 4:
            frequent = [
                label
                for label in by_spelling.values()
                if counts[name] == 1 < counts[label]
                or (counts[name] * 100 <= counts[label] and sorted(name) == sorted(label))
            ]
            same_numbers = [
                label for label in frequent if _keep_digits(label) == _keep_digits(name)
            ]
            other = next(
                iter(difflib.get_close_matches(name, same_numbers, 1, _MIN_SIMILARITY)), name
            )
        if other != name:
            pairs.append((name, other))
    return pairs


_MIN_SIMILARITY = 0.85  # difflib's ratio of `loaction` and `location` is 0.875
_MAX_COMPARED_LABELS = 500  # labels; with more, each of which may be rare, comparing takes long


def _keep_digits(name: str) -> str:
    return "".join(filter(str.isdigit, name))


def _normalise_spelling(name: str) -> str:
    spelling = re.sub(r"[\s_]+", "", _visible_text(name).casefold())
    number = _NUMBER.fullmatch(spelling)
    return spelling if number is None else f"{number[1]}{number[2]}"


def _visible_text(name: str) -> str:
    """Return what people see of a name: names that look alike are equal."""
    normalised = unicodedata.normalize("NFKC", name)
    return "".join(
        sign for sign in normalised if not is_removed(sign) and sign not in _EMOJI_STYLES
    )


_NUMBER = re.compile(r"(-?)0*(\d+)(?:\.0)?", re.ASCII)  # 1.10 and 1.1 may be two versions
_EMOJI_STYLES = "\ufe0e\ufe0f"  # with and without them, an emoji is the same


def warn_about_misspellings(counts: Mapping[str, int], where: str) -> None:
    """Warn of labels that are probably misspellings."""
    pairs = [
        f"{shown} ({counts[name]:,}) of {shown_other} ({counts[other]:,})"
        for name, other in find_misspellings(counts)
        for shown, shown_other in [
            (ascii(name), ascii(other))
            if _visible_text(name) == _visible_text(other)
            else (repr(name), repr(other))
        ]
    ]
    if pairs:
        examples = shorten_list(pairs, str)
        what = f"labels that may be misspellings, with their counts: {examples}"
        warnings.warn(f"{where}: {what}", BertworksWarning, stacklevel=3)


def read_label_name(row: Row, column: str, where: str | None) -> str:
    """Return a row's label as a name; whole numbers and booleans become text.

    Raises:
        DataError: the column is missing or empty, or holds another type of value.
    """
    value = None if is_unmarked(row, column) else value_of(row, column, where)
    if isinstance(value, NoLabel) or is_missing(value):
        what = f"the label (column {column!r}) is empty"
        raise UnlabelledError(what, column=column, where=where)
    name = label_name_of(value)
    if name is None:
        raise DataError(
            f"the label {truncate_repr(value)} (column {column!r}) is not a name", where=where
        )
    if has_lone_surrogate(name):
        raise DataError(
            f"the label {truncate_repr(value)} (column {column!r}) has a lone surrogate, half a "
            "character",
            where=where,
        )
    return name


def label_name_of(value: Any) -> str | None:
    """Return the name of a label that is a cell's value; None if the value is no name."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return str(int(value))
    return value.strip() if isinstance(value, str) else None


def read_label_names(row: Row, column: str, where: str | None, separator: str) -> list[str]:
    """Return all labels of a row without duplicates, from a list or a text with separators.

    Raises:
        DataError: the column is missing, or holds another type of value.
    """
    value = [] if is_unmarked(row, column) else value_of(row, column, where)
    if isinstance(value, WholeLabel):
        return [str(value)] if value else []
    value = parse_json_cell(parse_json_cell(value, dict), list, object)
    if isinstance(value, dict) and value.keys() == {"choices"}:  # Label Studio's JSON-MIN and CSV
        value = value["choices"]
    if isinstance(value, str) and value.startswith(_PYTHON_LISTS):
        what = f"the list {truncate_repr(value)} (column {column!r}) is not valid JSON"
        raise DataError(what, where=where, fix='Write ["a", "b"].')
    if value is None:
        return []
    if isinstance(value, str):
        names = [part.strip() for part in value.split(separator) if part.strip()]
    elif isinstance(value, list):
        names = [read_label_name({column: part}, column, where) for part in value]
    else:
        return [read_label_name(row, column, where)]
    flags = _BETWEEN_FLAGS.sub(" ", value).split() if isinstance(value, str) else names
    if len({*flags}) < len(flags) and _are_flags(flags):
        raise _multi_hot_error(f"the labels {truncate_repr(value)} (column {column!r})", where)
    return list(dict.fromkeys(names))


_PYTHON_LISTS = ("['", '["', "{'", '{"', "('", '("')  # as Python prints lists, sets and tuples
_FLAGS = frozenset(("0", "1", "0.0", "1.0", "0.", "1.", "false", "true"))
_BETWEEN_FLAGS = re.compile(r"[\s,;|\[\]()]+")  # also as NumPy prints arrays: [1. 0. 1.]


def _are_flags(names: Iterable[str]) -> bool:
    return all(name.lower() in _FLAGS for name in names)


def _multi_hot_error(subject: str, where: str | None) -> DataError:
    return DataError(
        f"{subject} seem to be a 0 or 1 for each class, not their names",
        where=where,
        fix="Write the names of those that are 1: a list, or a,b.",
    )


def build_label_entries(labels: Sequence[str]) -> dict[str, Any]:
    """Return the entries of `config.json` that name the outputs of a head for other tools."""
    numbered_labels = list(enumerate(labels))
    return {
        "id2label": {str(number): name for number, name in numbered_labels},
        "label2id": {name: number for number, name in numbered_labels},
    }


def read_finite_number(row: Row, column: str, where: str | None) -> float:
    """Return a row's label as a number.

    Raises:
        DataError: the column is missing, or its value is not a finite number.
    """
    value = None if is_unmarked(row, column) else value_of(row, column, where)
    try:
        number = math.nan if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        what = f"{truncate_repr(value)} (column {column!r}) is not a finite number"
        has_comma = isinstance(value, str) and re.fullmatch(r"\s*-?\d+,\d+\s*", value)
        fix = "Write it with a point: 1.5, not 1,5." if has_comma else None
        if is_missing(value):
            raise UnlabelledError(what, column=column, where=where)
        raise DataError(what, where=where, fix=fix)
    return number

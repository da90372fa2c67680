"""Names of numbered classes: `ClassLabel` in Hugging Face data sets and in the tables they write.

A data set describes its columns as `features`; Parquet and Arrow tables that it writes hold the
same description as JSON, under the key `huggingface` of their metadata.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

from ..errors import BertworksWarning, DataError
from .rows import NoLabel

ClassNames = dict[str, list[str]]
"""The names of the classes of each column that has numbers in their place."""

_KEY = b"huggingface"


def names_of_features(features: Mapping[str, Any] | None) -> ClassNames:
    """Return the class names of the columns that a data set describes as class numbers."""
    names = {column: _names_of(kind) for column, kind in (features or {}).items()}
    return {column: of for column, of in names.items() if of is not None}


def names_in_metadata(metadata: Mapping[bytes, bytes] | None, where: str) -> ClassNames:
    """Return the class names that the metadata of a Parquet or Arrow table gives.

    Args:
        metadata: of the table's schema; None if it has none.
        where: the table, for a warning about a description that cannot be read.
    """
    if not metadata or _KEY not in metadata:
        return {}
    try:
        features = json.loads(metadata[_KEY])["info"]["features"]
        return names_of_features(features)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        what = "the description of its columns (metadata 'huggingface') cannot be read: class"
        warnings.warn(
            f"{where}: {what} numbers are not replaced by names", BertworksWarning, stacklevel=2
        )
        return {}


def name_classes(values: dict[str, Any], names: ClassNames, where: str) -> dict[str, Any]:
    """Return a row with the names of classes in place of their numbers.

    A number below 0 means that the row has no label (`NoLabel`); in a list, it becomes None.

    Raises:
        DataError: a class of this number does not exist.
    """
    row = copy(values)
    for column in names.keys() & row.keys():
        value = row[column]
        if isinstance(value, list):
            parts = [_name(part, names[column], column, where) for part in value]
            row[column] = [None if isinstance(part, NoLabel) else part for part in parts]
        else:
            row[column] = _name(value, names[column], column, where)
    return row


def _name(number: Any, names: Sequence[str], column: str, where: str) -> Any:
    if isinstance(number, float) and number.is_integer():  # pandas, where a number is missing
        number = int(number)
    if not isinstance(number, int) or isinstance(number, bool):
        return number
    if number < 0:
        return NoLabel(number)
    if number >= len(names):
        what = f"the class {number} (column {column!r}) has no name; there are {len(names)}, from 0"
        raise DataError(what, where=where)
    return names[number]


def _names_of(kind: Any) -> list[str] | None:
    """Return the names of a column of class numbers, or of lists of them; None for another."""
    if isinstance(kind, list) and len(kind) == 1:
        return _names_of(kind[0])
    inner = _part(kind, "feature")
    if inner is not None:
        return _names_of(inner)
    names = _part(kind, "names")
    return list(names) if isinstance(names, list | tuple) else None


def _part(kind: Any, key: str) -> Any:
    return kind.get(key) if isinstance(kind, Mapping) else getattr(kind, key, None)

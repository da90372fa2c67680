"""JSON: files, checksums in them, JSON texts, and values that JSON lacks."""

from __future__ import annotations

import json
import math
import os
import zlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import BertworksError, DataError, truncate_repr
from .atomic_writes import write_file
from .regular_files import read_content


def write_json(path: str | os.PathLike[str], value: Any, *, indent: int | None = 2) -> None:
    """Replace the content of a file with a JSON document.

    Raises:
        OutputError: the file cannot be written.
    """
    write_file(path, json.dumps(value, indent=indent, ensure_ascii=False) + "\n")


def read_json(path: Path, error: type[BertworksError]) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        BertworksError: of the class `error`: the file cannot be read, or does not hold an object.
    """
    tree = read_json_value(path, error)
    if not isinstance(tree, dict):
        raise error("the file must hold a JSON object", where=str(path))
    return tree


def read_json_value(path: Path, error: type[BertworksError]) -> Any:
    """Return the value in a JSON file, of any type.

    Raises:
        BertworksError: of the class `error`: the file cannot be read, or is not valid JSON.
    """
    try:
        return parse_json(read_content(path, error))
    except ValueError as problem:
        raise error(f"not valid JSON ({problem})", where=str(path)) from None


def check_format_version(
    tree: Any, version: int, path: Path, error: type[BertworksError], *, fix: str
) -> None:
    """Check the format number of a JSON object that this package wrote.

    The number rises with every change of a format; files of other numbers are not read.

    Args:
        tree: the content of the file `path`; its entry `format_version` is the number.
        version: the number of today's format.
        fix: how to make the file again.

    Raises:
        BertworksError: of the class `error`: the file has another number, or none.
    """
    number = tree.get("format_version") if isinstance(tree, dict) else None
    if number != version:
        text = "none" if number is None else truncate_repr(number)
        raise error(f"written in another format ({text}, not {version})", where=str(path), fix=fix)


_CHECKSUM = "crc32"


def with_checksum(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with its checksum added."""
    return {**tree, _CHECKSUM: _checksum(tree)}


def verify_checksum(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Check and remove the checksum that `with_checksum` added.

    Raises:
        ValueError: the checksum is missing or wrong.
    """
    content = dict(tree)
    if content.pop(_CHECKSUM, None) != _checksum(content):
        raise ValueError("its checksum is wrong")
    return content


def _checksum(tree: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(tree, sort_keys=True).encode()):08x}"


MAX_DEPTH = 100
"""Maximum nesting of lists and objects; no format that is read here needs more than 20 levels.

Python and other libraries process values recursively; at some depth they raise a `RecursionError`
or crash.
"""


class RepeatedKeys(dict[str, Any]):
    """An object in which a key occurs twice: the last value counts, as for most programs."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        (self.key, _), *_ = Counter(key for key, _ in pairs).most_common(1)

    def error(self, where: str) -> DataError:
        """The error of a reader that needs one value."""
        what = f"the key {truncate_repr(self.key)} occurs twice"
        return DataError(what, where=where, fix="Keep one of them.")


def parse_json(text: str | bytes, *, mark_repeated_keys: bool = False) -> Any:
    """Parse a JSON text.

    Args:
        mark_repeated_keys: whether objects in which a key occurs twice are `RepeatedKeys`.

    Raises:
        ValueError: it is not valid JSON, not UTF-8, nested deeper than `MAX_DEPTH`, or has a number
            of too many digits.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    try:
        value = json.loads(text, object_pairs_hook=_object_of if mark_repeated_keys else None)
    except RecursionError:
        raise _depth_error() from None
    except json.JSONDecodeError:
        raise
    except ValueError:  # Python's limit, with advice for programmers
        raise ValueError("a number has too many digits") from None
    if text.count("[") + text.count("{") > MAX_DEPTH:
        _check_depth(value)
    return value


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    items = dict(pairs)
    return items if len(items) == len(pairs) else RepeatedKeys(pairs)


def _check_depth(value: Any) -> None:
    """Check, level by level, that a value is not nested too deeply."""
    level: list[Any] = [[value]]
    containers = frozenset((dict, list, RepeatedKeys))
    for _ in range(MAX_DEPTH + 1):
        wholes = (whole.values() if isinstance(whole, dict) else whole for whole in level)
        # A vocabulary has no containers, but tens of thousands of parts.
        nested = (parts for parts in wholes if not containers.isdisjoint(map(type, parts)))
        level = [part for parts in nested for part in parts if type(part) in containers]
        if not level:
            return
    raise _depth_error()


def first_problem(error: Any) -> str:
    """Return the key and the message of the first error in a pydantic `ValidationError`."""
    first = error.errors()[0]
    key = ".".join(map(str, first["loc"]))
    return f"{key}: {first['msg']}" if key else str(first["msg"])


def _depth_error() -> ValueError:
    return ValueError(f"it is nested more than {MAX_DEPTH} levels deep")


def to_json(value: Any) -> str:
    """Return a value as JSON on one line; NaN and infinities, which JSON lacks, become null."""
    return json.dumps(
        _replace_non_finite(value), allow_nan=False, ensure_ascii=False, default=_plain
    )


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _replace_non_finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_non_finite(item) for item in value]
    return value


def _plain(value: Any) -> Any:
    """Convert NumPy's numbers and arrays to Python's, and all else to text."""
    return _replace_non_finite(value.tolist()) if hasattr(value, "tolist") else str(value)

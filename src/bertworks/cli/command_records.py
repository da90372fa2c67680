"""Records of finished commands: the same command again has nothing to do.

Verbs that resume record their progress in their outputs. For all others, a file in the cache holds
digests of the command with the state of its inputs, and of the output's state. Without the file, an
output that exists is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import OutputError
from ..utils.atomic_writes import real_path
from ..utils.directories import LOCK_NAME
from ..utils.json_files import parse_json, write_json
from ..utils.regular_files import read_bytes
from ..utils.remote import cache_directory

_NO_EFFECT = frozenset({"overwrite", "json", "threads", "device", "workers", "cluster"})
"""Options that do not change the content of an output."""


def command_digest(
    verb: str,
    options: Mapping[str, Any],
    settings: Iterable[str],
    inputs: Iterable[object],
    output: str | Path,
) -> str | None:
    """Return a digest of a command, and of the sizes and times of the files that it reads.

    Args:
        options: all arguments and options of the verb.
        settings: its settings, as `key=value` words.
        inputs: files and directories that the verb reads, in addition to files that are options;
            all files of these directories are listed.
        output: the output.

    Returns:
        None for a command that reads standard input, which is never the same.
    """
    from .. import __version__

    relevant_options = {name: value for name, value in options.items() if name not in _NO_EFFECT}
    words = [word for value in relevant_options.values() for word in _words(value)]
    if "-" in words:
        return None
    # The file of a user's task is given as FILE.py:CLASS.
    named = {part for word in words for part in (word, word.rpartition(":")[0])} - {str(output)}
    paths = {*filter(os.path.isfile, named), *(str(given) for given in inputs if given is not None)}
    states = [(path, _state(Path(path))) for path in sorted(paths)]
    values = {name: list(_words(value)) for name, value in relevant_options.items()}
    return _digest([__version__, os.getcwd(), verb, values, sorted(settings), states])


def _words(value: Any) -> Iterator[str]:
    for one in value if isinstance(value, list | tuple) else [value]:
        yield str(one)


def is_finished(output: str | Path, command: str) -> bool:
    """Whether a command has written an output, which has not changed since."""
    with suppress(OSError, ValueError):
        record = parse_json(read_bytes(_record_path(output)))
        # The output is read only if this command wrote it: it could be any directory.
        is_same = isinstance(record, dict) and record.get("command") == command
        return is_same and bool(record.get("output") == _digest(_state(Path(output))))
    return False


def record_finished(output: str | Path, command: str) -> None:
    """Record that a command has written an output; do nothing if the cache cannot be written."""
    with suppress(OSError, OutputError):
        file = _record_path(output)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {"command": command, "output": _digest(_state(Path(output)))})


def _record_path(output: str | Path) -> Path:
    name = hashlib.sha256(os.fsencode(real_path(output))).hexdigest()[:32]
    return cache_directory() / "finished" / f"{name}.json"


def _state(path: Path) -> list[Any]:
    """The relative paths, sizes and times of a file, or of all files of a directory."""
    every = sorted(path.rglob("*")) if path.is_dir() else [path]
    regular = [file for file in every if file.is_file() and file.name != LOCK_NAME]
    statuses = [(file.relative_to(path).as_posix(), file.stat()) for file in regular]
    return [[name, status.st_size, status.st_mtime_ns] for name, status in statuses]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()

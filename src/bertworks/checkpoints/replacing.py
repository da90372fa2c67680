"""What a saved model's directory may hold, so that nothing else is lost when it is replaced."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import CheckpointError
from ..files import LOCK, is_empty
from ..text import files as tokenizer_files
from . import sentence
from .weights import SAFETENSORS

_FILES = {
    *("config.json", "bertworks.json", SAFETENSORS),
    *tokenizer_files.FILES,
    *sentence.FILES,
}
"""All that a saved model may consist of."""


def is_other(name: str) -> bool:
    """Whether the file of that path in a saved model's directory is no part of the model."""
    return name not in _FILES and name != LOCK


def check_empty(directory: Path) -> None:
    """See that a directory is new or empty.

    Raises:
        CheckpointError: it is not.
    """
    if directory.exists() and not is_empty(directory):
        raise CheckpointError(
            "the directory is not empty", where=str(directory), fix="Name one that is new or empty."
        )


def check_target(directory: str | Path, *, keep_others: bool = False) -> None:
    """See that nothing but a saved model is lost when one is saved.

    Args:
        directory: where it is saved.
        keep_others: what else the directory holds is kept, and is no obstacle.

    Raises:
        CheckpointError: the directory holds something else, or cannot be read.
    """
    target = Path(directory).resolve()
    where = str(directory)
    try:
        if not target.exists():
            return
        found = sorted(path.relative_to(target).as_posix() for path in target.rglob("*"))
        found = [name for name in found if name != LOCK]
        is_here = target.samefile(os.curdir)
    except OSError as error:
        raise CheckpointError(f"cannot be read ({error})", where=where) from None
    others = list(filter(is_other, found)) if "config.json" in found else found  # a vocabulary, say
    if others and not keep_others:
        raise CheckpointError(
            f"the directory holds {others[0]!r}, which is no part of a saved model and would be "
            "lost",
            where=where,
            fix="Name a directory that is new or empty.",
        )
    if found and is_here:  # who works there would be left in a directory that is no more
        raise CheckpointError(
            "the working directory cannot be replaced", where=where, fix="Save from another."
        )

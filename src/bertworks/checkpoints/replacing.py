"""A saved model's directory, replaced as a whole; never one that holds anything else."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ..errors import CheckpointError, check_name
from ..text import files as tokenizer_files
from . import sentence
from .weights import SAFETENSORS

_FILES = {
    *("config.json", "bertworks.json", SAFETENSORS),
    *tokenizer_files.FILES,
    *sentence.FILES,
}
"""All that a saved model may consist of."""


def check_target(directory: str | Path) -> None:
    """See that nothing but a saved model is lost when one is saved.

    Raises:
        CheckpointError: the directory holds something else, or is a file, or cannot be read.
        DataError: its name is not UTF-8.
    """
    check_name(directory)
    target = Path(directory).resolve()
    where = str(directory)
    try:
        if not target.exists():
            return
        if not target.is_dir():
            raise CheckpointError("is a file, not a directory", where=where)
        found = sorted(path.relative_to(target).as_posix() for path in target.rglob("*"))
        is_here = target.samefile(os.curdir)
    except OSError as error:
        raise CheckpointError(f"cannot be read ({error})", where=where) from None
    others = [name for name in found if name not in _FILES]
    if found and "config.json" not in found:  # a vocabulary, say
        others = found
    if others:
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


def put_in_place(new: Path, directory: Path) -> None:
    """Give a finished directory its name; what `check_target` allows there goes.

    A model that is there is away for a moment only, between two renamings. Killed then, it lies
    beside as `.NAME.old`, and stays there until a model has been saved under its name again.

    Raises:
        OSError: it cannot be moved; then a model that was there is there again.
    """
    if directory.exists() and not any(directory.iterdir()):
        # It may be somebody's working directory. What makes a directory a model's comes last.
        for path in sorted(new.iterdir(), key=lambda path: path.name == "config.json"):
            path.rename(directory / path.name)
        new.rmdir()
        return
    old = directory.with_name(f".{directory.name}.old")
    if directory.exists():
        shutil.rmtree(old, ignore_errors=True)
        directory.rename(old)
    try:
        new.rename(directory)
    except OSError:
        if old.exists():
            old.rename(directory)
        raise
    shutil.rmtree(old, ignore_errors=True)

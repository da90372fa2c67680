"""What a verb checks before any work: that its inputs exist, and that it may write its output."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from glob import has_magic
from pathlib import Path
from typing import Any

import typer

from ..errors import DataError
from ..utils.locks import OutputKind
from ..utils.outputs import locked_output
from ..utils.regular_files import why_no_file
from ..utils.remote import is_remote
from . import command_records
from .display import Display
from .models import ModelSource

current_verb: ContextVar[Any] = ContextVar("current_verb", default=None)
"""The context of the verb that runs, with its name and arguments."""

PAGE_SUFFIXES = (".html", ".htm")


@contextmanager
def output(
    path: str | Path | None,
    inputs: Iterable[object] = (),
    *,
    model: ModelSource | None = None,
    folders: bool = False,
    kind: OutputKind = "file",
    overwrite: bool | None = None,
    marks: Iterable[str] = (),
    repeats: bool = False,
) -> Iterator[bool]:
    """Check a verb's inputs, and lock its output within the block; see `locked_output`.

    Args:
        path: the output; None and "-" are standard output, which is not locked.
        inputs: the files and prepared corpora that are read.
        model: the model that is read.
        folders: whether inputs may be other directories, of which all files are read.
        kind: the kind of the output.
        overwrite: whether an existing output may be replaced; None: the block decides. If this
            command has written the output before, nothing is done.
        marks: see `locked_output`.
        repeats: do the block nevertheless, since it also prints.

    Yields:
        Whether the block may replace the output.
    """
    inputs = list(inputs)
    check_present(inputs)
    if path in (None, "-"):
        yield False
        return
    assert path is not None
    from ..checkpoints.locate import check_model

    model_directories = [] if model is None else model.directories()
    sources = [*inputs, *model_directories]
    verb = current_verb.get()
    command = None
    if overwrite is not None and kind != "directory" and verb is not None:
        # The digest lists all files of directories: first of all, they must be what they should.
        for directory in model_directories:
            check_model(directory)
        if not folders:
            _check_no_folder(inputs)
        command = command_records.command_digest(
            verb.info_name, verb.params, verb.meta.get("settings", ()), sources, path
        )
    if command is not None and not overwrite and command_records.is_finished(path, command):
        if not repeats:
            Display().facts({"time": "nothing to do: already finished", "written to": path})
            raise typer.Exit
        overwrite = True
    with locked_output(path, sources, kind=kind, lend=True, overwrite=overwrite, marks=marks):
        yield bool(overwrite)
        if command is not None:
            command_records.record_finished(path, command)


def check_present(inputs: Iterable[object]) -> None:
    """Check that the files among a verb's inputs exist, before any work.

    Raises:
        DataError: a path does not exist. Names of data sets, paths on other file systems, globs,
            and "-" are checked when they are read.
    """
    for name in inputs:
        if name is None or is_remote(name) or str(name) == "-" or has_magic(str(name)):
            continue
        path = os.path.expanduser(str(name))
        if not path.startswith("hf:") and not os.path.exists(path):
            raise DataError(why_no_file(path, "file"), where=str(name))


def _check_no_folder(inputs: Iterable[object]) -> None:
    """Check that no input is a directory other than a prepared corpus.

    Raises:
        DataError: one is.
    """
    from ..data.manifest import is_corpus

    for name in inputs:
        if name is not None and os.path.isdir(str(name)) and not is_corpus(name):
            raise DataError("a folder, not a table", where=str(name))


def check_page(report: Path | None, *, suffixes: Sequence[str] = ("", *PAGE_SUFFIXES)) -> None:
    """Check the suffix of a report's name, before the evaluation.

    Raises:
        DataError: it is not one of `suffixes`.
    """
    if report is not None and report.suffix.lower() not in suffixes:
        raise DataError("a report is an HTML page", where=str(report), fix="Name it .html.")

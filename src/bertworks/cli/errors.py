"""Errors and warnings for users: each in one line on standard error, with an exit status."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer

from ..errors import BertworksError, BertworksWarning, SettingsError, missing_package_error
from ..utils import memory

UsageError: Any = typer.BadParameter.__base__  # Typer does not export it

_SIZES = "batch_tokens, micro_batch_tokens, window_rows, batch_size or --workers"
_LITTLE_LEFT = (
    f"less than {memory.LITTLE_MEMORY >> 20} MB of memory is available to this process; if it ends "
    "without an error message, a library ran out of memory. Check `ulimit -v` and other "
    "running processes"
)


@contextmanager
def errors_in_a_line() -> Iterator[None]:
    """Within the block, print errors that a user can fix as `error: …`, and exit with a status.

    Other errors are the program's, and keep their traceback.
    """
    try:
        with warnings_in_a_line(), usage_errors_in_a_line():
            yield
    except BertworksError as error:
        status = getattr(error, "status", 0)
        if isinstance(error, SettingsError):
            _stop_agent()
        if not status:
            fail(str(error), 1)
        # A run that was stopped is saved: no error, but it has the status that shells expect.
        typer.echo(str(error), err=True)
        raise typer.Exit(status) from None
    except KeyboardInterrupt:
        fail("interrupted. Run the same command again to resume where possible", 130)
    except BrokenPipeError:  # as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(141) from None
    except BaseException as error:  # a panic of a Rust library is not an Exception
        if memory.is_memory_short(error):
            what = " ".join(str(error).split())[:200]
            why = f" ({what})" if what else ""
            fail(f"out of memory{why}. Free some, or lower {_SIZES}", 1)
        if not isinstance(error, OSError) or error.strerror is None:
            raise
        fail(f"{error.filename}: {error.strerror}" if error.filename else error.strerror, 1)


@contextmanager
def missing_packages_named(verb: str) -> Iterator[None]:
    """Within the block, the error of a package that is not installed names its extra.

    Raises:
        BertworksError: what a verb imports is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = missing_package_error(error, verb)
        if missing is None:
            raise
        raise missing from None


@contextmanager
def warnings_in_a_line() -> Iterator[None]:
    """Within the block, print our warnings as `warning: …`, without their position in the code.

    Equal ones, as of a file that is read twice, are printed once.
    """
    with warnings.catch_warnings():
        usual = warnings.showwarning
        printed_texts: set[str] = set()

        def show(message: Any, category: Any, *place: Any, **more: Any) -> None:
            if not issubclass(category, BertworksWarning):
                usual(message, category, *place, **more)
            elif (text := str(message)) not in printed_texts:
                printed_texts.add(text)
                typer.echo(f"warning: {text}", err=True)

        warnings.showwarning = show
        warnings.simplefilter("always", BertworksWarning)
        yield


@contextmanager
def usage_errors_in_a_line() -> Iterator[None]:
    """Within the block, print errors of the command line as `error: …`, with exit status 2."""
    try:
        yield
    except UsageError as error:
        message = error.format_message().rstrip(".").replace("Value error, ", "", 1)
        message = f"{message[:1].lower()}{message[1:]}"
        if variable := _name_variable(error):
            message = f"{variable}: {message}"
        _stop_agent()
        command = "bertworks" if error.ctx is None else error.ctx.command_path
        stop = "" if message.endswith(("?", ")")) else "."
        fail(f"{message}{stop} Try: {command} --help", 2)


def _name_variable(error: Any) -> str | None:
    """Return the environment variable that has the value which an error is about, if one has."""
    param = getattr(error, "param", None)
    if param is None or error.ctx is None or error.ctx.auto_envvar_prefix is None:
        return None
    source = error.ctx.get_parameter_source(param.name)
    if source is None or source.name != "ENVIRONMENT":
        return None
    return f"{error.ctx.auto_envvar_prefix}_{param.name.upper()}"


def _stop_agent() -> None:
    """End the `torchrun` that started this process, if one did: it would start it again.

    With `--max-restarts`, it restarts processes after any error. An error of settings recurs.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        os.kill(os.getppid(), signal.SIGTERM)


def warn_about_little_memory() -> None:
    """Warn if so little memory is left that a library may end the process without a message."""
    if memory.is_little_left():
        warnings.warn(_LITTLE_LEFT, BertworksWarning, stacklevel=2)


def fail(message: str, status: int) -> NoReturn:
    """Print `error: …` to standard error, on one line, and exit with the status."""
    typer.echo("error: " + " ".join(message.split()), err=True)
    raise typer.Exit(status) from None

"""The parts that all verbs share: the application, common options, and the display of errors."""

from __future__ import annotations

import gc
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from glob import has_magic
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from ..errors import BertworksError, BertworksWarning, DataError, SettingsError
from ..settings import literals
from ..utils import memory
from ..utils.environment import check_environment
from ..utils.locks import OutputKind
from ..utils.outputs import locked_output
from ..utils.remote import is_remote
from . import command_records, display, schemas

if TYPE_CHECKING:
    from ..model import Model

ORDER = (
    *("demo", "vocab", "prepare", "pretrain", "finetune", "glue", "probe", "ablate", "lab"),
    *("evaluate", "score", "predict", "fill-mask", "next-sentence", "generate", "explain"),
    *("embed", "features", "search", "neighbours", "serve", "estimate", "merge"),
    *("tokenize", "inspect", "convert", "quantize", "add-tokens", "shrink", "extend", "settings"),
)


class Verbs(TyperGroup):
    """The group of all verbs: shows errors that a user can fix in one line, with an exit status."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The verbs in the order of their use, not of their modules."""
        return sorted(super().list_commands(ctx), key=ORDER.index)

    def make_context(
        self, info_name: str | None, args: list[str], *others: Any, **more: Any
    ) -> Any:
        if not args:  # prints the help
            return super().make_context(info_name, args, *others, **more)
        with usage_errors_in_a_line():
            return super().make_context(info_name, args, *others, **more)

    def invoke(self, ctx: Any) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):  # a file's name may not be valid UTF-8
                stream.reconfigure(errors="backslashreplace")
        try:
            with warnings_in_a_line(), usage_errors_in_a_line():
                check_environment(os.environ)
                if memory.is_little_left():  # a library may then end the process without a message
                    warnings.warn(_LITTLE_LEFT, BertworksWarning, stacklevel=2)
                return super().invoke(ctx)
        except BertworksError as error:
            status = getattr(error, "status", 0)
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


_SIZES = "batch_tokens, micro_batch_tokens, window_rows, batch_size or --workers"
_LITTLE_LEFT = (
    f"less than {memory.LITTLE_MEMORY >> 20} MB of memory is available to this process; if it ends "
    "without an error message, a library ran out of memory. Check `ulimit -v` and other "
    "running processes"
)


@contextmanager
def warnings_in_a_line() -> Iterator[None]:
    """Within the block, print our warnings as `warning: …`, without their position in the code."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Any, category: Any, *place: Any, **more: Any) -> None:
            if issubclass(category, BertworksWarning):
                typer.echo(f"warning: {message}", err=True)
            else:
                usual(message, category, *place, **more)

        warnings.showwarning = show
        warnings.simplefilter("always", BertworksWarning)
        yield


_UsageError: Any = typer.BadParameter.__base__  # Typer does not export it


@contextmanager
def usage_errors_in_a_line() -> Iterator[None]:
    """Within the block, print errors of the command line as `error: …`, with exit status 2."""
    try:
        yield
    except _UsageError as error:
        message = error.format_message().rstrip(".")
        command = "bertworks" if error.ctx is None else error.ctx.command_path
        stop = "" if message.endswith(("?", ")")) else "."
        fail(f"{message[:1].lower()}{message[1:]}{stop} Try: {command} --help", 2)


def fail(message: str, status: int) -> None:
    """Print `error: …` to standard error, on one line, and exit with the status."""
    typer.echo("error: " + " ".join(message.split()), err=True)
    raise typer.Exit(status) from None


app = typer.Typer(
    cls=Verbs,
    name="bertworks",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
    epilog='Start here: bertworks fill-mask mini "he was born in new [MASK].", or bertworks '
    "demo. Each verb's help ends with an example.",
)


class Verb(TyperCommand):
    """A verb; without arguments it prints a short usage and its first example.

    A verb with settings lists them in its help, and accepts `--key value` for `key=value`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            required_options = [
                f"{param.opts[0]} {param.metavar}"
                for param in self.params
                if param.required and param.param_type_name == "option"
            ]
            required = ["Required: " + ", ".join(required_options)] if required_options else []
            help_ = f"Try '{ctx.command_path} --help' for all options."
            usage = [
                ctx.get_usage(),
                *required,
                "",
                f"Example: {_FIRST_EXAMPLES[self.name or '']}",
                help_,
            ]
            typer.echo("\n".join(usage), err=True)
            ctx.exit(2)
        if self.name in schemas.VERBS:
            args = self._without_settings(ctx, args)
            return super().parse_args(ctx, args)
        words = [arg for arg in args if schemas.is_assignment(arg)]
        try:
            return super().parse_args(ctx, args)
        except _UsageError as error:
            if extra := [word for word in words if f"extra argument(s) ({word}" in error.message]:
                ctx.fail(f"{self.name} takes no settings, but got {extra[0]}")
            raise

    def invoke(self, ctx: Any) -> Any:
        token = _current.set(ctx)
        try:
            return super().invoke(ctx)
        finally:
            _current.reset(token)

    def _without_settings(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments without the settings, which are stored for `read_settings`."""
        options = {
            name: not getattr(param, "is_flag", False)
            for param in self.get_params(ctx)
            if param.param_type_name == "option"
            for name in (*param.opts, *param.secondary_opts)
        }
        takes_words = any(param.name == "settings" for param in self.params)
        try:
            others, words = schemas.split_settings(
                str(self.name), args, options, takes_texts=not takes_words
            )
        except SettingsError as error:
            ctx.fail(str(error))
        ctx.meta["task"] = schemas.task_argument(str(self.name), others)
        ctx.meta["settings"] = words
        return others

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if self.name in schemas.VERBS:
            from ..analysis.settings_help import help_text

            found, others = schemas.settings_in_help(self.name, ctx.meta.get("task"))
            formatter.write("\nSettings, given as KEY=VALUE (or --key VALUE):\n\n")
            formatter.write(help_text(found, formatter.width) + "\n")
            if others:
                task = ctx.meta.get("task") or "TASK"
                what = f"bertworks settings {self.name} {task}"
                formatter.write(f"\nAnd {others} more: {what}\n")
        super().format_epilog(ctx, formatter)


_FIRST_EXAMPLES: dict[str, str] = {}
_current: ContextVar[Any] = ContextVar("_current", default=None)
"""The context of the verb that runs."""


def verb(name: str, *examples: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a verb whose help ends with the examples, one per line and unchanged."""
    _FIRST_EXAMPLES[name] = examples[0]
    title = "Example:" if len(examples) == 1 else "Examples:"
    register = app.command(
        name,
        cls=Verb,
        epilog="\n  ".join(("\b", title, *examples)).replace("\b\n  ", "\b\n"),
        no_args_is_help=name != "demo",
    )

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        register(_with_groups(function))
        return function

    return decorate


@dataclass(frozen=True)
class Group:
    """A group of options that several verbs share: the parameters of a function.

    A verb's parameter `Annotated[…, Group(function)]` gets the result of the function.
    """

    function: Callable[..., Any]


def _with_groups(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function: its groups, also nested ones, are replaced by their options.

    A parameter that several of them have, such as the context, occurs once.
    """
    groups: dict[str, Callable[..., Any]] = {}
    parameters: dict[str, inspect.Parameter] = {}
    own = inspect.signature(function, eval_str=True).parameters
    for name, parameter in own.items():
        marks = getattr(parameter.annotation, "__metadata__", ())
        group = next((mark for mark in marks if isinstance(mark, Group)), None)
        if group is None:
            parameters[name] = parameter
        else:
            groups[name] = _with_groups(group.function)
            parameters |= inspect.signature(groups[name]).parameters

    def run(**arguments: Any) -> Any:
        group_values = {
            name: of(**{key: arguments[key] for key in inspect.signature(of).parameters})
            for name, of in groups.items()
        }
        return function(
            **{
                name: group_values[name] if name in group_values else arguments[name]
                for name in own
            }
        )

    signature = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters.values()]
    run.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in signature}
    run.__name__, run.__doc__ = function.__name__, function.__doc__
    return run


@app.callback(invoke_without_command=True)
def bertworks(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """BERT from raw text to predictions: vocabulary, pre-training, fine-tuning, inference."""
    if version:
        from .. import __version__

        typer.echo(f"bertworks {__version__}")
        raise typer.Exit


Device = Annotated[literals.Device, typer.Option(help="Device to run on.")]
Threads = Annotated[
    int | None,
    typer.Option(min=1, max=1024, metavar="N", help="CPU threads; all cores if omitted."),
]
MODEL_HELP = (
    "A model directory, a name on the hub, or one of the bundled models mini and mini-sentences."
)
ModelPath = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)]
TaskFile = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="FILE.py:CLASS",
        help="Your own task class, for a model trained with it; `encoder`: load only the encoder.",
    ),
]
Header = Annotated[
    bool | None,
    typer.Option(
        "--header/--no-header",
        help="Whether the first line of a table has column names; detected if omitted.",
    ),
]
DropUnlabelled = Annotated[
    bool,
    typer.Option("--drop-unlabelled", help="Leave out rows whose label is empty, and count them."),
]
TableFormat = Annotated[
    literals.TableFormat,
    typer.Option(
        "--format",
        help="File format; auto: by its name, else by its content. label-text: a label, a "
        "space and a text per line.",
    ),
]
Encoding = Annotated[
    str, typer.Option(metavar="NAME", help="Text encoding, such as latin-1, cp1252 or utf-16.")
]
MaxLineBytes = Annotated[
    int | None,
    typer.Option(
        min=1, max=2**40, metavar="N", help="Longer lines are an error; 64 MiB if omitted."
    ),
]
Texts = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TEXT]…", help="Texts; - reads lines from standard input."),
]
SettingsFile = Annotated[
    Path | None,
    typer.Option(
        "--settings", metavar="FILE", help="YAML file of settings; KEY=VALUE words override it."
    ),
]
Recipe = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE", help="YAML file of settings, or name of a recipe.", show_default=False
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace an existing output, or start it again.")
]
Part = Annotated[
    str | None,
    typer.Option("--part", metavar="I/N", help="Make only part I of N; see merge."),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1, max=100_000, metavar="N", help="Processes; all cores (of the cluster) if omitted."
    ),
]
ModelWorkers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        max=100_000,
        metavar="N",
        help="Processes, each with the model; 1 if omitted (on Ray: one per core).",
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option("--on", metavar="PLACE", help="Run on Ray instead: ray or ray://HOST:PORT."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def set_threads(threads: int | None) -> None:
    """Limit the threads of torch and the tokenizer, if `threads` is given."""
    if threads is not None:
        os.environ["RAYON_NUM_THREADS"] = str(threads)
        import torch

        torch.set_num_threads(threads)


def _device_option(device: Device = "auto", threads: Threads = None) -> literals.Device:
    set_threads(threads)
    return device


DeviceOption = Annotated[literals.Device, Group(_device_option)]
"""The device of the network; sets the number of CPU threads, if given."""


def load_model(model: str, device: literals.Device, task: str | None = None) -> Model:
    """Load a model on a device."""
    # Imported objects stay: garbage collection of them would take a third of a short command.
    gc.disable()
    from ..loading import load

    gc.freeze()
    gc.enable()
    return load(model, task=task, device=device)


def _worker_options(workers: ModelWorkers = None, cluster: Cluster = None) -> dict[str, Any]:
    if workers is None and cluster is None:
        return {}
    return {"workers": workers or (None if cluster else 1), "on": cluster}


WorkerOptions = Annotated[dict[str, Any], Group(_worker_options)]
"""The number of processes, each with the model, and where they run; empty if not given."""


def read_settings(
    ctx: typer.Context,
    file: Path | None,
    words: Sequence[str] = (),
    task: str | None = None,
    **values: Any,
) -> dict[str, Any]:
    """Return the settings that a user gives to a verb, by name.

    Args:
        words: `key=value`; override those in the file.
        task: of `finetune`.
        values: override those in the file.

    Raises:
        SettingsError: a key or value is not valid.
    """
    assert ctx.info_name is not None
    schema = schemas.schema_of(ctx.info_name, task)
    settings = schema.resolve(file, [*words, *ctx.meta["settings"]], **values)
    return settings.model_dump(exclude_unset=True)


def _settings_option(ctx: typer.Context, settings_file: SettingsFile = None) -> dict[str, Any]:
    return read_settings(ctx, settings_file)


SettingsOption = Annotated[dict[str, Any], Group(_settings_option)]
"""All settings that a user gives to a verb: in a file, and as words."""


def is_main_process() -> bool:
    """Whether this process prints: the first of those that `torchrun` starts, or the only one."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def output(
    path: str | Path | None,
    inputs: Iterable[object] = (),
    *,
    model: str | None = None,
    kind: OutputKind = "file",
    overwrite: bool | None = None,
    marks: Iterable[str] = (),
    repeats: bool = False,
) -> Iterator[bool]:
    """Check a verb's inputs, and lock its output within the block; see `locked_output`.

    Args:
        path: the output; None and "-" are standard output, which is not locked.
        inputs: the files and directories that are read.
        model: the model that is read: its directory, or its name on the hub.
        kind: the kind of the output.
        overwrite: whether an existing output may be replaced; None: the block decides. If this
            command has written the output before, nothing is done.
        marks: see `locked_output`.
        repeats: do the block nevertheless, since it also prints.

    Yields:
        Whether the block may replace the output.
    """
    from ..checkpoints.locate import local_directory

    inputs = list(inputs)
    check_present(inputs)
    if path in (None, "-"):
        yield False
        return
    assert path is not None
    sources = [*inputs, model and local_directory(model)]
    verb = _current.get()
    command = None
    if overwrite is not None and kind != "directory" and verb is not None:
        command = command_records.command_digest(
            verb.info_name, verb.params, verb.meta.get("settings", ()), sources, path
        )
    if command is not None and not overwrite and command_records.is_finished(path, command):
        if not repeats:
            display.facts({"time": "nothing to do: already finished", "written to": path})
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
            raise DataError("no such file", where=str(name))


def _lines(encoding: Encoding = "utf-8", max_line_bytes: MaxLineBytes = None) -> dict[str, Any]:
    options = {"encoding": encoding, "max_line_bytes": max_line_bytes}
    return {name: value for name, value in options.items() if value not in (None, "utf-8")}


Lines = Annotated[dict[str, Any], Group(_lines)]
"""The given options of files of lines, as keyword arguments of their readers."""


def _table(header: Header = None, format: TableFormat = "auto", *, lines: Lines) -> dict[str, Any]:
    options = {"header": header, "format": format, **lines}
    return {name: value for name, value in options.items() if value not in (None, "auto")}


Table = Annotated[dict[str, Any], Group(_table)]
"""The given settings of `TableOptions`."""


def _labelled_table(table: Table, drop_unlabelled: DropUnlabelled = False) -> dict[str, Any]:
    return {**table, "drop_unlabelled": True} if drop_unlabelled else table


LabelledTable = Annotated[dict[str, Any], Group(_labelled_table)]
"""The given settings of `LabelledTableOptions`."""


def lines_of(texts: Iterable[str], **options: Any) -> Iterator[str]:
    """Yield the texts; `-` is replaced by the lines of standard input, read as they arrive.

    The options are those in `Lines`.
    """
    for text in texts:
        if text == "-":
            from ..data.lines import ReadCounts, Reading, decode_lines

            reading = Reading(ReadCounts(), **options)
            for _, line in decode_lines(sys.stdin.buffer, "standard input", reading):
                yield line.rstrip("\r\n")
        else:
            yield text

"""The options and arguments that verbs of several families share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..settings import literals
from . import verb_settings
from .option_groups import OptionGroup

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
Base = Annotated[
    str | None,
    typer.Option(
        "--base",
        metavar="MODEL",
        help="Base model of an adapter directory; the one that its files name if omitted.",
    ),
]
AdapterName = Annotated[
    str | None,
    typer.Option(
        "--adapter",
        metavar="NAME",
        help="Adapter in the model's directory to merge, such as retrieval.query.",
    ),
]


def _adapters(base: Base = None, adapter: AdapterName = None) -> dict[str, Any]:
    options = {"base": base, "adapter": adapter}
    return {name: value for name, value in options.items() if value is not None}


Adapters = Annotated[dict[str, Any], OptionGroup(_adapters)]
"""The given adapter options, as keyword arguments of `load`."""


def _load_options(adapters: Adapters, task: TaskFile = None) -> dict[str, Any]:
    return adapters if task is None else {**adapters, "task": task}


LoadOptions = Annotated[dict[str, Any], OptionGroup(_load_options)]
"""The given options of a model whose task may be a user's, as keyword arguments of `load`."""

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
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

# Settings

SettingsFile = Annotated[
    Path | None,
    typer.Option(
        "--settings", metavar="FILE", help="YAML file of settings; KEY=VALUE words override it."
    ),
]


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
    schema = verb_settings.schema_of(ctx.info_name, task)
    settings = schema.resolve(file, [*words, *ctx.meta["settings"]], **values)
    return settings.model_dump(exclude_unset=True)


def _settings_option(ctx: typer.Context, settings_file: SettingsFile = None) -> dict[str, Any]:
    return read_settings(ctx, settings_file)


SettingsOption = Annotated[dict[str, Any], OptionGroup(_settings_option)]
"""All settings that a user gives to a verb: in a file, and as words."""

# Files of lines, and tables

Encoding = Annotated[
    str, typer.Option(metavar="NAME", help="Text encoding, such as latin-1, cp1252 or utf-16.")
]
MaxLineBytes = Annotated[
    int | None,
    typer.Option(
        min=1, max=2**40, metavar="N", help="Longer lines are an error; 64 MiB if omitted."
    ),
]
Header = Annotated[
    bool | None,
    typer.Option(
        "--header/--no-header",
        help="Whether the first line of a table has column names; detected if omitted.",
    ),
]
TableFormat = Annotated[
    literals.TableFormat,
    typer.Option(
        "--format",
        help="File format; auto: by its name, else by its content. label-text: a label, a "
        "space and a text per line.",
    ),
]
DropUnlabelled = Annotated[
    bool,
    typer.Option("--drop-unlabelled", help="Leave out rows whose label is empty, and count them."),
]


def _lines(encoding: Encoding = "utf-8", max_line_bytes: MaxLineBytes = None) -> dict[str, Any]:
    options = {"encoding": encoding, "max_line_bytes": max_line_bytes}
    return {name: value for name, value in options.items() if value not in (None, "utf-8")}


Lines = Annotated[dict[str, Any], OptionGroup(_lines)]
"""The given options of files of lines, as keyword arguments of their readers."""


def _table(header: Header = None, format: TableFormat = "auto", *, lines: Lines) -> dict[str, Any]:
    options = {"header": header, "format": format, **lines}
    return {name: value for name, value in options.items() if value not in (None, "auto")}


Table = Annotated[dict[str, Any], OptionGroup(_table)]
"""The given settings of `TableOptions`."""


def _labelled_table(table: Table, drop_unlabelled: DropUnlabelled = False) -> dict[str, Any]:
    return {**table, "drop_unlabelled": True} if drop_unlabelled else table


LabelledTable = Annotated[dict[str, Any], OptionGroup(_labelled_table)]
"""The given settings of `LabelledTableOptions`."""

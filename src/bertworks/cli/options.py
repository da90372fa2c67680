"""The options that verbs of several families share: outputs, settings, and how tables are read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..settings import literals
from .option_groups import OptionGroup

Recipe = Annotated[
    str, typer.Argument(metavar="RECIPE", help="YAML file of settings, or name of a recipe.")
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace an existing output, or start it again.")
]
Part = Annotated[str | None, typer.Option(metavar="I/N", help="Make only part I of N; see merge.")]
Page = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Write an HTML report: confusions, calibration, worst mistakes."
    ),
]
TopK = Annotated[int, typer.Option(min=1, max=1_000_000, metavar="N")]

# Settings


def _read_settings(
    ctx: typer.Context, file: Path | None, words: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the settings that a user gives to a verb, by name; `key=value` words override a file.

    Raises:
        SettingsError: a key or value is not valid.
    """
    from ..analysis.settings_help import settings_class

    verb = str(ctx.info_name)
    schema = settings_class(verb, ctx.params["task"] if verb == "finetune" else None)
    settings = schema.resolve(file, [*words, *ctx.meta["settings"]])
    return settings.model_dump(exclude_unset=True)


SettingsFile = Annotated[
    Path | None,
    typer.Option(
        "--settings", metavar="FILE", help="YAML file of settings; KEY=VALUE words override it."
    ),
]


def _settings(ctx: typer.Context, *, settings_file: SettingsFile = None) -> dict[str, Any]:
    return _read_settings(ctx, settings_file)


SettingsOption = Annotated[dict[str, Any], OptionGroup(_settings)]
"""All settings that a user gives to a verb of texts or names: in a file, and as words."""


def _settings_and_words(
    ctx: typer.Context,
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]…", help="Settings.")
    ] = None,
    *,
    settings_file: SettingsFile = None,
) -> dict[str, Any]:
    return _read_settings(ctx, settings_file, settings or ())


SettingsWords = Annotated[dict[str, Any], OptionGroup(_settings_and_words)]
"""The same, of a verb whose other words are all settings."""

# Files of lines, and tables


def _lines(
    *,
    encoding: str = "utf-8",
    max_line_bytes: Annotated[int | None, typer.Option(min=1, max=2**40)] = None,
) -> dict[str, Any]:
    """The given options of files of lines.

    Args:
        encoding (NAME): Text encoding, such as latin-1, cp1252 or utf-16.
        max_line_bytes (N): Longer lines are an error; 64 MiB if omitted.
    """
    options = {"encoding": encoding, "max_line_bytes": max_line_bytes}
    return {name: value for name, value in options.items() if value not in (None, "utf-8")}


Lines = Annotated[dict[str, Any], OptionGroup(_lines)]
"""The given options of files of lines, as keyword arguments of their readers."""

Header = Annotated[
    bool | None,
    typer.Option(
        "--header/--no-header",
        help="Whether the first line of a table has column names; detected if omitted.",
    ),
]


def _table(
    *, header: Header = None, format: literals.DataFormat = "auto", lines: Lines
) -> dict[str, Any]:
    """The given settings of `TableOptions`.

    Args:
        format: File format; auto: by its name, else by its content. label-text: a label, a space
            and a text per line.
    """
    options = {"header": header, "format": format, **lines}
    return {name: value for name, value in options.items() if value not in (None, "auto")}


Table = Annotated[dict[str, Any], OptionGroup(_table)]
"""The given settings of `TableOptions`."""

DropUnlabelled = Annotated[
    bool,
    typer.Option("--drop-unlabelled", help="Leave out rows whose label is empty, and count them."),
]


def _labelled_table(*, table: Table, drop_unlabelled: DropUnlabelled = False) -> dict[str, Any]:
    return {**table, "drop_unlabelled": True} if drop_unlabelled else table


LabelledTable = Annotated[dict[str, Any], OptionGroup(_labelled_table)]
"""The given settings of `LabelledTableOptions`."""

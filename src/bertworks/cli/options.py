"""The options that verbs of several families share: outputs and settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from .option_groups import OptionGroup
from .verb_settings import read_variables

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
Others = Annotated[list[str] | None, typer.Option("--with")]
TopK = Annotated[int, typer.Option(min=1, max=1_000_000, metavar="N")]

# Settings


def _read_settings(
    ctx: typer.Context, file: Path | None, words: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the settings that a user gives to a verb, by name.

    `key=value` words override the environment, which overrides a file.

    Raises:
        SettingsError: a key or value is not valid.
    """
    from ..analysis.settings_help import settings_class

    verb = str(ctx.info_name)
    schema = settings_class(verb, ctx.params["task"] if verb == "finetune" else None)
    words = [*words, *ctx.meta["settings"]]
    prefix = getattr(ctx, "auto_envvar_prefix", None)
    if prefix is not None:
        words += read_variables(schema, prefix, words)
    settings = schema.resolve(file, words)
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

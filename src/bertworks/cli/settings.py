"""What can be set: `settings`."""

from __future__ import annotations

from typing import Annotated

import typer

from .app import verb
from .schemas import VERBS, schema_of


@verb(
    "settings",
    "bertworks settings pretrain",
    "bertworks settings finetune tagging --yaml > tagging.yaml\n"
    "  bertworks finetune tagging --settings tagging.yaml …",
)
def settings(
    of: Annotated[
        str, typer.Argument(metavar="VERB", help=f"One of {', '.join(VERBS)}.", show_default=False)
    ],
    task: Annotated[
        str | None, typer.Argument(metavar="[TASK]", help="Of finetune: adds the task's settings.")
    ] = None,
    yaml: Annotated[
        bool, typer.Option("--yaml", help="As a YAML file, for --settings or as a recipe.")
    ] = False,
) -> None:
    """List a verb's settings: default, type, allowed values and meaning.

    In the YAML file each setting is a comment; uncomment what you change.
    """
    from ..settings_help import commented_yaml, describe, help_text

    schema = schema_of(of, task)
    typer.echo(commented_yaml(schema).rstrip() if yaml else help_text(describe(schema)))

"""The application: the group of all verbs, a verb, and the decorator that registers one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from ..errors import SettingsError, suggest_verb, truncate_repr
from ..settings.verbs import VERB_SETTINGS, VERBS
from ..utils.environment import SERVE_PREFIX, check_environment
from . import verb_settings
from .errors import (
    UsageError,
    errors_in_a_line,
    missing_packages_named,
    usage_errors_in_a_line,
    warn_about_little_memory,
)
from .option_groups import with_groups
from .outputs import current_verb


class Verbs(TyperGroup):
    """The group of all verbs: shows errors that a user can fix in one line, with an exit status."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The verbs in the order of their use, not of their modules."""
        return sorted(super().list_commands(ctx), key=VERBS.index)

    def make_context(
        self, info_name: str | None, args: list[str], *others: Any, **more: Any
    ) -> Any:
        if not args:  # prints the help
            return super().make_context(info_name, args, *others, **more)
        with usage_errors_in_a_line():
            return super().make_context(info_name, args, *others, **more)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        hint = suggest_verb(args[0])
        if hint is not None and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"no such command {args[0]!r}. {hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):  # a file's name may not be valid UTF-8
                stream.reconfigure(errors="backslashreplace")
        with errors_in_a_line():
            serve_variables: list[str] = []
            if any(name.startswith(SERVE_PREFIX) for name in os.environ):
                serve_variables = list_variables(self.get_command(ctx, "serve"))
            check_environment(os.environ, serve_variables)
            warn_about_little_memory()
            return super().invoke(ctx)


_CONTEXT_SETTINGS: dict[str, Any] = {
    "help_option_names": ["--help", "-h"],
    "max_content_width": 100,
}

app = typer.Typer(
    cls=Verbs,
    name="bertworks",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=_CONTEXT_SETTINGS,
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
        if self.name in VERB_SETTINGS:
            args = self._without_settings(ctx, args)
        self._check_repetitions(ctx, args)
        try:
            return super().parse_args(ctx, [*args])  # which are removed from the list
        except UsageError as error:
            self._explain_extra_word(ctx, args, error.message)
            raise

    def make_context(
        self, info_name: str | None, args: list[str], *others: Any, **more: Any
    ) -> Any:
        with missing_packages_named(str(info_name)):
            return super().make_context(info_name, args, *others, **more)

    def invoke(self, ctx: Any) -> Any:
        token = current_verb.set(ctx)
        try:
            with missing_packages_named(str(self.name)):
                return super().invoke(ctx)
        finally:
            current_verb.reset(token)

    def _explain_extra_word(self, ctx: Any, args: list[str], message: str) -> None:
        """Fail with our words if click's message is that a word is one too many."""
        words = [arg for arg in args if f"extra argument(s) ({arg}" in message]
        if not words:
            return
        word = max(words, key=len)
        if self.name not in VERB_SETTINGS and verb_settings.is_assignment(word):
            ctx.fail(f"{self.name} takes no settings, but got {word}")
        names = [str(one.metavar) for one in self.params if one.param_type_name == "argument"]
        if not names:
            ctx.fail(f"{self.name} takes no arguments, but got {truncate_repr(word)}")
        ctx.fail(
            f"{self.name} takes {' and '.join(names)}, and {truncate_repr(word)} is one more. Put "
            "a text with spaces in quotes."
        )

    def _check_repetitions(self, ctx: Any, args: list[str]) -> None:
        """Fail if an option is given twice, of which click would use the last value.

        Options that may be repeated are declared as lists. For settings, see `Settings.resolve`.
        """
        if ctx.resilient_parsing:  # the shell completes an unfinished command line
            return
        _, _, params = self.make_parser(ctx).parse_args(list(args))
        names = [param.name for param in params if param.param_type_name == "option"]
        for param in params:
            is_option = param.param_type_name == "option"
            if is_option and not param.multiple and names.count(param.name) > 1:
                ctx.fail(f"{param.opts[0]} is given twice; {self.name} takes it once.")

    def _without_settings(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments without the settings, which are stored for `options._read_settings`."""
        options = {
            name: not getattr(param, "is_flag", False)
            for param in self.get_params(ctx)
            if param.param_type_name == "option"
            for name in (*param.opts, *param.secondary_opts)
        }
        takes_words = any(param.name == "settings" for param in self.params)
        try:
            others, words = verb_settings.split_settings(
                str(self.name), args, options, takes_texts=not takes_words
            )
        except SettingsError as error:
            ctx.fail(str(error))
        ctx.meta["task"] = verb_settings.task_argument(str(self.name), others)
        ctx.meta["settings"] = words
        return others

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if self.name in VERB_SETTINGS:
            from ..analysis.settings_help import help_text

            settings, num_others = verb_settings.settings_in_help(self.name, ctx.meta.get("task"))
            formatter.write("\nSettings, given as KEY=VALUE (or --key VALUE):\n\n")
            formatter.write(help_text(settings, formatter.width) + "\n")
            if num_others:
                task = ctx.meta.get("task") or "TASK"
                what = f"bertworks settings {self.name} {task}"
                formatter.write(f"\nAnd {num_others} more: {what}\n")
        if self.context_settings.get("auto_envvar_prefix"):
            formatter.write(
                "\nThe same as environment variables, which the command line overrides:\n\n"
            )
            with formatter.indentation():
                formatter.write_text(", ".join(list_variables(self)))
        super().format_epilog(ctx, formatter)


def list_variables(command: Any) -> list[str]:
    """Return the environment variables of a verb's options and settings, if it has a prefix."""
    from ..analysis.settings_help import settings_class

    prefix = command.context_settings["auto_envvar_prefix"]
    names = [param.name for param in command.params if param.param_type_name == "option"]
    names += settings_class(command.name).model_fields
    return [f"{prefix}_{name.upper()}" for name in names if name != "help"]


_FIRST_EXAMPLES: dict[str, str] = {}


def verb(
    name: str, *examples: str, variable_prefix: str | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a verb whose help ends with the examples, one per line and unchanged.

    Args:
        variable_prefix: its options and settings are also read from environment variables whose
            names begin with this, and `_`.
    """
    _FIRST_EXAMPLES[name] = examples[0]
    title = "Example:" if len(examples) == 1 else "Examples:"
    register = app.command(
        name,
        cls=Verb,
        epilog="\n  ".join(("\b", title, *examples)).replace("\b\n  ", "\b\n"),
        no_args_is_help=name not in ("demo", "report-environment"),
        context_settings={**_CONTEXT_SETTINGS, "auto_envvar_prefix": variable_prefix},
    )

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        register(with_groups(function))
        return function

    return decorate


@app.callback(invoke_without_command=True)
def bertworks(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """BERT from raw text to predictions: vocabulary, pre-training, fine-tuning, inference."""
    if version:
        from .. import __version__

        typer.echo(f"bertworks {__version__}")
        raise typer.Exit

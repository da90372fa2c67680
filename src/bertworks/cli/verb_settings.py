"""The settings that a verb takes as `key=value` words, and the other accepted forms."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, get_args, is_typeddict

from ..errors import SettingsError, did_you_mean, suggest_setting, truncate_repr
from ..settings.verbs import TEXT_VERBS

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from ..analysis.settings_help import SettingHelp
    from ..settings.base import Settings


def settings_in_help(verb: str, task: str | None = None) -> tuple[list[SettingHelp], int]:
    """The settings that a verb's `--help` lists, and how many only `bertworks settings` lists.

    If the class has common settings (`Settings.common`), only these are listed, briefly.
    """
    from ..analysis.settings_help import declared_class, describe, settings_class

    schema = declared_class(verb) if task is None else settings_class(verb, task)
    every = describe(schema)
    if not schema.common:
        return every, 0
    keys = list(schema.common)
    if task is not None:
        from ..tasks import find_labelled_task

        keys += find_labelled_task(task).user_settings().model_fields
    by_key = {setting.key: setting for setting in every}
    settings = [
        replace(by_key[key], group="", description=by_key[key].description.split(";")[0])
        for key in keys
    ]
    return settings, len(every) - len(settings)


def task_argument(verb: str, args: Sequence[str]) -> str | None:
    """The task on the command line of `finetune`, if there is one."""
    from ..tasks import LABELLED_TASKS

    tasks = (arg for arg in args if arg in LABELLED_TASKS or ".py:" in arg)
    return next(tasks, None) if verb == "finetune" else None


def read_variables(schema: type[Settings], prefix: str, words: Sequence[str]) -> list[str]:
    """Return the settings in environment variables, as `key=value` words.

    Args:
        prefix: what the names of the variables begin with, before `_`.
        words: settings of the command line, which override variables.

    Raises:
        SettingsError: the value of a variable is not valid.
    """
    keys = {word.partition("=")[0] for word in words}
    more_words = []
    for key in schema.model_fields:
        variable = f"{prefix}_{key.upper()}"
        value = os.environ.get(variable)
        if not value or key in keys:
            continue
        more_words.append(f"{key}={value}")
        try:
            schema.resolve(overrides=more_words[-1:])
        except SettingsError as error:
            raise SettingsError(error.what, where=variable, fix=error.fix) from None
    return more_words


def split_settings(
    verb: str, args: Sequence[str], options: Mapping[str, bool], *, takes_texts: bool
) -> tuple[list[str], list[str]]:
    """Split a command line into arguments that are not settings, and settings as `key=value` words.

    `--key value` and `--key=value` are other forms of `key=value`; for flags also `--key` and
    `--no-key`.

    Args:
        args: the arguments as typed; those after `--` are not changed.
        options: the verb's options, such as `--out`, each with whether it takes a value.
        takes_texts: whether words may be texts or names; then `key=value` may not be a setting.

    Raises:
        SettingsError: an option or setting is not known.
    """
    from ..analysis.settings_help import settings_class

    others, words = list[str](), list[str]()
    left = list(args)
    task = task_argument(verb, args)
    while left:
        arg = left.pop(0)
        if arg == "--":
            return [*others, arg, *left], words
        option, is_assigned, value = arg.partition("=")
        if option in options or not arg.startswith("--"):
            if takes_texts and _is_setting(verb, arg, options):
                words.append(arg)
                continue
            others.append(arg)
            if options.get(option) and not is_assigned and left:
                others.append(left.pop(0))
            continue
        key = option.removeprefix("--").replace("-", "_")
        schema = settings_class(verb, task)
        field = schema.field(key)
        if field is None and is_flag(schema.field(key.removeprefix("no_"))):
            words.append(f"{key.removeprefix('no_')}=false")
        elif field is None:
            known = [*options, *(f"--{name.replace('_', '-')}" for name in schema.model_fields)]
            raise SettingsError(f"no option or setting {option!r}", fix=did_you_mean(option, known))
        elif is_assigned or is_flag(field):
            words.append(f"{key}={value if is_assigned else 'true'}")
        elif left:
            words.append(f"{key}={left.pop(0)}")
        else:
            raise SettingsError(f"{option} needs a value", fix=f"For example: {key}=VALUE.")
    return others, words


def is_flag(field: FieldInfo | None) -> bool:
    """Whether a setting is boolean."""
    return field is not None and bool in (field.annotation, *get_args(field.annotation))


def is_assignment(word: str) -> bool:
    """Whether a word has the form `key=value` of a setting."""
    key, is_assigned, _ = word.partition("=")
    return bool(is_assigned) and key.replace(".", "_").isidentifier()


def _is_setting(verb: str, word: str, options: Mapping[str, bool]) -> bool:
    """Whether a word is a setting, where it may also be a text or a name.

    Where it may be a text, each word of the form `key=value` must be a setting. Where it may be a
    name, such as NAME=MODEL, a key is an error only if it is close to a setting's, or if it is a
    setting of another verb, or the value a number, and there is no such path.

    Raises:
        SettingsError: the word is probably a misspelt setting.
    """
    if not is_assignment(word):
        return False
    from ..analysis.settings_help import settings_class

    key, _, value = word.partition("=")
    schema = settings_class(verb)
    if schema.field(key) is not None:
        return True
    names = list(schema.model_fields)
    is_text = verb in TEXT_VERBS
    is_close = bool(difflib.get_close_matches(key, names, n=1, cutoff=0.8))
    if is_text or is_close or _is_foreign_setting(key, value):
        what = "a text" if is_text else "a name"
        option = f"--{key.replace('_', '-')}"
        hint = f"It is an option: {option}" if option in options else suggest_setting(key, names)
        fix = f"{hint}. To pass it as {what}, put -- before it."
        raise SettingsError(f"unknown setting {truncate_repr(word)}", fix=fix)
    return False


def _is_foreign_setting(key: str, value: str) -> bool:
    """Whether a word is a setting of another verb, or has a number: nothing that has a name."""
    from ..settings import keywords
    from ..settings.yaml_values import parse_value

    if "/" in value or os.path.exists(value):
        return False
    names = {
        name
        for kind in vars(keywords).values()
        if is_typeddict(kind)
        for name in kind.__annotations__
    }
    return key in names or not isinstance(parse_value(value, None), str)

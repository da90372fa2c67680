"""Descriptions of settings: key, type, default, allowed values and meaning.

They are derived from the fields of the settings classes, so that the help always matches what is
accepted. `bertworks settings` prints it as a table or as a commented YAML file.
"""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ..errors import SettingsError, closest_name, did_you_mean
from ..settings.base import Settings, group_in
from ..settings.verbs import VERB_SETTINGS, VERBS

_TYPES = {int: "integer", float: "number", str: "text", bool: "true or false"}
_WIDTH = 100
_INDENT = 30


@dataclass(frozen=True, slots=True)
class SettingHelp:
    """One setting."""

    key: str  # dotted for a setting in a nested group; with `[].` for one in a list's members
    type: str  # of its values
    bounds: str  # their bounds; empty if there are none
    default: Any  # None also if there is no default; see `required`
    required: bool  # whether it must be given
    description: str  # its meaning
    group: str  # title of its group of settings

    @property
    def default_text(self) -> str:
        """The default, as a user would type it."""
        return "required" if self.required else _in_yaml(self.default)

    @property
    def kind(self) -> str:
        """Type and bounds as one phrase."""
        return f"{self.type}, {self.bounds}" if self.bounds else self.type


def describe(settings: type[BaseModel]) -> list[SettingHelp]:
    """Describe all settings of a class, nested groups included, group by group.

    Settings are grouped by the class that declares them; the first line of its docstring is the
    group's title.
    """
    return _sort_by_group(settings, _describe_fields(settings))


def _sort_by_group(
    settings: type[BaseModel], settings_help: Iterable[SettingHelp]
) -> list[SettingHelp]:
    """Sort settings by group: first groups of common settings, then the class's own group."""
    common: tuple[str, ...] = getattr(settings, "common", ())
    items = list(settings_help)
    named = {item.key: item.group for item in items}
    groups = [named[key] for key in common if key in named]
    groups += [item.group for item in items if item.group == _title(settings)]
    groups += [item.group for item in items]
    order = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    return sorted(items, key=lambda item: order[item.group])


def help_text(settings: Sequence[SettingHelp], width: int = 80) -> str:
    """Format settings as help: `key=default`, its type and meaning, under the groups' titles."""
    lines: list[str] = []
    group = None
    for setting in settings:
        if setting.group != group:
            group = setting.group
            lines += ["", *textwrap.wrap(f"{group}:", width)] if group else []
        default = "…" if setting.required else setting.default_text
        left = f"  {setting.key}={default}"
        if len(left) >= _INDENT:
            lines.append(left)
            left = ""
        indent = " " * _INDENT
        lines += textwrap.wrap(
            _sentence(setting),
            width,
            initial_indent=left.ljust(_INDENT),
            subsequent_indent=indent,
            break_on_hyphens=False,
        )
    return "\n".join(lines).strip("\n")


def commented_yaml(settings: type[BaseModel]) -> str:
    """Return a YAML file of all settings, each with its meaning; the defaults are commented out."""
    fields = settings.model_fields
    lines: list[str] = []
    group = None
    for setting in _sort_by_group(settings, (_help(settings, name) for name in fields)):
        if setting.group != group:
            lines += ["", f"# --- {setting.group}"]
            group = setting.group
        lines += _yaml_of(setting, fields[setting.key].annotation)
    return "\n".join(lines).strip() + "\n"


def _yaml_of(setting: SettingHelp, annotation: Any) -> list[str]:
    inner = group_in(annotation)
    if inner is None:
        value = "REQUIRED" if setting.required else setting.default_text
        return [*_comment(_sentence(setting)), f"# {setting.key}: {value}"]
    lines = _comment(setting.description or setting.group)
    if _is_list(annotation):
        return [*lines, f"# {setting.key}: {setting.default_text}"]
    lines.append(f"# {setting.key}:")
    for part in _describe_fields(inner):
        if "." not in part.key:
            lines += _comment(_sentence(part), indent="  ")
            lines.append(f"#   {part.key}: {part.default_text}")
    return lines


def _sentence(setting: SettingHelp) -> str:
    return f"{setting.kind}; {setting.description}" if setting.description else setting.kind


def _comment(text: str, indent: str = "") -> list[str]:
    prefix = f"# {indent}# " if indent else "## "
    return textwrap.wrap(text, _WIDTH, initial_indent=prefix, subsequent_indent=prefix)


def _describe_fields(
    settings: type[BaseModel], prefix: str = "", group: str = ""
) -> Iterator[SettingHelp]:
    for name, info in settings.model_fields.items():
        if info.json_schema_extra == {"hidden": True}:
            continue
        help_entry = _help(settings, name, prefix, group)
        inner = group_in(info.annotation)
        if inner is None:
            yield help_entry
            continue
        dots = "[]." if _is_list(info.annotation) else "."
        if info.default is None:  # a group that may be omitted as a whole
            yield help_entry
        title = f"{prefix}{name}: {info.description or _title(inner)}"
        yield from _describe_fields(inner, f"{prefix}{name}{dots}", title)


def _help(settings: type[BaseModel], name: str, prefix: str = "", group: str = "") -> SettingHelp:
    """Describe a setting; its group is `group`, or that of the class that declares it."""
    info = settings.model_fields[name]
    return SettingHelp(
        key=f"{prefix}{name}",
        type=_type_name(info.annotation),
        bounds=_bounds(info),
        default=None if info.is_required() else info.get_default(call_default_factory=True),
        required=info.is_required(),
        description=info.description or "",
        group=group or _title(_owner(settings, name)),
    )


def _owner(settings: type[BaseModel], name: str) -> type[BaseModel]:
    """Return the first class that declares a field: a new default does not change its group."""
    owners = [
        cls
        for cls in settings.__mro__
        if issubclass(cls, BaseModel) and name in cls.__annotations__
    ]
    return owners[-1]


def _title(settings: type[BaseModel]) -> str:
    """Return the first line of a class's docstring, without a full stop."""
    text = (inspect.getdoc(settings) or settings.__name__).splitlines()[0]
    return text.removesuffix(".")


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is tuple


def _bounds(info: FieldInfo) -> str:
    """Return the bounds of a field's values; empty if there are none."""
    bounds, length = [], []
    for rule in info.metadata:
        for name, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<")):
            if getattr(rule, name, None) is not None:
                bounds.append(f"{sign} {getattr(rule, name)}")
        if isinstance(rule, annotated_types.MinLen) and rule.min_length:
            length.append("not empty")
    return ", ".join([*bounds, *length])


def _type_name(annotation: Any) -> str:
    """Describe a type in words."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type_name(inner[0])
    if origin is Literal:
        return " | ".join(map(str, inner))
    if origin in (Union, UnionType):
        kinds = [_type_name(kind) for kind in inner if kind is not NoneType]
        return " or ".join([*kinds, *(["null"] if NoneType in inner else [])])
    if origin is tuple and inner[-1] is Ellipsis:
        return f"list of {_type_name(inner[0])}"
    if origin is tuple:
        return f"[{', '.join(map(_type_name, inner))}]"
    assert isinstance(annotation, type), annotation
    is_group = issubclass(annotation, BaseModel)
    return "group" if is_group else _TYPES.get(annotation, annotation.__name__)


def _in_yaml(value: Any) -> str:
    """Return a value as one line of YAML."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", exclude_unset=True)
    elif isinstance(value, tuple):
        value = [
            one.model_dump(mode="json", exclude_unset=True) if isinstance(one, BaseModel) else one
            for one in value
        ]
    import yaml

    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True)
    return text.removesuffix("...\n").strip()


def describe_settings(verb: str, task: str | None = None) -> list[SettingHelp]:
    """List all settings of a verb, such as "finetune": what `bertworks settings` prints.

    Args:
        task: for "finetune": adds the settings of this task.

    Returns:
        For each setting its `key`, `type`, `bounds`, `default` and `description`.

    Raises:
        SettingsError: the verb takes no settings, or there is no such task.
    """
    return describe(settings_class(verb, task))


def settings_class(verb: str, task: str | None = None) -> type[Settings]:
    """Return the class of a verb's settings; for arguments and errors see `describe_settings`."""
    if verb in VERBS and verb not in VERB_SETTINGS:
        fix = f"Verbs with settings: {', '.join(VERB_SETTINGS)}; for options see: "
        fix += f"bertworks {verb} --help."
        raise SettingsError(f"the verb {verb!r} takes no settings", fix=fix)
    if verb not in VERB_SETTINGS:
        valid = f"Verbs with settings: {', '.join(VERB_SETTINGS)}"
        fix = did_you_mean(verb, VERB_SETTINGS) if closest_name(verb, VERB_SETTINGS) else valid
        raise SettingsError(f"there is no verb {verb!r}", fix=fix)
    if verb == "glue":
        task = "classification"  # has the settings of all GLUE tasks
    elif task is not None and verb != "finetune":
        raise SettingsError(f"{verb} takes no task", fix=f"bertworks settings {verb}")
    if task is None:
        return declared_class(verb)
    from ..tasks import find_labelled_task
    from ..training.settings import settings_of

    return settings_of(find_labelled_task(task))


@cache
def declared_class(verb: str) -> type[Settings]:
    """Return the class of a verb's settings, without those of a task."""
    classes: list[type[Settings]] = []
    for place in VERB_SETTINGS[verb]:
        module, _, name = place.partition(":")
        classes.append(getattr(importlib.import_module(f"bertworks.{module}"), name))
    if len(classes) == 1:
        return classes[0]
    members = {"__doc__": f"The settings of `{verb}`.", "__module__": classes[0].__module__}
    return cast(type[Settings], type(classes[0].__name__, (*reversed(classes),), members))

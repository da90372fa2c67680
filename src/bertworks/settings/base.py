"""Strict settings, from YAML files and `key=value` words.

Settings are subclasses of `Settings`, defined near the code that they configure. An unknown key, a
wrong type or an invalid combination is an error that names the key, the value, and the nearest
valid name.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from ..errors import DataError, SettingsError, suggest_setting
from ..utils.json_files import check_format_version

_TYPES = {("int",), ("float",), ("str",), ("bool",)}

REQUIRED = "REQUIRED"
"""Value in a settings file that marks a setting which the user must give."""


RUN_FORMAT = 6
"""The format of all files of a run's directory: the `format_version` in its `settings.yaml`."""

MAX_INTEGER = 2**53
"""Maximum of an integer without a bound of its own; every format records it exactly."""


FINETUNING_INPUTS = ("task", "model", "fingerprint", "train", "dev")
"""What the `settings.yaml` of a fine-tuning holds in addition to its settings."""


class Need(NamedTuple):
    """Settings that have an effect only under a condition on the others."""

    keys: tuple[str, ...]  # dotted, if in a group
    reason: str  # after "does nothing": "without truncation=windows"
    is_met: Callable[[Any], bool]  # takes the settings


class Settings(BaseModel):
    """A frozen, strictly typed group of settings; numbers are finite, and integers bounded.

    A setting that would have no effect is an error. A class declares these in `needs`.
    """

    # the settings that `--help` lists if there are too many to list all; all, if empty
    common: ClassVar[tuple[str, ...]] = ()
    # settings of this class that have an effect only under a condition; base classes add theirs
    needs: ClassVar[tuple[Need, ...]] = ()
    # whether they are only checked by `check_together`: a grid reads its settings one by one
    is_checked_later: ClassVar[bool] = False

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        allow_inf_nan=False,
        defer_build=True,  # many classes are imported, and few used
    )

    @classmethod
    def resolve(
        cls,
        file: str | Path | None = None,
        overrides: Sequence[str] = (),
        **values: Any,
    ) -> Self:
        """Build settings from a YAML file, then keyword values, then `key=value` words.

        Later sources override earlier ones. Keys of nested groups are joined with dots, as in
        `model.size=mini`. Values are parsed as YAML, except for text settings: these are used as
        typed, so that a label may be called 1 and a column "#1 String". A setting whose value in
        the file is `REQUIRED` must come from a later source. The file may be the `settings.yaml`
        of a run.

        Raises:
            DataError: the file is of a run in another format.
            SettingsError: the file is missing or not a mapping, or a key or value is not valid, or
                a setting that the file requires is not given.
        """
        where = None if file is None else str(file)
        tree = {} if file is None else _read_settings(Path(file))
        words = cls.parse_words(overrides)
        _merge(tree, values)
        _merge(tree, words)
        for key, field in _required(cls, tree):
            meaning = f" ({field.description})" if field.description else ""
            raise SettingsError(
                f"the setting {key!r}{meaning} must be given",
                where=where,
                fix=f"Give it as {key}=VALUE",
            )
        try:
            return cls.model_validate(tree)
        except ValidationError as error:
            is_in_file = not _is_of(error.errors()[0], _names(values) | _names(words))
            raise _translate(cls, error, where if is_in_file else None) from None

    @classmethod
    def parse_words(cls, words: Iterable[str]) -> dict[str, Any]:
        """Return the nested mapping of `key=value` words.

        Raises:
            SettingsError: a word has another form, or two give the same setting.
        """
        tree: dict[str, Any] = {}
        for word in words:
            key, separator, text = word.partition("=")
            if not separator or not key:
                fix = "For example: seed=1"
                raise SettingsError(f"{word!r} is not of the form key=value", fix=fix)
            field = cls.field(key)
            from .yaml_values import parse_value

            value = parse_value(text, None if field is None else field.annotation)
            for name in reversed(key.split(".")):
                value = {name: value}
            if twice := sorted(_names(tree) & _names(value)):
                raise SettingsError(f"{twice[0]} is given twice", fix="Leave one out.")
            _merge(tree, value)
        return tree

    @classmethod
    def parse(cls, tree: Mapping[str, Any], *, where: str | None = None) -> Self:
        """Validate a nested mapping.

        Raises:
            SettingsError: a key is unknown, or a value is of the wrong type or impossible.
        """
        try:
            return cls.model_validate(tree)
        except ValidationError as error:
            raise _translate(cls, error, where) from None

    @classmethod
    def split(cls, settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Split settings into those of this class, and the others."""
        own = {name: value for name, value in settings.items() if name in cls.model_fields}
        return own, {name: value for name, value in settings.items() if name not in own}

    @classmethod
    def field(cls, key: str) -> FieldInfo | None:
        """Return the field of a dotted key; None if there is none."""
        name, _, rest = key.partition(".")
        field = cls.model_fields.get(name)
        if not rest or field is None:
            return None if rest else field
        owner = group_in(field.annotation)
        if owner is None:
            return None
        return owner.field(rest) if issubclass(owner, Settings) else owner.model_fields.get(rest)

    @field_validator("*", mode="before")
    @classmethod
    def _booleans_are_no_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse a boolean for a number, which pydantic would read as 1 or 0."""
        values = value if isinstance(value, list | tuple) else (value,)
        if any(isinstance(one, bool) for one in values) and info.field_name is not None:
            kinds = _kinds_in(cls.model_fields[info.field_name].annotation)
            if kinds & {int, float} and bool not in kinds:
                raise ValueError("expected a number, not yes or no")
        return value

    @model_validator(mode="after")
    def _integers_are_bounded(self) -> Self:
        for name, value in self.__dict__.items():
            if isinstance(value, int) and abs(value) > MAX_INTEGER and not self._has_bound(name):
                raise ValueError(f"{name}={value}: must be at most {MAX_INTEGER:,}")
        return self

    @classmethod
    def _has_bound(cls, name: str) -> bool:
        """Whether a setting declares an upper bound of its own."""
        metadata = cls.model_fields[name].metadata
        return any(hasattr(bound, "le") or hasattr(bound, "lt") for bound in metadata)

    @classmethod
    def all_needs(cls) -> Iterator[Need]:
        """Yield what this class and its base classes declare."""
        for base in cls.__mro__:
            yield from vars(base).get("needs", ())

    def unused_setting(self) -> str | None:
        """The message for the first setting that has no effect; None if there is none."""
        for need in self.all_needs():
            if need.is_met(self):
                continue
            for key in need.keys:
                if self._is_given(key):
                    value = _format_value(self._value(key))
                    return f"{key}={value} does nothing {need.reason}; leave it out"
        return None

    def _value(self, key: str) -> Any:
        """The value of a dotted key; None in a group that is None."""
        value: Any = self
        for name in key.split("."):
            value = getattr(value, name, None)
        return value

    def _is_given(self, key: str) -> bool:
        """Whether a setting differs from its default."""
        field = self.field(key)
        return field is not None and self._value(key) not in (
            None,
            field.get_default(call_default_factory=True),
        )

    @model_validator(mode="after")
    def _settings_have_effect(self) -> Self:
        if not self.is_checked_later and (message := self.unused_setting()):
            raise ValueError(message)
        return self

    def check_together(self) -> None:
        """Check that settings that depend on each other fit together.

        Not a validator, since a grid reads its settings one by one.

        Raises:
            SettingsError: two settings exclude each other, or one has no effect without another.
        """
        if message := self.unused_setting():
            raise SettingsError(message)

    def with_values(self, **values: Any) -> Self:
        """Return the same settings with some values replaced, validated again."""
        return type(self).parse({**self.model_dump(), **values})


def with_default(
    settings: type[BaseModel], name: str, default: Any, *, description: str | None = None
) -> Any:
    """Return a base class's setting with another default, to declare in a subclass.

    Args:
        description: another description, if it differs.
    """
    field = copy.copy(settings.model_fields[name])
    field.default = default
    field.description = description or field.description
    return field


def _read_settings(path: Path) -> dict[str, Any]:
    """Read a settings file, which may be the `settings.yaml` of a run."""
    from .yaml_values import read_yaml

    tree = read_yaml(path)
    if "format_version" not in tree:
        return tree
    tree = without_format_version(tree, path)
    # The file of a fine-tuning names its inputs, too; a pre-training's `model` is a setting.
    inputs = FINETUNING_INPUTS if "task" in tree else ()
    return {key: value for key, value in tree.items() if key not in inputs}


def without_format_version(tree: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the content of a run's `settings.yaml` without its format version, which is checked.

    Raises:
        DataError: the run was written in another format.
    """
    fix = "Run the training again, with --overwrite (overwrite=True) or in another directory."
    check_format_version(tree, RUN_FORMAT, path, DataError, fix=fix)
    return {key: value for key, value in tree.items() if key != "format_version"}


def _names(tree: Mapping[str, Any], prefix: str = "") -> set[str]:
    """Return the dotted names of the values in a nested mapping."""
    names: set[str] = set()
    for key, value in tree.items():
        is_group = isinstance(value, Mapping) and value
        names |= _names(value, f"{prefix}{key}.") if is_group else {f"{prefix}{key}"}
    return names


def _is_of(error: ErrorDetails, names: set[str]) -> bool:
    """Whether an error concerns settings of these names, or a missing setting."""
    key = ".".join(map(str, error["loc"]))
    parts = (
        not key or f"{key}.".startswith(f"{name}.") or name.startswith(f"{key}.") for name in names
    )
    return error["type"] == "missing" or any(parts)


def _merge(tree: dict[str, Any], other: Mapping[str, Any]) -> None:
    for key, value in other.items():
        if isinstance(value, Mapping) and isinstance(tree.get(key), dict):
            _merge(tree[key], value)
        else:
            tree[key] = dict(value) if isinstance(value, Mapping) else value


def _required(
    cls: type[BaseModel], tree: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, FieldInfo]]:
    """Yield the dotted name and field of each setting whose value is `REQUIRED`."""
    for name, field in cls.model_fields.items():
        value = tree.get(name)
        if isinstance(value, str) and value == REQUIRED:
            yield f"{prefix}{name}", field
        owner = group_in(field.annotation)
        if isinstance(value, Mapping) and owner is not None:
            yield from _required(owner, value, f"{prefix}{name}.")


def _translate(cls: type[BaseModel], error: ValidationError, where: str | None) -> SettingsError:
    first = error.errors()[0]
    path = [part for part in first["loc"] if isinstance(part, str)]
    # For a value with several allowed types, the last part is the type that was tried.
    loc, last = first["loc"], first["loc"][-1:]
    if last in _TYPES or any(str(part).startswith("literal[") for part in last):
        loc = loc[:-1]
    key = ".".join(str(part) for part in loc)
    if first["type"] == "extra_forbidden":
        owner: type[BaseModel] | None = cls
        for name in path[:-1]:
            if owner is not None and name in owner.model_fields:
                owner = group_in(owner.model_fields[name].annotation)
        names = list(owner.model_fields) if owner else []
        fix = suggest_setting(path[-1], names)
        return SettingsError(f"unknown setting {key!r}", where=where, fix=fix)
    if first["type"] == "missing":
        return SettingsError(
            f"the setting {key!r} is missing", where=where, fix=f"Give it as {key}=VALUE"
        )
    message = first["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    if not key:
        return SettingsError(message, where=where)
    return SettingsError(f"{key}={_format_value(first['input'])}: {message}", where=where)


def _format_value(value: Any) -> str:
    """Return a value as text for an error, truncated to 200 characters."""
    try:
        text = repr(value)
    except ValueError:  # Python converts no integer of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= 200 else f"{text[:199]}…"


def _kinds_in(annotation: Any) -> set[Any]:
    """Return the types in a field's type, and those of its literals."""
    if get_origin(annotation) is Literal:
        return set(map(type, get_args(annotation)))
    return {annotation}.union(*map(_kinds_in, get_args(annotation)))


def group_in(annotation: Any) -> type[BaseModel] | None:
    """Return the settings class in a field's type (alone, optional or in a list), or None."""
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None

"""The names that users type: of the command line's verbs and options, and of the Python API."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Iterator
from enum import Enum
from typing import Any

import typer

import bertworks as bw
from bertworks.cli import app


def options() -> list[str]:
    """A line for each verb, option, argument, and word that an option takes."""
    return sorted(set(_options()))


def names() -> list[str]:
    """A line for each public name, parameter, method, and attribute of what is returned."""
    return sorted(set(_names()))


def _options() -> Iterator[str]:
    group = typer.main.get_command(app)
    for verb, command in group.commands.items():  # type: ignore[attr-defined]
        yield verb
        for parameter in command.params:
            if parameter.param_type_name == "argument":
                yield f"{verb} {parameter.name.upper()}"
                continue
            for option in (*parameter.opts, *parameter.secondary_opts):
                yield f"{verb} {option}"
                for choice in _choices(parameter.type_descriptor.annotation):
                    yield f"{verb} {option} {choice}"


def _choices(annotation: Any) -> Iterator[str]:
    """The words that an option of an enumeration, or of literals, takes."""
    if inspect.isclass(annotation) and issubclass(annotation, Enum):
        yield from (str(member.value) for member in annotation)
        return
    for part in typing.get_args(annotation):
        if typing.get_origin(annotation) is typing.Literal:
            yield str(part)
        else:
            yield from _choices(part)


def _names() -> Iterator[str]:
    for name in bw.__dir__():
        if name.startswith("_") or inspect.ismodule(getattr(bw, name)) or name in _NOT_OURS:
            continue
        yield from _of(name, getattr(bw, name))


_NOT_OURS = {"annotations", "importlib", "Any"}
_NAME_ALONE = {"Task"}  # its methods are a protocol between parts of the package, and may change


def _of(name: str, value: Any) -> Iterator[str]:
    """The lines of a public function or class."""
    yield name
    if name in _NAME_ALONE:
        return
    if inspect.isclass(value):
        if not issubclass(value, Exception) and value.__init__ is not object.__init__:
            yield from _parameters(name, value)
        for attribute in _attributes(value):
            yield f"{name}.{attribute}"
            member = inspect.getattr_static(value, attribute, None)
            if isinstance(member, classmethod | staticmethod):
                member = member.__func__
            if inspect.isfunction(member):
                yield from _parameters(f"{name}.{attribute}", member)
                yield from _returned(f"{name}.{attribute}", member)
    elif callable(value):
        yield from _parameters(name, value)
        yield from _returned(name, value)


def _parameters(name: str, function: Any) -> Iterator[str]:
    for parameter in inspect.signature(function).parameters.values():
        is_plain = parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        if parameter.name not in ("self", "cls") and is_plain:
            yield f"{name}({parameter.name})"


def _returned(name: str, function: Any) -> Iterator[str]:
    """The attributes of the class of what a function returns, if the class is ours."""
    try:
        kind = typing.get_type_hints(function).get("return")
    except NameError:  # a name that is there for type checkers alone
        return
    is_ours = inspect.isclass(kind) and kind.__module__.startswith("bertworks")
    if is_ours and getattr(bw, kind.__name__, None) is not kind:  # it has lines of its own then
        for attribute in _attributes(kind):
            yield f"{name} → {attribute}"


def _attributes(kind: type) -> Iterator[str]:
    """Public attributes that are the class's or of a base of ours."""
    bases = [base for base in kind.__mro__ if base.__module__.startswith("bertworks")]
    for base in bases:
        yield from (name for name in vars(base) if not name.startswith(("_", "model_")))
        yield from (
            name for name in inspect.get_annotations(base) if not name.startswith(("_", "model_"))
        )
        if dataclasses.is_dataclass(base):
            yield from (field.name for field in dataclasses.fields(base) if field.name[0] != "_")

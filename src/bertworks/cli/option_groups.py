"""The options of a verb, read from a function: its signature, and `Args:` of its docstring.

A parameter before `*` is an argument of the command line, one after it an option. Its line in the
docstring is its help, with the word that stands for its value: `out (DIR): Output directory.` What
a type says too (a bound, another name) is in its annotation: `Annotated[int, typer.Option(min=1)]`.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from inspect import Parameter
from typing import Annotated, Any, get_args, get_origin

import typer
from typer.models import ArgumentInfo, ParameterInfo

_ARG = re.compile(r"^    (\w+)(?: \((.+?)\))?: (.+(?:\n     .+)*)", re.MULTILINE)


@dataclass(frozen=True)
class OptionGroup:
    """A group of options that several verbs share: the parameters of a function.

    A verb's parameter `Annotated[…, OptionGroup(function)]` gets the result of the function.
    """

    function: Callable[..., Any]


@cache
def with_groups(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of a command: Typer reads its options from its signature.

    Groups, also nested ones, are replaced by their options, which follow the function's own. A
    parameter that several of them have, such as the context, occurs once.
    """
    text, args = _read_docstring(function)
    own = inspect.signature(function, eval_str=True).parameters
    groups: dict[str, Callable[..., Any]] = {}
    own_parameters: dict[str, Parameter] = {}
    group_parameters: dict[str, Parameter] = {}
    arguments: dict[str, Parameter] = {}
    for name, parameter in own.items():
        group = _mark(parameter.annotation, OptionGroup)
        if group is None:
            new_parameters = {name: _declare(parameter, args)}
            own_parameters |= new_parameters
        else:
            groups[name] = with_groups(group.function)
            new_parameters = dict(inspect.signature(groups[name]).parameters)
            group_parameters |= new_parameters
        arguments |= {
            key: each
            for key, each in new_parameters.items()
            if isinstance(_mark(each.annotation, ParameterInfo), ArgumentInfo)
        }

    def run(**values: Any) -> Any:
        group_values = {
            name: of(**{key: values[key] for key in inspect.signature(of).parameters})
            for name, of in groups.items()
        }
        return function(
            **{name: (group_values if name in groups else values)[name] for name in own}
        )

    in_order = arguments | own_parameters | group_parameters
    signature = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in in_order.values()]
    run.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]  # typer reads it
    run.__annotations__ = {each.name: each.annotation for each in signature}
    run.__name__, run.__doc__ = function.__name__, text
    return run


def _declare(parameter: Parameter, args: Mapping[str, tuple[str, str]]) -> Parameter:
    """Return a parameter with all that Typer should know about it in its annotation."""
    annotation = parameter.annotation
    if annotation is typer.Context:
        return parameter
    info = copy.copy(_mark(annotation, ParameterInfo))
    kind = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    if info is None and parameter.kind is Parameter.KEYWORD_ONLY:
        # A flag has no opposite, such as --no-json.
        names = [f"--{parameter.name.replace('_', '-')}"] if kind is bool else []
        info = typer.Option(..., *names)
    elif info is None:
        info = typer.Argument()
    if parameter.name in args:
        metavar, info.help = args[parameter.name]
        info.metavar = metavar or info.metavar
    return parameter.replace(annotation=Annotated[kind, info])


def _mark(annotation: Any, kind: type[Any]) -> Any:
    """Return the mark of a kind in an `Annotated` type; None if there is none."""
    marks = getattr(annotation, "__metadata__", ())
    return next((mark for mark in marks if isinstance(mark, kind)), None)


def _read_docstring(function: Callable[..., Any]) -> tuple[str, dict[str, tuple[str, str]]]:
    """Return a docstring without `Args:`, and of each of these the word for its value, and help."""
    text, _, args = (inspect.getdoc(function) or "").partition("\n\nArgs:\n")
    matches = _ARG.finditer(args)
    return text, {match[1]: (match[2] or "", " ".join(match[3].split())) for match in matches}

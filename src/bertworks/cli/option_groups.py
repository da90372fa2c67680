"""Groups of options that several verbs share, each declared once, as a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class OptionGroup:
    """A group of options that several verbs share: the parameters of a function.

    A verb's parameter `Annotated[…, OptionGroup(function)]` gets the result of the function.
    """

    function: Callable[..., Any]


def with_groups(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function: its groups, also nested ones, are replaced by their options.

    A parameter that several of them have, such as the context, occurs once.
    """
    groups: dict[str, Callable[..., Any]] = {}
    parameters: dict[str, inspect.Parameter] = {}
    own = inspect.signature(function, eval_str=True).parameters
    for name, parameter in own.items():
        marks = getattr(parameter.annotation, "__metadata__", ())
        group = next((mark for mark in marks if isinstance(mark, OptionGroup)), None)
        if group is None:
            parameters[name] = parameter
        else:
            groups[name] = with_groups(group.function)
            parameters |= inspect.signature(groups[name]).parameters

    def run(**arguments: Any) -> Any:
        group_values = {
            name: of(**{key: arguments[key] for key in inspect.signature(of).parameters})
            for name, of in groups.items()
        }
        return function(
            **{
                name: group_values[name] if name in group_values else arguments[name]
                for name in own
            }
        )

    signature = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters.values()]
    run.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in signature}
    run.__name__, run.__doc__ = function.__name__, function.__doc__
    return run

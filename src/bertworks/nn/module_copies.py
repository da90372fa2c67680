"""Copies of modules that share all tensors with the originals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import nn

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def copy_module(
    module: nn.Module,
    submodules: Mapping[str, nn.Module | None],
    copy_class: type[ModuleT],
    **attributes: Any,
) -> ModuleT:
    """Return a module with the same parameters and attributes, but other submodules.

    Args:
        copy_class: the class of the copy; its methods find the attributes of the original's class.
        attributes: what the copy has in addition to the original, or instead.
    """
    copy = object.__new__(copy_class)
    copy.__dict__.update(module.__dict__)
    copy.__dict__["_modules"] = dict(submodules)
    # As plain attributes these are found at once; `nn.Module` would search several tables.
    copy.__dict__.update(module._parameters)
    copy.__dict__.update(submodules)
    copy.__dict__.update(attributes)
    return copy


def copy_network(
    network: ModuleT, kind_of: Callable[[nn.Module], tuple[type[nn.Module], dict[str, Any]]]
) -> ModuleT:
    """Copy each module of a network; the copies share its tensors.

    Args:
        kind_of: returns the class of a module's copy and the attributes to add; see `copy_module`.
    """
    copies: dict[nn.Module, nn.Module] = {}

    def copy(module: nn.Module) -> nn.Module:
        if module not in copies:
            parts = module._modules.items()
            submodules = {name: None if part is None else copy(part) for name, part in parts}
            copy_class, attributes = kind_of(module)
            copies[module] = copy_module(module, submodules, copy_class, **attributes)
        return copies[module]

    network_copy = copy(network)
    assert isinstance(network_copy, type(network))
    return network_copy

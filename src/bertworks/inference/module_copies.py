"""Copies of modules that share all tensors with the originals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from torch import nn

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def copy_module(module: ModuleT, submodules: Mapping[str, nn.Module | None]) -> ModuleT:
    """Return a module with the same parameters and attributes, but other submodules."""
    copy = object.__new__(type(module))
    copy.__dict__.update(module.__dict__)
    copy.__dict__["_modules"] = dict(submodules)
    # As plain attributes these are found at once; `nn.Module` would search several tables.
    copy.__dict__.update(module._parameters)
    copy.__dict__.update(submodules)
    return copy


def copy_network(network: ModuleT, change: Callable[[nn.Module, nn.Module], None]) -> ModuleT:
    """Copy each module of a network; the copies share its tensors.

    Args:
        change: called with each module and its copy; may change the copy.
    """
    copies: dict[nn.Module, nn.Module] = {}

    def copy(module: nn.Module) -> nn.Module:
        if module not in copies:
            parts = module._modules.items()
            submodules = {name: None if part is None else copy(part) for name, part in parts}
            copies[module] = copy_module(module, submodules)
            change(module, copies[module])
        return copies[module]

    network_copy = copy(network)
    assert isinstance(network_copy, type(network))
    return network_copy

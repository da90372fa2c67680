"""The explorer: shows what a model does with a text; computes JSON, which a page displays.

    text ─► inputs (tokens, words) ─► activations of the network ─► a view, as JSON ─► the page

Each view is a function of a `Model`. The server has a route for each view; `explain` computes all
views of one text in advance.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import WrongModelError

if TYPE_CHECKING:
    from .comparing import claim, contexts, minimal_pair
    from .description import describe
    from .explaining import explain
    from .filling import checkpoints, fill
    from .inputs import pieces
    from .layers import layer, weights
    from .views import attention, heads, occlusion, predict, steps

_MODULES = {
    **dict.fromkeys(("claim", "contexts", "minimal_pair"), "comparing"),
    **dict.fromkeys(("checkpoints", "fill"), "filling"),
    **dict.fromkeys(("layer", "weights"), "layers"),
    **dict.fromkeys(("attention", "heads", "occlusion", "predict", "steps"), "views"),
    **{"describe": "description", "explain": "explaining", "pieces": "inputs"},
}
"""The module of each name: most of them import PyTorch."""

__all__ = [
    "WrongModelError",
    "attention",
    "checkpoints",
    "claim",
    "contexts",
    "describe",
    "explain",
    "fill",
    "heads",
    "layer",
    "minimal_pair",
    "occlusion",
    "pieces",
    "predict",
    "steps",
    "weights",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)

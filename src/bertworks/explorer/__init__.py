"""The explorer: shows what a model does with a text; computes JSON, which a page displays.

    text ─► inputs (tokens, words) ─► activations of the network ─► a view, as JSON ─► the page

Each view is a function of a `Model`. The server has a route for each view; `explain` computes all
views of one text in advance.
"""

from ..errors import WrongModelError
from .comparing import claim, contexts, minimal_pair
from .explaining import describe, explain
from .filling import checkpoints, fill
from .layers import layer, weights
from .views import attention, heads, occlusion, pieces, predict, steps

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

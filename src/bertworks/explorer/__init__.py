"""The explorer: shows what a model does with a text; computes JSON, which a page displays.

    text ─► inputs (tokens, words) ─► activations of the network ─► a view, as JSON ─► the page

Each view is a function of a `Model`. The server has a route for each view; `explain` computes all
views of one text in advance.
"""

from .comparing import claim, contexts, minimal_pair
from .explaining import describe, explain
from .filling import checkpoints, fill
from .layers import layer, weights
from .requirements import NoHeadError
from .views import attention, heads, occlusion, pieces, predict, steps

__all__ = [
    "NoHeadError",
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

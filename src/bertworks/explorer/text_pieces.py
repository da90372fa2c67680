"""The view of a text's pieces, which needs no network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .inputs import encode_input

if TYPE_CHECKING:
    from ..model import Model


def pieces(model: Model, text: str, pair: str | None = None) -> dict[str, Any]:
    """The tokens and words of a text, or of a pair.

    Raises:
        DataError: a text cannot be tokenised, or is too long for the model.
    """
    return {"pieces": encode_input(model, text, pair, max_tokens=None).pieces}

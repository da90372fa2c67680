"""Compute all views of one text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..model import Model
from .available_views import view_error
from .description import describe
from .filling import fill
from .inputs import EncodedInput, encode_input
from .layers import layers_for_file
from .requirements import is_causal_lm, is_masked_lm, name_of
from .target_kinds import find_target
from .views import attention, heads, occlusion, predict, steps

FORMAT = 1
"""The format version of the result of `explain`; a page has the same release as its data."""

MAX_NUMBERS = 2_000_000
"""The most numbers of layers and weights in a file: 5 MB."""


def explain(
    model: Model, text: str, pair: str | None = None, *, name: str | None = None
) -> dict[str, Any]:
    """Compute in advance all that a page shows about one text, as JSON.

    If the model predicts masked pieces, each word is masked once. If it predicts nothing for the
    text itself, `masked` has the results for one masked word: of those of four letters or more, the
    one that gains most from both sides, compared with the left side alone.

    Args:
        model: any.
        text, pair: at most 128 tokens together.
        name: the model's name on the page; derived from its source if omitted.

    Raises:
        DataError: a text cannot be tokenised, or is too long.
    """
    inputs = encode_input(model, text, pair)
    is_filled = is_causal_lm(model) or bool(inputs.blanks)
    both = (model, text, pair)
    masks = None
    if is_masked_lm(model):
        masks = [
            {"word": word["number"], "blanks": blanks}
            for word in inputs.words
            if not set(word["tokens"]) & set(inputs.blanks)
            for blanks in [_of_word(fill(*both, words=[word["number"]], top_k=5), word["number"])]
        ]
    results = _results(*both)
    masked = None
    if results["prediction"] is None and masks:
        best = _best_word(inputs, masks)
        masked = {"word": best} | _results(*both, [best])
    has_layers = view_error(model, "layer") is None
    layers, rows = layers_for_file(inputs, MAX_NUMBERS) if has_layers else ([], [])
    return {
        "format": FORMAT,
        "model": {"name": name or name_of(model), "default": True, "loaded": True}
        | describe(model, name),
        "text": text,
        "pair": pair,
        **results,
        "fill": fill(*both) if is_filled else None,
        "masks": masks,
        "masked": masked,
        "layers": layers,
        "weights": rows,
    }


def _results(
    model: Model, text: str, pair: str | None, words: Sequence[int] = ()
) -> dict[str, Any]:
    """The results of the views of a text, with words masked."""
    both = (model, text, pair)
    is_watched = find_target(encode_input(*both, words=words)) is not None
    is_switched = is_watched and not view_error(model, "heads")
    return {
        "pieces": encode_input(*both, words=words).pieces,
        "attention": None if view_error(model, "attention") else attention(*both, words=words),
        "steps": steps(*both, words=words),
        "prediction": predict(*both, words=words)["prediction"] if is_watched else None,
        "heads": heads(*both, words=words) if is_switched else None,
        "occlusion": occlusion(*both, words=words) if is_watched else None,
    }


def _of_word(answer: dict[str, Any], word: int) -> list[dict[str, Any]]:
    """The blanks of one word, without mask tokens typed in the text."""
    return [blank for blank in answer["blanks"] if blank["word"] == word]


def _best_word(inputs: EncodedInput, masks: Sequence[dict[str, Any]]) -> int:
    """The word that gains most from both sides; of four letters or more, if there is one.

    Shorter words and punctuation are mostly grammar.
    """

    def is_long(masked: dict[str, Any]) -> bool:
        text = inputs.words[masked["word"]]["text"]
        return text.isalpha() and len(text) >= 4

    best: int = max(filter(is_long, masks), key=_gain, default=max(masks, key=_gain))["word"]
    return best


def _gain(masked: dict[str, Any]) -> float:
    """How much more probable both sides make the original word than the left side alone."""
    both, left = (
        [float(blank[side]["original"]["probability"]) for blank in masked["blanks"]]
        for side in ("both", "left")
    )
    return min(one - other for one, other in zip(both, left, strict=True))

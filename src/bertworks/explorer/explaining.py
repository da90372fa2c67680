"""Describe a model and its views, and compute all views of one text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..api import Model
from .comparing import SENTENCES
from .filling import checkpoints, fill
from .needs import NEEDS, is_causal_lm, is_masked_lm, missing
from .reading import TOKENS, read
from .target import target_of
from .views import attention, heads, occlusion, pieces, predict, steps

FORMAT = 1
"""The format version of the result of `explain`; a page has the same release as its data."""

LIMITS = {"tokens": TOKENS, "sentences": SENTENCES}

_FREE = ("pieces", "pair", "contexts", "steps", "similarity", "search")
VIEWS = (*_FREE, *(view for view in NEEDS if view != "mask"))
"""The page's views."""


def describe(model: Model) -> dict[str, Any]:
    """Describe a model and its views, as JSON."""
    config, task = model.encoder.config, model.task
    mask = model.tokenizer.id_of("mask") if is_masked_lm(model) else None
    return {
        "source": model.source,
        "task": None if task is None else task.name,
        "family": config.family,
        "layers": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "hidden_size": config.hidden_size,
        "vocab_size": model.tokenizer.vocab_size,
        "parameters": sum(weight.numel() for weight in model.network.parameters()),
        "causal": config.attention == "causal",
        "mask": None if mask is None else model.tokenizer.id_to_token(mask),
        "labels": list(model.labels),
        "checkpoints": list(checkpoints(model)),
        "views": {
            view: None if (error := missing(model, view)) is None else str(error) for view in VIEWS
        },
    }


def explain(
    model: Model, text: str, pair: str | None = None, *, name: str | None = None
) -> dict[str, Any]:
    """Compute in advance all that a page shows about one text, as JSON.

    If the model predicts masked pieces, each word is masked once.

    Args:
        model: any.
        text, pair: at most 128 tokens together.
        name: the model's name on the page; derived from its source if omitted.

    Raises:
        DataError: a text cannot be tokenised, or is too long.
    """
    reading = read(model, text, pair)
    is_watched = target_of(reading) is not None
    is_filled = is_causal_lm(model) or bool(reading.blanks)
    both = (model, text, pair)
    masks = None
    if is_masked_lm(model):
        masks = [
            {"word": word["number"], "blanks": blanks}
            for word in reading.words
            if not set(word["tokens"]) & set(reading.blanks)
            for blanks in [_of_word(fill(*both, words=[word["number"]], top_k=5), word["number"])]
        ]
    return {
        "format": FORMAT,
        "model": {"name": name or _name(model), "default": True, "loaded": True} | describe(model),
        "text": text,
        "pair": pair,
        **pieces(*both),
        "attention": None if missing(model, "attention") else attention(*both),
        "steps": steps(*both),
        "prediction": predict(*both)["prediction"] if is_watched else None,
        "heads": heads(*both) if is_watched and not missing(model, "heads") else None,
        "occlusion": occlusion(*both) if is_watched else None,
        "fill": fill(*both) if is_filled else None,
        "masks": masks,
    }


def _name(model: Model) -> str:
    """The last part of a model's path, or its whole name on the hub."""
    source = Path(model.source or "model")
    return source.resolve().name if source.exists() else str(source)


def _of_word(filled: dict[str, Any], word: int) -> list[dict[str, Any]]:
    """The blanks of one word, without mask tokens typed in the text."""
    return [blank for blank in filled["blanks"] if blank["word"] == word]

"""Views of one text: attention, a prediction, and what the prediction depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import DataError
from ..inference.activations import embedding_steps
from ..model import Model
from .available_views import check
from .inputs import EncodedInput, Heads, as_bytes, encode_input, round_values, stack_layers
from .target_kinds import find_target, make_target

_NUMBERS = 8  # how many numbers of each vector are shown

TargetChoice = Mapping[str, Any] | None


def attention(
    model: Model,
    text: str,
    pair: str | None = None,
    *,
    words: Sequence[int] = (),
    ablated_heads: Heads = (),
) -> dict[str, Any]:
    """The attention weights of all heads, and measures that describe each head.

    Raises:
        WrongModelError: the model has no attention heads.
        DataError: a text cannot be tokenised, or is too long.
    """
    inputs = encode_input(model, text, pair, words=words)
    weights = inputs.attention(ablated_heads)
    return {
        "pieces": inputs.pieces,
        "layers": weights.shape[0],
        "heads": weights.shape[1],
        "weights": as_bytes(weights),
        "measures": measures(inputs, weights),
    }


def measures(inputs: EncodedInput, weights: NDArray[np.float32]) -> dict[str, Any]:
    """For each head, averaged over queries: the distance in tokens, the entropy in bits, and the
    share of attention to separators, the first token, the token itself, and its neighbours."""
    places = np.arange(len(inputs))
    offsets = places[None, :] - places[:, None]
    number = inputs.model.tokenizer.id_of("sep")
    separator = inputs.input_ids == (-1 if number is None else number)
    wide = weights.astype(np.float64)
    logs = np.log2(wide, where=wide > 0, out=np.zeros_like(wide))
    shares = {
        "separator": np.broadcast_to(separator, offsets.shape),
        "first": np.broadcast_to(places == 0, offsets.shape),
        "self": offsets == 0,
        "previous": offsets == -1,
        "next": offsets == 1,
    }
    return {
        "distance": round_values((wide * np.abs(offsets)).sum(-1).mean(-1)),
        "entropy": round_values(-(wide * logs).sum(-1).mean(-1)),
        **{name: round_values((wide * mask).sum(-1).mean(-1)) for name, mask in shares.items()},
    }


def predict(
    model: Model,
    text: str,
    pair: str | None = None,
    *,
    words: Sequence[int] = (),
    target: TargetChoice = None,
    ablated_heads: Heads = (),
) -> dict[str, Any]:
    """The model's prediction, with heads switched off; the target is chosen with all heads on.

    Raises:
        WrongModelError: the model predicts nothing of the kind.
        DataError: the target, a text or a head is not valid.
    """
    outcome = make_target(encode_input(model, text, pair, words=words), target)
    probabilities = (
        outcome.compute_probabilities(ablated_heads=[ablated_heads])[0] if ablated_heads else None
    )
    return {"pieces": outcome.inputs.pieces, "prediction": outcome.prediction(probabilities)}


def heads(
    model: Model,
    text: str,
    pair: str | None = None,
    *,
    words: Sequence[int] = (),
    target: TargetChoice = None,
) -> dict[str, Any]:
    """How much a prediction changes when one head is switched off, for each head.

    Raises:
        WrongModelError: the model predicts nothing, or has no attention heads.
        DataError: as in `predict`.
    """
    check(model, "heads")
    outcome = make_target(encode_input(model, text, pair, words=words), target)
    config = model.encoder.config
    shape = (config.num_hidden_layers, config.num_attention_heads)
    places = list(np.ndindex(shape))
    base = float(outcome.probability(outcome.base))
    outcomes = outcome.compute_probabilities(ablated_heads=[[place] for place in places])
    probabilities = outcome.probability(outcomes).numpy()
    changes = probabilities - base
    return {
        "pieces": outcome.inputs.pieces,
        "prediction": outcome.prediction(),
        "effects": changes.reshape(shape).tolist(),
        "ranked": [
            {
                "layer": places[at][0],
                "head": places[at][1],
                "probability": float(probabilities[at]),
                "change": float(changes[at]),
            }
            for at in np.argsort(-np.abs(changes), kind="stable").tolist()
        ],
    }


def occlusion(
    model: Model,
    text: str,
    pair: str | None = None,
    *,
    words: Sequence[int] = (),
    target: TargetChoice = None,
) -> dict[str, Any]:
    """How much a prediction changes when a word is hidden, for each word except a predicted blank.

    Each piece of the word is replaced by the mask, or by the unknown piece if there is no mask.

    Raises:
        WrongModelError, DataError: as in `predict`.
    """
    outcome = make_target(encode_input(model, text, pair, words=words), target)
    inputs, tokenizer = outcome.inputs, model.tokenizer
    replacement_id = tokenizer.id_of("mask") if tokenizer.has("mask") else tokenizer.id_of("unk")
    if replacement_id is None:
        raise DataError("the tokenizer has neither a mask nor an unknown piece", where="model")
    keep = set(outcome.kept_positions)
    hidden = [word for word in inputs.words if not keep & set(word["tokens"])]
    rows = [_replace_ids(inputs, word["tokens"], replacement_id) for word in hidden]
    base = float(outcome.probability(outcome.base))
    probabilities = (
        outcome.probability(outcome.compute_probabilities(rows)).tolist() if rows else []
    )
    return {
        "pieces": inputs.pieces,
        "prediction": outcome.prediction(),
        "replacement": tokenizer.id_to_token(replacement_id),
        "words": [
            {"word": word["number"], "probability": probability, "change": probability - base}
            for word, probability in zip(hidden, probabilities, strict=True)
        ],
    }


def steps(
    model: Model,
    text: str,
    pair: str | None = None,
    *,
    words: Sequence[int] = (),
    target: TargetChoice = None,
) -> dict[str, Any]:
    """One prediction step by step: the embeddings, every layer, logits, probabilities.

    Raises:
        DataError: the target or a text is not valid.
    """
    inputs = encode_input(model, text, pair, words=words)
    encoder = model.encoder
    tables = {
        "word": encoder.embeddings.word_embeddings,
        "position": encoder.embeddings.position_embeddings,
        "segment": encoder.embeddings.token_type_embeddings,
        "task": encoder.embeddings.task_type_embeddings,
    }
    parts = embedding_steps(encoder, inputs.pack())
    states = stack_layers(inputs.activations().states)
    outcome = find_target(inputs, target)
    return {
        "pieces": inputs.pieces,
        "hidden_size": encoder.config.hidden_size,
        "shown": _NUMBERS,
        "position_offset": encoder.config.position_offset,
        "embeddings": [
            {
                "name": name,
                "table": None if (table := tables.get(name)) is None else list(table.weight.shape),
                "rows": round_values(values[:, :_NUMBERS]),
            }
            for name, values in parts.items()
        ],
        "states": [
            {
                "layer": layer,
                "shape": list(state.shape),
                "norms": round_values(state.norm(dim=-1)),
                "rows": round_values(state[:, :_NUMBERS]),
                "cosine": round_values(torch.cosine_similarity(state, states[layer - 1], -1))
                if layer
                else None,
            }
            for layer, state in enumerate(states)
        ],
        "head": None if outcome is None else outcome.head(),
        "prediction": None if outcome is None else outcome.prediction(),
    }


def _replace_ids(inputs: EncodedInput, places: Sequence[int], number: int) -> NDArray[np.int64]:
    ids = inputs.input_ids.copy()
    ids[list(places)] = number
    return ids

"""Views of one text: pieces, attention, a prediction, and what the prediction depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import DataError
from ..inference.activations import embedding_steps
from ..model import Model
from .needs import check
from .reading import Heads, Reading, as_bytes, read, rounded
from .target import Target, target_of

_NUMBERS = 8  # how many numbers of each vector are shown

TargetChoice = Mapping[str, Any] | None


def pieces(model: Model, text: str, pair: str | None = None) -> dict[str, Any]:
    """The tokens and words of a text, or of a pair.

    Raises:
        DataError: a text cannot be tokenised, or is too long for the model.
    """
    return {"pieces": read(model, text, pair, most=None).pieces}


def attention(
    model: Model,
    text: str,
    pair: str | None = None,
    *,
    words: Sequence[int] = (),
    off: Heads = (),
) -> dict[str, Any]:
    """The attention weights of all heads, and measures that describe each head.

    Raises:
        NoHeadError: the model has no attention heads.
        DataError: a text cannot be tokenised, or is too long.
    """
    reading = read(model, text, pair, words=words)
    weights = reading.attention(off)
    return {
        "pieces": reading.pieces,
        "layers": weights.shape[0],
        "heads": weights.shape[1],
        "weights": as_bytes(weights),
        "measures": measures(reading, weights),
    }


def measures(reading: Reading, weights: NDArray[np.float32]) -> dict[str, Any]:
    """For each head, averaged over queries: the distance in tokens, the entropy in bits, and the
    share of attention to separators, the first token, the token itself, and its neighbours."""
    places = np.arange(len(reading))
    apart = places[None, :] - places[:, None]
    number = reading.model.tokenizer.id_of("sep")
    separator = reading.input_ids == (-1 if number is None else number)
    wide = weights.astype(np.float64)
    logs = np.log2(wide, where=wide > 0, out=np.zeros_like(wide))
    shares = {
        "separator": np.broadcast_to(separator, apart.shape),
        "first": np.broadcast_to(places == 0, apart.shape),
        "self": apart == 0,
        "previous": apart == -1,
        "next": apart == 1,
    }
    return {
        "distance": rounded((wide * np.abs(apart)).sum(-1).mean(-1)),
        "entropy": rounded(-(wide * logs).sum(-1).mean(-1)),
        **{name: rounded((wide * mask).sum(-1).mean(-1)) for name, mask in shares.items()},
    }


def predict(
    model: Model,
    text: str,
    pair: str | None = None,
    *,
    words: Sequence[int] = (),
    target: TargetChoice = None,
    off: Heads = (),
) -> dict[str, Any]:
    """The model's prediction, with heads switched off; the target is chosen with all heads on.

    Raises:
        NoHeadError: the model predicts nothing of the kind.
        DataError: the target, a text or a head is not valid.
    """
    found = Target(read(model, text, pair, words=words), target)
    chances = found.chances(off=[off])[0] if off else None
    return {"pieces": found.reading.pieces, "prediction": found.prediction(chances)}


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
        NoHeadError: the model predicts nothing, or has no attention heads.
        DataError: as in `predict`.
    """
    check(model, "heads")
    found = Target(read(model, text, pair, words=words), target)
    config = model.encoder.config
    shape = (config.num_hidden_layers, config.num_attention_heads)
    places = list(np.ndindex(shape))
    base = float(found.probability(found.base))
    without = found.chances(off=[[place] for place in places]) if places else found.base[:0]
    chances = found.probability(without).numpy() if places else np.empty(0)
    changes = chances - base
    return {
        "pieces": found.reading.pieces,
        "prediction": found.prediction(),
        "effects": changes.reshape(shape).tolist(),
        "ranked": [
            {
                "layer": places[at][0],
                "head": places[at][1],
                "probability": float(chances[at]),
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
        NoHeadError, DataError: as in `predict`.
    """
    found = Target(read(model, text, pair, words=words), target)
    reading, tokenizer = found.reading, model.tokenizer
    by = tokenizer.id_of("mask") if tokenizer.has("mask") else tokenizer.id_of("unk")
    if by is None:
        raise DataError("the tokenizer has neither a mask nor an unknown piece", where="model")
    keep = set(found.positions) if found.kind == "blank" else set()
    hidden = [word for word in reading.words if not keep & set(word["tokens"])]
    rows = [_with(reading, word["tokens"], by) for word in hidden]
    base = float(found.probability(found.base))
    chances = found.probability(found.chances(rows)).tolist() if rows else []
    return {
        "pieces": reading.pieces,
        "prediction": found.prediction(),
        "by": tokenizer.id_to_token(by),
        "words": [
            {"word": word["number"], "probability": chance, "change": chance - base}
            for word, chance in zip(hidden, chances, strict=True)
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
    reading = read(model, text, pair, words=words)
    encoder = model.encoder
    tables = {
        "word": encoder.embeddings.word_embeddings,
        "position": encoder.embeddings.position_embeddings,
        "segment": encoder.embeddings.token_type_embeddings,
        "task": encoder.embeddings.task_type_embeddings,
    }
    parts = embedding_steps(encoder, reading.pack())
    states = torch.stack(reading.activations().states)[:, 0].float().cpu()
    found = target_of(reading) if target is None else Target(reading, target)
    return {
        "pieces": reading.pieces,
        "hidden_size": encoder.config.hidden_size,
        "shown": _NUMBERS,
        "embeddings": [
            {
                "name": name,
                "table": None if (table := tables.get(name)) is None else list(table.weight.shape),
                "rows": rounded(values[:, :_NUMBERS]),
            }
            for name, values in parts.items()
        ],
        "states": [
            {
                "layer": layer,
                "shape": list(state.shape),
                "norms": rounded(state.norm(dim=-1)),
                "rows": rounded(state[:, :_NUMBERS]),
                "cosine": rounded(torch.cosine_similarity(state, states[layer - 1], -1))
                if layer
                else None,
            }
            for layer, state in enumerate(states)
        ],
        "head": None if found is None else found.head(),
        "prediction": None if found is None else found.prediction(),
    }


def _with(reading: Reading, places: Sequence[int], number: int) -> NDArray[np.int64]:
    ids = reading.input_ids.copy()
    ids[list(places)] = number
    return ids

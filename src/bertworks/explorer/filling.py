"""Predict masked tokens from both sides, from the left alone, at every layer and checkpoint."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import DataError, truncate_repr
from ..inference.activations import activations
from ..model import Model
from ..packed import Packed
from ..tasks.pretraining.network import PretrainingNetwork
from ..training.checkpoint import list_checkpoints, load_weights, step_of
from .needs import check, is_causal_lm, missing
from .reading import Heads, Reading, heads_off, read, rounded
from .target import Target

MOST_CANDIDATES = 50
MOST_PIECES = 50
_LEFT = "the words to the right are removed; the others keep their positions"


def fill(
    model: Model,
    text: str,
    pair: str | None = None,
    *,
    words: Sequence[int] = (),
    top_k: int = 10,
    candidates: Sequence[str] = (),
    layers: bool = True,
    left: bool = True,
    off: Heads = (),
    checkpoint: int | None = None,
) -> dict[str, Any]:
    """Predict each blank: from both sides, from the left alone, and at every layer.

    At a layer, the head is applied to the layer's states; with `norm_first`, after the final norm.

    Args:
        model: pre-trained.
        text, pair: with mask tokens; a causal model predicts the next token.
        words: the numbers of words to mask in addition.
        top_k: how many pieces to show.
        candidates: words to score; a word of n pieces is predicted with n masks, and its
            probability is the product over them.
        layers, left: whether to predict at every layer, and from the left alone.
        off: (layer, head) of heads that are switched off.
        checkpoint: the step of a checkpoint of the model's run, whose weights are used.

    Raises:
        NoHeadError: the model predicts no pieces.
        DataError: there is no blank or no such checkpoint, or a candidate has no pieces.
        CheckpointError: the checkpoint is damaged.
    """
    check(model, "fill")
    if not 1 <= top_k <= MOST_PIECES:
        raise DataError(f"from 1 to {MOST_PIECES}", where="top_k")
    if checkpoint is not None:
        model = _at_checkpoint(model, checkpoint)
    reading = read(model, text, pair, words=words)
    places = [len(reading) - 1] if is_causal_lm(model) else reading.blanks
    if not places:
        Target(reading, {"kind": "blank"})  # raises the error for a text without mask tokens
    asked = _piece_ids(reading, candidates)
    return {
        "pieces": reading.pieces,
        "blanks": [_blank(reading, at, asked, top_k, layers, left, off) for at in places],
        "checkpoint": checkpoint,
    }


def _blank(
    reading: Reading,
    at: int,
    asked: Mapping[str, list[int]],
    top_k: int,
    layers: bool,
    left: bool,
    off: Heads,
) -> dict[str, Any]:
    """The predictions for one blank, as JSON."""

    def answers(side: bool, rows: slice) -> list[dict[str, Any]]:
        chances = {
            size: _chances(reading, _sequence(reading, at, size, side), at, size, off, rows)
            for size in {1, *map(len, asked.values())}
        }
        original = reading.hidden_ids.get(at)
        each = [{size: one[row] for size, one in chances.items()} for row in range(len(chances[1]))]
        return [_answer(reading, one, asked, top_k, original) for one in each]

    found = answers(False, slice(None) if layers else slice(-1, None))
    seen: dict[str, Any] | None = None
    if is_causal_lm(reading.model):
        seen = {**found[-1], "how": "a causal model sees nothing else"}
    elif left:
        seen = {**answers(True, slice(-1, None))[0], "how": _LEFT}
    return {
        "position": at,
        "word": reading.tokens[at]["word"],
        "both": None if is_causal_lm(reading.model) else found[-1],
        "left": seen,
        "layers": found if layers else None,
    }


def _sequence(reading: Reading, at: int, masks: int, left: bool) -> Packed:
    """The sequence with one mask repeated; with `left`, without the words to the right of it."""
    order = np.concatenate([np.arange(at), [at] * masks, np.arange(at + 1, len(reading))])
    places = np.arange(len(order))
    special = np.array([token["special"] for token in reading.tokens])
    keep = (places < at + masks) | special[order] if left else places >= 0
    ids, types = reading.input_ids[order[keep]], reading.token_type_ids[order[keep]]
    return replace(Packed.from_arrays([ids], [types]), position_ids=places[keep])


def _chances(
    reading: Reading, packed: Packed, at: int, count: int, off: Heads, rows: slice
) -> Float[Tensor, "layers masks pieces"]:
    """The probabilities of all pieces at `count` masks from `at`, at the layers `rows`."""
    model = reading.model
    network, norm = model.network, model.encoder.final_norm
    assert isinstance(network, PretrainingNetwork)
    states = activations(network, packed, ablated_heads=heads_off(model, [off])).states
    masked = torch.stack([state[0, at : at + count] for state in states])
    with torch.inference_mode():
        if norm is not None:
            masked[:-1] = norm(masked[:-1])
        logits = network.mlm_head(masked[rows].flatten(0, 1)).float().cpu()
        shares = torch.softmax(logits, -1)[:, : model.tokenizer.vocab_size].double()
        return shares.view(-1, masked.shape[1], shares.shape[1])


def _answer(
    reading: Reading,
    chances: Mapping[int, Float[Tensor, "masks pieces"]],
    asked: Mapping[str, list[int]],
    top_k: int,
    original: int | None,
) -> dict[str, Any]:
    """The prediction for a blank, from the probabilities for each number of masks."""
    tokenizer = reading.model.tokenizer
    single = chances[1][0]
    top = single.topk(min(top_k, len(single)))

    def piece(number: int) -> dict[str, Any]:
        probability = float(single[number])
        return {"token": tokenizer.id_to_token(number), "id": number, "probability": probability}

    return {
        "top": [piece(number) for number in top.indices.tolist()],
        "original": None
        if original is None
        else {**piece(original), "rank": 1 + int((single > single[original]).sum())},
        "candidates": [
            {
                "candidate": word,
                "pieces": tokenizer.tokens(ids),
                "probability": float(chances[len(ids)][range(len(ids)), ids].prod()),
            }
            for word, ids in asked.items()
        ],
        "entropy": rounded(-torch.special.xlogy(single, single).sum().item() / np.log(2)),
    }


def _piece_ids(reading: Reading, candidates: Sequence[str]) -> dict[str, list[int]]:
    """The pieces of each candidate.

    Raises:
        DataError: there are too many candidates, or one has unknown pieces, none, or too many.
    """
    model = reading.model
    if len(candidates) > MOST_CANDIDATES:
        raise DataError(f"at most {MOST_CANDIDATES}", where="candidates")
    room = 1 if is_causal_lm(model) else model.encoder.config.max_seqlen - len(reading) + 1
    unknown = model.tokenizer.id_of("unk")
    rows = model.tokenizer.piece_ids(candidates) if len(candidates) else []
    for at, (word, ids) in enumerate(zip(candidates, rows, strict=True)):
        where = f"candidates[{at}]"
        if unknown in ids or not len(ids):
            raise DataError(f"the vocabulary has no pieces for {truncate_repr(word)}", where=where)
        if len(ids) > room:
            what = f"{truncate_repr(word)} has {len(ids)} pieces, and there is room for {room}"
            raise DataError(what, where=where, fix="Leave it out.")
    return {word: ids.tolist() for word, ids in zip(candidates, rows, strict=True)}


def checkpoints(model: Model) -> dict[int, Path]:
    """The checkpoints of a model's run, by step; empty if the model does not belong to a run."""
    source = Path(model.source or "")
    if model.source is None or missing(model, "fill") is not None:
        return {}
    for run in (source, source.parent):
        if (run / "model").is_dir() and (run / "checkpoints").is_dir():
            return {step_of(path): path for path in list_checkpoints(run / "checkpoints")}
    return {}


def _at_checkpoint(model: Model, step: int) -> Model:
    known = checkpoints(model)
    if step not in known:
        steps = ", ".join(map(str, known)) or "none"
        raise DataError(f"no checkpoint of step {step}", where="checkpoint", fix=f"Has: {steps}.")
    network = copy.deepcopy(model.network)
    load_weights(known[step] / "weights.safetensors", network)
    return Model(model.tokenizer, model.task, network)

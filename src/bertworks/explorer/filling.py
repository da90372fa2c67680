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
from .available_views import check, view_error
from .inputs import EncodedInput, Heads, ablated_heads_mask, encode_input, round_values
from .requirements import is_causal_lm
from .target_kinds import make_target

MAX_CANDIDATES = 50
MAX_PIECES = 50
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
    ablated_heads: Heads = (),
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
        ablated_heads: (layer, head) of heads that are switched off.
        checkpoint: the step of a checkpoint of the model's run, whose weights are used.

    Raises:
        WrongModelError: the model predicts no pieces.
        DataError: there is no blank or no such checkpoint, or a candidate has no pieces.
        CheckpointError: the checkpoint is damaged.
    """
    check(model, "fill")
    if not 1 <= top_k <= MAX_PIECES:
        raise DataError(f"from 1 to {MAX_PIECES}", where="top_k")
    if checkpoint is not None:
        model = _at_checkpoint(model, checkpoint)
    inputs = encode_input(model, text, pair, words=words)
    places = [len(inputs) - 1] if is_causal_lm(model) else inputs.blanks
    if not places:
        make_target(inputs, {"kind": "blank"})  # raises the error for a text without mask tokens
    candidate_ids = _piece_ids(inputs, candidates)
    return {
        "pieces": inputs.pieces,
        "blanks": [
            _blank(inputs, at, candidate_ids, top_k, layers, left, ablated_heads) for at in places
        ],
        "checkpoint": checkpoint,
    }


def _blank(
    inputs: EncodedInput,
    position: int,
    candidate_ids: Mapping[str, list[int]],
    top_k: int,
    layers: bool,
    left: bool,
    ablated_heads: Heads,
) -> dict[str, Any]:
    """The predictions for one blank, as JSON."""

    def answers(rows: slice, *, left_only: bool) -> list[dict[str, Any]]:
        probabilities = {
            size: _compute_probabilities(
                inputs,
                _sequence(inputs, position, size, left_only),
                position,
                size,
                ablated_heads,
                rows,
            )
            for size in {1, *map(len, candidate_ids.values())}
        }
        original = inputs.hidden_ids.get(position)
        each = [
            {size: one[row] for size, one in probabilities.items()}
            for row in range(len(probabilities[1]))
        ]
        return [_answer(inputs, one, candidate_ids, top_k, original) for one in each]

    predictions = answers(slice(None) if layers else slice(-1, None), left_only=False)
    left_prediction: dict[str, Any] | None = None
    if is_causal_lm(inputs.model):
        left_prediction = {**predictions[-1], "how": "a causal model sees nothing else"}
    elif left:
        left_prediction = {**answers(slice(-1, None), left_only=True)[0], "how": _LEFT}
    return {
        "position": position,
        "word": inputs.tokens[position]["word"],
        "both": None if is_causal_lm(inputs.model) else predictions[-1],
        "left": left_prediction,
        "layers": predictions if layers else None,
    }


def _sequence(inputs: EncodedInput, position: int, masks: int, left: bool) -> Packed:
    """The sequence with one mask repeated; with `left`, without the words to the right of it."""
    order = np.concatenate(
        [np.arange(position), [position] * masks, np.arange(position + 1, len(inputs))]
    )
    places = np.arange(len(order))
    special = np.array([token["special"] for token in inputs.tokens])
    keep = (places < position + masks) | special[order] if left else places >= 0
    ids, types = inputs.input_ids[order[keep]], inputs.token_type_ids[order[keep]]
    return replace(Packed.from_arrays([ids], [types]), position_ids=places[keep])


def _compute_probabilities(
    inputs: EncodedInput,
    packed: Packed,
    position: int,
    count: int,
    ablated_heads: Heads,
    rows: slice,
) -> Float[Tensor, "layers masks pieces"]:
    """The probabilities of all pieces at `count` masks from `position`, at the layers `rows`."""
    model = inputs.model
    network, norm = model.network, model.encoder.final_norm
    assert isinstance(network, PretrainingNetwork)
    states = activations(
        network, packed, ablated_heads=ablated_heads_mask(model, [ablated_heads])
    ).states
    masked = torch.stack([state[0, position : position + count] for state in states])
    with torch.inference_mode():
        if norm is not None:
            masked[:-1] = norm(masked[:-1])
        logits = network.mlm_head(masked[rows].flatten(0, 1)).float().cpu()
        shares = torch.softmax(logits, -1)[:, : model.tokenizer.vocab_size].double()
        return shares.view(-1, masked.shape[1], shares.shape[1])


def _answer(
    inputs: EncodedInput,
    probabilities: Mapping[int, Float[Tensor, "masks pieces"]],
    candidate_ids: Mapping[str, list[int]],
    top_k: int,
    original: int | None,
) -> dict[str, Any]:
    """The prediction for a blank, from the probabilities for each number of masks."""
    tokenizer = inputs.model.tokenizer
    single = probabilities[1][0]
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
                "probability": float(probabilities[len(ids)][range(len(ids)), ids].prod()),
            }
            for word, ids in candidate_ids.items()
        ],
        "entropy": round_values(-torch.special.xlogy(single, single).sum().item() / np.log(2)),
    }


def _piece_ids(inputs: EncodedInput, candidates: Sequence[str]) -> dict[str, list[int]]:
    """The pieces of each candidate.

    Raises:
        DataError: there are too many candidates, or one has unknown pieces, none, or too many.
    """
    model = inputs.model
    if len(candidates) > MAX_CANDIDATES:
        raise DataError(f"at most {MAX_CANDIDATES}", where="candidates")
    room = 1 if is_causal_lm(model) else model.encoder.config.max_seqlen - len(inputs) + 1
    unknown_id = model.tokenizer.id_of("unk")
    rows = model.tokenizer.piece_ids(candidates) if len(candidates) else []
    for at, (word, ids) in enumerate(zip(candidates, rows, strict=True)):
        where = f"candidates[{at}]"
        if unknown_id in ids or not len(ids):
            raise DataError(f"the vocabulary has no pieces for {truncate_repr(word)}", where=where)
        if len(ids) > room:
            what = f"{truncate_repr(word)} has {len(ids)} pieces, and there is room for {room}"
            raise DataError(what, where=where, fix="Leave it out.")
    return {word: ids.tolist() for word, ids in zip(candidates, rows, strict=True)}


def checkpoints(model: Model) -> dict[int, Path]:
    """The checkpoints of a model's run, by step; empty if the model does not belong to a run."""
    source = Path(model.source or "")
    if model.source is None or view_error(model, "fill") is not None:
        return {}
    for run in (source, source.parent):
        if (run / "model").is_dir() and (run / "checkpoints").is_dir():
            return {step_of(path): path for path in list_checkpoints(run / "checkpoints")}
    return {}


def _at_checkpoint(model: Model, step: int) -> Model:
    paths = checkpoints(model)
    if step not in paths:
        steps = ", ".join(map(str, paths)) or "none"
        raise DataError(f"no checkpoint of step {step}", where="checkpoint", fix=f"Has: {steps}.")
    network = copy.deepcopy(model.network)
    load_weights(paths[step] / "weights.safetensors", network)
    return Model(model.tokenizer, model.task, network)

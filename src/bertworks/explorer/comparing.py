"""Views of several texts: a minimal pair, a word in contexts, a claim about heads."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..errors import DataError, did_you_mean, truncate_repr
from ..model import Model
from .inputs import EncodedInput, encode_input, round_values, stack_layers
from .limits import MAX_SENTENCES, Claim
from .target_kinds import find_target
from .views import TargetChoice


def minimal_pair(
    model: Model,
    text: str,
    other: str,
    pair: str | None = None,
    *,
    target: TargetChoice = None,
) -> dict[str, Any]:
    """Compare two texts: the prediction, vectors and attention.

    Args:
        model: any.
        text, other: the texts; equal pieces are aligned, and replaced parts of equal length.
        pair: the second text of both.
        target: the prediction to compare, described for the first text; its counterpart is used
            in the other.

    Raises:
        DataError: a text or the target is not valid, or the texts have no piece in common.
    """
    one, two = (encode_input(model, given, pair) for given in (text, other))
    alignment, is_different = _align(one, two)
    if not alignment:
        raise DataError("the texts have no piece in common", where="other")
    rows, columns = (list(side) for side in zip(*alignment, strict=True))
    has_heads = model.encoder.config.has_heads
    activations = [inputs.activations(attention=has_heads) for inputs in (one, two)]
    states = [stack_layers(one.states) for one in activations]
    vectors = torch.cosine_similarity(states[0][:, rows], states[1][:, columns], -1)
    attention = attention_of_pieces = None
    if activations[0].attention:
        weights = [stack_layers(one.attention) for one in activations]
        parts = weights[0][..., rows, :][..., rows], weights[1][..., columns, :][..., columns]
        distances = (parts[0] - parts[1]).abs().sum(-1) / 2
        attention = round_values(distances.mean(-1))
        attention_of_pieces = round_values(distances.mean(1))
    first = find_target(one, target)
    second = None if first is None else first.find_in(two, dict(alignment))
    return {
        "pieces": one.pieces,
        "other_pieces": two.pieces,
        "alignment": [list(places) for places in alignment],
        "is_different": is_different,
        "prediction": None if first is None else first.prediction(),
        "other_prediction": None if second is None else second.prediction(),
        "vectors": round_values(vectors),
        "attention": attention,
        "attention_pieces": attention_of_pieces,
    }


def _align(one: EncodedInput, two: EncodedInput) -> tuple[list[tuple[int, int]], list[bool]]:
    """The positions of aligned pieces in both texts, and whether the pieces differ."""
    first, second = one.input_ids.tolist(), two.input_ids.tolist()
    matcher = difflib.SequenceMatcher(None, first, second, autojunk=False)
    pairs = [
        (at, place, kind == "replace")
        for kind, start, end, other_start, other_end in matcher.get_opcodes()
        if end - start == other_end - other_start
        for at, place in zip(range(start, end), range(other_start, other_end), strict=True)
    ]
    return [(at, place) for at, place, _ in pairs], [differs for *_, differs in pairs]


def contexts(model: Model, word: str, texts: Sequence[str]) -> dict[str, Any]:
    """Compare a word's vectors in several texts: cosines by layer, and a map of two dimensions.

    A vector is the mean over the word's pieces. The map shows the first two principal components.
    For comparison: the static embedding (from the table alone), independent of the context.

    Args:
        model: any.
        word: found as a whole word, in upper or lower case.
        texts: each contains the word at least once.

    Raises:
        DataError: a text does not contain the word, or there are too many texts or occurrences.
    """
    _check_texts(texts)
    if not word.strip():
        raise DataError("must not be empty", where="word")
    pattern = re.compile(rf"(?<!\w){re.escape(word.strip())}(?!\w)", re.IGNORECASE)
    points: list[dict[str, Any]] = []
    vectors, static = [], []
    table = model.encoder.embeddings.word_embeddings.weight.detach()
    for number, text in enumerate(texts):
        matches = list(pattern.finditer(text))
        if not matches:
            raise DataError(f"does not hold {truncate_repr(word)}", where=f"texts[{number}]")
        inputs = encode_input(model, text, where=f"texts[{number}]")
        states = stack_layers(inputs.activations().states)
        for match in matches:
            start, end = match.span()
            tokens = [
                at
                for at, token in enumerate(inputs.tokens)
                if token["field"] and token["start"] < end and token["end"] > start
            ]
            if not tokens:
                raise DataError(f"{truncate_repr(word)} has no pieces", where=f"texts[{number}]")
            shown = {"text": number, "start": start, "end": end, "shown": match.group()}
            points.append({**shown, "tokens": tokens})
            vectors.append(states[:, tokens].mean(1))
            static.append(table[inputs.input_ids[tokens]].float().cpu().mean(0))
    if len(points) > MAX_SENTENCES:
        raise DataError(f"{len(points)} places, but at most {MAX_SENTENCES}", where="texts")
    layers = torch.stack(vectors, 1)
    maps, shares = zip(*map(_map, layers), strict=True)
    return {
        "word": word,
        "points": points,
        "similarity": round_values(_cosines(layers)),
        "map": round_values(torch.stack(maps)),
        "explained_variance": round_values(torch.stack(shares)),
        "static": round_values(_cosines(torch.stack(static))),
    }


def _cosines(vectors: Float[Tensor, "*layers points width"]) -> Tensor:
    unit = torch.nn.functional.normalize(vectors, dim=-1)
    return unit @ unit.transpose(-1, -2)


def _map(vectors: Float[Tensor, "points width"]) -> tuple[Tensor, Tensor]:
    """The first two principal components, `[points, 2]`, and their shares of the variance."""
    centred = (vectors - vectors.mean(0)).double()
    left, values, _ = torch.linalg.svd(centred, full_matrices=False)
    coordinates, shares = torch.zeros(len(vectors), 2).double(), torch.zeros(2).double()
    most = min(2, len(values))
    coordinates[:, :most] = left[:, :most] * values[:most]
    shares[:most] = values[:most].square() / values.square().sum().clamp_min(1e-30)
    return coordinates, shares


def claim(
    model: Model,
    texts: Sequence[str],
    claim: Claim = "previous",
    *,
    links: Sequence[Sequence[Sequence[int]]] = (),
) -> dict[str, Any]:
    """How often each head attends most to the claimed word, compared with the best fixed offset.

    Attention to a word is the sum over its pieces; attention from a word is the mean over its
    pieces. Special tokens and the word itself are ignored. Source: Clark et al. (2019), §4.2.

    Args:
        model: any with attention heads.
        texts: sentences.
        claim: the claimed word: the previous, the next, the first of the sentence, another
            occurrence of the same word, or those in `links`.
        links: for each text, pairs of word numbers: (from, to).

    Raises:
        DataError: a text cannot be tokenised, there are too many, or the claim applies to no word.
        WrongModelError: the model has no attention heads.
    """
    _check_texts(texts)
    if claim not in get_args(Claim):
        raise DataError(
            f"no claim is called {truncate_repr(claim)}", fix=did_you_mean(claim, get_args(Claim))
        )
    if claim == "links" and len(links) != len(texts):
        raise DataError("there must be a list for each text", where="links")
    num_words = 0
    right: Any = 0
    by_offset: dict[int, int] = {}
    for number, text in enumerate(texts):
        inputs = encode_input(model, text, where=f"texts[{number}]")
        weights = _of_words(inputs)
        goals = _claim_targets(inputs, claim, links[number] if claim == "links" else ())
        queries = np.flatnonzero(goals.any(1))
        if not len(queries):
            continue
        num_words += len(queries)
        strongest = weights[:, :, queries].argmax(-1)
        right = right + goals[queries, strongest].sum(-1)
        for at, goal in zip(*np.nonzero(goals), strict=True):
            by_offset[int(goal - at)] = by_offset.get(int(goal - at), 0) + 1
    if not num_words:
        raise DataError(f"the claim {claim!r} is about no word of the texts", where="texts")
    scores = right / num_words
    offset, hits = max(by_offset.items(), key=lambda item: (item[1], -abs(item[0])))
    order = np.argsort(-scores, axis=None, kind="stable")[:10]
    places = zip(*np.unravel_index(order, scores.shape), strict=True)
    return {
        "claim": claim,
        "num_words": num_words,
        "scores": round_values(scores),
        "baseline": {"offset": offset, "share": hits / num_words},
        "ranked": [
            {"layer": int(layer), "head": int(head), "score": float(scores[layer, head])}
            for layer, head in places
        ],
        "num_heads_above_baseline": int((scores > hits / num_words).sum()),
    }


def _of_words(inputs: EncodedInput) -> Float[np.ndarray, "layers heads words words"]:
    """Attention from words to other words; -1 from a word to itself."""
    member = np.zeros((len(inputs), len(inputs.words)), np.float32)
    for word in inputs.words:
        member[word["tokens"], word["number"]] = 1
    weights: np.ndarray = member.T / member.sum(0)[:, None] @ inputs.attention() @ member
    np.einsum("lhww->lhw", weights)[:] = -1.0
    return weights


def _claim_targets(
    inputs: EncodedInput, claim: Claim, links: Sequence[Sequence[int]]
) -> Bool[np.ndarray, "words words"]:
    """Which words (columns) are claimed for each word (rows)."""
    count = len(inputs.words)
    goals = np.zeros((count, count), np.bool_)
    if claim == "links":
        for start, goal in links:
            if not (0 <= start < count and 0 <= goal < count) or start == goal:
                raise DataError(f"no two words are {start} and {goal}", where="links")
            goals[start, goal] = True
        return goals
    if claim in ("previous", "next"):
        return np.eye(count, k=-1 if claim == "previous" else 1, dtype=np.bool_)
    if claim == "first":
        goals[1:, :1] = True
        return goals
    words = [word["text"].casefold() for word in inputs.words]
    for one, two in itertools.permutations(range(count), 2):
        goals[one, two] = words[one] == words[two]
    return goals


def _check_texts(texts: Sequence[str]) -> None:
    if not 1 <= len(texts) <= MAX_SENTENCES:
        raise DataError(f"from 1 to {MAX_SENTENCES} texts, not {len(texts)}", where="texts")

"""Probabilities of given words at the masks of a text.

A word of several pieces is predicted with one mask for each piece in place of the mask that it
fills, and its probability is the product of its pieces' probabilities.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError, truncate_repr
from ...packed import Array, Batch, to_array
from ...text.tokenizer import Tokenizer
from ..probabilities import softmax

if TYPE_CHECKING:
    from jaxtyping import Float

Pieces: TypeAlias = Mapping[str, Sequence[int]]
"""The piece ids of each candidate."""
ScoredPieces: TypeAlias = Sequence[tuple[int, Sequence[int]]]
"""For each candidate, the number of a mask, and the ids of its pieces, which are scored at this
mask and the following ones."""


class Variant(NamedTuple):
    """A text in which a mask may be repeated, and the candidates that are scored in it."""

    text: str
    scored_pieces: ScoredPieces


def encode_candidates(tokenizer: Tokenizer, candidates: Sequence[str]) -> dict[str, list[int]]:
    """Return the piece ids of each candidate.

    Raises:
        DataError: there are none, or one has no pieces in the vocabulary.
    """
    if not candidates:
        raise DataError("there are no candidates", where="candidates")
    locations = [f"candidates[{number}]" for number in range(len(candidates))]
    rows = tokenizer.piece_ids(candidates, where=locations)
    for location, word, ids in zip(locations, candidates, rows, strict=True):
        if not len(ids) or (tokenizer.has("unk") and tokenizer.unk_id in ids):
            raise DataError(
                f"the vocabulary has no pieces for {truncate_repr(word)}", where=location
            )
    return {word: ids.tolist() for word, ids in zip(candidates, rows, strict=True)}


def make_variants(text: str, mask: str, pieces: Pieces) -> list[Variant]:
    """Return the text, and its variants for candidates of several pieces.

    The text comes first, then for each mask a variant per length of candidates, shortest first.
    """
    parts = text.split(mask)
    numbers = range(len(parts) - 1)
    singles = [ids for ids in pieces.values() if len(ids) == 1]
    variants = [Variant(text, [(number, ids) for number in numbers for ids in singles])]
    for number in numbers:
        for length in _lengths(pieces):
            masks = [mask] * len(numbers)
            masks[number] = mask * length
            joined = "".join(part + more for part, more in zip(parts, [*masks, ""], strict=True))
            long = [(number, ids) for ids in pieces.values() if len(ids) == length]
            variants.append(Variant(joined, long))
    return variants


def _lengths(pieces: Pieces) -> list[int]:
    """Return the numbers of pieces that candidates have, without 1, in ascending order."""
    return sorted({len(ids) for ids in pieces.values()} - {1})


def probabilities_at_masks(
    logits: Array, batch: Batch
) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """Yield each row's number, and the probabilities of all pieces at its masks."""
    probabilities = softmax(to_array(logits))
    positions = to_array(batch.targets["masked_positions"])
    edges = np.searchsorted(positions, to_array(batch.packed.cu_seqlens)).tolist()
    for number, row in enumerate(batch.packed.on_host.sequence_row.tolist()):
        yield row, probabilities[edges[number] : edges[number + 1]]


def score(
    probabilities: Float[np.ndarray, "masks vocab_size"], scored_pieces: ScoredPieces
) -> list[float]:
    """Return the probability of each candidate: the product of its pieces' probabilities."""
    return [
        float(
            np.prod(
                [float(probabilities[mask + offset, piece]) for offset, piece in enumerate(ids)]
            )
        )
        for mask, ids in scored_pieces
    ]


def rank(
    num_masks: int, pieces: Pieces, scores: Iterator[Sequence[float]]
) -> list[list[dict[str, Any]]]:
    """Return each mask's candidates with their probabilities, the most likely first.

    Args:
        scores: the scores of all variants, in order; each variant's are read once.
    """
    words = [word for word, ids in pieces.items() if len(ids) == 1]
    singles = next(scores)
    rankings = []
    for number in range(num_masks):
        own = singles[number * len(words) : (number + 1) * len(words)]
        by_word = dict(zip(words, own, strict=True))
        for length in _lengths(pieces):
            long = [word for word, ids in pieces.items() if len(ids) == length]
            by_word |= dict(zip(long, next(scores), strict=True))
        ordered = sorted(by_word.items(), key=lambda pair: -pair[1])
        rankings.append([{"candidate": word, "probability": value} for word, value in ordered])
    return rankings

"""Masking: choose the tokens to predict, and replace them.

All sequences of a batch are masked at once. Random decisions are pure functions of the sequence's
key and the token's position in it: the masks of a sequence depend neither on the rest of the batch
nor on the order of computation.

Source: paper §3.1, Task #1, and §A.1; the original data generator (whole words included); ALBERT
§4.1 and SpanBERT §3.1 for spans; ERNIE (Sun et al. 2019) §3.2 for phrases and entities.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from ...errors import DataError
from ...settings.base import Settings
from ...text.tokenizer import Tokenizer
from . import hashing

# Mixed into a token's bits, so that the draws of its replacement, random piece and span are
# independent.
_ACTION, _PIECE, _SPAN = (np.uint64(n << 60) for n in (1, 2, 3))


class MaskingSettings(Settings):
    """How tokens are masked.

    `[CLS]` and `[SEP]` count towards a sequence's length, as in the original, and are never masked.
    The original's limits of 20 predictions at length 128 and 80 at 512 are the width of its files.
    They have no effect, since 15 % of the tokens are 19 and 77.
    """

    mlm_probability: float = Field(
        0.15, gt=0, le=1, description="share of a sequence's tokens that are predicted"
    )
    mask_ratio: float = Field(
        0.8, ge=0, le=1, description="share of the chosen tokens that are replaced by `[MASK]`"
    )
    random_ratio: float = Field(
        0.1,
        ge=0,
        le=1,
        description="share of the chosen tokens that are replaced by a random piece; the rest "
        "are kept",
    )
    max_predictions_per_sequence: int | None = Field(
        None, ge=1, description="maximum predicted tokens per sequence"
    )
    unit: Literal["token", "whole-word", "span", "knowledge"] = Field(
        "token",
        description="unit of masking: a token; all pieces of a word; consecutive words; or "
        "(ERNIE) a phrase or entity marked by `prepare spans=`, elsewhere a word",
    )
    span_lengths: Literal["harmonic", "geometric"] = Field(
        "harmonic",
        description="distribution of the number of words of a span: proportional to 1/n "
        "(ALBERT) or geometric (SpanBERT), among the lengths that fit the segment",
    )
    max_span_words: int = Field(
        3, ge=1, le=1000, description="maximum words of a span; 10 in SpanBERT"
    )
    span_geometric_p: float = Field(
        0.2, gt=0, lt=1, description="probability that a geometric span ends with each word"
    )
    replace: Literal["token", "span"] = Field(
        "token",
        description="draw mask, random piece or no change for each token, or once for a span, "
        "word, phrase or entity (SpanBERT)",
    )
    static: bool = Field(
        False,
        description="repeat the same instances and masks, as in BERT's files; otherwise each "
        "epoch has new ones (RoBERTa §4.1)",
    )
    dupe_factor: int = Field(
        10, ge=1, description="with static: number of versions before they repeat"
    )

    @model_validator(mode="after")
    def _ratios_fit(self) -> Self:
        if self.mask_ratio + self.random_ratio > 1 + 1e-9:
            raise ValueError(
                f"mask_ratio={self.mask_ratio} and random_ratio={self.random_ratio} are more than "
                "1 together"
            )
        return self

    @property
    def repeat_every(self) -> int | None:
        """The number of epochs after which masks repeat; None if they never do."""
        return self.dupe_factor if self.static else None

    def num_predictions(self, lengths: np.ndarray) -> np.ndarray:
        """The number of tokens to predict per sequence; `lengths` include special tokens.

        At least one; halves are rounded to even, like Python's `round` in the original.
        """
        count = np.maximum(1, np.rint(lengths * self.mlm_probability).astype(np.int64))
        limit = self.max_predictions_per_sequence
        return count if limit is None else np.minimum(limit, count)


class MaskedSequences(NamedTuple):
    """Masked sequences."""

    input_ids: np.ndarray  # `[tokens]` int64, the network's input
    positions: np.ndarray  # `[masked]` int64, rising: indices of the tokens to predict
    labels: np.ndarray  # `[masked]` int64: the original ids


class Masker:
    """Masks batches of sequences.

    Raises:
        DataError: the tokenizer has no mask, cls or sep token.
    """

    def __init__(self, settings: MaskingSettings, tokenizer: Tokenizer) -> None:
        for role in ("mask", "cls", "sep"):
            if not tokenizer.has(role):
                raise DataError(
                    f"the tokenizer has no {role} token, and masked pieces cannot be learned "
                    "without",
                    fix="Train a causal family (model.family=openai-gpt), or prepare with another "
                    "one.",
                )
        self.settings, self.tokenizer = settings, tokenizer
        words = np.arange(1, settings.max_span_words + 1)
        harmonic = settings.span_lengths == "harmonic"
        odds = 1 / words if harmonic else (1 - settings.span_geometric_p) ** words
        self._span_odds = np.cumsum(odds)

    def __call__(
        self,
        input_ids: np.ndarray,
        cu_seqlens: np.ndarray,
        keys: np.ndarray,
        continues_unit: np.ndarray | None = None,
    ) -> MaskedSequences:
        """Choose tokens and replace them.

        Args:
            input_ids: `[tokens]` int64, sequences end to end, of at most 2²⁴ tokens; not modified.
            cu_seqlens: `[sequences + 1]`, where each sequence starts, and the end of the last.
            keys: `[sequences]` uint64, the keys that random decisions are drawn from.
            continues_unit: `[tokens]` bool, whether a token continues the unit of the token before;
                required for the unit `knowledge`. If the start of a unit was truncated, the unit
                begins with the first token of its segment.
        """
        lengths = np.diff(cu_seqlens).astype(np.int64)
        sequence = np.repeat(np.arange(len(lengths)), lengths)
        position = np.arange(len(input_ids)) - np.repeat(cu_seqlens[:-1], lengths)
        bits = hashing.draw(keys[sequence], position)
        may_mask = (input_ids != self.tokenizer.cls_id) & (input_ids != self.tokenizer.sep_id)
        budget = self.settings.num_predictions(lengths)
        if self.settings.unit == "token":
            positions = _choose_tokens(np.flatnonzero(may_mask), sequence, bits, budget)
            unit_starts = positions
        else:
            if self.settings.unit == "knowledge":
                assert continues_unit is not None, "the examples come with their units"
                continues = continues_unit & may_mask
            else:
                continues = self.tokenizer.continues_word(input_ids) & may_mask
            continues[1:] &= may_mask[:-1]
            continues[0] = False
            positions, unit_starts = self._choose_words(may_mask, continues, sequence, bits, budget)
        return self._replace(input_ids, positions, bits[positions], bits[unit_starts])

    def _replace(
        self, input_ids: np.ndarray, positions: np.ndarray, bits: np.ndarray, unit_bits: np.ndarray
    ) -> MaskedSequences:
        """Replace each chosen token by `[MASK]` or a random piece, or keep it.

        `unit_bits` are the bits of the first token of each token's word or span. Which of the three
        happens is drawn from them if `replace` is "span", otherwise from the token's `bits`; the
        random piece always from the token's `bits`.
        """
        labels = input_ids[positions]
        if self.settings.replace == "token":
            unit_bits = bits
        share = hashing.uniform(hashing.mix(unit_bits ^ _ACTION))
        is_masked = share < self.settings.mask_ratio
        is_random = ~is_masked & (share < self.settings.mask_ratio + self.settings.random_ratio)
        new_ids = labels.copy()
        new_ids[is_masked] = self.tokenizer.mask_id
        pieces = hashing.integers_below(
            hashing.mix(bits[is_random] ^ _PIECE), self.tokenizer.vocab_size
        )
        new_ids[is_random] = pieces
        result = input_ids.copy()
        result[positions] = new_ids
        return MaskedSequences(result, positions, labels)

    def _choose_words(
        self,
        may_mask: np.ndarray,
        continues_unit: np.ndarray,
        sequence: np.ndarray,
        bits: np.ndarray,
        budget: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Choose words, other units, or spans of words, in random order within the budget.

        A word that exceeds the remaining budget is skipped. A span is shortened to fit, and skipped
        if one of its words is already chosen. Words do not cross a `[SEP]` (in the original, a `##`
        piece that truncation left at the start of B joins A's last word).

        Args:
            may_mask: `[tokens]` bool, false for `[CLS]` and `[SEP]`.
            continues_unit: `[tokens]` bool, whether a token continues the unit of the token before.
            sequence: `[tokens]`, the index of each token's sequence.
            bits: `[tokens]`, random bits.
            budget: `[sequences]`, the maximum number of tokens to choose.

        Returns:
            The chosen positions, rising, and for each the first position of its word or span.
        """
        starts = np.flatnonzero(may_mask & ~continues_unit)
        if not len(starts):
            return starts, starts
        sizes = np.add.reduceat(may_mask.astype(np.int64), starts)
        widths = np.ones(len(starts), np.int64)
        if self.settings.unit == "span":
            widths = self._span_widths(starts, sizes, bits[starts])

        order = _shuffle(starts, sequence, bits).tolist()
        of_sequence = np.bincount(sequence[starts], minlength=len(budget)).cumsum().tolist()
        size_of, width_of = sizes.tolist(), widths.tolist()
        chosen_words: list[int] = []
        leaders: list[int] = []
        is_chosen = bytearray(len(starts))
        first = 0
        for last, allowed in zip(of_sequence, budget.tolist(), strict=True):
            remaining = allowed
            for word in order[first:last]:
                stop = word + width_of[word]
                size = sum(size_of[word:stop])
                while size > remaining:
                    stop -= 1
                    size -= size_of[stop]
                if stop == word or any(is_chosen[word:stop]):
                    continue
                is_chosen[word:stop] = b"\1" * (stop - word)
                chosen_words.extend(range(word, stop))
                leaders.extend([word] * (stop - word))
                remaining -= size
                if not remaining:
                    break
            first = last
        words = np.array(chosen_words, np.int64)
        counts = sizes[words]
        offsets = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
        positions = np.repeat(starts[words], counts) + offsets
        unit_starts = np.repeat(starts[np.array(leaders, np.int64)], counts)
        by_position = np.argsort(positions)
        return positions[by_position], unit_starts[by_position]

    def _span_widths(self, starts: np.ndarray, sizes: np.ndarray, bits: np.ndarray) -> np.ndarray:
        """The number of words of the span that would start at each word."""
        is_adjacent = np.zeros(len(starts) + 1, bool)  # whether word i is adjacent to word i - 1
        is_adjacent[1:-1] = starts[:-1] + sizes[:-1] == starts[1:]
        segment_end = np.flatnonzero(~is_adjacent[1:]) + 1
        number = np.arange(len(starts))
        room = segment_end[np.searchsorted(segment_end, number, side="right")] - number
        odds = self._span_odds
        most = odds[np.minimum(room, len(odds)) - 1]
        share = hashing.uniform(hashing.mix(bits ^ _SPAN)) * most
        widths: np.ndarray = np.searchsorted(odds, share, side="right") + 1
        return widths


def _shuffle(positions: np.ndarray, sequence: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """The indices of the positions, sequence by sequence, in random order within each sequence."""
    rank = (sequence[positions].astype(np.uint64) << np.uint64(40)) | (
        bits[positions] >> np.uint64(24)
    )
    order: np.ndarray = np.argsort(rank, kind="stable")
    return order


def _choose_tokens(
    positions: np.ndarray, sequence: np.ndarray, bits: np.ndarray, budget: np.ndarray
) -> np.ndarray:
    """At most `budget` random positions of each sequence, rising."""
    shuffled_positions = positions[_shuffle(positions, sequence, bits)]
    counts = np.bincount(sequence[positions], minlength=len(budget))
    rank = np.arange(len(shuffled_positions)) - np.repeat(counts.cumsum() - counts, counts)
    return np.sort(shuffled_positions[rank < np.repeat(budget, counts)])

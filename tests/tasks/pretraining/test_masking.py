"""Masks: how many, where, by what they are replaced, and that only the key decides."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertworks.errors import SettingsError
from bertworks.tasks.pretraining import hashing
from bertworks.tasks.pretraining.masking import MaskedSequences, Masker, MaskingSettings
from bertworks.text.tokenizer import Tokenizer

VOCAB_SIZE, CLS, SEP, MASK = 1000, 101, 102, 103
CONTINUATION = np.arange(VOCAB_SIZE) >= 700


def _continues_word(ids: np.ndarray) -> np.ndarray:
    mask: np.ndarray = CONTINUATION[ids]
    return mask


def masker(
    continues_word: Callable[[np.ndarray], np.ndarray] = _continues_word, **values: Any
) -> Masker:
    tokenizer: Any = SimpleNamespace(
        vocab_size=VOCAB_SIZE,
        mask_id=MASK,
        cls_id=CLS,
        sep_id=SEP,
        has=lambda role: True,
        continues_word=continues_word,
    )
    return Masker(MaskingSettings(**values), tokenizer)


def sequences(count: int, length: int, seed: int = 0, words: bool = False) -> list[np.ndarray]:
    """Pairs of segments of random ids; of whole words and continuations, if `words`."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(200, VOCAB_SIZE if words else 700, (count, length))
    ids[:, 0] = CLS
    ids[:, [length // 2, -1]] = SEP
    return list(ids)


def mask(masker: Masker, rows: list[np.ndarray], keys: np.ndarray) -> MaskedSequences:
    edges = np.cumsum([0, *map(len, rows)])
    return masker(np.concatenate(rows), edges, keys)


def keys_for(count: int, seed: int = 7) -> np.ndarray:
    return hashing.draw(np.array([seed], np.uint64), np.arange(count))


def is_within(share: float, probability: float, draws: int, sigmas: float = 4) -> bool:
    return abs(share - probability) <= sigmas * math.sqrt(probability * (1 - probability) / draws)


UNITS = [
    {"unit": "token"},
    {"unit": "whole-word"},
    {"unit": "span"},
    {"unit": "span", "span_lengths": "geometric", "max_span_words": 10, "replace": "span"},
]


@pytest.mark.long
@pytest.mark.parametrize("values", UNITS)
@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(5, 40), min_size=1, max_size=8), seed=st.integers(0, 2**64 - 1))
def test_masks_depend_on_the_key_alone(
    values: dict[str, Any], lengths: list[int], seed: int
) -> None:
    rows = [sequences(1, length, seed=index, words=True)[0] for index, length in enumerate(lengths)]
    keys = keys_for(len(rows), seed)
    one = masker(**values)
    batch_result = mask(one, rows, keys)
    single_results = [mask(one, [row], keys[index : index + 1]) for index, row in enumerate(rows)]
    edges = np.cumsum([0, *lengths])
    np.testing.assert_array_equal(
        batch_result.input_ids, np.concatenate([x.input_ids for x in single_results])
    )
    np.testing.assert_array_equal(
        batch_result.labels, np.concatenate([x.labels for x in single_results])
    )
    np.testing.assert_array_equal(
        batch_result.positions,
        np.concatenate(
            [x.positions + start for x, start in zip(single_results, edges, strict=False)]
        ),
    )


@pytest.mark.parametrize("values", UNITS)
def test_labels_are_the_original_ids_and_other_tokens_are_unchanged(values: dict[str, Any]) -> None:
    rows = sequences(50, 60, words=True)
    ids = np.concatenate(rows)
    result = mask(masker(**values), rows, keys_for(50))
    np.testing.assert_array_equal(ids[result.positions], result.labels)
    assert np.all(np.diff(result.positions) > 0)
    other_positions = np.setdiff1d(np.arange(len(ids)), result.positions)
    np.testing.assert_array_equal(ids[other_positions], result.input_ids[other_positions])
    assert not np.isin(result.labels, [CLS, SEP]).any()
    assert np.array_equal(ids, np.concatenate(rows))  # the unmasked ids are left alone


@pytest.mark.parametrize("probability", [0.01, 0.15, 0.4, 1.0])
@pytest.mark.parametrize("limit", [None, 1, 20])
def test_the_number_of_predictions_is_the_originals(probability: float, limit: int | None) -> None:
    lengths = list(range(5, 200))
    rows = [sequences(1, length)[0] for length in lengths]
    settings_ = {"mlm_probability": probability, "max_predictions_per_sequence": limit}
    result = mask(masker(**settings_), rows, keys_for(len(rows)))
    owner = np.searchsorted(np.cumsum([0, *lengths]), result.positions, side="right") - 1
    for length, count in zip(lengths, np.bincount(owner, minlength=len(rows)), strict=True):
        expected = max(1, round(length * probability))
        if limit is not None:
            expected = min(limit, expected)
        assert count == min(expected, length - 3)  # [CLS] and the two [SEP]s are never chosen


@pytest.mark.long
@pytest.mark.parametrize("unit", ["token", "whole-word", "span"])
def test_replacements_keep_their_ratios(unit: str) -> None:
    rows = sequences(3000, 128)
    result = mask(masker(unit=unit), rows, keys_for(3000))
    new_ids, total = result.input_ids[result.positions], len(result.labels)
    is_masked, is_kept = new_ids == MASK, new_ids == result.labels
    chance = 0.1 / VOCAB_SIZE  # a random piece may be [MASK], or the same again
    assert is_within(is_masked.mean(), 0.8 + chance, total)
    assert is_within(is_kept.mean(), 0.1 + chance, total)
    assert is_within((~is_masked & ~is_kept).mean(), 0.1 - 2 * chance, total)


def test_random_pieces_are_uniform_over_the_whole_vocabulary() -> None:
    rows = sequences(4000, 128)
    result = mask(masker(mask_ratio=0, random_ratio=1), rows, keys_for(4000))
    new_ids = result.input_ids[result.positions]
    expected = len(new_ids) / VOCAB_SIZE
    chi_square = ((np.bincount(new_ids, minlength=VOCAB_SIZE) - expected) ** 2 / expected).sum()
    assert abs(chi_square - (VOCAB_SIZE - 1)) < 4 * math.sqrt(2 * (VOCAB_SIZE - 1))


@pytest.mark.parametrize(
    "ratios", [(0.8, 0.1), (1.0, 0.0), (0.8, 0.2), (0.0, 0.2), (0.0, 1.0), (0.0, 0.0)]
)
def test_masks_have_the_ratios_of_the_papers_ablation(ratios: tuple[float, float]) -> None:
    rows = sequences(1000, 128)
    result = mask(masker(mask_ratio=ratios[0], random_ratio=ratios[1]), rows, keys_for(1000))
    new_ids, total = result.input_ids[result.positions], len(result.labels)
    chance = ratios[1] / VOCAB_SIZE
    assert is_within((new_ids == MASK).mean(), min(1, ratios[0] + chance), total)
    keep_ratio = 1 - sum(ratios)
    assert is_within((new_ids == result.labels).mean(), min(1, max(0, keep_ratio) + chance), total)


def test_every_position_is_equally_likely() -> None:
    rows = sequences(6000, 64)
    result = mask(masker(), rows, keys_for(6000))
    counts = np.bincount(result.positions % 64, minlength=64)
    maskable = np.setdiff1d(np.arange(64), [0, 32, 63])
    assert counts[[0, 32, 63]].sum() == 0
    expected = 6000 * 10 / 61
    chi_square = ((counts[maskable] - expected) ** 2 / (expected * (1 - 10 / 61))).sum()
    assert abs(chi_square - 61) < 4 * math.sqrt(2 * 61)


def test_neighbouring_keys_give_unrelated_masks() -> None:
    row = sequences(1, 128)[0]
    result = mask(masker(), [row] * 2000, np.arange(2000, dtype=np.uint64))
    positions = (result.positions % 128).reshape(2000, 19)
    num_shared = [len(np.intersect1d(a, b)) for a, b in pairwise(positions)]
    expected = 19 * 19 / 125
    assert abs(np.mean(num_shared) - expected) < 4 * 1.5 / math.sqrt(len(num_shared))


def test_draws_are_the_same_everywhere_and_for_ever() -> None:
    """SplitMix64's published first outputs for the seed 1234567."""
    outputs = hashing.draw(np.array([1234567], np.uint64), np.arange(3))
    assert outputs.tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


# ------------------------------------------------------------------------------- words and spans


def words_of(row: np.ndarray) -> list[range]:
    """The words of a sequence in plain code: a word continues while continuations follow."""
    words: list[list[int]] = []
    for index, token in enumerate(row.tolist()):
        if token in (CLS, SEP):
            continue
        if CONTINUATION[token] and words and words[-1][-1] == index - 1:
            words[-1].append(index)
        else:
            words.append([index])
    return [range(word[0], word[-1] + 1) for word in words]


@pytest.mark.parametrize("unit", ["whole-word", "span"])
def test_words_are_masked_whole_and_within_the_budget(unit: str) -> None:
    rows = sequences(400, 64, words=True)
    result = mask(masker(unit=unit), rows, keys_for(400))
    total = 0
    for index, row in enumerate(rows):
        masked_positions = set((result.positions[result.positions // 64 == index] % 64).tolist())
        assert len(masked_positions) <= 10
        for word in words_of(row):
            assert masked_positions.issuperset(word) or masked_positions.isdisjoint(word)
        shortest = min(len(w) for w in words_of(row) if masked_positions.isdisjoint(w))
        if unit == "whole-word":  # every word that still fitted was taken
            assert len(masked_positions) + shortest > 10
        total += len(masked_positions)
    assert total > 0.95 * 400 * 10


def test_a_continuation_after_a_separator_starts_a_word() -> None:
    row = np.array([CLS, 800, 300, 801, SEP, 802, 803, 300, SEP])
    assert words_of(row) == [range(1, 2), range(2, 4), range(5, 7), range(7, 8)]
    results = [
        mask(masker(unit="whole-word", mlm_probability=2 / 9), [row], np.array([key], np.uint64))
        for key in range(200)
    ]
    choices = {tuple(x.positions.tolist()) for x in results}
    assert choices == {(2, 3), (5, 6), (1, 7)}


def test_a_word_over_the_budget_is_skipped() -> None:
    row = np.array([CLS, 300, 800, 800, SEP])
    result = mask(masker(unit="whole-word"), [row], keys_for(1))
    assert result.positions.tolist() == []
    np.testing.assert_array_equal(result.input_ids, row)


def test_each_piece_of_a_word_is_replaced_on_its_own() -> None:
    row = np.array([CLS, 300, 800, SEP])
    rows = [row] * 4000
    one = masker(unit="whole-word", mlm_probability=0.5, mask_ratio=0.5, random_ratio=0)
    result = mask(one, rows, keys_for(4000))
    is_masked = (result.input_ids[result.positions] == MASK).reshape(-1, 2)
    assert is_within((is_masked[:, 0] & is_masked[:, 1]).mean(), 0.25, 4000)


def test_a_span_is_replaced_as_one_with_replace_span() -> None:
    rows = sequences(1000, 40)
    one = masker(
        unit="span",
        max_span_words=5,
        span_lengths="geometric",
        replace="span",
        mask_ratio=0.5,
        random_ratio=0,
    )
    result = mask(one, rows, keys_for(1000))
    is_masked = result.input_ids[result.positions] == MASK
    assert is_within(is_masked.mean(), 0.5, 1500)
    neighbours = np.diff(result.positions) == 1  # of one span, or of two that happen to touch
    assert np.mean((is_masked[1:] == is_masked[:-1])[neighbours]) > 0.85


@pytest.mark.long
@pytest.mark.parametrize(
    ("values", "odds"),
    [
        ({"span_lengths": "harmonic", "max_span_words": 3}, [6 / 11, 3 / 11, 2 / 11]),
        (
            {"span_lengths": "geometric", "max_span_words": 10},
            [0.2 * 0.8**n / (1 - 0.8**10) for n in range(10)],
        ),
    ],
)
def test_spans_have_the_published_lengths(values: dict[str, Any], odds: list[float]) -> None:
    """One span in a long sequence, with a budget that never cuts it."""
    length, count = 400, 1000
    row = np.concatenate(([CLS], np.full(length, 300), [SEP]))
    one = masker(unit="span", mlm_probability=len(odds) / (length + 2), **values)
    rng = np.random.default_rng(0)
    ids, edges = np.tile(row, count), np.arange(count + 1) * len(row)
    starts = np.flatnonzero(ids == 300)
    bits = rng.integers(0, 2**64, len(starts), np.uint64)
    widths = one._span_widths(starts, np.ones_like(starts), bits).reshape(count, length)
    inner = widths[:, : length - len(odds) + 1].ravel()
    shares = np.bincount(inner, minlength=len(odds) + 1)[1:] / len(inner)
    assert all(is_within(share, p, len(inner)) for share, p in zip(shares, odds, strict=True))
    assert np.all(widths[:, -1] == 1)  # at a segment's end there is room for one word
    assert is_within((widths[:, -2] == 1).mean(), odds[0] / (odds[0] + odds[1]), count)
    result = one(ids, edges, keys_for(count))
    assert len(result.positions) == count * len(odds)


def test_spans_stay_in_their_segment() -> None:
    row = np.array([CLS, 300, SEP, 301, SEP, 302, SEP, 303, SEP])
    one = masker(unit="span", mlm_probability=2 / 9)
    for key in range(100):
        result = mask(one, [row], np.array([key], np.uint64))
        assert len(result.positions) == 2


# ---------------------------------------------------------------------------------------- settings


def test_impossible_ratios_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"mask_ratio=0\.8 and random_ratio=0\.3"):
        MaskingSettings.parse({"random_ratio": 0.3})
    with pytest.raises(SettingsError, match="nearest valid name is 'mlm_probability'"):
        MaskingSettings.parse({"mlm_probabilty": 0.1})


def test_static_masks_repeat_after_the_dupe_factor() -> None:
    assert MaskingSettings().repeat_every is None
    assert MaskingSettings(static=True, dupe_factor=4).repeat_every == 4


# --------------------------------------------------------------------------- phrases and entities


def with_units(count: int, length: int, seed: int = 0) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Sequences, and which of their tokens go on a unit; some units begin before their segment."""
    rng = np.random.default_rng(seed)
    rows = sequences(count, length, seed, words=True)
    return rows, [rng.random(length) < 0.6 for _ in rows]


def units_of(row: np.ndarray, continues_unit: np.ndarray) -> list[list[int]]:
    """The units of a sequence in plain code: `[CLS]` and `[SEP]` are in none, and end them."""
    units: list[list[int]] = []
    for index, token in enumerate(row.tolist()):
        if token in (CLS, SEP):
            continue
        if continues_unit[index] and units and units[-1][-1] == index - 1:
            units[-1].append(index)
        else:
            units.append([index])
    return units


@pytest.mark.parametrize("replace", ["token", "span"])
def test_units_are_masked_whole_and_within_the_budget(replace: str) -> None:
    rows, continues_unit = with_units(400, 64)
    one = masker(unit="knowledge", replace=replace, mask_ratio=0.5, random_ratio=0)
    edges = np.arange(401) * 64
    result = one(np.concatenate(rows), edges, keys_for(400), np.concatenate(continues_unit))
    total, num_uniform, num_long_units = 0, 0, 0
    for index, (row, row_units) in enumerate(zip(rows, continues_unit, strict=True)):
        is_of_row = result.positions // 64 == index
        positions = (result.positions[is_of_row] % 64).tolist()
        new_ids = dict(zip(positions, result.input_ids[result.positions[is_of_row]], strict=True))
        assert len(new_ids) <= 10
        units = units_of(row, row_units)
        for unit in units:
            assert set(new_ids).issuperset(unit) or set(new_ids).isdisjoint(unit)
            if len(unit) > 1 and unit[0] in new_ids:
                num_long_units += 1
                num_uniform += len({new_ids[position] == MASK for position in unit}) == 1
        assert len(new_ids) + min(len(u) for u in units if set(new_ids).isdisjoint(u)) > 10
        total += len(new_ids)
    assert total > 0.95 * 400 * 10
    assert (num_uniform == num_long_units) == (replace == "span")


def test_units_are_pure_functions_of_the_key() -> None:
    rows, continues_unit = with_units(9, 40)
    one, keys = masker(unit="knowledge"), keys_for(9)
    batch_result = one(
        np.concatenate(rows), np.arange(10) * 40, keys, np.concatenate(continues_unit)
    )
    for index in range(9):
        single_result = one(
            rows[index], np.array([0, 40]), keys[index : index + 1], continues_unit[index]
        )
        is_of_row = batch_result.positions // 40 == index
        assert (batch_result.positions[is_of_row] % 40).tolist() == single_result.positions.tolist()
        np.testing.assert_array_equal(
            batch_result.input_ids[index * 40 : index * 40 + 40], single_result.input_ids
        )


def test_units_without_spans_are_words() -> None:
    """Where every unit is a word, knowledge masking is whole-word masking, bit by bit."""
    rows = sequences(50, 60, words=True)
    ids, edges, keys = np.concatenate(rows), np.arange(51) * 60, keys_for(50)
    words = masker(unit="whole-word")(ids, edges, keys)
    units = masker(unit="knowledge")(ids, edges, keys, CONTINUATION[ids])
    np.testing.assert_array_equal(words.input_ids, units.input_ids)


def test_words_whose_end_is_marked() -> None:
    """As the first GPT's: a piece continues a word unless the one before ended it."""
    ends = np.arange(VOCAB_SIZE) >= 700
    tokenizer: Any = SimpleNamespace(continuation=np.ones(VOCAB_SIZE, np.bool_), word_end=ends)
    continues_word = partial(Tokenizer.continues_word, tokenizer)
    one = masker(continues_word, unit="whole-word", mlm_probability=3 / 9)
    row = np.array([CLS, 300, 301, 800, 801, SEP, 302, 802, SEP])
    choices = {tuple(mask(one, [row], np.array([key], np.uint64)).positions) for key in range(200)}
    assert choices == {(1, 2, 3), (4, 6, 7)}

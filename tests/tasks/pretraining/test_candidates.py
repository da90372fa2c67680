"""Probabilities of words at masks, without a model."""

from __future__ import annotations

import math

import pytest
import torch

from bertworks.tasks.pretraining.candidates import make_variants, score


def test_a_candidate_is_scored_at_its_mask_and_the_following_ones() -> None:
    pieces = {"one": [4], "two": [1, 2], "three": [3, 0, 5]}
    variants = make_variants("a M b M", "M", pieces)
    places = [
        (variant.text, mask, tuple(ids))
        for variant in variants
        for mask, ids in variant.scored_pieces
    ]
    assert places == [
        *(("a M b M", 0, (4,)), ("a M b M", 1, (4,))),
        *(("a MM b M", 0, (1, 2)), ("a MMM b M", 0, (3, 0, 5))),
        *(("a M b MM", 1, (1, 2)), ("a M b MMM", 1, (3, 0, 5))),
    ]
    for text, mask, ids in places:
        probabilities = torch.arange(1.0, 1 + 6 * text.count("M")).view(-1, 6)
        expected = math.prod(1 + 6 * (mask + at) + piece for at, piece in enumerate(ids))
        assert score(probabilities, [(mask, ids)]) == pytest.approx([expected])

"""Probabilities of words at masks, without a network."""

from __future__ import annotations

import math

import pytest
import torch

from bertworks.inference.pretraining_heads import (
    Candidate,
    encode_candidates,
    join_predictions,
    list_variants,
    score,
)
from bertworks.tasks.pretraining.instances import InstanceSettings
from bertworks.tasks.pretraining.task import PretrainingTask
from bertworks.text.tokenizer import Tokenizer

_PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "##d", "##e"]
_TASK = PretrainingTask(Tokenizer.from_vocabulary(_PIECES), InstanceSettings())
_TEXT = "a [MASK] b [MASK]"


def test_a_candidate_is_scored_at_its_mask_and_the_following_ones() -> None:
    pieces = encode_candidates(_TASK.tokenizer, ["a", "cd", "ced"])
    variants = list_variants(_TASK, _TEXT, pieces, where="here", top_k=3)
    texts = [variant.fill("[MASK]") for variant in variants]
    places = [(text.text.replace("[MASK]", "M"), one) for text in texts for one in text.candidates]
    assert places == [
        *(("a M b M", Candidate(0, "a", [5])), ("a M b M", Candidate(1, "a", [5]))),
        ("a MM b M", Candidate(0, "cd", [7, 8])),
        ("a MMM b M", Candidate(0, "ced", [7, 9, 8])),
        ("a M b MM", Candidate(1, "cd", [7, 8])),
        ("a M b MMM", Candidate(1, "ced", [7, 9, 8])),
    ]
    for text, (mask, word, ids) in places:
        values = torch.arange(1.0, 1 + 10 * text.count("M")).view(-1, 10)
        expected = math.prod(1 + 10 * (mask + at) + piece for at, piece in enumerate(ids))
        assert score(values, [Candidate(mask, word, ids)]) == pytest.approx([expected])


def test_variants_give_each_mask_its_candidates_in_order() -> None:
    pieces = encode_candidates(_TASK.tokenizer, ["b", "cd", "a"])
    variants = list_variants(_TASK, _TEXT, pieces, where="here", top_k=1)
    assert len(variants) == 3
    masks = [[{"piece": "a"}], [{"piece": "b"}]]
    predictions = iter(
        [
            {"masks": masks, "candidates": [0.2, 0.5, 0.3, 0.3]},  # b, a; b, a
            {"masks": [], "candidates": [0.4]},
            {"masks": [], "candidates": [0.1]},
            {"masks": [], "candidates": ["of the next text"]},
        ]
    )
    joined = join_predictions(variants, predictions)
    assert joined["masks"] == masks
    assert [[one["candidate"] for one in ranking] for ranking in joined["candidates"]] == [
        ["a", "cd", "b"],
        ["b", "a", "cd"],  # equal ones as they were given
    ]
    assert next(predictions)["candidates"] == ["of the next text"]

"""Which tokens are global, against transformers' Longformer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.models.longformer.modeling_longformer import _compute_global_attention_mask

from bertworks.nn.global_tokens import find_global_tokens, mask_of_packed
from bertworks.nn.part_settings import GlobalTokensSettings
from bertworks.packed import Packed, Padded

SEPARATOR = 2
CPU = torch.device("cpu")


def make_pairs() -> Packed:
    ids = [
        np.array([0, *question, SEPARATOR, SEPARATOR, *choice, SEPARATOR])
        for question, choice in [((5,), (6, 7)), ((5, 6, 7), (8,)), ((5, 9, 9, 9), (6, 7, 8, 9))]
    ]
    return Packed.from_arrays(ids)


@pytest.mark.parametrize("position", ["question", "choice"])
def test_global_tokens_of_pairs_are_those_of_transformers(position) -> None:
    packed = make_pairs()
    settings = GlobalTokensSettings(position=position, separator_id=SEPARATOR)
    ids, mask = (torch.from_numpy(part) for part in packed.to_padded(fill=1))
    expected = _compute_global_attention_mask(ids, SEPARATOR, position == "question") & mask
    assert (packed.to_padded(mask_of_packed(settings, packed))[0] == expected.numpy()).all()
    of_padded = find_global_tokens(settings, Padded.from_tensors(ids, mask), CPU)
    assert of_padded is not None
    assert torch.equal(of_padded.mask.view(ids.shape), expected)


@pytest.mark.parametrize(
    ("position", "ids", "expected"),
    [
        ("first", [0, 5, SEPARATOR], [1, 0, 0]),
        ("question", [0, 5, SEPARATOR], [1, 1, 0]),
        ("question", [5, 6], [1, 1]),
        ("question", [SEPARATOR, 6], [0, 0]),
        ("choice", [0, 5, SEPARATOR], [0, 0, 0]),
        ("choice", [0, SEPARATOR, SEPARATOR], [0, 0, 0]),
    ],
)
def test_a_sequence_may_have_no_separators(position, ids, expected) -> None:
    """Its neighbours in the pack do not count."""
    settings = GlobalTokensSettings(position=position, separator_id=SEPARATOR)
    around = [np.array([0, SEPARATOR, SEPARATOR, 5])] * 2
    packed = Packed.from_arrays([around[0], np.array(ids), around[1]])
    mask = mask_of_packed(settings, packed)
    assert mask[4:-4].tolist() == [bool(value) for value in expected]
    tokens = find_global_tokens(settings, packed, CPU)
    assert tokens is not None
    assert tokens.layout is not None
    assert tokens.layout.lengths[1] == max(1, sum(expected))
    padded_ids, is_token = (torch.from_numpy(part) for part in packed.to_padded(fill=1))
    of_padded = find_global_tokens(settings, Padded.from_tensors(padded_ids, is_token), CPU)
    assert of_padded is not None
    assert torch.equal(of_padded.mask.view(is_token.shape)[is_token], tokens.mask)

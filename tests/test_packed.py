"""Packs: nothing lost, nothing padded, in any order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertworks.packed import Batch, Packed

lengths_lists = st.lists(st.integers(1, 9), min_size=1, max_size=12)


def padded(lengths, seed=0):
    rng = np.random.default_rng(seed)
    ids = rng.integers(1, 100, (len(lengths), max(lengths)))
    mask = np.arange(max(lengths))[None] < np.array(lengths)[:, None]
    return ids * mask, mask


@given(lengths_lists)
def test_padded_round_trip(lengths):
    ids, mask = padded(lengths)
    packed = Packed.from_padded(ids, mask)
    assert packed.num_tokens == sum(lengths)
    back, back_mask = packed.to_padded()
    assert (back == ids).all()
    assert (back_mask == mask).all()


@given(lengths_lists)
def test_a_pack_says_where_everything_lies(lengths):
    arrays = [np.arange(n) + 10 * i for i, n in enumerate(lengths)]
    packed = Packed.from_arrays(arrays, rows=[7 * i for i in range(len(lengths))])
    edges = packed.cu_seqlens
    for i, array in enumerate(arrays):
        assert (packed.input_ids[edges[i] : edges[i + 1]] == array).all()
        assert (packed.position_ids[edges[i] : edges[i + 1]] == np.arange(len(array))).all()
    assert packed.max_seqlen == max(lengths)
    assert (packed.first_tokens == edges[:-1]).all()
    assert packed.sequence_row.tolist() == [7 * i for i in range(len(lengths))]


@given(lengths_lists)
def test_groups_cover_the_pack_in_order(lengths):
    packed = Packed.from_arrays([np.zeros(n, np.int64) for n in lengths])
    spelled_out = [g.length for g in packed.groups for _ in range(g.sequences)]
    assert spelled_out == lengths
    at = 0
    for group in packed.groups:
        assert group.start == at
        at += group.sequences * group.length
    neighbours = zip(packed.groups, packed.groups[1:], strict=False)
    assert all(a.length != b.length for a, b in neighbours)


def test_in_order_of_length_each_length_is_one_group():
    ids, mask = padded([3, 5, 3, 1, 5, 3])
    groups = Packed.from_padded(ids, mask).groups
    assert [(g.sequences, g.length) for g in groups] == [(1, 1), (3, 3), (2, 5)]


def test_left_padding_is_understood():
    ids = np.array([[0, 0, 5, 6], [1, 2, 3, 4]])
    packed = Packed.from_padded(ids, ids > 0)
    assert packed.input_ids.tolist() == [5, 6, 1, 2, 3, 4]
    assert packed.position_ids.tolist() == [0, 1, 0, 1, 2, 3]


def test_rows_of_several_sequences_come_back_in_order():
    packed = Packed.from_arrays(
        [np.array([1]), np.array([2]), np.array([3])], rows=[1, 0, 0], numbers=[0, 1, 0]
    )
    assert packed.to_padded()[0].tolist() == [[3], [2], [1]]


@pytest.mark.parametrize(
    ("ids", "mask"), [(np.ones((2, 3)), np.ones((2, 2))), (np.ones((2, 3)), np.zeros((2, 3)))]
)
def test_impossible_batches_are_refused(ids, mask):
    with pytest.raises(ValueError, match=r"shapes differ|at least one token"):
        Packed.from_padded(ids, mask)


def test_tensors_are_packed_where_they_are_and_gradients_flow_back():
    ids, mask = (torch.from_numpy(x) for x in padded([2, 4, 1]))
    packed = Packed.from_padded(ids, mask)
    assert isinstance(packed.input_ids, torch.Tensor)
    assert packed.to("cpu") is packed
    hidden = torch.randn(packed.num_tokens, 3, requires_grad=True)
    spread, real = packed.to_padded(hidden)
    assert spread.shape == (3, 4, 3)
    assert not spread[~real].any()
    spread.sum().backward()
    assert (hidden.grad == 1).all()


def test_a_batch_moves_with_its_targets():
    batch = Batch(Packed.from_arrays([np.array([1, 2])]), {"labels": np.array([1])}, {"rows": 1})
    moved = batch.to("cpu")
    assert isinstance(moved.targets["labels"], torch.Tensor)
    assert moved.counts == {"rows": 1}


@given(lengths_lists, st.integers(1, 30))
def test_parts_are_the_same_sequences(lengths, tokens):
    arrays = [np.arange(n) + 10 * i for i, n in enumerate(lengths)]
    whole = Packed.from_arrays(arrays, numbers=range(len(lengths)))
    at = 0
    for part in whole.to("cpu").parts(tokens):
        own = arrays[at : at + part.num_sequences]
        alone = Packed.from_arrays(
            own, rows=range(at, at + len(own)), numbers=range(at, at + len(own))
        )
        for name in ("input_ids", "position_ids", "cu_seqlens", "sequence_row", "sequence_number"):
            assert getattr(part, name).tolist() == getattr(alone, name).tolist(), name
        assert (part.max_seqlen, part.groups) == (alone.max_seqlen, alone.groups)
        assert part.num_tokens <= tokens or part.num_sequences == 1
        at += part.num_sequences
    assert at == len(lengths)

"""Packs: nothing lost, nothing padded, in any order."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import TypeCheckError

from bertworks.packed import Batch, Packed, Padded, to_array

lengths_lists = st.lists(st.integers(1, 9), min_size=1, max_size=12)


def padded(lengths, seed=0):
    rng = np.random.default_rng(seed)
    ids = rng.integers(1, 100, (len(lengths), max(lengths)))
    mask = np.arange(max(lengths))[None] < np.array(lengths)[:, None]
    return ids * mask, mask


@given(lengths_lists)
def test_a_padded_batch_survives_a_round_trip(lengths):
    ids, mask = padded(lengths)
    packed = Packed.from_padded(ids, mask)
    assert packed.num_tokens == sum(lengths)
    back, back_mask = packed.to_padded()
    assert (back == ids).all()
    assert (back_mask == mask).all()


def test_pack_consists_of_what_its_batch_is():
    ids, mask = padded([3, 1])
    for convert, kind in ((np.asarray, np.ndarray), (torch.as_tensor, torch.Tensor)):
        assert isinstance(Packed.from_padded(convert(ids), convert(mask)).input_ids, kind)


@given(lengths_lists)
def test_pack_has_positions_and_edges_of_sequences(lengths):
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
    start = 0
    for group in packed.groups:
        assert group.start == start
        start += group.sequences * group.length
    neighbours = zip(packed.groups, packed.groups[1:], strict=False)
    assert all(a.length != b.length for a, b in neighbours)


@pytest.mark.long
@given(lengths_lists, st.integers(1, 20), st.booleans())
def test_parts_are_the_packs_of_their_sequences(lengths, most, as_tensors):
    arrays = [np.arange(n) + 10 * i for i, n in enumerate(lengths)]
    rows = [7 * i for i in range(len(lengths))]
    packed = Packed.from_arrays(arrays, rows=rows, numbers=rows)
    parts = list((packed.to("cpu") if as_tensors else packed).split(most))
    start = 0
    for part in parts:
        end = start + part.num_sequences
        assert part.num_tokens <= most or part.num_sequences == 1
        full = end == len(lengths) or part.num_tokens + lengths[end] > most
        assert full
        expected = Packed.from_arrays(
            arrays[start:end], rows=rows[start:end], numbers=rows[start:end]
        )
        for field in fields(Packed):
            own, other = getattr(part, field.name), getattr(expected, field.name)
            assert np.array_equal(own, other), field.name
        start = end
    assert start == len(lengths)


def test_sequences_sorted_by_length_have_one_group_per_length():
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


@pytest.mark.parametrize("as_tensors", [False, True])
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("input_ids", np.arange(3.0)),
        ("token_type_ids", np.arange(4)),
        ("position_ids", np.zeros((3, 1), np.int64)),
        ("cu_seqlens", np.array([0, 1, 3])),
        ("sequence_row", np.arange(3)),
        ("sequence_number", np.arange(1)),
    ],
)
def test_tests_check_the_types_and_shapes_that_a_pack_declares(name, wrong, as_tensors):
    packed = Packed.from_arrays([np.array([5]), np.array([6, 7])])
    if as_tensors:
        packed, wrong = packed.to("cpu"), torch.from_numpy(wrong)
    with pytest.raises(TypeCheckError, match=name):
        replace(packed, **{name: wrong})


def test_tests_check_a_padded_batch_likewise():
    ids = torch.ones(2, 3, dtype=torch.int64)
    assert Padded.from_tensors(ids, ids).max_seqlen == 3
    with pytest.raises(TypeCheckError, match="attention_mask"):
        Padded.from_tensors(ids, ids[:1])


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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_tensors_of_every_precision_become_arrays_of_their_values(dtype):
    values = torch.tensor([0.5, -3.0, 1e-2], dtype=dtype, requires_grad=True)
    array = to_array(values)
    assert array.dtype.itemsize >= dtype.itemsize
    assert array.tolist() == values.tolist()

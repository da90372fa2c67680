"""Permutation language modelling: two streams against Hugging Face's, orders, and a run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.models.xlnet.modeling_xlnet import XLNetModel

from bertworks.errors import SettingsError
from bertworks.nn.two_stream import Steps, query_stream
from bertworks.packed import Batch, Packed
from bertworks.tasks.pretraining.network import PermutationNetwork
from bertworks.tasks.pretraining.permutation import PermutationTask
from bertworks.tasks.pretraining.source import PretrainingExample
from bertworks.text.tokenizer import Tokenizer
from tests.checkpoints import oracles
from tests.checkpoints.oracles import error, geometry

LENGTHS = [7, 7, 12]


def make_order(lengths: list[int], share: float = 0.4) -> np.ndarray:
    """Random orders: 0 for the context, the first and the last token included."""
    rng = np.random.default_rng(1)
    parts = []
    for length in lengths:
        order = np.zeros(length, np.int64)
        places = rng.permutation(np.arange(1, length - 1))[: int(share * length)]
        order[places] = 1 + np.arange(len(places))
        parts.append(order)
    return np.concatenate(parts)


def make_batch(order: np.ndarray) -> Batch:
    rng = np.random.default_rng(2)
    types = [np.append(np.arange(n - 1) >= n // 2, 2) for n in LENGTHS]
    packed = Packed.from_arrays([rng.integers(2, 101, n) for n in LENGTHS], types)
    positions = np.flatnonzero(order)
    labels = packed.input_ids[positions]
    targets = {"masked_positions": positions, "masked_labels": labels, "order": order}
    return Batch(packed, targets).to("cpu")


def their_logits(theirs: Any, batch: Batch) -> Iterator[Tensor]:
    """Hugging Face's logits of each sequence's targets, from its `perm_mask`."""
    packed, order = batch.packed, batch.targets["order"]
    edges = packed.cu_seqlens.tolist()
    for start, end in itertools.pairwise(edges):
        own = order[start:end]
        places = own.nonzero().flatten()
        # True where token i must not see token j; their content stream sees each token itself.
        perm_mask = (own[None, :] > 0) & (own[None, :] >= own[:, None])
        target_mapping = F.one_hot(places, end - start).to(theirs.dtype)
        yield theirs(
            input_ids=packed.input_ids[None, start:end],
            token_type_ids=packed.token_type_ids[None, start:end],
            perm_mask=perm_mask[None].to(theirs.dtype),
            target_mapping=target_mapping[None],
        ).logits[0]


@pytest.fixture
def exact_positions(monkeypatch):
    """Their sinusoids have the type of the weights, which the query stream of theirs needs."""
    encode = XLNetModel.relative_positional_encoding
    monkeypatch.setattr(
        XLNetModel,
        "relative_positional_encoding",
        lambda self, *args, **names: encode(self, *args, **names).to(self.dtype),
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=["fp64", "fp32"]
)
@pytest.mark.usefixtures("exact_positions")
def test_logits_loss_and_gradients_are_those_of_their_two_streams(dtype, limit):
    config = geometry("xlnet")
    theirs = oracles.theirs_of(config, "masked-lm", dtype)
    pair = oracles.pair(PermutationNetwork(config), theirs, config, dtype)
    batch = make_batch(make_order(LENGTHS))
    labels = batch.targets["masked_labels"]
    expected = torch.cat(list(their_logits(pair.theirs, batch)))
    assert error(pair.ours.predict(batch)["mlm_logits"].detach(), expected.detach()) <= limit
    loss = pair.ours(batch)["mlm"] / len(labels)
    loss.backward()
    F.cross_entropy(expected, labels).backward()
    keys = oracles.FAMILIES["xlnet"].keys_for(config)
    gradients = {name: part.grad for name, part in pair.ours.named_parameters()}
    assert all(gradient is not None for gradient in gradients.values())
    their_parameters = dict(pair.theirs.named_parameters(remove_duplicate=False))
    for name, gradient in keys.export(gradients).items():
        their_gradient = their_parameters[name].grad
        largest = max(their_gradient.abs().max().item(), 1e-3)
        assert (gradient - their_gradient).abs().max() <= 10 * limit * largest, name


def test_a_token_sees_neither_itself_nor_later_ones():
    """Other pieces at these places do not change a logit; those before it do."""
    config = geometry("xlnet", num_hidden_layers=2)
    network = PermutationNetwork(config).double().eval()
    oracles.redraw(network)
    batch = make_batch(make_order(LENGTHS))
    order, positions = batch.targets["order"], batch.targets["masked_positions"]
    logits = network.predict(batch)["mlm_logits"]
    first = positions[0]
    of_sequence = order[: LENGTHS[0]]
    for place in of_sequence.nonzero().flatten().tolist():
        batch.packed.input_ids[place] = 1 + batch.packed.input_ids[place] % 99
        other_logits = network.predict(batch)["mlm_logits"]
        is_changed = (other_logits - logits).abs().amax(-1) > 1e-9
        sees = (order[positions] > of_sequence[place]) & (positions < LENGTHS[0])
        assert torch.equal(is_changed, sees), (place, first)
        logits = other_logits


def test_a_token_may_be_hidden_again():
    """A vector sees each token from its first step to its last."""
    encoder = PermutationNetwork(geometry("xlnet", num_hidden_layers=1)).double().eval().encoder
    oracles.redraw(encoder)
    packed = Packed.from_arrays([np.arange(2, 8)]).to("cpu")
    zeros = torch.zeros(6, dtype=torch.int64)
    last = torch.tensor([9, 9, 0, 9, 9, 9])

    def state(ids: Tensor, step: int) -> Tensor:
        target, of_query = torch.tensor([4]), torch.tensor([step])
        steps = Steps(target, of_query, zeros, zeros, last)
        pack = Packed.from_arrays([ids.numpy()]).to("cpu")
        return query_stream(encoder, pack, steps, encoder.mask_vector[0])

    other = packed.input_ids.clone()
    other[2] = 50
    assert torch.equal(state(packed.input_ids, 1), state(other, 1))
    assert not torch.equal(state(packed.input_ids, 0), state(other, 0))


def test_order_depends_on_a_sequences_key_alone():
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer.from_vocabulary([*special, *"abcdefghi"])
    task = PermutationTask(tokenizer)
    rng = np.random.default_rng(0)
    words = [rng.integers(tokenizer.vocab_size - 9, tokenizer.vocab_size, n) for n in (30, 9, 30)]
    sequences = [np.concatenate([[tokenizer.cls_id], ids, [tokenizer.sep_id]]) for ids in words]
    examples = [PretrainingExample(ids, len(ids), key=7 * n) for n, ids in enumerate(sequences)]
    batch = task.collate(examples)
    starts = batch.packed.cu_seqlens
    for number, row in enumerate(batch.packed.sequence_row.tolist()):
        own = slice(starts[number], starts[number + 1])
        order = batch.targets["order"][own]
        num_targets = max(1, round(len(sequences[row]) / 6))
        assert sorted(order[order > 0]) == list(range(1, num_targets + 1))
        assert not order[[0, -1]].any()  # special pieces belong to the context
        assert np.array_equal(batch.packed.input_ids[own], sequences[row])
        alone = task.collate([examples[row]])
        assert np.array_equal(alone.targets["order"], order)
    assert batch.counts == {"mlm": 2 + 5 + 5}
    with pytest.raises(SettingsError, match="no query stream"):
        task.network(geometry("bert"))


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_dropout_and_checkpointing_have_gradients(is_checkpointed):
    config = geometry("xlnet", hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    network = PermutationNetwork(config)
    network.encoder.gradient_checkpointing = is_checkpointed
    torch.manual_seed(0)
    network(make_batch(make_order(LENGTHS)))["mlm"].backward()
    assert all(part.grad.isfinite().all() for part in network.parameters())

"""Masked and permuted language modelling against its formula, token by token."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bertworks.errors import SettingsError
from bertworks.tasks.pretraining.instances import InstanceSettings
from bertworks.tasks.pretraining.masked_permutation import (
    MaskedPermutationNetwork,
    MaskedPermutationTask,
    check_encoder,
)
from bertworks.tasks.pretraining.masking import MaskingSettings
from bertworks.tasks.pretraining.network import PretrainingNetwork
from bertworks.tasks.pretraining.source import PretrainingExample
from tests.checkpoints import oracles
from tests.checkpoints.oracles import error, geometry

LENGTHS = [9, 9, 12, 20]


def make_task(tokenizer) -> MaskedPermutationTask:
    format_ = InstanceSettings(format="full-sentences")
    return MaskedPermutationTask(tokenizer, format_, MaskingSettings(mlm_probability=0.3))


def make_examples(tokenizer) -> list[PretrainingExample]:
    rng = np.random.default_rng(0)
    rows = [rng.integers(200, tokenizer.vocab_size, length - 2) for length in LENGTHS]
    return [
        PretrainingExample(
            np.concatenate(([tokenizer.cls_id], row, [tokenizer.sep_id])), len(row) + 2, key=key
        )
        for key, row in enumerate(rows, 100)
    ]


def expected_vectors(network: PretrainingNetwork, ids: Tensor, masked: dict[int, int], order):
    """The query vectors of one sequence, computed one after the other (Song et al. 2020, §2.3).

    Args:
        masked: by position, the piece in place of a predicted token.
        order: the predicted positions.
    """
    encoder, config = network.encoder, network.encoder.config
    number = {position: at for at, position in enumerate(order, 1)}
    tokens = [(position, int(piece)) for position, piece in enumerate(ids)]
    first_steps = [number.get(position, 0) for position, _ in tokens]
    last_steps = [np.inf] * len(tokens)
    for position, piece in masked.items():
        tokens.append((position, piece))
        first_steps.append(0)
        last_steps.append(number[position] - 1)
    places = torch.tensor([position for position, _ in tokens])
    pieces = torch.tensor([piece for _, piece in tokens])
    tables = encoder.embeddings
    first = tables.norm(
        tables.word_embeddings(pieces) + tables.position_embeddings(places + config.position_offset)
    )
    contents = list(first)
    queries = {p: first[len(ids) + list(masked).index(p)] for p in order}
    longest = 2 * len(tokens)
    buckets = encoder.score_bias.buckets(longest)
    heads, size = config.num_attention_heads, config.head_size

    def attend(layer, vector: Tensor, position: int, step: float, states: list[Tensor]) -> Tensor:
        sees = [at for at in range(len(tokens)) if first_steps[at] <= step <= last_steps[at]]
        query = layer.attention.query_key_value(vector)[: config.hidden_size].view(heads, size)
        rows = layer.attention.query_key_value(torch.stack([states[at] for at in sees]))
        _, keys, values = rows.view(len(sees), 3, heads, size).unbind(1)
        scores = torch.einsum("hd,khd->hk", query, keys) / size**0.5
        distances = torch.tensor([tokens[at][0] - position for at in sees])
        scores = scores + encoder.score_bias.table.weight[buckets[distances + longest - 1]].T
        context = torch.einsum("hk,khd->hd", scores.softmax(-1), values).flatten()
        hidden = layer.attention_norm(vector + layer.attention.output(context))
        return layer.feed_forward_norm(hidden + layer.feed_forward(hidden[None])[0])

    for layer in encoder.layers:
        states = contents
        contents = [
            attend(layer, states[at], tokens[at][0], first_steps[at], states)
            for at in range(len(tokens))
        ]
        queries = {p: attend(layer, queries[p], p, number[p] - 1, states) for p in order}
    return queries


def test_vectors_and_gradients_are_those_of_the_formula(tokenizer):
    config = geometry("mpnet", vocab_size=tokenizer.vocab_size, num_hidden_layers=2)
    network = MaskedPermutationNetwork(PretrainingNetwork(config, next_sentence=False))
    network = network.double().eval()
    oracles.redraw(network)
    batch = make_task(tokenizer).collate(make_examples(tokenizer)).to("cpu")
    loss = network(batch)["mlm"]
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in network.named_parameters()}
    network.zero_grad()
    packed, targets = batch.packed, batch.targets
    labels = iter(targets["masked_labels"].tolist())
    expected = torch.zeros((), dtype=torch.float64)
    for start, end in itertools.pairwise(packed.cu_seqlens.tolist()):
        inside = targets["masked_positions"]
        copies = inside[(inside >= start) & (inside < end)]
        ids = packed.input_ids[start : int(copies[0])]
        places = packed.position_ids[copies].tolist()
        masked = dict(zip(places, packed.input_ids[copies].tolist(), strict=True))
        steps = targets["last_steps"][copies].tolist()
        order = [place for _, place in sorted(zip(steps, places, strict=True))]
        vectors = expected_vectors(network.model, ids, masked, order)
        logits = network.model.mlm_head(torch.stack([vectors[place] for place in places]))
        own_labels = torch.tensor([next(labels) for _ in places])
        assert torch.equal(ids[places], own_labels), "the text has the tokens themselves"
        expected = expected + F.cross_entropy(logits, own_labels, reduction="sum")
    assert error(loss.detach(), expected.detach()) < 1e-12
    expected.backward()
    largest = max(p.grad.abs().max() for p in network.parameters() if p.grad is not None)
    for name, parameter in network.named_parameters():
        assert (gradients[name] - parameter.grad).abs().max() < 1e-10 * largest, name


def test_the_first_token_is_predicted_as_by_the_saved_model(tokenizer):
    """It sees all other [MASK]s, as in masked language modelling of the same text."""
    config = geometry("mpnet", vocab_size=tokenizer.vocab_size, num_hidden_layers=2)
    model = PretrainingNetwork(config, next_sentence=False).double().eval()
    oracles.redraw(model)
    task, examples = make_task(tokenizer), make_examples(tokenizer)
    batch = task.collate(examples).to("cpu")
    logits = MaskedPermutationNetwork(model).predict(batch)["mlm_logits"]
    plain = super(MaskedPermutationTask, task).collate(examples).to("cpu")
    expected = model.predict(plain)["mlm_logits"]
    is_first = batch.targets["last_steps"][batch.targets["masked_positions"]] == 0
    assert is_first.sum() == len(LENGTHS)
    assert error(logits[is_first].detach(), expected[is_first].detach()) < 1e-12
    assert error(logits[~is_first].detach(), expected[~is_first].detach()) > 1e-3


def test_orders_belong_to_the_instance_and_are_random(tokenizer):
    task, examples = make_task(tokenizer), make_examples(tokenizer)
    targets = task.collate(examples).targets
    steps = targets["last_steps"][targets["masked_positions"]]
    single_targets = [task.collate([example]).targets for example in examples]
    assert np.array_equal(
        steps,
        np.concatenate([one["last_steps"][one["masked_positions"]] for one in single_targets]),
    )
    *_, last = single_targets
    own = last["last_steps"][last["masked_positions"]]
    assert sorted(own) == list(range(len(own)))
    assert list(own) != sorted(own)


@pytest.mark.parametrize("family", ["deberta-v2", "modernbert", "eurobert", "openai-gpt"])
def test_unsuitable_encoders_are_named(family):
    with pytest.raises(SettingsError, match="does not fit objective=masked_permutation"):
        check_encoder(geometry(family))

"""The network against Hugging Face's: hidden states, logits, losses, and every gradient."""

from __future__ import annotations

import itertools

import pytest
import torch

from bertworks.checkpoints.bert import BERT
from bertworks.checkpoints.network_weights import load_weights
from bertworks.packed import Batch
from bertworks.tasks.pretraining.network import PretrainingNetwork
from tests.nn import reference

POSITIONS = torch.tensor([0, 2, 5, 11, 30, 50, 60, 61, 88, 90])


def pair(dtype, hidden_act="gelu", **settings):
    """The same weights in both, and what both are run on."""
    config = reference.config(hidden_act).with_values(**settings)
    theirs = reference.oracle(config, dtype)
    ours = PretrainingNetwork(config).to(dtype).eval()
    tensors = {BERT.normalize_name(k): v for k, v in theirs.state_dict().items()}
    report = load_weights(ours, tensors, BERT, "oracle")
    assert not report.new_tensors
    packed = reference.sequences(config)
    ids, mask = packed.to_padded()
    types, _ = packed.to_padded(packed.token_type_ids)
    padded = {"input_ids": ids, "attention_mask": mask.long(), "token_type_ids": types}
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, config.vocab_size, POSITIONS.shape, generator=generator)
    next_sentence = torch.randint(0, 2, (packed.num_sequences,), generator=generator)
    batch = Batch(
        packed,
        {
            "masked_positions": POSITIONS,
            "masked_labels": labels,
            "next_sentence_labels": next_sentence,
        },
        {"mlm": len(labels), "nsp": packed.num_sequences},
    )
    return ours, theirs, batch, padded, mask


def close(ours, theirs, dtype):
    """Float64 to 1e-10; float32 to 1e-5 of the tensor's largest value."""
    error = (ours.double() - theirs.double()).abs().max().item()
    largest = theirs.abs().max().item()
    return error <= (1e-10 if dtype is torch.float64 else 1e-5) * max(largest, 1e-30), error


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_new", "relu"])
def test_hidden_states_and_logits_are_those_of_transformers(dtype, hidden_act):
    ours, theirs, batch, padded, mask = pair(dtype, hidden_act)
    with torch.no_grad():
        expected = theirs(**padded, output_hidden_states=True)
        states = list(ours.encoder.hidden_states(batch.packed))
        outputs = ours.predict(batch)
    assert len(states) == len(expected.hidden_states)
    for own, other in zip(states, expected.hidden_states, strict=True):
        assert close(own, other[mask], dtype)[0]
    logits = expected.prediction_logits[mask][POSITIONS]
    assert close(outputs["mlm_logits"], logits, dtype)[0]
    assert close(outputs["nsp_logits"], expected.seq_relationship_logits, dtype)[0]


def test_the_two_gelus_differ_on_these_weights():
    erf, _, batch, *_ = pair(torch.float64)
    tanh = pair(torch.float64, "gelu_new")[0]
    with torch.no_grad():
        assert (erf.encoder(batch.packed) - tanh.encoder(batch.packed)).abs().max() > 1e-4


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_losses_and_gradients_are_those_of_transformers(dtype):
    ours, theirs, batch, padded, mask = pair(dtype)
    labels = torch.full(mask.shape, -100)
    rows, columns = mask.nonzero()[POSITIONS].T
    labels[rows, columns] = batch.targets["masked_labels"]
    expected = theirs(
        **padded, labels=labels, next_sentence_label=batch.targets["next_sentence_labels"]
    )
    expected.loss.backward()
    sums = ours(batch)
    loss = sum(value / batch.counts[name] for name, value in sums.items())
    loss.backward()
    assert close(loss.detach(), expected.loss.detach(), dtype)[0]

    gradients = BERT.keys.export({name: p.grad for name, p in ours.named_parameters()})
    others = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    assert gradients.keys() == others.keys()
    largest = max(gradient.abs().max().item() for gradient in others.values())
    for name, gradient in gradients.items():
        if name.endswith("self.key.bias"):  # it moves all scores of a query alike: truly zero
            assert gradient.abs().max() < (1e-10 if dtype is torch.float64 else 1e-6) * largest
            continue
        good, error = close(gradient, others[name], dtype)
        assert good, f"{name}: {error}"


def test_each_sequence_is_alone_in_its_pack():
    """The output does not depend on what a sequence was packed with, in train mode neither."""
    ours, _, batch, *_ = pair(torch.float32)
    ours.train()
    packed = batch.packed
    edges = packed.cu_seqlens.tolist()
    with torch.no_grad():
        batch_states = ours.encoder(packed)
        for number, (start, stop) in enumerate(itertools.pairwise(edges)):
            single_states = type(packed).from_arrays(
                [packed.input_ids[start:stop].numpy()], [packed.token_type_ids[start:stop].numpy()]
            )
            own = ours.encoder(single_states.to("cpu"))
            assert close(own, batch_states[start:stop], torch.float32)[0], number


def test_order_of_sequences_does_not_matter():
    config = reference.config()
    ours, *_ = pair(torch.float64)
    unsorted_pack = reference.sequences(config, (7, 32, 7, 1, 12, 7))
    ids, mask = unsorted_pack.to_padded()
    types, _ = unsorted_pack.to_padded(unsorted_pack.token_type_ids)
    sorted_pack = type(unsorted_pack).from_padded(ids, mask, types)
    with torch.no_grad():
        one, _ = unsorted_pack.to_padded(ours.encoder(unsorted_pack))
        other, _ = sorted_pack.to_padded(ours.encoder(sorted_pack))
    assert len(sorted_pack.groups) < len(unsorted_pack.groups)
    assert (one - other).abs().max() < 1e-12


@pytest.mark.long
@pytest.mark.parametrize("where", ["hidden_dropout_prob", "attention_probs_dropout_prob"])
def test_dropout_scatters_as_the_references_does(where):
    """Mean and spread of each logit over many draws; masks of the two cannot be the same."""
    ours, theirs, batch, padded, mask = pair(torch.float32, **{where: 0.2})
    ours.train()
    theirs.train()
    draws = 200

    def scatter(logits):
        torch.manual_seed(1)
        with torch.no_grad():
            values = torch.stack([logits() for _ in range(draws)]).double()
        return values.mean(0), values.std(0)

    mean, deviation = scatter(lambda: ours.predict(batch)["mlm_logits"])
    expected, noise = scatter(lambda: theirs(**padded).prediction_logits[mask][POSITIONS])
    assert noise.median() > 0.3, "it does something"
    error = torch.sqrt((deviation**2 + noise**2) / draws)
    assert ((mean - expected) / error).abs().max() < 5
    # A tenth less dropout narrows the spread by a twentieth.
    assert (deviation / noise).log().mean().abs() < 0.02


def test_bfloat16_stays_near_float32():
    ours, _, batch, *_ = pair(torch.float32)
    with torch.no_grad():
        exact = ours.encoder(batch.packed)
        ours.encoder.compute_dtype = torch.bfloat16
        rough = ours.encoder(batch.packed)
    assert rough.dtype is torch.bfloat16
    cosine = torch.cosine_similarity(exact, rough.float(), dim=-1)
    assert cosine.min() > 0.99


def test_bfloat16_gradients_arrive_in_float32():
    ours, _, batch, *_ = pair(torch.float32)
    ours.encoder.compute_dtype = torch.bfloat16
    sum(ours(batch).values()).backward()
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.dtype is torch.float32
        assert torch.isfinite(parameter.grad).all()

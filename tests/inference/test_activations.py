"""Attention weights and hidden states equal Hugging Face's, for every family."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest
import torch
from jaxtyping import Float
from tests.checkpoints.oracles import geometry, in_float64, pair, theirs_of
from torch import Tensor

from bertworks.checkpoints.families import FAMILIES
from bertworks.inference.activations import activations, embedding_steps
from bertworks.inference.native_encoder import unsupported_part
from bertworks.nn.encoder import BareEncoder, Encoder
from bertworks.nn.encoder_layers import GlobalTokenAttention, SelfAttention
from bertworks.packed import Packed, Padded


def test_all_published_families_are_here() -> None:
    assert {"bert", "roberta", "distilbert", "albert", "electra", "modernbert"} < set(FAMILIES)


NATIVE = {"hidden_size": 96, "num_attention_heads": 3, "intermediate_size": 64}
"""Widths with which inference runs native layers, where the processor has them."""


@pytest.fixture(params=[*((family, {}) for family in sorted(FAMILIES)), ("bert", NATIVE)], ids=str)
def published_encoder(request: pytest.FixtureRequest):
    """The same weights in ours and in theirs, and two sequences of 20 tokens."""
    family, values = request.param
    # Theirs returns no attention where it is full in a sparse model.
    if family == "big_bird":
        values = {"max_full_attention": None}
    config = geometry(family, **values)
    assert values is not NATIVE or unsupported_part(config) is None
    theirs = theirs_of(config, "encoder", torch.float32)
    theirs.config._attn_implementation = "eager"
    both = pair(BareEncoder(Encoder(config, pooler=False)), theirs, config, torch.float32)
    ids = torch.randint(5, config.vocab_size, (2, 20), generator=torch.Generator().manual_seed(1))
    return config, both.ours, both.theirs, ids


def test_attention_and_states_are_as_published(published_encoder) -> None:
    config, ours, theirs, ids = published_encoder
    more = {}
    packed = Packed.from_padded(ids)
    if config.type_vocab_size > 1:
        types = (torch.arange(20) >= 9).long().expand(2, 20)
        more["token_type_ids"] = types
        packed = Packed.from_padded(ids, token_type_ids=types)
    with torch.inference_mode(), in_float64(config.positions == "rotary"):
        expected = theirs(input_ids=ids, output_attentions=True, output_hidden_states=True, **more)
    result = activations(ours, packed, attention=True)
    assert len(result.attention) == len(expected.attentions) == config.num_hidden_layers
    attentions = expected.attentions
    if config.family == "longformer":  # theirs are of the keys in the window
        attentions = [_of_all_keys(weights, config.local_attention // 2) for weights in attentions]
    if config.family == "squeezebert":  # theirs are the scores
        attentions = [scores.softmax(-1) for scores in attentions]
    for own, other in zip(result.attention, attentions, strict=True):
        assert (own.double() - other.double()).abs().max() < 1e-5
    assert (result.states[-1] - expected.last_hidden_state).abs().max() < 1e-4
    weights = torch.stack(result.attention)
    assert torch.allclose(weights.sum(-1), torch.ones_like(weights[..., 0]), atol=1e-5)
    if config.attention == "causal":
        assert not weights.triu(1).any()
    if config.local_attention is not None:
        assert not weights[1].triu(5).any(), "a local layer sees four tokens on either side"
        is_local = config.is_local(0)
        assert weights[0].triu(5).any() != is_local, "a global one sees all"


def _of_all_keys(
    weights: Float[Tensor, "sequences heads queries width"], distance: int
) -> Float[Tensor, "sequences heads queries keys"]:
    length = weights.shape[2]
    whole = weights.new_zeros(*weights.shape[:3], length)
    for query, key in product(range(length), repeat=2):
        if abs(key - query) <= distance:
            whole[:, :, query, key] = weights[:, :, query, key - query + distance]
    return whole


def test_a_global_token_attends_to_all_and_all_attend_to_it() -> None:
    config = geometry("longformer", global_tokens={"position": "first"})
    theirs = theirs_of(config, "encoder", torch.float64)
    both = pair(BareEncoder(Encoder(config, pooler=False)), theirs, config, torch.float64)
    ids = torch.randint(5, config.vocab_size, (2, 20), generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(20) == 0).long().expand(2, 20)
    types = torch.zeros_like(ids)
    with torch.inference_mode(), in_float64():
        expected = both.theirs(input_ids=ids, global_attention_mask=mask, output_attentions=True)
        packed = Packed.from_padded(ids, token_type_ids=types)
        result = activations(both.ours, packed, attention=True)
        plain = both.ours.encoder(packed)
    assert (result.states[-1] - expected.last_hidden_state).abs().max() < 1e-10
    assert (plain.view(2, 20, -1) - expected.last_hidden_state).abs().max() < 1e-10
    is_token = torch.arange(20) < torch.tensor([[20], [9]])
    padded = Padded.from_tensors(ids, is_token, types)
    packed = Packed.from_padded(ids, is_token, types)
    with torch.inference_mode():
        of_padded, _ = packed.to_padded(both.ours.encoder(packed))
        other = both.ours.encoder(padded).view(2, 20, -1)
    assert (other - of_padded)[is_token].abs().max() < 1e-10
    for weights, others in zip(result.attention, expected.global_attentions, strict=True):
        # The reference pads to a multiple of its window.
        assert (weights[:, :, 0] - others[:, :, :20, 0]).abs().max() < 1e-10
        assert weights[:, :, 6:, 0].all() and not weights[:, :, 6:, 1].any()


def test_a_head_that_is_off_is_a_zero_in_the_output_map(published_encoder) -> None:
    config, ours, _, ids = published_encoder
    if config.num_hidden_groups is not None:
        pytest.skip("layers share their weights, so one cannot be changed by itself")
    packed = Packed.from_padded(ids)
    old_weights = [weight.clone() for weight in ours.parameters()]
    ablated_heads = torch.zeros(
        config.num_hidden_layers, 2, config.num_attention_heads, dtype=torch.bool
    )
    ablated_heads[1, 1, 2] = True  # in the second sequence alone
    plain = activations(ours, packed).states[-1]
    states = activations(ours, packed, ablated_heads=ablated_heads).states[-1]
    assert torch.equal(states[0], plain[0])
    assert not torch.allclose(states[1], plain[1], atol=1e-3)
    layer = ours.encoder.layers[1].attention
    size = config.head_size
    with torch.no_grad():
        old_weight = layer.output.weight.clone()
        layer.output.weight[:, 2 * size : 3 * size] = 0
        expected = ours.encoder(packed.to("cpu")).view(2, 20, -1)
        layer.output.weight.copy_(old_weight)
    assert torch.allclose(states[1], expected[1], atol=1e-5)
    after = list(ours.parameters())
    assert all(torch.equal(one, two) for one, two in zip(old_weights, after, strict=True))
    assert type(layer) in (SelfAttention, GlobalTokenAttention)


def test_a_run_may_begin_at_any_layer(published_encoder) -> None:
    _, ours, _, ids = published_encoder
    packed = Packed.from_padded(ids)
    whole = activations(ours, packed, attention=True)
    for layer, hidden in enumerate(whole.states[:-1]):
        result = activations(ours, packed, attention=True, layer=layer, hidden=hidden.flatten(0, 1))
        for name in ("states", "attention"):
            above = getattr(whole, name)[layer:]
            for own, other in zip(getattr(result, name), above, strict=True):
                assert torch.equal(own, other)


def test_rows_that_follow_the_last_token_change_nothing() -> None:
    ours = BareEncoder(Encoder(geometry("bert"), pooler=False)).eval()
    ids = torch.randint(5, 100, (1, 13))
    one = activations(ours, Packed.from_padded(ids), attention=True)
    many = activations(ours, Packed.from_padded(ids.repeat(7, 1)), attention=True)  # 91 tokens
    for kind in ("states", "attention"):
        for alone, among in zip(getattr(one, kind), getattr(many, kind), strict=True):
            assert torch.allclose(alone.expand_as(among), among, atol=1e-6)


def test_embeddings_add_up_to_the_first_state(published_encoder) -> None:
    _, ours, _, ids = published_encoder
    packed = Packed.from_padded(ids[:1])
    parts = embedding_steps(ours.encoder, packed)
    names = ("word", "position", "segment", "task")
    total = torch.stack([parts[name] for name in names if name in parts]).sum(0)
    assert torch.allclose(parts["sum"], total)
    first = activations(ours, packed).states[0][0]
    assert torch.equal(list(parts.values())[-1], first)


def test_threads_may_watch_one_network_at_a_time() -> None:
    ours = BareEncoder(Encoder(geometry("bert"), pooler=False)).train()
    packs = [Packed.from_padded(torch.randint(5, 100, (1, n))) for n in range(3, 19)]
    single = [activations(ours, packed, attention=True) for packed in packs]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda packed: activations(ours, packed, attention=True), packs))
    for one, two in zip(found, single, strict=True):
        assert len(one.attention) == len(two.attention) == 3
        assert all(torch.equal(*both) for both in zip(one.attention, two.attention, strict=True))
    assert ours.training

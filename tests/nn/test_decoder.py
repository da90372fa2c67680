"""The decoder equals PyTorch's layers with the same weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertworks.nn.config import EncoderConfig
from bertworks.nn.decoder import Decoder, DecoderLayer
from bertworks.nn.kv_cache import KeyValueCache
from bertworks.packed import Batch, Packed
from bertworks.tasks.translation import TranslationNetwork

CONFIG = EncoderConfig(
    vocab_size=30,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=24,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    max_position_embeddings=16,
    layer_norm_eps=1e-5,
    positions="sinusoidal",
    type_vocab_size=0,
    embedding_norm=False,
    family="bertworks",
)
SOURCES, TARGETS = [7, 4, 4, 9], [3, 6, 2, 5]


def theirs(layer: DecoderLayer) -> nn.TransformerDecoderLayer:
    """PyTorch's layer with the same weights."""
    reference_layer = nn.TransformerDecoderLayer(
        16, 4, 24, 0.0, "gelu", layer_norm_eps=1e-5, batch_first=True, dtype=torch.float64
    )
    ours, cross = layer.attention, layer.cross_attention
    pairs = [
        (reference_layer.self_attn.in_proj_weight, ours.query_key_value.weight),
        (reference_layer.self_attn.in_proj_bias, ours.query_key_value.bias),
        (
            reference_layer.multihead_attn.in_proj_weight,
            torch.cat([cross.query.weight, cross.key_value.weight]),
        ),
        (
            reference_layer.multihead_attn.in_proj_bias,
            torch.cat([cross.query.bias, cross.key_value.bias]),
        ),
    ]
    parts = [
        (reference_layer.self_attn.out_proj, ours.output),
        (reference_layer.multihead_attn.out_proj, cross.output),
        (reference_layer.linear1, layer.feed_forward.intermediate),
        (reference_layer.linear2, layer.feed_forward.output),
        (reference_layer.norm1, layer.attention_norm),
        (reference_layer.norm2, layer.cross_attention_norm),
        (reference_layer.norm3, layer.feed_forward_norm),
    ]
    for one, other in parts:
        pairs += [(one.weight, other.weight), (one.bias, other.bias)]
    with torch.no_grad():
        for one, other in pairs:
            assert one.shape == other.shape
            one.copy_(other)
    return reference_layer


def randomize(module: nn.Module) -> nn.Module:
    """With weights that are neither zeros nor ones, in float64."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) / 3)
    return module.double()


def sequences(lengths: list[int]) -> Packed:
    draw = np.random.default_rng(len(lengths) + lengths[0])
    return Packed.from_arrays([draw.integers(5, 30, length) for length in lengths]).to("cpu")


def padded(values: Tensor, packed: Packed) -> tuple[Tensor, Tensor]:
    """`[rows, length, …]` and which are pad tokens."""
    found, mask = packed.to_padded(values)
    return found, ~mask


def decode_by_pytorch(
    layers: list[nn.TransformerDecoderLayer], hidden: Tensor, out: Tensor
) -> Tensor:
    """PyTorch's layers, one behind the other, on packed vectors."""
    target, source = sequences(TARGETS), sequences(SOURCES)
    (x, pad), (memory, memory_pad) = padded(hidden, target), padded(out, source)
    is_later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    for layer in layers:
        x = layer(
            *(x, memory, is_later),
            tgt_key_padding_mask=pad,
            memory_key_padding_mask=memory_pad,
        )
    return x[~pad]


def test_a_decoder_computes_what_pytorchs_layers_do() -> None:
    decoder = randomize(Decoder(CONFIG))
    assert isinstance(decoder, Decoder)
    target, source = sequences(TARGETS), sequences(SOURCES)
    generator = torch.Generator().manual_seed(2)
    hidden, out = (
        torch.randn(one.num_tokens, 16, generator=generator, dtype=torch.float64).requires_grad_()
        for one in (target, source)
    )
    actual = decoder(hidden, target, decoder.project_source(out, source))
    layers = [theirs(layer) for layer in decoder.layers]
    expected = decode_by_pytorch(layers, hidden, out)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    for actual_gradient, expected_gradient in zip(
        torch.autograd.grad(actual.square().sum(), [hidden, out]),
        torch.autograd.grad(expected.square().sum(), [hidden, out]),
        strict=True,
    ):
        torch.testing.assert_close(actual_gradient, expected_gradient, rtol=1e-10, atol=1e-10)


def test_tokens_one_by_one_are_those_of_all_at_once() -> None:
    decoder = randomize(Decoder(CONFIG))
    assert isinstance(decoder, Decoder)
    source, lengths = sequences(SOURCES), [4, 4, 4, 4]
    target = sequences(lengths)
    hidden = torch.randn(16, 16, dtype=torch.float64)
    projected_source = decoder.project_source(
        torch.randn(source.num_tokens, 16, dtype=torch.float64), source
    )
    with torch.no_grad():
        expected = decoder(hidden, target, projected_source).view(4, 4, 16)
        memory = KeyValueCache()
        for position in range(4):
            step = Packed.from_arrays([np.array([1])] * 4).to("cpu")
            found = decoder(hidden.view(4, 4, 16)[:, position], step, projected_source, memory)
            torch.testing.assert_close(found, expected[:, position], rtol=0, atol=1e-12)


@pytest.mark.long
def test_loss_of_a_translation_equals_the_formula() -> None:
    """The encoder's output, PyTorch's decoder, and a cross-entropy written out."""
    network = randomize(TranslationNetwork(CONFIG, limit=12, boundary_ids=(2, 3)))
    assert isinstance(network, TranslationNetwork)
    source, target = sequences(SOURCES), sequences(TARGETS)
    rows = [
        np.append(ids, 3) for ids in np.split(target.input_ids.numpy(), np.cumsum(TARGETS)[:-1])
    ]
    labels = torch.cat([torch.from_numpy(row[1:]) for row in rows])
    targets = {
        "target_ids": torch.from_numpy(np.concatenate(rows)),
        "target_lengths": torch.tensor(list(map(len, rows))),
    }
    batch = Batch(source, targets, {"translation": len(labels)})
    table = network.encoder.embeddings.word_embeddings.weight
    place = torch.cat([torch.arange(length) for length in TARGETS])[:, None].double()
    wave = place * 10_000.0 ** (-torch.arange(0, 16, 2) / 16)
    sinusoid = torch.stack([wave.sin(), wave.cos()], -1).flatten(1)
    hidden = 4 * table[target.input_ids] + sinusoid  # 4: the root of the width
    layers = [theirs(layer) for layer in network.decoder.layers]
    states = decode_by_pytorch(layers, hidden, network.encoder(source))
    loss = F.cross_entropy(states @ table.T, labels, reduction="sum")
    torch.testing.assert_close(network(batch)["translation"], loss, rtol=1e-10, atol=0)
    torch.testing.assert_close(network.predict(batch)["loss"], loss, rtol=1e-10, atol=0)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_generated_tokens_are_the_likeliest_at_each_position(seed: int) -> None:
    torch.manual_seed(seed)
    config = CONFIG.with_values(initializer_range=0.5)
    network = TranslationNetwork(config, limit=12, boundary_ids=(2, 3)).eval().double()
    source = sequences(SOURCES)
    with torch.no_grad():
        generated_ids = network.predict(Batch(source))["tokens"]
        assert 1 <= generated_ids.shape[1] <= 11
        begins = torch.full((len(generated_ids), 1), 2)
        rows = torch.cat([begins, generated_ids[:, :-1]], 1)
        given = Packed.from_arrays(list(rows.numpy())).to("cpu")
        seen = network.decoder.project_source(network.encoder(source), source)
        states = network.decoder(network.encoder.embeddings(given), given, seen)
        logits = states @ network.encoder.embeddings.word_embeddings.weight.T
        likeliest = logits.argmax(-1).view(rows.shape)
    for row, best in zip(generated_ids.tolist(), likeliest.tolist(), strict=True):
        end = row.index(3) + 1 if 3 in row else len(row)
        assert row[:end] == best[:end]
        assert set(row[end:]) <= {3}

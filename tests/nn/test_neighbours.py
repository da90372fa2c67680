"""A beginning on neighbouring tokens: where heads look, what is refused."""

from __future__ import annotations

import pytest
import torch

from bertworks.errors import SettingsError
from bertworks.nn.config import EncoderConfig
from bertworks.nn.encoder import Encoder
from bertworks.nn.neighbour_attention import initialize_neighbour_attention

GEOMETRY = {
    "vocab_size": 500,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 512,
    "initializer_range": 0.05,
}


def _attention(encoder: Encoder, start: int, count: int) -> torch.Tensor:
    """The first layer's probabilities, `[heads, tokens, tokens]`, of random pieces."""
    config, parts = encoder.config, encoder.embeddings
    ids = torch.randint(config.vocab_size, (count,))
    assert parts.position_embeddings is not None and parts.norm is not None
    positions = parts.position_embeddings.weight[start : start + count]
    hidden = parts.norm(parts.word_embeddings.weight[ids] + positions)
    mixed = encoder.layers[0].attention.query_key_value(hidden)
    query, key, _ = mixed.unflatten(-1, (3, config.num_attention_heads, config.head_size)).unbind(1)
    scores = torch.einsum("qhd,khd->hqk", query, key) / config.head_size**0.5
    if config.attention == "causal":
        scores = scores.masked_fill(torch.ones(count, count, dtype=torch.bool).triu(1), -torch.inf)
    return scores.softmax(-1)


@pytest.mark.parametrize("width", [64, 128, 256])
@pytest.mark.parametrize("start", [0, 100, 448])
@pytest.mark.parametrize(
    ("attention", "offsets"),
    [("bidirectional", (-1, 1, -2, 2)), ("causal", (-1, -2, -3, -4))],
)
def test_heads_of_the_first_layer_find_the_neighbours(
    width: int, start: int, attention: str, offsets: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    values = {**GEOMETRY, "hidden_size": width, "attention": attention}
    encoder = Encoder(EncoderConfig.parse(values))
    first_loss = _attention(encoder, start, 64)
    initialize_neighbour_attention(encoder)
    last_loss = _attention(encoder, start, 64)
    middle = torch.arange(4, 60)
    for head, offset in enumerate(offsets):
        found = last_loss[head, middle, middle + offset]
        assert found.mean() > 3 * first_loss[head, middle, middle + offset].mean()
        assert found.mean() > (0.2 if width == 64 else 0.5)
        best = last_loss[head, middle].argmax(-1) == middle + offset
        assert best.float().mean() > (0.25 if width == 64 else 0.7)


@pytest.mark.parametrize(
    "other",
    [
        {"num_attention_heads": 1},
        {"positions": "rotary"},
        {"embedding_size": 32},
        {"num_hidden_layers": 0},
    ],
)
def test_unsupported_encoders_are_refused(other: dict[str, object]) -> None:
    encoder = Encoder(EncoderConfig.parse({**GEOMETRY, **other}))
    with pytest.raises(SettingsError, match="learned positions as wide as the layers"):
        initialize_neighbour_attention(encoder)

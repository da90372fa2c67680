"""Outputs of heads are in float32, also in bfloat16: rows with different vectors get scores that
differ, and rankings with equal scores keep the order of their input."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from bertworks.inference.frozen_network import frozen_form
from bertworks.nn.config import EncoderConfig
from bertworks.nn.encoder import Encoder
from bertworks.nn.heads import ClassificationHead, MLMHead, NSPHead, ReplacedTokenHead, TokenHead
from bertworks.packed import Packed
from bertworks.tasks.retrieval.network import RetrievalNetwork
from bertworks.tasks.retrieval.settings import RetrievalSettings

ROWS = 40
CONFIG = EncoderConfig(
    vocab_size=300,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=32,
    initializer_range=0.2,
)


def packed() -> Packed:
    random = np.random.default_rng(0)
    ids = [random.integers(5, CONFIG.vocab_size, 12) for _ in range(ROWS)]
    return Packed.from_arrays(ids).to("cpu")


class EncoderWithHead(nn.Module):
    """An encoder and one head."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, pooling = kind, kind.partition("/")[2]
        config = CONFIG.with_values(classifier_pooling=pooling or "cls")
        if kind.startswith("norm"):
            config = config.with_values(classifier="norm")
        self.encoder = Encoder(config, pooler=True)
        if kind == "masked words":
            table = self.encoder.embeddings.word_embeddings.weight
            self.head: nn.Module = MLMHead(config, table)
        elif kind == "next sentence":
            self.head = NSPHead(config)
        elif kind == "replaced tokens":
            self.head = ReplacedTokenHead(config)
        elif kind.startswith("tokens") or kind == "norm tokens":
            self.head = TokenHead(config, 2, 0.0)
        else:
            self.head = ClassificationHead(config, 1, 0.0, kind=kind.partition("/")[0])

    def forward(self, pack: Packed) -> torch.Tensor:
        hidden = self.encoder(pack)
        if isinstance(self.head, ReplacedTokenHead):
            return self.head(hidden, pack)[pack.last_tokens]
        if isinstance(self.head, ClassificationHead):
            return self.head(self.encoder, hidden, pack)
        if self.kind == "next sentence":
            return self.head(self.encoder.pool(hidden, pack))
        return self.head(hidden[pack.last_tokens])


KINDS = ["masked words", "next sentence", "replaced tokens", "tokens", "norm tokens"]
KINDS += [
    f"{kind}/{pooling}" for kind in ("pooler", "tanh", "gelu", "relu") for pooling in ("cls",)
]
KINDS += ["norm/mean", "pooler/mean", "none/last", "tanh/mean"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("deterministic", [False, True])
def test_head_in_bfloat16_gives_float32(kind: str, deterministic: bool) -> None:
    torch.manual_seed(0)
    network = EncoderWithHead(kind).eval()
    form = frozen_form(network, "bf16", deterministic)
    with torch.inference_mode():
        outputs, exact = form(packed()), network(packed())
    assert outputs.dtype == torch.float32
    assert (outputs - exact).abs().max() < 0.05 * exact.abs().max()  # of the encoder
    first = outputs.reshape(ROWS, -1)[:, 0]
    assert len(first.unique()) == ROWS
    assert (first != first.bfloat16().float()).sum() > ROWS // 2


def test_masked_words_in_bfloat16_are_those_of_a_float32_decoder() -> None:
    torch.manual_seed(0)
    network = EncoderWithHead("masked words").eval()
    head, form = network.head, frozen_form(network.head, "bf16")
    assert isinstance(head, MLMHead)
    features = torch.randn(ROWS, CONFIG.hidden_size).bfloat16()
    with torch.inference_mode():
        logits = form.logits(features).double()
        # The decoder is rounded where oneDNN has kernels for bfloat16.
        exact = [
            features.double() @ decoder.double().T + head.bias.double()
            for decoder in (head.decoder, head.decoder.bfloat16())
        ]
        # There, the sum of two products in bfloat16 has 16 bits.
        assert min((logits - one).abs().max() / one.abs().max() for one in exact) < 2**-16


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_vectors_of_a_bi_encoder_in_bfloat16_are_float32(pooling: str) -> None:
    torch.manual_seed(0)
    settings = RetrievalSettings(
        max_seq_length=32, pooling=pooling, query_column="q", passage_column="p"
    )
    network = RetrievalNetwork(CONFIG, settings).eval()
    form = frozen_form(network, "bf16")
    with torch.inference_mode():
        vectors = form._vectors(packed())
    assert vectors.dtype == torch.float32
    assert torch.allclose(vectors.norm(dim=-1), torch.ones(ROWS), atol=1e-6)
    assert len((vectors @ vectors[0]).unique()) == ROWS

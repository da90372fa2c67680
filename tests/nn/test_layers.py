"""Dropout, initialisation and the fused loss: what the parity tests cannot see."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import nn

from bertworks.nn import losses
from bertworks.nn.config import EncoderConfig
from bertworks.nn.device import without_weights
from bertworks.nn.embeddings import sinusoids
from bertworks.nn.encoder import Encoder
from bertworks.nn.head_layouts import (
    HeadLayout,
    LinearMap,
    classification_layout,
    next_sentence_layout,
    replaced_token_layout,
    token_layout,
)
from bertworks.nn.heads import (
    ClassificationHead,
    LayoutHead,
    MLMHead,
    NSPHead,
    ReplacedTokenHead,
    TokenHead,
)
from bertworks.nn.layers import Dropout, apply_dropout_mask, dropout, dropout_mask
from bertworks.packed import Packed
from tests.nn import reference

HEAD_CONFIG = EncoderConfig(vocab_size=9, hidden_size=16, num_attention_heads=2)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.003])
@pytest.mark.parametrize("shape", [(1000, 1001), (999999,)])
def test_dropout_drops_the_expected_share(p, shape):
    torch.manual_seed(0)
    keep = dropout_mask(torch.Size(shape), p, torch.device("cpu"))
    draws = keep.numel()
    assert keep.shape == shape
    assert abs((~keep).double().mean() - p) < 5 * math.sqrt(p * (1 - p) / draws) + 2**-17


def test_draws_do_not_depend_on_their_neighbours():
    """Four values come from one 64-bit draw: pairs of them must be dropped p² of the time."""
    torch.manual_seed(1)
    zeros = ~dropout_mask(torch.Size((250_000, 4)), 0.2, torch.device("cpu"))
    for i in range(4):
        for j in range(i):
            both = (zeros[:, i] & zeros[:, j]).double().mean()
            assert abs(both - 0.04) < 5 * math.sqrt(0.04 * 0.96 / 250_000)


@pytest.mark.parametrize("p", [1e-7, 2**-16, 0.1, 0.5, 1 - 2**-16, 1 - 1e-7])
def test_a_mask_compares_each_draw_with_a_threshold(p):
    torch.manual_seed(3)
    keep = dropout_mask(torch.Size([4001]), p, torch.device("cpu"))
    torch.manual_seed(3)
    draws = torch.empty(1001, dtype=torch.int64).random_(-(2**63), None).view(torch.int16)[:4001]
    share = min(max(round(p * 65536), 1), 65535)
    assert torch.equal(keep, draws.int() >= share - 32768)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_dropout_mask_equals_a_product_with_it(dtype):
    torch.manual_seed(4)
    x = torch.randn(40, 3, 33).to(dtype)
    x[0, 0, :4] = torch.tensor([torch.inf, -torch.inf, 0.0, -0.0])
    keep = torch.rand(x.shape) < 0.7
    keep[0, 0] = True
    assert torch.equal(apply_dropout_mask(x, keep), x * keep)
    assert torch.equal(
        apply_dropout_mask(x.transpose(0, 2), keep.transpose(0, 2)), (x * keep).transpose(0, 2)
    )


def test_dropout_keeps_the_mean_and_sends_gradients_through_the_same_mask():
    torch.manual_seed(2)
    x = torch.ones(400, 400, dtype=torch.float64, requires_grad=True)
    y = dropout(x, 0.25)
    assert y.mean().item() == pytest.approx(1, abs=0.01)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    assert torch.equal(Dropout(0.25).eval()(x), x)
    assert dropout(x, 0.0) is x


def test_initialisation_is_a_normal_cut_at_two_deviations():
    torch.manual_seed(0)
    encoder = Encoder(EncoderConfig.from_size("mini", vocab_size=2000))
    for name, parameter in encoder.named_parameters():
        if name.endswith("norm.weight"):
            assert (parameter == 1).all()
        elif name.endswith("bias"):
            assert (parameter == 0).all()
        else:
            assert parameter.abs().max() <= 0.04
    weights = encoder.embeddings.word_embeddings.weight.detach()
    # A normal cut at two deviations keeps 0.8796 of its deviation.
    assert weights.std().item() == pytest.approx(0.02 * 0.8796, rel=0.01)
    exact = stats.truncnorm(-2, 2, scale=0.02)
    assert stats.kstest(weights.flatten()[:100_000].double().numpy(), exact.cdf).pvalue > 0.01


def test_a_network_without_weights_draws_nothing():
    state = torch.get_rng_state()
    with without_weights():
        encoder = Encoder(EncoderConfig.from_size("tiny"))
    assert encoder.embeddings.word_embeddings.weight.is_meta
    assert torch.equal(torch.get_rng_state(), state)


def test_a_decoder_of_its_own_is_drawn_likewise():
    torch.manual_seed(0)
    config = EncoderConfig.from_size("mini", vocab_size=2000).with_values(tie_word_embeddings=False)
    decoder = MLMHead(config, torch.nn.Parameter(torch.zeros(2000, 256))).decoder.detach()
    assert decoder.abs().max() <= 0.04
    assert decoder.std().item() == pytest.approx(0.02 * 0.8796, rel=0.01)


@pytest.mark.parametrize("chunk", [2**24, 3 * 101])
def test_fused_loss_equals_the_plain_one(monkeypatch, chunk):
    """Also where the positions go through in several pieces."""
    monkeypatch.setattr(losses, "_CHUNK", chunk)
    config = reference.config()
    torch.manual_seed(0)
    words = torch.nn.Parameter(torch.randn(config.vocab_size, config.hidden_size).double())
    head = MLMHead(config, words).double()
    hidden = torch.randn(10, config.hidden_size, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, config.vocab_size, (10,))
    expected = [hidden, *head.parameters()]
    own = head.loss_sum(hidden, labels)
    plain = F.cross_entropy(head(hidden), labels, reduction="sum")
    assert own.item() == pytest.approx(plain.item(), abs=1e-10)
    for one, other in zip(
        torch.autograd.grad(own / 10, expected),
        torch.autograd.grad(plain / 10, expected),
        strict=True,
    ):
        assert (one - other).abs().max() < 1e-12
    with torch.no_grad():
        assert head.loss_sum(hidden, labels).item() == pytest.approx(plain.item(), abs=1e-10)


@pytest.mark.parametrize("native", ["1", "0"])
@pytest.mark.parametrize(("chunk", "group"), [(2**24, 2**24), (3 * 50, 6 * 50), (3 * 50, 1)])
def test_fused_loss_in_bfloat16_is_near_the_exact_one(monkeypatch, chunk, group, native):
    """With rows of zeros behind the labels, whose gradient is zero, and labels that repeat."""
    monkeypatch.setenv("BERTWORKS_NATIVE", native)
    monkeypatch.setattr(losses, "_CHUNK", chunk)
    monkeypatch.setattr(losses, "_GROUP", group)
    torch.manual_seed(0)
    x = torch.nn.functional.pad(torch.randn(21, 16), (0, 0, 0, 3)).bfloat16().requires_grad_()
    weight = torch.randn(50, 16, requires_grad=True)
    bias = torch.randn(50, requires_grad=True)
    labels = torch.randint(0, 9, (21,))
    actual = losses.linear_cross_entropy(x, weight, bias, labels)
    exact = [one.detach().double().requires_grad_() for one in (x, weight, bias)]
    plain = F.cross_entropy(F.linear(*exact)[:21], labels, reduction="sum")
    assert actual.item() == pytest.approx(plain.item(), rel=1e-3)
    gradients = torch.autograd.grad(actual / 21, (x, weight, bias))
    for one, other in zip(gradients, torch.autograd.grad(plain / 21, exact), strict=True):
        assert (one - other).norm() < 0.01 * other.norm()
    assert not gradients[0][21:].any()


def test_a_loss_over_nothing_is_zero():
    config = reference.config()
    head = MLMHead(config, torch.nn.Parameter(torch.randn(config.vocab_size, config.hidden_size)))
    hidden = torch.zeros(0, config.hidden_size, requires_grad=True)
    loss = head.loss_sum(hidden, torch.zeros(0, dtype=torch.long))
    loss.backward()
    assert loss.item() == 0
    assert not head.decoder.grad.any()


def test_sinusoids_are_those_of_the_formula():
    actual = sinusoids(torch.tensor([0, 3, 50]), torch.zeros(3, 6, dtype=torch.float64))
    for row, place in zip(actual, (0, 3, 50), strict=True):
        for at, value in enumerate(row.tolist()):
            angle = place / 10_000 ** ((at - at % 2) / 6)
            assert value == pytest.approx(math.cos(angle) if at % 2 else math.sin(angle))


@pytest.mark.parametrize(("positions", "same"), [("none", True), ("sinusoidal", False)])
def test_order_is_lost_without_positions(positions, same):
    torch.manual_seed(0)
    config = EncoderConfig.from_size("tiny", vocab_size=50, positions=positions)
    encoder = Encoder(config, pooler=False).double().eval()
    ids = torch.arange(8, 16)
    order = torch.tensor([3, 1, 0, 7, 2, 5, 4, 6])
    one, other = (
        encoder(Packed.from_arrays([part.numpy()]).to("cpu")) for part in (ids, ids[order])
    )
    assert torch.allclose(one[order], other) is same


HEADS = {
    "masked words": lambda config: MLMHead(config, nn.Parameter(torch.zeros(64, 64))),
    "next sentence": NSPHead,
    "replaced tokens": ReplacedTokenHead,
    "classes": lambda config: ClassificationHead(config, 9, dropout=0.0),
    "tokens": lambda config: TokenHead(config, 9, dropout=0.0),
}


@pytest.mark.parametrize("classifier", ["pooler", "tanh", "norm"])
@pytest.mark.parametrize("head", HEADS)
def test_heads_are_drawn_as_the_configuration_says(head: str, classifier: Any) -> None:
    """Matrices with its standard deviation (0.88 of it after the truncation), vectors 0 or 1."""
    torch.manual_seed(0)
    config = EncoderConfig(
        vocab_size=64,
        hidden_size=64,
        num_attention_heads=1,
        initializer_range=0.5,
        classifier=classifier,
        tie_word_embeddings=False,
    )
    tensors = HEADS[head](config).state_dict()
    assert tensors
    for name, parameter in tensors.items():
        if parameter.ndim == 2:
            assert float(parameter.std()) == pytest.approx(0.44, rel=0.25), name
            assert float(parameter.abs().max()) <= 1.0, name
        else:
            assert parameter.unique().tolist() == [float(name.endswith("norm.weight"))], name


@pytest.mark.parametrize(
    ("size", "geometry"),
    [
        ("tiny", (2, 128, 2, 512)),
        ("mini", (4, 256, 4, 1024)),
        ("small", (4, 512, 8, 2048)),
        ("medium", (8, 512, 8, 2048)),
        ("base", (12, 768, 12, 3072)),
        ("large", (24, 1024, 16, 4096)),
    ],
)
def test_released_sizes_are_those_of_the_papers(size, geometry):
    """Devlin et al. 2019, section 3; Turc et al. 2019, table 1 (heads of 64)."""
    config = EncoderConfig.from_size(size)
    assert geometry == (
        config.num_hidden_layers,
        config.hidden_size,
        config.num_attention_heads,
        config.intermediate_size,
    )


@pytest.mark.parametrize(
    "layout",
    [
        *(
            classification_layout(HEAD_CONFIG, 3, kind=kind)
            for kind in ("pooler", "tanh", "hidden_act", "relu", "none")
        ),
        token_layout(HEAD_CONFIG, 3),
        next_sentence_layout(HEAD_CONFIG),
        replaced_token_layout(HEAD_CONFIG),
    ],
)
def test_last_map_of_a_head_computes_in_float32(layout: HeadLayout) -> None:
    """Else many texts have the same score where the encoder computes in bfloat16."""
    maps = [step for step in layout if isinstance(step, LinearMap)]
    assert [step.is_output for step in maps] == [False] * (len(maps) - 1) + [True]
    torch.manual_seed(0)
    vectors = torch.randn(200, maps[-1].inputs).bfloat16()
    scores = LayoutHead((replace(maps[-1], name="linear"),), HEAD_CONFIG).compute(vectors)
    assert scores.dtype == torch.float32
    assert len(scores[:, 0].unique()) == 200

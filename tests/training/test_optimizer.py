"""The optimizers equal plain formulas in float64; the learning rate equals its formula."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from bertworks.errors import SettingsError
from bertworks.nn.config import EncoderConfig
from bertworks.nn.encoder import Encoder
from bertworks.nn.heads import MLMHead
from bertworks.training.optimizer import (
    build_optimizer,
    clip_gradients,
    learning_rate,
    parameter_groups,
    set_step,
)
from bertworks.training.settings import OptimizerSettings

TOTAL = 25


def plain_adamw(p: Tensor, g: Tensor, m: Tensor, v: Tensor, t: int, lr: float, **s: float) -> None:
    """One step of Adam with decoupled decay, letter by letter, in place."""
    m.copy_(s["beta1"] * m + (1 - s["beta1"]) * g)
    v.copy_(s["beta2"] * v + (1 - s["beta2"]) * g * g)
    c1, c2 = (1 - s["beta1"] ** t, 1 - s["beta2"] ** t) if s["corrects"] else (1.0, 1.0)
    update = (m / c1) / ((v / c2).sqrt() + s["eps"])
    p.copy_(p - lr * (update + s["decay"] * p))


def plain_lamb(p: Tensor, g: Tensor, m: Tensor, v: Tensor, t: int, lr: float, **s: float) -> None:
    """Algorithm 2 of the LAMB paper, with phi the identity; in place."""
    m.copy_(s["beta1"] * m + (1 - s["beta1"]) * g)
    v.copy_(s["beta2"] * v + (1 - s["beta2"]) * g * g)
    c1, c2 = (1 - s["beta1"] ** t, 1 - s["beta2"] ** t) if s["corrects"] else (1.0, 1.0)
    r = (m / c1) / ((v / c2).sqrt() + s["eps"]) + s["decay"] * p
    size, length = math.sqrt(float((p * p).sum())), math.sqrt(float((r * r).sum()))
    ratio = size / length if s["adapts"] and size > 0 and length > 0 else 1.0
    p.copy_(p - lr * ratio * r)


@pytest.mark.parametrize("name", ["adamw", "lamb"])
@pytest.mark.parametrize("corrects", [True, False])
def test_updates_are_those_of_the_formula(name: str, corrects: bool) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3)).double()
    nn.init.zeros_(network[2].weight)  # a weight without a norm: LAMB's ratio is then 1
    settings = OptimizerSettings.parse(
        {
            "optimizer": name,
            "learning_rate": 0.02,
            "weight_decay": 0.1,
            "bias_correction": corrects,
            "warmup": 5,
        }
    )
    optimizer = build_optimizer(network, settings)
    copies = {name: p.detach().clone() for name, p in network.named_parameters()}
    averages = {name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in copies.items()}
    formula = plain_adamw if name == "adamw" else plain_lamb
    for step in range(TOTAL):
        lr = set_step(optimizer, settings, step, TOTAL)
        for key, parameter in network.named_parameters():
            parameter.grad = torch.randn_like(parameter) * 1e-3
            decays = key in ("0.weight", "2.weight")
            formula(
                copies[key],
                parameter.grad,
                *averages[key],
                step + 1,
                lr,
                beta1=0.9,
                beta2=0.999,
                eps=1e-6,
                decay=0.1 if decays else 0.0,
                corrects=corrects,
                adapts=decays,
            )
        optimizer.step()
    for key, parameter in network.named_parameters():
        torch.testing.assert_close(parameter.detach(), copies[key], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("family", "matrices"), [("bert", 3), ("distilbert", 3), ("openai-gpt", 1)]
)
def test_lamb_has_a_ratio_for_each_matrix_of_the_published_layout(
    family: str, matrices: int
) -> None:
    """BERT has a matrix each for query, key and value, and the first GPT one for all three."""
    torch.manual_seed(0)
    config = EncoderConfig.from_size("tiny", vocab_size=40).with_values(
        hidden_size=8, num_attention_heads=2, intermediate_size=12, family=family
    )
    network = Encoder(config).double()
    stacked_weight = network.layers[0].attention.query_key_value.weight
    with torch.no_grad():
        stacked_weight[:8] *= 10  # the three differ in their norms,
        stacked_weight[16:] = 0  # and the ratio of values is 1 at first
    settings = OptimizerSettings.parse({"optimizer": "lamb", "learning_rate": 0.02})
    optimizer = build_optimizer(network, settings)
    parameters_by_name = dict(network.named_parameters())
    copies = {key: p.detach().clone() for key, p in parameters_by_name.items()}
    averages = {key: (torch.zeros_like(p), torch.zeros_like(p)) for key, p in copies.items()}
    own = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-6, "corrects": True}
    for step in range(12):
        lr = set_step(optimizer, settings, step, TOTAL)
        for key, parameter in parameters_by_name.items():
            gradient = parameter.grad = torch.randn_like(parameter) * 1e-3
            adapts = not (key.endswith("bias") or "norm" in key)
            tensors = copies[key], gradient, *averages[key]
            count = matrices if "query_key_value" in key else 1
            for parts in zip(*(tensor.chunk(count) for tensor in tensors), strict=True):
                plain_lamb(*parts, step + 1, lr, **own, decay=0.01 * adapts, adapts=adapts)
        optimizer.step()
    for key, parameter in parameters_by_name.items():
        torch.testing.assert_close(parameter.detach(), copies[key], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["adamw", "lamb"])
@pytest.mark.parametrize("corrects", [True, False])
def test_averages_of_unfrozen_parameters_start_anew(name: str, corrects: bool) -> None:
    """Its averages count from its own first gradient."""
    torch.manual_seed(0)
    network = nn.Linear(5, 3, bias=False).double()
    options = {
        "optimizer": name,
        "learning_rate": 0.02,
        "weight_decay": 0.1,
        "bias_correction": corrects,
    }
    settings = OptimizerSettings.parse(options)
    optimizer = build_optimizer(network, settings, {network.weight: 4})
    copy = network.weight.detach().clone()
    averages = torch.zeros_like(copy), torch.zeros_like(copy)
    formula = plain_adamw if name == "adamw" else plain_lamb
    for step in range(12):
        lr = set_step(optimizer, settings, step, TOTAL)
        if step >= 4:
            gradient = network.weight.grad = torch.randn_like(copy) * 1e-3
            own = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-6, "decay": 0.1}
            formula(copy, gradient, *averages, step - 3, lr, **own, corrects=corrects, adapts=True)
        optimizer.step()
        torch.testing.assert_close(network.weight.detach(), copy, rtol=1e-10, atol=1e-12)


def test_parameters_without_a_gradient_are_not_updated() -> None:
    network = nn.Linear(3, 3)
    initial_weight = network.weight.detach().clone()
    for name in ("adamw", "lamb"):
        settings = OptimizerSettings.parse({"optimizer": name, "warmup": 0})
        optimizer = build_optimizer(network, settings)
        set_step(optimizer, settings, 0, 10)
        network.bias.grad = torch.ones(3)
        optimizer.step()
    assert torch.equal(network.weight, initial_weight)
    assert not torch.equal(network.bias, torch.zeros(3))


def test_biases_and_norms_do_not_decay_and_shared_weights_come_once() -> None:
    config = EncoderConfig.from_size("tiny", vocab_size=40)
    encoder = Encoder(config)
    network = nn.ModuleDict(
        {
            "encoder": encoder,
            "head": MLMHead(config, encoder.embeddings.word_embeddings.weight),
        }
    )
    encoder.embeddings.position_embeddings.weight.requires_grad_(False)
    decayed_group, plain = parameter_groups(network, 0.01)
    names = {p: name for name, p in network.named_parameters()}
    decayed_names = {names[p] for p in decayed_group["params"]}
    plain_names = {names[p] for p in plain["params"]}
    assert len(decayed_group["params"]) == len(decayed_names)
    assert len(plain["params"]) == len(plain_names)
    trained = {name for name, p in network.named_parameters() if p.requires_grad}
    assert decayed_names | plain_names == trained
    assert all(name.endswith(".weight") and "norm" not in name for name in decayed_names)
    assert all(name.endswith("bias") or "norm" in name for name in plain_names)
    assert (decayed_group["weight_decay"], plain["weight_decay"]) == (0.01, 0.0)


def test_biases_of_queries_and_values_do_not_decay() -> None:
    bias = {"kind": "disentangled", "num_buckets": None, "key_bias": False}
    layer = Encoder(EncoderConfig.from_size("tiny", vocab_size=9, score_bias=bias)).layers[0]
    _, plain = parameter_groups(layer, 0.01)
    biases = {layer.attention.query_bias, layer.attention.value_bias}
    assert biases <= set(plain["params"])


@pytest.mark.parametrize(
    ("schedule", "step", "expected"),
    [
        ("linear", 0, 0.0),
        ("linear", 5, 0.5),
        ("linear", 10, 0.9),
        ("linear", 99, 0.01),
        ("linear-from-peak", 5, 0.5),
        ("linear-from-peak", 10, 1.0),
        ("linear-from-peak", 55, 0.5),
        ("linear-from-peak", 100, 0.0),
        ("constant", 5, 0.5),
        ("constant", 99, 1.0),
        ("slanted-triangular", 0, 1 / 32),
        ("slanted-triangular", 10, 1.0),
        ("slanted-triangular", 55, (1 + 31 / 2) / 32),
        ("slanted-triangular", 100, 1 / 32),
    ],
)
def test_the_learning_rate_is_a_function_of_the_step(
    schedule: str, step: int, expected: float
) -> None:
    for warmup in (10, 0.1):
        settings = OptimizerSettings.parse(
            {
                "learning_rate": 1.0,
                "warmup": warmup,
                "schedule": schedule,
            }
        )
        assert learning_rate(settings, step, 100) == pytest.approx(expected)


@pytest.mark.parametrize(("cut_frac", "total"), [(0.1, 200), (0.25, 40)])
def test_slanted_triangular_rates_are_those_of_the_paper(cut_frac: float, total: int) -> None:
    """Howard and Ruder (2018), equation 3, with their ratio."""
    values = {"learning_rate": 0.01, "warmup": cut_frac, "schedule": "slanted-triangular"}
    settings = OptimizerSettings.parse(values)
    for t in range(total):
        cut = math.floor(total * cut_frac)
        p = t / cut if t < cut else 1 - (t - cut) / (cut * (1 / cut_frac - 1))
        expected = 0.01 * (1 + p * (32 - 1)) / 32
        assert learning_rate(settings, t, total) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("warmup", [0, 0.1, 0.99, 5, 50])
@pytest.mark.parametrize("total", [1, 7, 25])
def test_slanted_triangular_rates_stay_between_their_bounds(warmup: float, total: int) -> None:
    values = {"learning_rate": 1.0, "warmup": warmup, "schedule": "slanted-triangular"}
    rates = [learning_rate(OptimizerSettings.parse(values), t, total) for t in range(total)]
    assert all(1 / 32 <= rate <= 1 for rate in rates)


def test_the_first_step_has_the_whole_rate_without_warmup() -> None:
    assert learning_rate(OptimizerSettings.parse({"learning_rate": 0.5, "warmup": 0}), 0, 10) == 0.5


def test_impossible_betas_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"betas"):
        OptimizerSettings.parse({"betas": [0.9, 1.0]})


@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_lower_layers_learn_at_a_lower_rate(name: str) -> None:
    """With one step of equal gradients each parameter moves by its own share."""
    config = EncoderConfig.from_size("tiny").with_values(vocab_size=11, num_hidden_layers=3)
    network = nn.ModuleDict({"encoder": Encoder(config), "head": nn.Linear(128, 2)})
    settings = OptimizerSettings.parse(
        {
            "optimizer": name,
            "learning_rate": 0.1,
            "layer_decay": 0.5,
            "weight_decay": 0,
            "warmup": 0,
        }
    )
    optimizer = build_optimizer(network, settings)
    set_step(optimizer, settings, 0, 10)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert len(rates) == len(list(network.parameters()))
    expected = {
        "head": 1,
        "encoder.pooler": 1,
        "encoder.layers.2": 1 / 2,
        "encoder.layers.1": 1 / 4,
        "encoder.layers.0": 1 / 8,
        "encoder.embeddings": 1 / 16,
    }
    for key, parameter in network.named_parameters():
        (share,) = [share for prefix, share in expected.items() if key.startswith(prefix + ".")]
        assert rates[id(parameter)] == pytest.approx(0.1 * share), key
    if name == "lamb":
        return
    initial_weights = {key: p.detach().clone() for key, p in network.named_parameters()}
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    for key, parameter in network.named_parameters():
        moved = (initial_weights[key] - parameter.detach()).abs().max().item()
        assert moved == pytest.approx(rates[id(parameter)], rel=1e-3), key


def test_norm_of_large_gradients_is_accurate() -> None:
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.zeros(*shape)) for shape in ((4096, 1024), (64, 4, 3), (9,))]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    unused_parameter = nn.Parameter(torch.zeros(2))
    gradients = [parameter.grad.double() for parameter in parameters if parameter.grad is not None]
    exact_norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    norm = clip_gradients([*parameters, unused_parameter], 1.0)
    assert norm.item() == pytest.approx(exact_norm.item(), rel=5e-7)
    assert unused_parameter.grad is None
    for parameter, gradient in zip(parameters, gradients, strict=True):
        clipped = (gradient / exact_norm).float()
        torch.testing.assert_close(parameter.grad, clipped, rtol=1e-5, atol=1e-9)

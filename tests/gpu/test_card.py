"""Numbers that need a real card: its kernels, precisions, dropout, waits and resumed runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from bertworks.model import Model
from bertworks.nn.attention import attention
from bertworks.nn.varlen_attention import choose_kernel
from bertworks.packed import Layout
from bertworks.text.tokenizer import Tokenizer
from bertworks.training import fit
from tests.checkpoints.oracles import CONFIG_CLASSES, geometry
from tests.training.letters import WORD_PIECES
from tests.training.tiny_run import StopAt, tiny_run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")

CARD = "cuda:0"
BOUNDS = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def random_inputs(size: int, total: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(total, 3, size, generator=generator).to(dtype) for _ in range(3)]


def attend(inputs: list[torch.Tensor], layouts: tuple[Layout, ...], **rules: Any) -> Any:
    """The result and the gradients of the inputs, in float64 on the CPU."""
    parts = [part.detach().clone().requires_grad_() for part in inputs]
    output = attention(*parts, *layouts, **rules)
    weights = torch.linspace(-1, 1, output.numel(), device=output.device).view(output.shape)
    (output * weights.to(output.dtype)).sum().backward()
    return [one.detach().cpu().double() for one in (output, *(part.grad for part in parts))]


@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (False, 5), (True, 5)])
@pytest.mark.parametrize("size", [8, 26, 64, 128, 256])
@pytest.mark.parametrize("dtype", BOUNDS)
def test_attention_and_its_gradients_are_the_formula(
    dtype: torch.dtype, size: int, causal: bool, window: int | None
) -> None:
    layout = Layout.from_lengths(np.array([1, 7, 7, 64, 130]))
    inputs = random_inputs(size, 209, dtype)
    rules: dict[str, Any] = {"causal": causal, "window": window}
    expected = attend([part.double() for part in inputs], (layout,), backend="dense", **rules)
    own = attend([part.to(CARD) for part in inputs], (layout.to(CARD),), **rules)
    for theirs, ours in zip(expected, own, strict=True):
        assert (ours - theirs).abs().max() <= BOUNDS[dtype] * max(1, theirs.abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fewer_queries_than_keys_are_the_last_tokens(dtype: torch.dtype) -> None:
    layout = Layout.from_lengths(np.array([2, 5]))
    key_layout = Layout.from_lengths(np.array([9, 5]))
    query, *_ = random_inputs(16, 7, dtype)
    _, key, value = random_inputs(16, 14, dtype)
    double = [part.double() for part in (query, key, value)]
    expected = attention(*double, layout, key_layout, causal=True, backend="dense")
    on_card = [part.to(CARD) for part in (query, key, value)]
    own = attention(*on_card, layout.to(CARD), key_layout.to(CARD), causal=True)
    assert (own.cpu().double() - expected).abs().max() < BOUNDS[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_drops_its_share_and_repeats_with_the_seed(dtype: torch.dtype) -> None:
    """With the identity as values, the output is the weights: 0 or 1 / (1 - p) times as large."""
    length, dropout = 128, 0.25
    layout = Layout.from_lengths(np.array([length] * 8)).to(CARD)
    query = torch.zeros(8 * length, 1, length, dtype=dtype, device=CARD)
    value = torch.eye(length, dtype=dtype, device=CARD).repeat(8, 1)[:, None]
    assert choose_kernel(query, value, None) is not None
    weights = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        weights.append(attention(query, query, value, layout, dropout=dropout) * length)
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    nonzero = weights[0][weights[0] != 0]
    assert torch.allclose(nonzero.float(), torch.tensor(1 / (1 - dropout)).to(CARD), rtol=1e-2)
    draws = weights[0].numel()
    assert abs(1 - len(nonzero) / draws - dropout) < 5 * (dropout * (1 - dropout) / draws) ** 0.5


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("family", CONFIG_CLASSES)
def test_vectors_of_a_family_are_those_of_the_cpu(family: str, precision: str) -> None:
    tokenizer = Tokenizer.from_vocabulary(WORD_PIECES)
    config = geometry(family, vocab_size=len(WORD_PIECES))
    torch.manual_seed(0)
    model = Model.fresh(config, tokenizer)
    texts = ["a b c", "x", "d e f g h a b", "c d"]
    expected = model.embed(texts, precision="fp32")
    model.network.to(CARD)
    vectors = model.embed(texts, precision=precision)
    bound = 1e-4 if precision == "fp32" else 5e-2
    assert np.abs(vectors - expected).max() < bound * max(1.0, np.abs(expected).max())


def test_a_step_never_waits_but_for_its_loss(
    prepared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch raises where the host waits; reading the losses, at the end, is allowed."""
    gradients = fit._Loop.gradients
    tolist = torch.Tensor.tolist

    def read(tensor: torch.Tensor) -> Any:
        torch.cuda.set_sync_debug_mode("default")
        return tolist(tensor)

    def without_waiting(*args: Any) -> Any:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return gradients(*args)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(torch.Tensor, "tolist", read)
    monkeypatch.setattr(fit._Loop, "gradients", without_waiting)
    tiny_run(prepared_data, tmp_path / "run", steps=4, device=CARD)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_resumed_run_has_the_same_bits(
    precision: str, prepared_data: Path, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"steps": 12, "device": CARD, "deterministic": True}
    settings["precision"] = precision
    whole = tiny_run(prepared_data, tmp_path / "whole", **settings)
    with pytest.raises(InterruptedError):
        tiny_run(prepared_data, tmp_path / "parts", progress=StopAt(8), **settings)
    resumed = tiny_run(prepared_data, tmp_path / "parts", **settings)
    weights, others = (
        load_file(result.run.model / "model.safetensors") for result in (whole, resumed)
    )
    for name, tensor in weights.items():
        assert torch.equal(tensor, others[name]), name

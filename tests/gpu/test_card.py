"""Numbers that need a real card: its kernels, precisions, dropout, waits and resumed runs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from bertworks.model import Model
from bertworks.nn.attention import attention, dense_attention
from bertworks.nn.config import EncoderConfig
from bertworks.nn.encoder import Encoder
from bertworks.nn.encoder_graphs import TrainingGraphs, pad_packed, padded_shape
from bertworks.nn.varlen_attention import choose_kernel
from bertworks.packed import Batch, Layout, Packed
from bertworks.tasks.pretraining.network import PretrainingNetwork
from bertworks.text.tokenizer import Tokenizer
from bertworks.training import fit
from bertworks.training.precision import cuda_graphs, determinism
from tests.checkpoints.oracles import CONFIG_CLASSES, geometry
from tests.training.letters import WORD_PIECES
from tests.training.tiny_run import StopAt, tiny_run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")

CARD = "cuda:0"
BOUNDS = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def random_inputs(size: int, total: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(total, 3, size, generator=generator).to(dtype) for _ in range(3)]


def results(
    attend: Callable[..., torch.Tensor],
    inputs: list[torch.Tensor],
    layouts: tuple[Layout, ...],
    **rules: Any,
) -> Any:
    """The result and the gradients of the inputs, in float64 on the CPU."""
    parts = [part.detach().clone().requires_grad_() for part in inputs]
    output = attend(*parts, *layouts, **rules)
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
    expected = results(dense_attention, [part.double() for part in inputs], (layout,), **rules)
    own = results(attention, [part.to(CARD) for part in inputs], (layout.to(CARD),), **rules)
    for theirs, ours in zip(expected, own, strict=True):
        assert (ours - theirs).abs().max() <= BOUNDS[dtype] * max(1, theirs.abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fewer_queries_than_keys_are_the_last_tokens(dtype: torch.dtype) -> None:
    layout = Layout.from_lengths(np.array([2, 5]))
    key_layout = Layout.from_lengths(np.array([9, 5]))
    query, *_ = random_inputs(16, 7, dtype)
    _, key, value = random_inputs(16, 14, dtype)
    double = [part.double() for part in (query, key, value)]
    expected = dense_attention(*double, layout, key_layout, causal=True)
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


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("cuda_graphs", [True, False])
def test_a_step_never_waits_but_for_its_loss(
    cuda_graphs: bool, prepared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch raises where the host waits; reading the losses, and recording, is allowed."""
    gradients = fit._Loop.gradients
    tolist = torch.Tensor.tolist
    record = TrainingGraphs._record

    def read(tensor: torch.Tensor) -> Any:
        torch.cuda.set_sync_debug_mode("default")
        return tolist(tensor)

    def record_and_wait(*args: Any) -> Any:
        torch.cuda.set_sync_debug_mode("default")
        try:
            return record(*args)
        finally:
            torch.cuda.set_sync_debug_mode("error")

    def without_waiting(*args: Any) -> Any:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return gradients(*args)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(torch.Tensor, "tolist", read)
    monkeypatch.setattr(fit._Loop, "gradients", without_waiting)
    monkeypatch.setattr(TrainingGraphs, "_record", record_and_wait)
    tiny_run(prepared_data, tmp_path / "run", steps=4, device=CARD, cuda_graphs=cuda_graphs)


def random_packs(*all_lengths: list[int]) -> list[Packed]:
    random = np.random.default_rng(0)
    return [
        Packed.from_arrays([random.integers(0, 100, size) for size in lengths]).to(CARD)
        for lengths in all_lengths
    ]


def make_encoder(dtype: torch.dtype | None, dropout: float) -> Encoder:
    torch.manual_seed(0)
    config = EncoderConfig.from_size(
        "mini",
        vocab_size=100,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    encoder = Encoder(config).to(CARD)
    encoder.compute_dtype = dtype
    return encoder


def gradients_of(encoder: Encoder, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    encoder.zero_grad()
    sum((output.float() ** 2).sum() for output in outputs).backward()
    gradients = [one.grad for one in encoder.parameters() if one.grad is not None]
    return [*(output.detach() for output in outputs), *(one.clone() for one in gradients)]


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16])
def test_graphs_compute_the_bits_of_the_padded_pack(dtype: torch.dtype | None) -> None:
    encoder = make_encoder(dtype, 0.1)
    packs = random_packs([5, 9, 30], [100, 2], [5, 9, 28], [64] * 20, [1, 2])
    with determinism(True):
        results: list[list[torch.Tensor]] = []
        for has_graphs in (False, True):
            graphs = TrainingGraphs(encoder.config.max_seqlen)
            for number, packed in enumerate(packs):
                shape = padded_shape(packed, encoder.config.max_seqlen, 8)
                torch.manual_seed(number)
                # With graphs, this one's unfinished backward pass stands beside the recording.
                eager = encoder.compute(pad_packed(packed, shape))[: packed.num_tokens]
                if has_graphs:
                    torch.manual_seed(number)
                output = graphs(encoder, packed) if has_graphs else eager
                random = torch.rand(3, device=CARD)
                results.append([random, *gradients_of(encoder, [output])])
            assert len(graphs._graphs) == (3 if has_graphs else 0)
    for expected, own in zip(results[: len(packs)], results[len(packs) :], strict=True):
        assert len(expected) > 10
        for theirs, ours in zip(expected, own, strict=True):
            assert torch.equal(theirs, ours)


def test_outputs_that_wait_for_their_backward_pass_are_not_overwritten() -> None:
    encoder = make_encoder(None, 0.0)
    packs = random_packs([5, 9, 30], [7, 8, 20])
    expected = gradients_of(encoder, [encoder(packed) for packed in packs])
    encoder.graphs = TrainingGraphs(encoder.config.max_seqlen)
    for _ in range(2):
        own = gradients_of(encoder, [encoder(packed) for packed in packs])
        for theirs, ours in zip(expected, own, strict=True):
            assert (theirs - ours).abs().max() < 1e-4 * max(1, theirs.abs().max())


def test_a_weight_that_a_head_shares_has_the_gradients_of_both() -> None:
    config = EncoderConfig.from_size("mini", vocab_size=100, hidden_dropout_prob=0.0)
    config = config.model_copy(update={"attention_probs_dropout_prob": 0.0})
    network = PretrainingNetwork(config, next_sentence=False).to(CARD)
    (packed,) = random_packs([5, 9, 30])
    positions = torch.tensor([1, 7, 20], device=CARD)
    targets = {"masked_positions": positions, "masked_labels": packed.input_ids[positions]}
    results = []
    for is_on in (False, True, True):
        with cuda_graphs(network, is_on):
            network.zero_grad()
            for _ in range(2):  # of an accumulated step
                network(Batch(packed, targets, {"mlm": 3}))["mlm"].backward()
        gradients = [one.grad for one in network.parameters() if one.grad is not None]
        results.append([one.clone() for one in gradients])
    for own in results[1:]:
        for theirs, ours in zip(results[0], own, strict=True):
            assert (theirs - ours).abs().max() < 1e-4 * max(1, theirs.abs().max())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_texts_by_graphs_from_many_threads_have_their_vectors(precision: str) -> None:
    tokenizer = Tokenizer.from_vocabulary(WORD_PIECES)
    model = Model.fresh(EncoderConfig.from_size("mini", vocab_size=len(WORD_PIECES)), tokenizer)
    texts = ["a b c", "x", "d e f g h a b", "c d", "a b c d e f " * 10] * 20
    expected = model.embed(texts, precision="fp32")
    model.network.to(CARD)
    with ThreadPoolExecutor(4) as pool:
        vectors = list(pool.map(lambda text: model.embed(text, precision=precision), texts))
    bound = 1e-4 if precision == "fp32" else 5e-2
    assert np.abs(np.concatenate(vectors) - expected).max() < bound * np.abs(expected).max()


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

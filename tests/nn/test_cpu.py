"""Rows of zeros behind a pack: few shapes, and no trace of them in any result."""

from __future__ import annotations

import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertworks.nn import cpu, encoder, heads
from bertworks.nn.layers import ACTIVATIONS
from bertworks.packed import Padded
from tests.nn import reference
from tests.nn.test_parity import pair


@given(st.integers(1, 10**6))
def test_rows_are_rounded_up_a_little(rows):
    up = cpu.round_up_rows(rows)
    assert rows <= up <= rows * (1 + 1 / 32)
    assert cpu.round_up_rows(up) == up


def test_few_different_shapes_are_left():
    assert len({cpu.round_up_rows(rows) for rows in range(4096, 8192)}) <= 33


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_precisions_are_left_alone(dtype):
    x = torch.zeros(100, 3, dtype=dtype)
    assert cpu.align_rows(x) is x


def run(network, batch, align, monkeypatch):
    for module in (encoder, heads):
        monkeypatch.setattr(module, "align_rows", align)
    network.zero_grad()
    losses = network(batch)
    sum(losses.values()).backward()
    with torch.no_grad():
        hidden = network.encoder(batch.packed)
    gradients = {name: p.grad.clone() for name, p in network.named_parameters()}
    return hidden, {name: loss.item() for name, loss in losses.items()}, gradients


def test_rows_of_zeros_change_nothing(monkeypatch):
    """In float64, where they can be seen: as many rows again, of zeros, behind the last."""
    network, _, batch, *_ = pair(torch.float64)
    plain = run(network, batch, lambda x: x, monkeypatch)

    def double(x):
        return torch.nn.functional.pad(x, (0, 0, 0, len(x)))

    large = run(network, batch, double, monkeypatch)
    assert torch.allclose(plain[0], large[0], atol=1e-12)
    assert plain[1] == pytest.approx(large[1], abs=1e-10)
    for name, gradient in plain[2].items():
        assert torch.allclose(gradient, large[2][name], atol=1e-9), name


def test_bfloat16_stays_near_the_exact_output():
    network, *_ = pair(torch.float32)
    network.encoder.compute_dtype = torch.bfloat16
    packed = reference.sequences(network.encoder.config, (7,) * 15)
    assert cpu.round_up_rows(packed.num_tokens) != packed.num_tokens
    with torch.no_grad():
        hidden = network.encoder(packed)
        network.encoder.compute_dtype = None
        exact = network.encoder(packed)
    assert hidden.shape == exact.shape
    assert torch.cosine_similarity(hidden.float(), exact, dim=-1).min() > 0.99


def test_a_padded_batch_gets_no_rows_of_zeros():
    """Attention cuts it into rows of equal length."""
    network, _, _, padded, mask = pair(torch.float32)
    exact = network.encoder(Padded.from_tensors(padded["input_ids"], mask))
    batch = Padded.from_tensors(padded["input_ids"][:7, :31], mask[:7, :31])
    assert cpu.round_up_rows(batch.num_tokens) != batch.num_tokens
    network.encoder.compute_dtype = torch.bfloat16
    hidden = network.encoder(batch).view(7, 31, -1)[mask[:7, :31]]
    exact = exact.view(*mask.shape, -1)[:7, :31][mask[:7, :31]]
    assert torch.cosine_similarity(hidden.float(), exact, dim=-1).min() > 0.99


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="glibc is asked, which is Linux's")
def test_freed_memory_is_kept_where_glibc_is():
    """In a process of its own, since settings of malloc cannot be undone."""
    code = "from bertworks.nn.cpu import keep_freed_memory as keep; print(keep())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() in ("True", "False")
    assert (found.stdout.strip() == "True") == (platform.libc_ver()[0] == "glibc")


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("width", [1, 4, 33, 96])
def test_a_number_becomes_the_same_whatever_the_rows_and_threads(name: str, width: int) -> None:
    function = ACTIVATIONS[name]
    x = torch.randn(401, width, generator=torch.Generator().manual_seed(0))
    single = torch.cat([cpu.apply_in_whole_vectors(function, row) for row in x.split(1)])
    assert torch.allclose(single, function(x), rtol=1e-5, atol=1e-7)
    original = torch.get_num_threads()
    try:
        for threads in (1, 2, 3, 5, 7):
            torch.set_num_threads(threads)
            for rows in (1, 7, 250, 399, 401):
                found = cpu.apply_in_whole_vectors(function, x[:rows])
                assert torch.equal(found, single[:rows]), (threads, rows)
    finally:
        torch.set_num_threads(original)


@pytest.mark.parametrize("of_any_size", [False, True])
def test_options_of_malloc_have_the_numbers_of_glibc(
    of_any_size: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers of `malloc.h`."""
    trim_threshold, top_pad, mmap_threshold, mmap_max = -1, -2, -3, -4
    options: dict[int, int] = {}

    def mallopt(name: int, value: int) -> int:
        options[name] = value
        return 1

    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr(cpu.ctypes, "CDLL", lambda _: SimpleNamespace(mallopt=mallopt))
    assert cpu.keep_freed_memory(of_any_size=of_any_size)
    assert options.pop(mmap_max, None) == (0 if of_any_size else None)
    assert options[mmap_threshold] == 32 << 20, "what the docstring says"
    assert options.keys() == {trim_threshold, top_pad, mmap_threshold}
    assert options[trim_threshold] > options[top_pad] > 0

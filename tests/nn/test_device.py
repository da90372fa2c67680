"""The precision that is chosen for a device."""

from __future__ import annotations

import warnings
from contextlib import suppress

import pytest
import torch

from bertworks.native import library
from bertworks.nn import device
from bertworks.nn.config import EncoderConfig
from bertworks.nn.device import is_fast_at_bfloat16  # which all other tests replace
from bertworks.nn.encoder import Encoder


@pytest.mark.parametrize("fast", [True, False])
def test_auto_precision_is_fast_on_the_device(fast, monkeypatch):
    monkeypatch.setattr(device, "is_fast_at_bfloat16", lambda _: fast)
    monkeypatch.setattr(device, "has_bfloat16", lambda _: fast)  # this machine's may not have it
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert device.dtype_of("fp32", "cpu") is None
        assert device.dtype_of("auto", "cpu") is (torch.bfloat16 if fast else None)


@pytest.mark.parametrize(
    ("capability", "training", "expected"),
    [
        *(((6, 1), True, "fp32"), ((7, 0), True, "fp16"), ((7, 5), True, "fp16")),
        ((7, 5), False, "fp32"),
    ],
)
def test_float16_is_chosen_for_training_on_cards_that_multiply_it_fast(
    monkeypatch, capability, training, expected
):
    """From Volta on, the first with fast products of matrices, if there is no bfloat16."""
    monkeypatch.setattr(device, "dtype_of", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert device.resolve_auto("cuda", training=training) == expected
    assert device.resolve_auto("cpu", training=training) == "fp32"


def test_bfloat16_by_emulation_is_warned_of(monkeypatch):
    monkeypatch.setattr(device, "has_bfloat16", lambda _: False)
    with pytest.warns(UserWarning, match="no bfloat16 instructions"):
        assert device.dtype_of("bf16", "cpu") is torch.bfloat16


def test_instructions_are_those_that_linux_names():
    try:
        with open("/proc/cpuinfo") as file:
            flags = next(line for line in file if line.startswith("flags")).split()
    except (OSError, StopIteration):
        pytest.skip("the system does not tell what instructions the processor has")
    assert device.has_bfloat16("cpu") == ("avx512_bf16" in flags or "amx_bf16" in flags)


@pytest.mark.parametrize(
    ("vendor", "avx512", "amx", "fast"),
    [
        ("AuthenticAMD", True, False, True),
        ("AuthenticAMD", False, False, False),
        ("GenuineIntel", True, False, False),
        ("GenuineIntel", True, True, True),
        ("", True, False, True),
    ],
)
def test_auto_precision_depends_on_the_processor(vendor, avx512, amx, fast, monkeypatch):
    monkeypatch.setattr(device.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(library, "has_kernels", lambda _: False)
    monkeypatch.setattr(library, "processor_vendor", lambda: vendor)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    assert is_fast_at_bfloat16("cpu") == fast


@pytest.mark.parametrize(
    ("vendor", "isa", "fast"),
    [
        ("GenuineIntel", "amx", True),
        ("GenuineIntel", "avx512bf16", False),
        ("AuthenticAMD", "avx512bf16", True),
        ("GenuineIntel", "avx2", False),
        ("AuthenticAMD", "avx2", False),
    ],
)
def test_instruction_set_of_native_code_decides_the_precision(vendor, isa, fast, monkeypatch):
    """Not what else the processor has: models compute alike without PyTorch and with it."""
    monkeypatch.setattr(device, "has_bfloat16", lambda _: True)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    monkeypatch.setattr(library, "processor_vendor", lambda: vendor)
    monkeypatch.setattr(library, "instruction_set", lambda: isa)
    kinds = {"fp32", "int8"} | ({"bf16"} if isa != "avx2" else set())
    monkeypatch.setattr(library, "has_kernels", lambda kind: kind in kinds)
    assert library.is_fast_at_bfloat16() == fast
    assert is_fast_at_bfloat16("cpu") == fast


def test_an_encoder_is_as_before_after_an_error():
    encoder = Encoder(EncoderConfig.from_size("tiny"))
    with suppress(ZeroDivisionError), device.autocast_to(encoder, torch.bfloat16):
        assert encoder.compute_dtype is torch.bfloat16
        raise ZeroDivisionError
    assert encoder.compute_dtype is None

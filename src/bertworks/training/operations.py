"""Floating-point operations of a batch, and the peak rate of matrix products on this machine.

The speed of a run is given as a share of the peak, which is comparable between a laptop and a GPU.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
import torch
from torch import nn

from ..nn.config import EncoderConfig
from ..nn.encoder import Encoder
from ..nn.global_tokens import mask_of_packed
from ..nn.heads import MLMHead
from ..packed import Batch, Packed

_peaks: dict[tuple[object, ...], float] = {}


def matmul_peak(dtype: torch.dtype, device: torch.device | str, seconds: float = 0.3) -> float:
    """Return the best rate of a large matrix product, in floating-point operations per second.

    A process measures it once for each number of threads and rounding of float32 factors. The
    matrices are of different numbers (cards multiply constants faster, by an eighth on an H100),
    but not of random ones, so a run's random state does not change.
    """
    how = torch.get_num_threads(), torch.backends.cuda.matmul.fp32_precision
    key = (dtype, torch.device(device), seconds, how)
    if key not in _peaks:
        _peaks[key] = _measure_peak(dtype, device, seconds)
    return _peaks[key]


def _measure_peak(dtype: torch.dtype, device: torch.device | str, seconds: float) -> float:
    size = 8192 if torch.device(device).type == "cuda" else 1024
    numbers = torch.arange(size * size, device=device).sin()  # of -1 to 1, without a pattern
    left = numbers.view(size, size).to(dtype)
    right = numbers.flip(0).view(size, size).to(dtype)
    best = 0.0
    deadline = time.perf_counter() + seconds
    with torch.no_grad():
        while time.perf_counter() < deadline or not best:
            synchronize(device)
            start = time.perf_counter()
            torch.mm(left, right)
            synchronize(device)
            best = max(best, 2 * size**3 / (time.perf_counter() - start))
    return best


def synchronize(device: torch.device | str) -> None:
    """Wait until a device has finished its queued work."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    elif torch.device(device).type == "mps":
        torch.mps.synchronize()


def flops_of_batch(network: nn.Module, batch: Batch) -> float:
    """Return the floating-point operations of a batch's matrix products, forward and backward.

    A product of `[m, k]` and `[k, n]` takes 2mkn operations, and its backward pass twice as many:
    for the gradients of its input, unless nothing below is trained, and for those of its weights,
    unless they are frozen. The count includes each encoder's layers, attention (with the length of
    each sequence), and a language-model head at the predicted positions. Other heads are
    negligible.
    """
    total = 0.0
    for module in network.modules():
        if isinstance(module, Encoder):
            total += _num_passes(module) * encoder_flops(module.config, batch.packed)
        elif isinstance(module, MLMHead):
            matrices = sum(part.numel() for part in module.parameters() if part.ndim == 2)
            forward = 2.0 * (batch.counts.get("mlm", 0) + batch.counts.get("lm", 0)) * matrices
            total += (3 if _is_trained(module) else 1) * forward
    return total


def _num_passes(encoder: Encoder) -> float:
    """Return the mean number of passes through a layer, forward and backward."""
    lowest, *layers = encoder.parts
    is_trained, passes = _is_trained(lowest), []
    for layer in layers:
        is_trained = is_trained or _is_trained(layer)
        matrices = [part for part in layer.parameters() if part.ndim == 2]
        num_trained = sum(part.numel() for part in matrices if part.requires_grad)
        passes.append(1 + is_trained + num_trained / sum(part.numel() for part in matrices))
    return statistics.fmean(passes) if passes else 0.0


def _is_trained(part: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in part.parameters())


def encoder_flops(config: EncoderConfig, packed: Packed) -> float:
    """Return the operations of one forward pass through an encoder's layers."""
    if config.attention == "two-way":
        return 2 * encoder_flops(config.per_direction_config, packed)
    h, i = config.hidden_size, config.intermediate_size
    # matrices of h × h: of the LSTM, or of queries, keys, values and the output
    attention_maps = 2 + 2 * config.num_key_heads / config.num_attention_heads
    mixer = 8 if config.mixer == "lstm" else attention_maps
    feed_forward = 3 if config.gated else 2  # matrices
    width = config.attention_width
    weights = mixer * width * width + feed_forward * width * i
    if (bottleneck := config.bottleneck) is not None:
        weights += (bottleneck.num_feed_forward - 1) * feed_forward * width * i
        weights += 2 * h * width  # into the layer and out of it
        if not bottleneck.attention:  # a second way in, and values of wide vectors
            weights += h * width + (h - width) * width
    pairs = sum(count * length * length for _start, count, length in packed.groups)
    if config.global_tokens is not None and config.has_global_tokens:
        weights += 3 * h * h  # for all tokens
        is_global = mask_of_packed(config.global_tokens, packed)
        pairs += int(np.repeat(packed.lengths, packed.lengths)[is_global].sum())
    linear = 2 * packed.num_tokens * weights
    attention = 4 * pairs * width
    return float(config.num_hidden_layers * (linear + attention * config.has_heads))

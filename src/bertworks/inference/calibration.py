"""Calibration for int8: fixed codes for the inputs of a network's linear maps, chosen from texts.

    texts ─► float32 network that records inputs ─► ranges and samples ─► codes of least error

For each map, several candidates are tried on a sample of its inputs. Their errors in the map's
outputs are compared, relative to the size of each token's output. So the few tokens with very large
inputs ([CLS], full stops) do not decide for all others; their inputs may be out of range. A map for
which scales that are computed for each token have a smaller error keeps those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import DataError
from ..nn.encoder_layers import FeedForward, Layer
from ..nn.layers import Linear
from ..nn.module_copies import copy_network
from ..nn.quantization import InputCodes, dequantize_rows, quantize_rows
from .frozen_layers import FUSED_ACTIVATIONS
from .frozen_network import invalidate

_SAMPLE = 1024  # maximum tokens per map whose inputs are kept
_ALPHAS = 0.5, 0.65, 0.8, 0.9  # how much of an input's range moves into the weights
_SHARES = 1.0, 0.8  # of each input's range, if each has its own step
_COMMON_SHARES = 1.0, 0.8, 0.65, 0.5, 0.4, 0.3, 0.2  # of the range of all inputs together
_LEAST = 1e-6  # lower bound of ranges and weights: an input that never changes needs a step too
_CODES, _ZERO = 255, 128  # number of steps between unsigned codes, and the offset of these


def calibrate(network: nn.Module, run: Callable[[nn.Module], object]) -> None:
    """Set fixed codes for the inputs of a network's 8-bit linear maps, in place.

    Only results with `precision="int8"` change.

    Args:
        network: in evaluation mode.
        run: runs the network that it is given, a copy of `network`, on texts in float32.

    Raises:
        DataError: `run` computed nothing.
    """
    statistics = {
        part: ActivationStatistics(part)
        for layer in network.modules()
        if isinstance(layer, Layer)
        for part in layer.modules()
        if isinstance(part, Linear)
    }
    run(_recording_copy(network, statistics))
    common = {
        part.output
        for part in network.modules()
        if isinstance(part, FeedForward) and not part.gated and part.activation in FUSED_ACTIVATIONS
    }
    inputs_by_map = {part: inputs for part, inputs in statistics.items() if inputs.tokens}
    if not inputs_by_map:
        raise DataError("there is no text to calibrate by")
    for part, inputs in inputs_by_map.items():
        part.input_codes = inputs.codes(is_common=part in common)
    invalidate(network)


@dataclass
class ActivationStatistics:
    """Recorded inputs of a map: the range of each, and a sample of tokens."""

    linear: Linear
    tokens: int = 0
    least: Tensor = field(init=False)
    greatest: Tensor = field(init=False)
    sample: list[Tensor] = field(default_factory=list)
    every: int = 1  # one of this many tokens is in the sample

    def add(self, x: Float[Tensor, "*batch inputs"]) -> None:
        rows = x.detach().float().reshape(-1, x.shape[-1])
        rows = rows[rows.any(1)]  # rows of zeros belong to no text (`cpu.align_rows`)
        if not len(rows):
            return
        known = torch.stack([self.least, self.greatest]) if self.tokens else rows[:0]
        self.least, self.greatest = torch.cat([known, rows]).aminmax(dim=0)
        first = -self.tokens % self.every
        self.sample += [row.clone() for row in rows[first :: self.every]]
        self.tokens += len(rows)
        while len(self.sample) > _SAMPLE:
            self.sample, self.every = self.sample[::2], 2 * self.every

    def codes(self, is_common: bool) -> InputCodes | None:
        """The codes with the least error; None if scales per token are better.

        Args:
            is_common: whether all inputs have the same step.
        """
        weight = self.linear.weight.detach().float()
        rows = torch.stack(self.sample)
        exact = F.linear(rows, weight)
        size = exact.square().sum(1).clamp(min=_LEAST)

        def error(outputs: Tensor) -> float:
            return float(((outputs - exact).square().sum(1) / size).mean())

        def of_codes(codes: InputCodes) -> float:
            coded = dequantize_rows(*quantize_rows(weight * codes.steps))
            return error(F.linear(codes.encode(rows).float() - _ZERO, coded, codes.shift))

        usual = rows.median(0).values
        candidates = self._common(weight, usual) if is_common else self._each(weight, usual)
        errors = {of_codes(codes): codes for codes in candidates}
        least = min(errors)
        of_tokens = error(
            F.linear(dequantize_rows(*quantize_rows(rows)), dequantize_rows(*quantize_rows(weight)))
        )
        return errors[least] if least <= of_tokens else None

    def _each(self, weight: Tensor, usual: Tensor) -> Iterator[InputCodes]:
        """Candidates with a step and an offset for each input."""
        middle = (self.least + self.greatest) / 2
        half = ((self.greatest - self.least) / 2).clamp(min=_LEAST)
        widest = weight.abs().amax(0).clamp(min=_LEAST)
        for alpha in _ALPHAS:
            steps = half**alpha / widest ** (1 - alpha)
            steps *= (half / steps).max() / (_ZERO - 1)
            for share in _SHARES:
                yield InputCodes.fit(weight, steps * share, middle, usual)

    def _common(self, weight: Tensor, usual: Tensor) -> Iterator[InputCodes]:
        """Candidates with one step for all inputs, and a code for zero."""
        least, greatest = self.least.min().clamp(max=0), self.greatest.max().clamp(min=0)
        for share in _COMMON_SHARES:  # the whole range below zero is kept, for GELU's outputs
            step = ((greatest * share - least) / _CODES).clamp(min=_LEAST)
            zero = (-least / step).round()
            yield InputCodes.fit(weight, step[None], ((_ZERO - zero) * step)[None], usual)


class _RecordingLinear(Linear):
    """A linear map that records its inputs."""

    statistics: ActivationStatistics

    def forward(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        self.statistics.add(x)
        return super().forward(x)


def _recording_copy(
    network: nn.Module, statistics: dict[Linear, ActivationStatistics]
) -> nn.Module:
    """Return a copy with the same tensors, whose maps record their inputs."""

    def kind_of(module: nn.Module) -> tuple[type[nn.Module], dict[str, Any]]:
        if isinstance(module, Linear) and module in statistics:
            return _RecordingLinear, {"statistics": statistics[module]}
        return type(module), {}

    return copy_network(network, kind_of)

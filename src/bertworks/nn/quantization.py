"""The 8-bit codes that represent weights and inputs.

A matrix has integers and a scale for each row. The inputs of a calibrated linear map have fixed
codes (`InputCodes`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int8, UInt8
from torch import Tensor

from ..native.quantization import LARGEST, SMALLEST

ZERO = 128
CHUNK_ROWS = 384  # intermediate results stay in the cache


def quantize_rows(
    weight: Float[Tensor, "outputs inputs"],
) -> tuple[Int8[Tensor, "outputs inputs"], Float[Tensor, " outputs"]]:
    """Return a matrix as `codes · scale`: integers up to ±127, and a float32 scale per row."""
    scales = compute_row_scales(weight)
    return (weight.float() / scales[:, None]).round_().to(torch.int8), scales


def compute_row_scales(weight: Float[Tensor, "outputs inputs"]) -> Float[Tensor, " outputs"]:
    """Return the scale of each row of a matrix."""
    return weight.float().abs().amax(1).clamp_(min=SMALLEST) / LARGEST


def dequantize_rows(
    codes: Int8[Tensor, "outputs inputs"], scales: Float[Tensor, " outputs"]
) -> Float[Tensor, "outputs inputs"]:
    """Return the matrix that codes and scales represent."""
    return codes.float() * scales[:, None]


@dataclass(frozen=True, eq=False)
class InputCodes:
    """Codes for the inputs of one linear map: `x_i ≈ offset_i + step_i · code_i`, from -128 to 127.

        W x  ≈  s_output · codes(W · steps) · codes(x) + shift

    The weights are multiplied by the steps, so an input with a wide range reduces the precision of
    its column of the weights, not that of the other inputs. The shift is the contribution of the
    offsets, chosen such that the result for the usual inputs is exact. Source: Xiao et al. (2023),
    "SmoothQuant", §4; the offsets and the shift are not from there.
    """

    steps: Float[Tensor, " inputs"]  # or [1]: one for all inputs, which kernels can emit
    offsets: Float[Tensor, " inputs"]  # of the same shape
    shift: Float[Tensor, " outputs"]
    scales: Float[Tensor, " outputs"]  # of the quantised weights for which they were computed

    @staticmethod
    def fit(
        weight: Float[Tensor, "outputs inputs"],
        steps: Tensor,
        offsets: Tensor,
        usual: Float[Tensor, " inputs"],
    ) -> InputCodes:
        """Return codes for a matrix's inputs; the result for the inputs `usual` is exact."""
        codes, scales = quantize_rows(weight * steps)
        shift = weight @ usual - dequantize_rows(codes, scales) @ ((usual - offsets) / steps)
        return InputCodes(steps, offsets, shift, scales)

    def encode(self, x: Float[Tensor, "rows inputs"]) -> UInt8[Tensor, "rows inputs"]:
        """Return the codes of inputs, clamped to the range and shifted by 128 to be unsigned."""
        start, inverse = self.start_and_slope
        codes = torch.empty(x.shape, dtype=torch.int8, device=x.device)
        for some, place in zip(
            torch.split(x, CHUNK_ROWS), torch.split(codes, CHUNK_ROWS), strict=True
        ):
            place.copy_(torch.addcmul(start, some.float(), inverse).round_().clamp_(-ZERO, 127))
        return codes.bitwise_xor_(-ZERO).view(torch.uint8)

    @cached_property
    def start_and_slope(self) -> tuple[Tensor, Tensor]:
        """The code before rounding as a linear function: its value at zero, and its slope."""
        inverse = self.steps.reciprocal()
        return -self.offsets * inverse, inverse

    @property
    def step_and_zero_point(self) -> tuple[float, int] | None:
        """The step and the unsigned code of zero; None if inputs have different steps."""
        if len(self.steps) != 1:
            return None
        step = float(self.steps)
        return step, ZERO - round(float(self.offsets) / step)

    def to(self, device: torch.device) -> InputCodes:
        parts = (self.steps, self.offsets, self.shift, self.scales)
        return InputCodes(*(part.to(device) for part in parts))

    def match(self, weight: Float[Tensor, "outputs inputs"]) -> bool:
        """Whether the codes were computed for this matrix, up to rounding: false after training."""
        if len(weight) != len(self.scales) or len(self.steps) not in (1, weight.shape[1]):
            return False
        return torch.allclose(
            compute_row_scales(weight * self.steps), self.scales, rtol=1e-5, atol=0
        )

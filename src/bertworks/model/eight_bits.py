"""Linear maps of 8-bit numbers, and the codes that stand for their weights in files.

Inputs are coded in one of two ways. Without calibration each row has a scale of its own, found when
it is computed (`QuantizedLinear`). After calibration each input has a fixed one (`InputCodes`,
`CalibratedLinear`): then nothing is measured at inference, and the kernels can add bias and
residual, apply the activation, and code their results for the next map.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int8, UInt8
from torch import Tensor, nn

from .cpu import in_whole_vectors
from .layers import Linear

_LARGEST = 127
_ZERO = 128
_SMALLEST = 1e-30  # a row of zeros has a scale too
_AT_ONCE = 384  # rows: what is computed between the products stays in the cache


def codes_of(
    weight: Float[Tensor, "outputs inputs"],
) -> tuple[Int8[Tensor, "outputs inputs"], Float[Tensor, " outputs"]]:
    """A matrix as `codes · scale`, row by row: integers up to ±127, and a float32 scale of each."""
    scales = scales_of(weight)
    return (weight.float() / scales[:, None]).round_().to(torch.int8), scales


def scales_of(weight: Float[Tensor, "outputs inputs"]) -> Float[Tensor, " outputs"]:
    """The scales of a matrix's codes."""
    return weight.float().abs().amax(1).clamp_(min=_SMALLEST) / _LARGEST


def weight_of(
    codes: Int8[Tensor, "outputs inputs"], scales: Float[Tensor, " outputs"]
) -> Float[Tensor, "outputs inputs"]:
    """The matrix that codes and scales stand for."""
    return codes.float() * scales[:, None]


@dataclass(frozen=True, eq=False)
class InputCodes:
    """Codes of the inputs of one linear map: `x_i ≈ offset_i + step_i · code_i`, -128 to 127.

        W x  ≈  s_output · codes(W · steps) · codes(x) + shift

    The steps are part of the map's weights, so an input of a wide range takes precision from its
    column of the weights, not from the other inputs. The shift is what the offsets come to, such
    that the result for the usual inputs is exact. Source: Xiao et al. (2023), "SmoothQuant", §4;
    the offsets and the shift are not theirs.
    """

    steps: Float[Tensor, " inputs"]  # or [1]: one for all inputs, as a kernel can give them
    offsets: Float[Tensor, " inputs"]  # of the same shape
    shift: Float[Tensor, " outputs"]
    scales: Float[Tensor, " outputs"]  # of the coded weights they were found with

    @staticmethod
    def found(
        weight: Float[Tensor, "outputs inputs"],
        steps: Tensor,
        offsets: Tensor,
        usual: Float[Tensor, " inputs"],
    ) -> InputCodes:
        """Codes for the inputs of a matrix, `usual` among them."""
        codes, scales = codes_of(weight * steps)
        shift = weight @ usual - weight_of(codes, scales) @ ((usual - offsets) / steps)
        return InputCodes(steps, offsets, shift, scales)

    def of(self, x: Float[Tensor, "rows inputs"]) -> UInt8[Tensor, "rows inputs"]:
        """Codes, shifted by 128 into unsigned numbers; what is out of range has the nearest."""
        start, inverse = self.line
        codes = torch.empty(x.shape, dtype=torch.int8, device=x.device)
        for some, place in zip(torch.split(x, _AT_ONCE), torch.split(codes, _AT_ONCE), strict=True):
            place.copy_(torch.addcmul(start, some.float(), inverse).round_().clamp_(-_ZERO, 127))
        return codes.bitwise_xor_(-_ZERO).view(torch.uint8)

    @cached_property
    def line(self) -> tuple[Tensor, Tensor]:
        """Code before rounding, as a line: its value at an input of zero, and its slope."""
        inverse = self.steps.reciprocal()
        return -self.offsets * inverse, inverse

    @property
    def emitted(self) -> tuple[float, int] | None:
        """Step, and the unsigned code of zero, where all inputs have the same and zero has one."""
        if len(self.steps) != 1:
            return None
        step = float(self.steps)
        return step, _ZERO - round(float(self.offsets) / step)

    def to(self, device: torch.device) -> InputCodes:
        parts = (self.steps, self.offsets, self.shift, self.scales)
        return InputCodes(*(part.to(device) for part in parts))

    def are_for(self, weight: Float[Tensor, "outputs inputs"]) -> bool:
        """Whether a matrix is the one they were found with, but for rounding: not if it learned."""
        if len(weight) != len(self.scales) or len(self.steps) not in (1, weight.shape[1]):
            return False
        return torch.allclose(scales_of(weight * self.steps), self.scales, rtol=1e-5, atol=0)


class QuantizedLinear(Linear):
    """`x Wᵀ + b` in 8-bit numbers, its result in the precision of `x`.

        x Wᵀ + b  ≈  s_row · (codes(x) · codes(W)ᵀ) · s_output + b     codes: integers up to ±127

    Inputs are shifted by 128 into unsigned numbers, which processors multiply by signed ones
    (VNNI). A row's scale is its largest absolute value over 127, so that it depends on no other
    row. Source: Dettmers et al. (2022), "LLM.int8()", §2, without the outliers.
    """

    codes: Tensor
    scales: Tensor
    zeros: Tensor
    shift: Tensor
    kernel: Any
    activation: Any

    @staticmethod
    def prepare(linear: nn.Module, dtype: torch.dtype | None = None) -> None:
        """Make a linear map one of 8-bit numbers, in place; its parameters stay as they are.

        Args:
            dtype: of the results of maps whose inputs are codes already; that of its weights, if
                left out.
        """
        assert isinstance(linear, Linear)
        inputs, weight = linear.input_codes, linear.weight.detach().float()
        if inputs is not None:
            inputs = linear.input_codes = inputs.to(weight.device)
        is_calibrated = inputs is not None and inputs.are_for(weight)
        linear.__class__ = CalibratedLinear if is_calibrated else QuantizedLinear
        assert isinstance(linear, QuantizedLinear)
        linear.shift = weight.new_zeros(len(weight))
        if linear.bias is not None:
            linear.shift = linear.bias.detach().float()
        if isinstance(linear, CalibratedLinear):
            assert inputs is not None
            linear.shift = linear.shift + inputs.shift
            weight = weight * inputs.steps
            linear.dtype = dtype or linear.weight.dtype
            linear.fused, linear.emitted = ("none", ""), None
        linear.codes, linear.scales = codes_of(weight)
        linear.zeros = torch.zeros(len(weight), dtype=torch.int32, device=weight.device)
        linear.kernel = linear.activation = None
        if weight.is_cpu and torch.cpu._is_vnni_supported():
            linear.kernel = torch.ops.onednn.qlinear_pointwise.default
            linear.codes = torch.ops.onednn.qlinear_prepack(linear.codes, None)
        elif weight.is_cpu:
            linear.codes = linear.codes.float()  # cast once; sums are exact up to 2**24

    def forward(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        rows = x.reshape(-1, self.in_features)
        result = x.new_empty(len(rows), self.out_features)
        parts = (torch.split(part, _AT_ONCE) for part in (rows, result))
        for some, place in zip(*parts, strict=True):
            if some.numel():
                place.copy_(self._of_rows(some))
        return result.view(*x.shape[:-1], self.out_features)

    def _of_rows(self, x: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows outputs"]:
        """The same in float32."""
        # What each step takes beside other ways to say it: docs/decisions.md.
        x = x.float()
        largest = torch.maximum(x.amax(-1, keepdim=True), x.amin(-1, keepdim=True).neg_())
        scale = largest.clamp_(min=_SMALLEST).div_(_LARGEST)
        rounded = (x * scale.reciprocal()).round_()
        if self.kernel is None:
            sums = F.linear(rounded, self.codes.float()).mul_(self.scales)
        else:
            signed = rounded.to(torch.int8)
            codes = signed.bitwise_xor_(-_ZERO).view(torch.uint8)  # the same as adding 128
            sums = self.kernel(
                *(codes, 1.0, _ZERO, self.codes, self.scales, self.zeros),
                *(None, 1.0, 0, torch.float32, "none", [], ""),
            )
        result = torch.addcmul(self.shift, sums, scale)
        if self.activation is None:
            return result
        return in_whole_vectors(self.activation, result)


class CalibratedLinear(QuantizedLinear):
    """`activation(x Wᵀ + b)`, its inputs in codes that are fixed (`InputCodes`).

    It takes numbers, or codes that the map before has made; and gives either.
    """

    dtype: torch.dtype
    fused: tuple[str, str]  # the activation that the kernel applies, by its name there
    emitted: tuple[float, int] | None  # step and zero of the codes that results are given in

    def forward(self, x: Tensor) -> Tensor:
        return self._sum(x, None)

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        return self._sum(x, residual)

    def _sum(self, x: Tensor, residual: Tensor | None) -> Tensor:
        inputs = self.input_codes
        assert inputs is not None
        is_coded = x.dtype is torch.uint8
        dtype = self.dtype if is_coded else x.dtype
        shape = (*x.shape[:-1], self.out_features)
        if not x.numel():
            return x.new_empty(shape, dtype=dtype)
        rows = x.reshape(-1, self.in_features)
        codes = rows if is_coded else inputs.of(rows)
        if self.kernel is None:
            sums = F.linear(codes.float() - _ZERO, self.codes.float())
            result = torch.addcmul(self.shift, sums, self.scales)
            if self.activation is not None:
                result = in_whole_vectors(self.activation, result)
            result = result.to(dtype).view(shape)
            return result if residual is None else result + residual
        given = (codes, 1.0, _ZERO, self.codes, self.scales, self.zeros)
        made: Tensor
        if residual is not None:
            others = (residual.reshape(len(rows), -1), self.shift, 1.0, 0, dtype, 1.0, 0)
            adding = torch.ops.onednn.qlinear_pointwise.binary  # not on every processor
            made = adding(*given, *others, "add", 1.0, "none", [], "")
        else:
            (name, algorithm), (step, zero) = self.fused, self.emitted or (1.0, 0)
            kind = dtype if self.emitted is None else torch.uint8
            made = self.kernel(*given, self.shift, step, zero, kind, name, [], algorithm)
        return made.view(shape)

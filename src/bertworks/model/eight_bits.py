"""Linear maps of 8-bit numbers, and the codes that stand for their weights in files."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int8
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
    scales = weight.float().abs().amax(1).clamp_(min=_SMALLEST) / _LARGEST
    return (weight.float() / scales[:, None]).round_().to(torch.int8), scales


def weight_of(
    codes: Int8[Tensor, "outputs inputs"], scales: Float[Tensor, " outputs"]
) -> Float[Tensor, "outputs inputs"]:
    """The matrix that codes and scales stand for."""
    return codes.float() * scales[:, None]


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
    def prepare(linear: nn.Module) -> None:
        """Make a linear map one of 8-bit numbers, in place; its parameters stay as they are."""
        linear.__class__ = QuantizedLinear
        assert isinstance(linear, QuantizedLinear)
        weight = linear.weight.detach()
        linear.codes, linear.scales = codes_of(weight)
        linear.shift = linear.scales.new_zeros(len(weight))
        if linear.bias is not None:
            linear.shift = linear.bias.detach().float()
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

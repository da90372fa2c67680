"""Linear maps of 8-bit numbers: a scale for each output of the weights and each row of inputs.

    x Wᵀ + b  ≈  s_row · (codes(x) · codes(W)ᵀ) · s_output + b       codes: integers up to ±127

Inputs are shifted by 128 into unsigned numbers, which processors multiply by signed ones (VNNI). A
row's scale is its largest absolute value over 127, so that it depends on no other row.
Source: Dettmers et al. (2022), "LLM.int8()", §2, without the outliers.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..model.layers import Linear

_LARGEST = 127
_ZERO = 128
_SMALLEST = 1e-30  # a row of zeros has a scale too


class QuantizedLinear(Linear):
    """`x Wᵀ + b` in 8-bit numbers, its result in the precision of `x`."""

    codes: Tensor
    scales: Tensor
    zeros: Tensor
    shift: Tensor
    rounding: Tensor
    kernel: Any

    @staticmethod
    def prepare(linear: nn.Module) -> None:
        """Make a linear map one of 8-bit numbers, in place; its parameters stay as they are."""
        linear.__class__ = QuantizedLinear
        assert isinstance(linear, QuantizedLinear)
        weight = linear.weight.detach().float()
        linear.scales = weight.abs().amax(1).clamp_(min=_SMALLEST) / _LARGEST
        linear.codes = (weight / linear.scales[:, None]).round_().to(torch.int8)
        linear.shift = weight.new_zeros(len(weight))
        if linear.bias is not None:
            linear.shift = linear.bias.detach().float()
        linear.zeros = torch.zeros(len(weight), dtype=torch.int32, device=weight.device)
        linear.rounding = weight.new_tensor(_ZERO + 0.5)
        linear.kernel = None
        if weight.is_cpu and torch.cpu._is_vnni_supported():
            linear.kernel = torch.ops.onednn.qlinear_pointwise.default
            linear.codes = torch.ops.onednn.qlinear_prepack(linear.codes, None)

    def forward(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        if not x.numel():
            return x.new_empty(*x.shape[:-1], self.out_features)
        # A fifth of the time that the norm of the same meaning takes.
        largest = torch.maximum(x.amax(-1, keepdim=True), x.amin(-1, keepdim=True).neg_())
        scale = largest.float().clamp_(min=_SMALLEST).div_(_LARGEST)
        # Rounded by cutting off the fraction of what is half too large: two passes, not four.
        codes = torch.addcmul(self.rounding, x, scale.reciprocal()).to(torch.uint8)
        if self.kernel is None:
            sums = F.linear(codes.float() - _ZERO, self.codes.float()) * self.scales
        else:
            sums = self.kernel(
                *(codes, 1.0, _ZERO, self.codes, self.scales, self.zeros),
                *(None, 1.0, 0, torch.float32, "none", [], ""),
            )
        return torch.addcmul(self.shift, sums, scale).to(x.dtype)

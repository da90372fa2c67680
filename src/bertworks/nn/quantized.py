"""Linear maps in 8-bit numbers, and the codes that represent their weights in files.

Inputs are quantised in one of two ways. Without calibration each row has a scale, computed at
inference (`QuantizedLinear`). After calibration each input has a fixed scale (`InputCodes`,
`CalibratedLinear`): no scale is computed at inference, and the kernels can add bias and residual,
apply the activation, and quantise their results for the next map.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ..native.quantization import LARGEST, SMALLEST
from .cpu import apply_in_whole_vectors
from .layers import Linear
from .module_copies import copy_module
from .quantization import CHUNK_ROWS, ZERO, quantize_rows


@cache
def has_exact_products() -> bool:
    """Whether oneDNN's products of 8-bit codes are exact on this processor.

    Without VNNI, or if `ONEDNN_MAX_CPU_ISA` hides it, they are not: sums of two products are cut
    off at 16 bits. The processor's flags do not say what that variable does, so one is computed.
    """
    if not torch.cpu._is_vnni_supported():
        return False
    weight = torch.full((64, 64), int(LARGEST), dtype=torch.int8)
    codes = torch.full((16, 64), 2 * ZERO - 1, dtype=torch.uint8)
    sums = torch.ops.onednn.qlinear_pointwise.default(
        *(codes, 1.0, ZERO, torch.ops.onednn.qlinear_prepack(weight, None)),
        *(torch.ones(64), torch.zeros(64, dtype=torch.int32)),
        *(None, 1.0, 0, torch.float32, "none", [], ""),
    )
    return bool((sums == 64 * LARGEST * LARGEST).all())


class QuantizedLinear(Linear):
    """`x Wᵀ + b` in 8-bit numbers, on the CPU; the result has the precision of `x`.

        x Wᵀ + b  ≈  s_row · (codes(x) · codes(W)ᵀ) · s_output + b     codes: integers up to ±127

    Inputs are shifted by 128 to be unsigned, because processors multiply unsigned by signed numbers
    (VNNI). A row's scale is its largest absolute value divided by 127: it depends on no other row.
    Source: Dettmers et al. (2022), "LLM.int8()", §2, without the outliers.
    """

    codes: Tensor
    scales: Tensor
    zeros: Tensor
    shift: Tensor
    kernel: Any
    activation: Any

    @staticmethod
    def from_linear(linear: Linear, dtype: torch.dtype | None = None) -> QuantizedLinear:
        """Return a map in 8-bit numbers, calibrated if `linear` is; it shares its parameters.

        Args:
            dtype: dtype of the result if the inputs are codes; by default that of the weights.
        """
        inputs, weight = linear.input_codes, linear.weight.detach().float()
        shift = weight.new_zeros(len(weight)) if linear.bias is None else linear.bias.detach()
        map_class, attributes = QuantizedLinear, dict[str, Any]()
        if inputs is not None:
            attributes["input_codes"] = inputs = inputs.to(weight.device)
        if inputs is not None and inputs.match(weight):
            map_class = CalibratedLinear
            shift = shift.float() + inputs.shift
            weight = weight * inputs.steps
            attributes |= {"fused": ("none", ""), "output_codes": None}
        codes, scales = quantize_rows(weight)
        kernel = None
        if has_exact_products():
            kernel = torch.ops.onednn.qlinear_pointwise.default
            codes = torch.ops.onednn.qlinear_prepack(codes, None)
        else:
            codes = codes.float()  # cast once; sums are exact up to 2**24
        return copy_module(
            linear,
            linear._modules,
            map_class,
            training=False,
            dtype=dtype or linear.weight.dtype,
            codes=codes,
            scales=scales,
            zeros=torch.zeros(len(weight), dtype=torch.int32, device=weight.device),
            shift=shift.float(),
            kernel=kernel,
            activation=None,
            **attributes,
        )

    def forward(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        rows = x.reshape(-1, self.in_features)
        result = x.new_empty(len(rows), self.out_features)
        parts = (torch.split(part, CHUNK_ROWS) for part in (rows, result))
        for some, place in zip(*parts, strict=True):
            if some.numel():
                place.copy_(self._of_rows(some))
        return result.view(*x.shape[:-1], self.out_features)

    def _of_rows(self, x: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows outputs"]:
        """Compute the result of some rows in float32."""
        # docs/decisions.md compares the time of each step with alternatives.
        x = x.float()
        largest = torch.maximum(x.amax(-1, keepdim=True), x.amin(-1, keepdim=True).neg_())
        scale = largest.clamp_(min=SMALLEST).div_(LARGEST)
        values = (x * scale.reciprocal()).round_()
        if self.kernel is None:
            sums = F.linear(values, self.codes).mul_(self.scales)
        else:
            signed = values.to(torch.int8)
            codes = signed.bitwise_xor_(-ZERO).view(torch.uint8)  # the same as adding 128
            sums = self.kernel(
                *(codes, 1.0, ZERO, self.codes, self.scales, self.zeros),
                *(None, 1.0, 0, torch.float32, "none", [], ""),
            )
        result = torch.addcmul(self.shift, sums, scale)
        if self.activation is None:
            return result
        return apply_in_whole_vectors(self.activation, result)


class CalibratedLinear(QuantizedLinear):
    """`activation(x Wᵀ + b)` with fixed codes for its inputs (`InputCodes`).

    Inputs are numbers, or codes from the previous map; results are numbers, or codes for the next.
    """

    dtype: torch.dtype
    fused: tuple[str, str]  # the activation that the kernel applies: its name and algorithm
    output_codes: tuple[float, int] | None  # step and zero point, if results are codes

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
        codes = rows if is_coded else inputs.encode(rows)
        if self.kernel is None:
            sums = F.linear(codes.float() - ZERO, self.codes)
            result = torch.addcmul(self.shift, sums, self.scales)
            if self.activation is not None:
                result = apply_in_whole_vectors(self.activation, result)
            result = result.to(dtype).view(shape)
            return result if residual is None else result + residual
        inputs_and_weight = (codes, 1.0, ZERO, self.codes, self.scales, self.zeros)
        outputs: Tensor
        if residual is not None:
            others = (residual.reshape(len(rows), -1), self.shift, 1.0, 0, dtype, 1.0, 0)
            add = torch.ops.onednn.qlinear_pointwise.binary  # not available on every processor
            outputs = add(*inputs_and_weight, *others, "add", 1.0, "none", [], "")
        else:
            (name, algorithm), (step, zero) = self.fused, self.output_codes or (1.0, 0)
            kind = dtype if self.output_codes is None else torch.uint8
            outputs = self.kernel(
                *inputs_and_weight, self.shift, step, zero, kind, name, [], algorithm
            )
        return outputs.view(shape)

"""Layers of a frozen form in native code, if the network and the processor allow it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from types import NoneType
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from ..native.layer import MAPS, NativeLayer, NativeLayers, Rotations
from ..native.library import has_kernels
from ..native.maps import FixedCodes
from ..nn.config import EncoderConfig
from ..nn.encoder import Encoder
from ..nn.encoder_layers import AttentionScope, FeedForward, Layer, SelfAttention
from ..nn.layers import ACTIVATIONS, LayerNorm, Linear, RMSNorm
from ..nn.module_copies import copy_module
from ..nn.rotary import Rotary, RotaryFrequencies, RotaryNeighbours, RotaryTable
from ..nn.score_bias import DistanceVectors, ScoreBias
from ..packed import Packed
from .native_encoder import layer_geometry, layer_windows, map_shapes, unsupported_part
from .native_rotary import RotaryAngles, rotary_angles


class FrozenNativeLayer(Layer):
    """A layer computed in one native call.

    Attributes:
        native: the layer with each window that it may have; layers may share their weights.
    """

    weights: NativeLayer
    native: Mapping[int | None, NativeLayers]
    angles: RotaryAngles | None

    def forward(
        self, hidden: Float[Tensor, "tokens hidden_size"], scope: AttentionScope
    ) -> Float[Tensor, "tokens hidden_size"]:
        packed = scope.packed
        assert isinstance(packed, Packed)
        native, bias = self.native[scope.window], numbers_of(scope.bias)
        return tensor_of_bits(
            native(bits_of(hidden), packed, bias, rotations_of(self.angles, packed))
        )

    @staticmethod
    def from_layer(
        layer: Layer, terms: NativeTerms, dtype: torch.dtype | None, int8: bool
    ) -> FrozenNativeLayer:
        """Return a layer with the parameters of `layer`, which native code computes.

        Args:
            terms: of its encoder.
            dtype, int8: as for `native_layers`.
        """
        parts, config = _Parts.from_layer(layer), terms.config
        assert parts is not None
        codes = {name: _codes(linear) for name, linear in zip(MAPS, parts.maps, strict=True)}
        weights = NativeLayer.from_arrays(
            {name: bits_of(tensor) for name, tensor in layer.state_dict().items()},
            layer_geometry(config),
            int8=int8,
            codes={name: one for name, one in codes.items() if one is not None},
            fp32=dtype is not torch.bfloat16,
        )
        return copy_module(
            layer,
            layer._modules,
            FrozenNativeLayer,
            training=False,
            weights=weights,
            native={window: NativeLayers([weights], [window]) for window in layer_windows(config)},
            angles=terms.angles,
        )


class NativeTerms(NamedTuple):
    """What layers in native code need to know of their encoder."""

    config: EncoderConfig
    angles: RotaryAngles | None


def native_layers(
    encoder: Encoder, dtype: torch.dtype | None, int8: bool
) -> dict[Layer, NativeTerms]:
    """The layers of an encoder that native code can compute.

    Args:
        dtype: the compute dtype of the encoder; None: the dtype of its weights.
        int8: whether products are of 8-bit integers.
    """
    config, weight = encoder.config, next(encoder.parameters())
    is_bfloat16 = dtype is torch.bfloat16
    fits = (
        (is_bfloat16 or (dtype is None and weight.dtype is torch.float32))
        and weight.is_cpu
        and has_kernels("int8" if int8 else "bf16" if is_bfloat16 else "fp32")
        and unsupported_part(config) is None
        and type(encoder.rotary) in _ROTARY
    )
    if not fits:
        return {}
    tensors = [] if encoder.rotary is None else [*encoder.rotary.buffers()]
    tensor = bits_of(tensors[0].float()) if tensors else None
    terms = NativeTerms(config, rotary_angles(config, tensor))
    return {
        layer: terms
        for layer in encoder.layers
        if isinstance(layer, Layer)
        and (parts := _Parts.from_layer(layer)) is not None
        and parts.have_shapes_of(config)
        and layer.feed_forward.activation is ACTIVATIONS[config.hidden_act]
    }


_ROTARY = {NoneType, Rotary, RotaryNeighbours, RotaryFrequencies, RotaryTable}


class _Parts(NamedTuple):
    """The submodules of a layer, in the order of computation."""

    maps: tuple[Linear, Linear, Linear, Linear]
    norms: Sequence[LayerNorm | RMSNorm]  # the first may be missing

    @staticmethod
    def from_layer(layer: Layer) -> _Parts | None:
        """Return None if a part is not of the package's classes, such as an adapter.

        Or if its weight or bias is not a parameter, but computed from others (`weight_norm`).
        """
        attention, feed_forward = layer.attention, layer.feed_forward
        if (
            type(layer) is not Layer
            or type(attention) is not SelfAttention
            or type(feed_forward) is not FeedForward
        ):
            return None
        inputs, output = attention.query_key_value, attention.output
        intermediate, last = feed_forward.intermediate, feed_forward.output
        norms: list[nn.Module] = [layer.attention_norm, layer.feed_forward_norm]
        if layer.norm_first and type(norms[0]) is nn.Identity:
            del norms[0]
        plain_norms = [norm for norm in norms if isinstance(norm, LayerNorm | RMSNorm)]
        if not (type(inputs) is Linear and type(output) is Linear):
            return None
        if not (type(intermediate) is Linear and type(last) is Linear):
            return None
        if not all(type(norm) in {LayerNorm, RMSNorm} for norm in norms):
            return None
        parts = _Parts((inputs, output, intermediate, last), plain_norms)
        tensors = chain.from_iterable((part.weight, part.bias) for part in chain(*parts))
        has_parameters = all(one is None or isinstance(one, nn.Parameter) for one in tensors)
        return parts if has_parameters else None

    def have_shapes_of(self, config: EncoderConfig) -> bool:
        """Whether the parts have the shapes of `config`."""
        shapes = [tuple(linear.weight.shape) for linear in self.maps]
        return shapes == map_shapes(config) and all(
            is_plain_norm(norm, config) for norm in self.norms
        )


def _codes(linear: Linear) -> FixedCodes | None:
    """The fixed codes of a map's inputs, if it is calibrated; `QuantizedLinear` has the same."""
    inputs = linear.input_codes
    if inputs is None:
        return None
    weight = linear.weight.detach().float()
    inputs = inputs.to(weight.device)
    if not inputs.match(weight):
        return None
    start, slope = (part.expand(linear.in_features) for part in inputs.start_and_slope)
    return FixedCodes(*map(bits_of, (inputs.steps, start, slope, inputs.shift)))


def numbers_of(
    bias: ScoreBias | DistanceVectors | None,
) -> Float[np.ndarray, "heads distances"] | None:
    """The numbers that a bias adds to the scores."""
    if bias is None:
        return None
    assert isinstance(bias, ScoreBias) and bias.has_numbers_only
    return None if bias.numbers is None else bits_of(bias.numbers)


def rotations_of(angles: RotaryAngles | None, packed: Packed) -> Rotations | None:
    return None if angles is None else angles(np.asarray(packed.position_ids))


def bits_of(tensor: Tensor) -> NDArray[Any]:
    """A tensor on the CPU as an array, without a copy; bfloat16 numbers as their bits."""
    tensor = tensor.detach()
    return (tensor.view(torch.uint16) if tensor.dtype is torch.bfloat16 else tensor).numpy()


def tensor_of_bits(array: NDArray[Any]) -> Tensor:
    """The tensor of an array of float32, or of the bits of bfloat16 numbers."""
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if tensor.dtype is torch.uint16 else tensor


def array_or_none(tensor: Tensor | None) -> NDArray[Any] | None:
    return None if tensor is None else bits_of(tensor)


def is_plain_norm(norm: nn.Module, config: EncoderConfig) -> bool:
    """Whether a norm is the one that `make_norm` makes."""
    return (
        type(norm) is (RMSNorm if config.norm == "rms" else LayerNorm)
        and norm.normalized_shape == (config.hidden_size,)
        and norm.eps == config.layer_norm_eps
    )

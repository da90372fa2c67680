"""Layers of a frozen form in native code, if the network and the processor allow it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from ..native.embeddings_and_pooling import NativeEmbeddings, mean_of_sequences
from ..native.layer import MAPS, FixedCodes, NativeLayer, NativeLayers
from ..native.library import has_kernels
from ..nn.config import EncoderConfig
from ..nn.embeddings import Embeddings
from ..nn.encoder import Encoder, Pooler
from ..nn.encoder_layers import AttentionScope, FeedForward, Layer, SelfAttention
from ..nn.head_layouts import pooler_layout
from ..nn.layers import ACTIVATIONS as ACTIVATION_OF
from ..nn.layers import LayerNorm, Linear, OutputLinear
from ..nn.module_copies import copy_module
from ..nn.pooling import pool
from ..nn.score_bias import BucketBias, DistanceVectors, LinearBias, ScoreBias
from ..nn.vector_modules import VectorModules
from ..packed import Packed, Sequences
from .native_bias import distance_numbers
from .native_encoder import NativeEncoder, NativeParts, unsupported_part
from .native_heads import POOLER, NativeTaskNetwork
from .native_modules import NativeModules, unsupported_module


class FrozenNativeLayer(Layer):
    """A layer computed in one native call."""

    weights: NativeLayer
    native: NativeLayers

    def forward(
        self, hidden: Float[Tensor, "tokens hidden_size"], scope: AttentionScope
    ) -> Float[Tensor, "tokens hidden_size"]:
        assert isinstance(scope.packed, Packed)
        return _to_tensor(self.native(_to_array(hidden), scope.packed, _numbers(scope.bias)))

    @staticmethod
    def from_layer(
        layer: Layer, config: EncoderConfig, dtype: torch.dtype | None, int8: bool
    ) -> FrozenNativeLayer:
        """Return a layer with the parameters of `layer`, which native code computes.

        Args:
            dtype, int8: as for `native_layers`.
        """
        parts = _Parts.from_layer(layer)
        assert parts is not None
        first, second = parts.norms
        codes = {name: _codes(linear) for name, linear in zip(MAPS, parts.maps, strict=True)}
        weights = NativeLayer.from_arrays(
            {name: _to_array(tensor) for name, tensor in layer.state_dict().items()},
            int8=int8,
            epsilons=(first.eps, second.eps),
            heads=config.num_attention_heads,
            activation=config.hidden_act,
            codes={name: one for name, one in codes.items() if one is not None},
            fp32=dtype is not torch.bfloat16,
        )
        return copy_module(
            layer,
            layer._modules,
            FrozenNativeLayer,
            training=False,
            weights=weights,
            native=NativeLayers([weights]),
        )


class FrozenNativeEmbeddings(Embeddings):
    """Embeddings computed in one native call."""

    native: NativeEmbeddings
    hooks: list[Mapping[int, Any]]  # of each part; if there are any, parts are called singly

    def forward(self, packed: Sequences) -> Float[Tensor, "tokens hidden_size"]:
        if isinstance(packed, Packed) and not any(self.hooks):
            hidden = self.native(packed)
            if hidden is not None:
                return _to_tensor(hidden)
        return super().forward(packed)  # which raises an error for an id outside a table

    @staticmethod
    def from_embeddings(parts: Embeddings, *, fp32: bool) -> Embeddings:
        """Return embeddings that native code computes, if it has code for their kind.

        Args:
            fp32: whether the result is float32; otherwise it is rounded to bfloat16.
        """
        norm = parts.norm
        tables = (parts.word_embeddings, parts.position_embeddings, parts.token_type_embeddings)
        if (
            type(parts) is not Embeddings
            or type(norm) is not LayerNorm
            or parts.sinusoidal
            or parts.projection is not None
            or parts.task_type_embeddings is not None
            or not all(table is None or _is_plain(table) for table in tables)
        ):
            return parts
        weights = [None if table is None else table.weight.detach() for table in tables]
        norm_weights = (norm.weight.detach(), _bias(norm))
        tensors = [one for one in (*weights, *norm_weights) if one is not None]
        if not all(one.dtype is torch.float32 and one.is_contiguous() for one in tensors):
            return parts
        words, positions, types = weights
        assert words is not None
        return copy_module(
            parts,
            parts._modules,
            FrozenNativeEmbeddings,
            native=NativeEmbeddings(
                _to_array(words),
                None if positions is None else _to_array(positions),
                None if types is None else _to_array(types),
                (_to_array(norm_weights[0]), _to_array(norm_weights[1]), norm.eps),
                parts.position_offset,
                fp32=fp32,
            ),
            hooks=[hooks for part in parts.children() for hooks in _hooks(part)],
        )


class FrozenNativeEncoder(Encoder):
    """An encoder that computes all layers in one call, if only the last output is needed."""

    native_layers: NativeLayers
    native_encoder: NativeEncoder | None  # with the embeddings, if nothing is computed by PyTorch
    hooks: list[Mapping[int, Any]]  # of each layer; if there are any, layers are called singly

    def forward(self, packed: Sequences) -> Float[Tensor, "tokens hidden_size"]:
        if not isinstance(packed, Packed) or any(self.hooks):
            return super().forward(packed)
        hidden = next(self.hidden_states(packed))
        bias = self._make_score_bias(packed, hidden)
        return _to_tensor(self.native_layers(_to_array(hidden), packed, _numbers(bias)))

    @property
    def native(self) -> NativeEncoder | None:
        """The encoder that computes the same without PyTorch; None if there is none now."""
        embeddings = self.embeddings
        if self.native_encoder is None or any(self.hooks):
            return None
        assert isinstance(embeddings, FrozenNativeEmbeddings)
        return None if any(embeddings.hooks) else self.native_encoder

    def means(
        self, packed: Packed, *, unit_length: bool
    ) -> Float[np.ndarray, "sequences hidden_size"]:
        """The mean of each sequence's last states; optionally scaled to length 1."""
        if self.native is not None:
            return self.native.means(packed, unit_length=unit_length)
        hidden = self(packed.to("cpu"))
        if hidden.dtype in (torch.bfloat16, torch.float32) and hidden.is_contiguous():
            return mean_of_sequences(_to_array(hidden), packed, unit_length=unit_length)
        vectors = pool(hidden.float(), packed.to("cpu"), "mean")  # a hook has changed the states
        return (nn.functional.normalize(vectors, dim=-1) if unit_length else vectors).numpy()

    @staticmethod
    def from_encoder(
        encoder: Encoder,
        submodules: Mapping[str, nn.Module | None],
        dtype: torch.dtype | None,
    ) -> FrozenNativeEncoder | None:
        """Return an encoder that computes all layers in one call.

        Args:
            submodules: those of `encoder`, frozen.
            dtype: the compute dtype.

        Returns:
            None if native code does not compute each layer.
        """
        layers, embeddings = submodules["layers"], submodules["embeddings"]
        assert isinstance(layers, nn.ModuleList) and isinstance(embeddings, Embeddings)
        weights = [layer.weights for layer in layers if isinstance(layer, FrozenNativeLayer)]
        is_native = len(weights) == len(layers) and encoder.convolution is None
        if type(encoder) is not Encoder or not weights or not is_native:
            return None
        frozen_embeddings = FrozenNativeEmbeddings.from_embeddings(
            embeddings, fp32=dtype is not torch.bfloat16
        )
        native_layers = NativeLayers([weights[group] for group in encoder.config.layer_groups])
        native = None
        if isinstance(frozen_embeddings, FrozenNativeEmbeddings) and _has_plain_bias(encoder):
            bias = encoder.score_bias
            table = _to_array(bias.table.weight) if isinstance(bias, BucketBias) else None
            numbers = distance_numbers(encoder.config, table)
            native = NativeEncoder(frozen_embeddings.native, native_layers, numbers)
        return copy_module(
            encoder,
            {**submodules, "embeddings": frozen_embeddings},
            FrozenNativeEncoder,
            training=False,
            compute_dtype=dtype,
            native_layers=native_layers,
            native_encoder=native,
            hooks=[hooks for layer in layers for hooks in _hooks(layer)],
        )


def native_parts(
    encoder: Encoder, pooler: nn.Module | None, modules: VectorModules | None
) -> NativeParts | None:
    """What computes the vectors of texts without PyTorch; None if PyTorch must compute a part.

    Args:
        encoder: in its frozen form.
        pooler: the encoder's, if vectors are the pooler's.
        modules: those that follow pooling; None: there are none.
    """
    native = encoder.native if isinstance(encoder, FrozenNativeEncoder) else None
    heads = [one for head in (pooler, modules) if head is not None for one in head.modules()]
    if (
        native is None
        or any(map(any, map(_hooks, heads)))
        or not all(map(_is_plain_part, heads))
        or not (pooler is None or type(pooler) in {Pooler, nn.Identity})
        or (modules is not None and any(map(unsupported_module, modules.settings)))
    ):
        return None
    native_modules = pool = None
    if modules is not None:
        native_modules = NativeModules(modules.settings, [*map(_arrays, modules.steps)])
    if pooler is not None:
        layout = pooler_layout(encoder.config)
        pool = NativeTaskNetwork(native, {POOLER: layout}, _arrays(pooler, f"{POOLER}.")).pool
    return NativeParts(native, native_modules, pool)


def _is_plain_part(module: nn.Module) -> bool:
    """Whether a module has no parameters, or is a linear map of the package in float32."""
    tensors = [*module.parameters(recurse=False)]
    is_linear = type(module) in {Linear, OutputLinear}
    return not tensors or (
        is_linear and all(one.dtype is torch.float32 and one.is_cpu for one in tensors)
    )


def _arrays(module: nn.Module, prefix: str = "") -> dict[str, NDArray[np.float32]]:
    tensors = module.state_dict().items()
    return {prefix + name: _to_array(tensor.contiguous()) for name, tensor in tensors}


def _has_plain_bias(encoder: Encoder) -> bool:
    """Whether an encoder has no score bias, or one that is computed from its parameters alone."""
    bias = encoder.score_bias
    if type(bias) is BucketBias:
        table = bias.table
        has_hooks = any(map(any, map(_hooks, (bias, table))))
        return _is_plain(table) and table.weight.dtype is torch.float32 and not has_hooks
    return bias is None or (type(bias) is LinearBias and not any(_hooks(bias)))


def _numbers(
    bias: ScoreBias | DistanceVectors | None,
) -> Float[np.ndarray, "heads distances"] | None:
    """The numbers that a bias adds to the scores."""
    if bias is None:
        return None
    assert isinstance(bias, ScoreBias) and bias.has_numbers_only
    return None if bias.numbers is None else _to_array(bias.numbers)


def _hooks(module: nn.Module) -> tuple[Mapping[int, Any], Mapping[int, Any]]:
    return module._forward_hooks, module._forward_pre_hooks


def _is_plain(table: nn.Module) -> bool:
    return type(table) is nn.Embedding and table.max_norm is None


def native_layers(encoder: Encoder, dtype: torch.dtype | None, int8: bool) -> list[Layer]:
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
    )
    layers: Iterable[nn.Module] = encoder.layers if fits else []
    return [
        layer
        for layer in layers
        if isinstance(layer, Layer)
        and (parts := _Parts.from_layer(layer)) is not None
        and parts.have_shapes_of(config)
        and layer.feed_forward.activation is ACTIVATION_OF[config.hidden_act]
    ]


class _Parts(NamedTuple):
    """The submodules of a layer, in the order of computation."""

    maps: tuple[Linear, Linear, Linear, Linear]
    norms: tuple[LayerNorm, LayerNorm]

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
        norms: tuple[nn.Module, nn.Module] = (layer.attention_norm, layer.feed_forward_norm)
        first, second = norms
        if not (type(inputs) is Linear and type(output) is Linear):
            return None
        if not (type(intermediate) is Linear and type(last) is Linear):
            return None
        if not (type(first) is LayerNorm and type(second) is LayerNorm):
            return None
        parts = _Parts((inputs, output, intermediate, last), (first, second))
        tensors = chain.from_iterable((part.weight, part.bias) for part in chain(*parts))
        has_parameters = all(one is None or isinstance(one, nn.Parameter) for one in tensors)
        return parts if has_parameters else None

    def have_shapes_of(self, config: EncoderConfig) -> bool:
        """Whether the parts have the shapes of `config`."""
        width, inner = config.hidden_size, config.intermediate_size
        shapes = [(3 * width, width), (width, width), (inner, width), (width, inner)]
        return [tuple(linear.weight.shape) for linear in self.maps] == shapes and all(
            norm.normalized_shape == (width,) for norm in self.norms
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
    return FixedCodes(*map(_to_array, (inputs.steps, start, slope, inputs.shift)))


def _to_array(tensor: Tensor) -> NDArray[Any]:
    """A tensor on the CPU as an array, without a copy; bfloat16 numbers as their bits."""
    tensor = tensor.detach()
    return (tensor.view(torch.uint16) if tensor.dtype is torch.bfloat16 else tensor).numpy()


def _to_tensor(array: NDArray[Any]) -> Tensor:
    """The tensor of an array of float32, or of the bits of bfloat16 numbers."""
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if tensor.dtype is torch.uint16 else tensor


def _bias(part: Linear | LayerNorm) -> Tensor:
    return part.weight.new_zeros(len(part.weight)) if part.bias is None else part.bias.detach()

"""The encoder of a frozen form in native code, if the network and the processor allow it."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from ..checkpoints.heads import POOLER
from ..native.embeddings_and_pooling import NativeEmbeddings, mean_of_sequences
from ..native.layer import NativeLayers
from ..nn.embeddings import Embeddings
from ..nn.encoder import Encoder, Pooler
from ..nn.head_layouts import pooler_layout
from ..nn.layers import LayerNorm, Linear, OutputLinear, RMSNorm
from ..nn.module_copies import copy_module
from ..nn.pooling import pool
from ..nn.score_bias import BucketBias, LinearBias
from ..nn.vector_modules import VectorModules
from ..packed import Packed, Sequences
from .frozen_layers import FrozenLinear
from .frozen_native_layers import (
    FrozenNativeLayer,
    array_or_none,
    bits_of,
    is_plain_norm,
    numbers_of,
    rotations_of,
    tensor_of_bits,
)
from .native_bias import distance_numbers
from .native_encoder import (
    NativeEncoder,
    NativeParts,
    layer_windows,
)
from .native_heads import NativeTaskNetwork
from .native_modules import NativeModules, unsupported_module
from .native_rotary import RotaryAngles


class FrozenNativeEmbeddings(Embeddings):
    """Embeddings computed in one native call."""

    native: NativeEmbeddings
    hooks: list[Mapping[int, Any]]  # of each part; if there are any, parts are called singly

    def forward(self, packed: Sequences) -> Float[Tensor, "tokens hidden_size"]:
        if isinstance(packed, Packed) and not any(self.hooks):
            hidden = self.native(packed)
            if hidden is not None:
                return tensor_of_bits(hidden)
        return super().forward(packed)  # which raises an error for an id outside a table

    @staticmethod
    def from_embeddings(parts: Embeddings, *, fp32: bool) -> Embeddings:
        """Return embeddings that native code computes, if it has code for their kind.

        Args:
            fp32: whether the result is float32; otherwise it is rounded to bfloat16.
        """
        norm = parts.norm
        tables = (
            *(parts.word_embeddings, parts.position_embeddings),
            *(parts.token_type_embeddings, parts.task_type_embeddings),
        )
        projection = parts.projection
        if (
            type(parts) is not Embeddings
            or type(norm) not in {LayerNorm, RMSNorm, NoneType}
            or parts.sinusoidal
            or type(parts.projection) not in {Linear, FrozenLinear, NoneType}
            or not all(table is None or _is_plain(table) for table in tables)
        ):
            return parts
        assert norm is None or isinstance(norm, LayerNorm | RMSNorm)
        tensors = [
            *(None if table is None else table.weight for table in tables),
            *((None, None) if norm is None else (norm.weight, norm.bias)),
            *((None, None) if projection is None else (projection.weight, projection.bias)),
        ]
        if not all(
            one is None or (one.dtype is torch.float32 and one.is_contiguous()) for one in tensors
        ):
            return parts
        arrays = [*map(array_or_none, tensors)]
        words, positions, types, tasks, scale, shift, weight, bias = arrays
        assert words is not None
        return copy_module(
            parts,
            parts._modules,
            FrozenNativeEmbeddings,
            native=NativeEmbeddings(
                words,
                positions,
                NativeEmbeddings.with_tasks(types, tasks),
                (scale, shift),
                parts.position_offset,
                epsilon=1.0 if norm is None else norm.eps or 0.0,
                is_rms=isinstance(norm, RMSNorm),
                projection=None if weight is None or bias is None else (weight, bias),
                fp32=fp32,
            ),
            hooks=[hooks for part in parts.children() for hooks in _hooks(part)],
        )


class FrozenNativeEncoder(Encoder):
    """An encoder that computes all layers in one call, if only the last output is needed."""

    native_layers: NativeLayers
    native_encoder: NativeEncoder | None  # with the embeddings, if nothing is computed by PyTorch
    angles: RotaryAngles | None
    # of what native code computes; if there are any, layers are called singly
    hooks: list[Mapping[int, Any]]

    def forward(self, packed: Sequences) -> Float[Tensor, "tokens hidden_size"]:
        if not isinstance(packed, Packed) or any(self.hooks):
            return super().forward(packed)
        hidden = next(self.hidden_states(packed))
        bias = numbers_of(self._make_score_bias(packed, hidden))
        rotations = rotations_of(self.angles, packed)
        return tensor_of_bits(self.native_layers(bits_of(hidden), packed, bias, rotations))

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
            return mean_of_sequences(bits_of(hidden), packed, unit_length=unit_length)
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
        frozen_layers = [layer for layer in layers if isinstance(layer, FrozenNativeLayer)]
        final_norm = encoder.final_norm
        is_native = (
            len(frozen_layers) == len(layers) > 0
            and encoder.convolution is None
            and (final_norm is None or is_plain_norm(final_norm, encoder.config))
        )
        if type(encoder) is not Encoder or not is_native:
            return None
        frozen_embeddings = FrozenNativeEmbeddings.from_embeddings(
            embeddings, fp32=dtype is not torch.bfloat16
        )
        native_layers = NativeLayers(
            [frozen_layers[group].weights for group in encoder.config.layer_groups],
            layer_windows(encoder.config),
            None
            if final_norm is None
            else (bits_of(final_norm.weight), array_or_none(final_norm.bias)),
        )
        angles = frozen_layers[0].angles
        others = map(submodules.get, ("final_norm", "rotary"))
        native_modules = [*layers, *(part for part in others if part is not None)]
        native = None
        if isinstance(frozen_embeddings, FrozenNativeEmbeddings) and _has_plain_bias(encoder):
            bias = encoder.score_bias
            table = bits_of(bias.table.weight) if isinstance(bias, BucketBias) else None
            numbers = distance_numbers(encoder.config, table)
            native = NativeEncoder(frozen_embeddings.native, native_layers, numbers, angles)
        return copy_module(
            encoder,
            {**submodules, "embeddings": frozen_embeddings},
            FrozenNativeEncoder,
            training=False,
            compute_dtype=dtype,
            native_layers=native_layers,
            native_encoder=native,
            angles=angles,
            hooks=[hooks for part in native_modules for hooks in _hooks(part)],
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
        or any(map(has_hooks, heads))
        or not all(map(_is_plain_part, heads))
        or not (pooler is None or type(pooler) in {Pooler, nn.Identity})
        or (modules is not None and any(map(unsupported_module, modules.settings)))
    ):
        return None
    native_modules = pool = None
    if modules is not None:
        native_modules = NativeModules(modules.settings, [*map(_arrays, modules.steps)])
    if pooler is not None:
        name, layout = POOLER.name, pooler_layout(encoder.config)
        pool = NativeTaskNetwork(native, {name: layout}, _arrays(pooler, f"{name}.")).pool
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
    return {prefix + name: bits_of(tensor.contiguous()) for name, tensor in tensors}


def _has_plain_bias(encoder: Encoder) -> bool:
    """Whether an encoder has no score bias, or one that is computed from its parameters alone."""
    bias = encoder.score_bias
    if type(bias) is BucketBias:
        table = bias.table
        is_plain = _is_plain(table) and table.weight.dtype is torch.float32
        return is_plain and not any(map(has_hooks, (bias, table)))
    return bias is None or (type(bias) is LinearBias and not has_hooks(bias))


def _hooks(module: nn.Module) -> tuple[Mapping[int, Any], Mapping[int, Any]]:
    return module._forward_hooks, module._forward_pre_hooks


def has_hooks(module: nn.Module) -> bool:
    """Whether functions are called before or after a module, which may change its results."""
    return any(_hooks(module))


def _is_plain(table: nn.Module) -> bool:
    return type(table) is nn.Embedding and table.max_norm is None

"""Weights of an encoder and its heads in safetensors files, for native code without PyTorch."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checkpoints.heads import MLM, POOLER
from ..checkpoints.weight_files import ENCODER_FIX, FLOATS
from ..errors import CheckpointError, needs_pytorch_error
from ..native.embeddings_and_pooling import NativeEmbeddings
from ..native.layer import MAPS, NORMS, NativeLayer, NativeLayers
from ..native.library import Blocks, Precision, has_kernels, is_fast_at_bfloat16, library
from ..native.quantization import to_floats
from ..nn.config import EncoderConfig
from ..nn.head_layouts import HeadLayout
from ..settings.literals import InferencePrecision
from .native_bias import TABLE, distance_numbers
from .native_encoder import (
    NativeEncoder,
    layer_geometry,
    layer_windows,
    map_shapes,
    unsupported_part,
)
from .native_heads import NativeTaskNetwork, head_tensors, unsupported_head
from .native_rotary import rotary_angles, rotary_tensor
from .native_weights import DECODER, WORDS, NativeWeights

_EMBEDDINGS = "encoder.embeddings"
_PROJECTION = f"{_EMBEDDINGS}.projection"


class NativeNetwork:
    """An encoder in native code, for each precision that is used, and heads; safe for threads.

    Args:
        weights: its tensors.
        layouts: of the heads that are used, by their names; see `Task.head_layouts`.
        other_heads: the names of heads that the files hold under their own names.

    Raises:
        NeedsPyTorchError: native code is not installed, or cannot compute the encoder.
        CheckpointError: a tensor is missing, unknown or not finite.
    """

    def __init__(
        self,
        weights: NativeWeights,
        layouts: Mapping[str, HeadLayout],
        other_heads: Collection[str] = (),
    ) -> None:
        self._weights, self._layouts, self._other_heads = weights, layouts, other_heads
        self.config, self._where = weights.config, weights.where
        self._heads: dict[str, NDArray[np.float32]] = {}
        self._encoders: dict[Precision, NativeEncoder] = {}
        self._lock, self._is_used = Lock(), False
        if library() is None:  # as in the wheel for macOS and Windows
            what = "a model where no native code is installed"
            raise needs_pytorch_error(what, where=self._where)
        part = unsupported_network(self.config) or unsupported_head(layouts)
        if part is not None:
            raise needs_pytorch_error(f"a model with {part}", where=self._where)
        self._check_names()
        precision = auto_precision()
        with weights.unchanged_files():
            self._words = self._floats(WORDS)
        # Errors in the files are shown now.
        self._encoders[precision] = self._make_encoder(precision)
        self._read_heads()

    def encoder(self, precision: InferencePrecision) -> NativeEncoder:
        """The encoder in a precision; its weights are read and packed at the first call.

        Raises:
            CheckpointError: the processor has no native code for the precision; or the files are
                damaged, or have changed.
        """
        native_precision = self.resolve_precision(precision)
        with self._lock:
            if native_precision not in self._encoders:
                if self._is_used:
                    self._encoders[native_precision] = self._make_encoder(native_precision)
                else:  # nobody needs the one that was made when loading
                    self._encoders = {native_precision: self._make_encoder(native_precision)}
            self._is_used = True
            return self._encoders[native_precision]

    @property
    def num_parameters(self) -> int:
        """The number of numbers in the files."""
        return sum(math.prod(one.shape) for one in self._weights.arrays.values())

    @property
    def num_bytes(self) -> int:
        """The bytes of the heads, and of the encoder's weights in each precision that is used."""
        encoders = [*self._encoders.values()]
        heads = sum(array.nbytes for array in self._heads.values())
        others = sum(encoder.num_bytes - self._words.nbytes for encoder in encoders)
        return self._words.nbytes + others + heads

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker reads the files again.
        weights = self._weights
        arguments = weights.directory, self.config, self._layouts, tuple(self._other_heads)
        return _reopen, (*arguments, weights.states)

    def named_arrays(self, *, with_pooler: bool) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yield the weights in float32, with the names of a network's encoder, in their order."""
        prefix = f"{POOLER.name}."
        pooler = [name for name in self._heads if with_pooler and name.startswith(prefix)]
        for name, array in self._read_all([name for name, _ in _shapes(self.config)] + pooler):
            yield name.removeprefix("encoder."), array

    def all_named_arrays(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yield the weights of encoder and heads in float32, with a network's names, in order."""
        return self._read_all([*(name for name, _ in _shapes(self.config)), *self._heads])

    def _read_all(self, names: Iterable[str]) -> Iterator[tuple[str, NDArray[np.float32]]]:
        arrays, weights = self._float_arrays, self._weights
        with weights.unchanged_files():
            for name in sorted(names):
                yield name, arrays[name] if name in arrays else to_floats(weights.read(name))

    @property
    def _float_arrays(self) -> dict[str, NDArray[np.float32]]:
        """The arrays that are in memory in float32: of heads, and the table of words."""
        return {**self._heads, WORDS: self._words}

    def resolve_precision(self, precision: InferencePrecision) -> Precision:
        """Return a precision; "auto" is what it means on this processor.

        Raises:
            NeedsPyTorchError: the processor has no native code for it.
        """
        if precision == "fp16" or precision == "tf32":  # noqa: PLR1714 - narrows the type
            raise needs_pytorch_error(f"precision={precision}, on CUDA,", where=self._where)
        if precision == "auto":
            return auto_precision()
        if not has_kernels(precision):
            what = f"precision={precision} on this processor"
            raise needs_pytorch_error(what, where=self._where)
        return precision

    @property
    def has_pooler(self) -> bool:
        """Whether the encoder's pooler is one of the heads."""
        return POOLER.name in self._layouts

    def with_heads(self, precision: InferencePrecision) -> NativeTaskNetwork:
        """The encoder in a precision, with the heads; see `encoder`."""
        return NativeTaskNetwork(self.encoder(precision), self._layouts, self._float_arrays)

    def _read_heads(self) -> None:
        """Read the tensors of heads; there are not many, but for a decoder that is not tied."""
        weights = self._weights
        with weights.unchanged_files():
            for name in head_tensors(self._layouts):
                self._heads[name] = self._floats(name)
            (words,), (decoder,) = weights.keys.theirs(WORDS), weights.keys.theirs(DECODER)
            is_tied = DECODER not in self._heads and MLM.name in self._layouts
            if is_tied and decoder in weights.arrays:
                one, other = (to_floats(weights.arrays[name].read()) for name in (words, decoder))
                if not np.array_equal(one, other):
                    raise CheckpointError(
                        f"the tensor {decoder!r} is not {words!r}, to which config.json ties it",
                        where=self._where,
                        fix="Set tie_word_embeddings to false in config.json.",
                    )

    def _make_encoder(self, precision: Precision) -> NativeEncoder:
        config, int8 = self.config, precision == "int8"
        # With 8-bit products, all other numbers are as in `nn.device.dtype_of`.
        fp32 = precision == "fp32" or (int8 and not is_fast_at_bfloat16())
        with self._weights.unchanged_files():
            kinds = ("position", "token_type", "task_type")
            tables = [self._table(f"{_EMBEDDINGS}.{kind}_embeddings.weight") for kind in kinds]
            positions, types, tasks = tables
            weight, bias = self._weight_and_bias(_PROJECTION)
            embeddings = NativeEmbeddings(
                self._words,
                positions,
                NativeEmbeddings.with_tasks(types, tasks),
                self._weight_and_bias(f"{_EMBEDDINGS}.norm"),
                config.position_offset,
                epsilon=config.layer_norm_eps,
                is_rms=config.norm == "rms",
                projection=None if weight is None or bias is None else (weight, bias),
                fp32=fp32,
            )
            layers = [
                self._make_layer(number, int8=int8, fp32=fp32)
                for number in range(config.num_weighted_layers)
            ]
            table, rotary = self._table(TABLE), rotary_tensor(config)
            angles = rotary_angles(config, None if rotary is None else self._table(rotary[0]))
            scale, shift = self._weight_and_bias("encoder.final_norm")
        stack = NativeLayers(
            [layers[group] for group in config.layer_groups],
            layer_windows(config),
            None if scale is None else (scale, shift),
        )
        return NativeEncoder(embeddings, stack, distance_numbers(config, table), angles)

    def _make_layer(self, number: int, *, int8: bool, fp32: bool) -> NativeLayer:
        config, prefix = self.config, f"encoder.layers.{number}"
        names = [f"{part}.{kind}" for part in (*MAPS, *NORMS) for kind in ("weight", "bias")]
        weights, maps = self._weights, MAPS if int8 else ()
        memory = Blocks()  # for what is packed, and then freed
        codes = {name: weights.codes(f"{prefix}.{name}.weight") for name in maps}
        return NativeLayer.from_arrays(
            {
                name: weights.read(f"{prefix}.{name}", memory.empty)
                for name in names
                if weights.has(f"{prefix}.{name}")
            },
            layer_geometry(config),
            int8=int8,
            codes={name: one for name, one in codes.items() if one is not None},
            fp32=fp32,
        )

    def _table(self, name: str) -> NDArray[np.float32] | None:
        return self._floats(name) if self._weights.has(name) else None

    def _floats(self, name: str) -> NDArray[np.float32]:
        return np.ascontiguousarray(to_floats(self._weights.read(name)))

    def _weight_and_bias(
        self, name: str
    ) -> tuple[NDArray[np.float32] | None, NDArray[np.float32] | None]:
        return self._table(f"{name}.weight"), self._table(f"{name}.bias")

    def _check_names(self) -> None:
        """Check the shapes of the encoder's tensors, and that no other is unknown."""
        weights, heads = self._weights, head_tensors(self._layouts)
        used_names: set[str] = set()
        missing = [name for name, shape in heads.items() if not weights.has_shape(name, shape)]
        if missing:
            what = f"the weights {', '.join(missing)} are missing, or of another shape"
            raise CheckpointError(what, where=self._where)
        for name, shape in (*_shapes(self.config), *heads.items()):
            for part, expected in weights.keys.parts(name, shape).items():
                array = weights.arrays.get(part)
                if array is None:
                    raise CheckpointError(f"the tensor {part!r} is missing", where=self._where)
                if array.shape != expected:
                    what = f"the tensor {part!r} has shape {array.shape}, not {expected}"
                    raise CheckpointError(what, where=self._where)
                if array.dtype not in FLOATS:
                    what = f"the tensor {part!r} is of type {array.dtype}"
                    raise CheckpointError(what, where=self._where)
                used_names.add(part)
        family = weights.family
        rules = [rule for rule in family.keys.rules if not _is_of_layers(rule.ours)]
        for name in weights.arrays.keys() - used_names:
            is_head = any(rule.theirs_pattern.fullmatch(name) for rule in rules)
            is_own = name.partition(".")[0] in self._other_heads
            if not is_head and not is_own and family.drop_reason(name) is None:
                what = f"the tensor {name!r} is not known"
                raise CheckpointError(what, where=self._where, fix=ENCODER_FIX)


def _reopen(
    directory: Path,
    config: EncoderConfig,
    layouts: Mapping[str, HeadLayout],
    other_heads: tuple[str, ...],
    states: Sequence[object],
) -> NativeNetwork:
    """Open the files of a network again."""
    weights = NativeWeights(directory, config)
    if weights.states != states:
        raise CheckpointError("has changed since it was loaded", where=str(directory))
    return NativeNetwork(weights, layouts, other_heads)


def auto_precision() -> Precision:
    """The precision that "auto" means: bfloat16 if the processor is fast at it."""
    return "bf16" if is_fast_at_bfloat16() else "fp32"


def unsupported_network(config: EncoderConfig) -> str | None:
    """What of an encoder native code cannot compute without PyTorch; None if it can compute all."""
    return unsupported_part(config) or _unsupported_weights(config)


def _unsupported_weights(config: EncoderConfig) -> str | None:
    """A part that the native form of a network has, but this reader of weights does not."""
    for name in (*("word_map", "linear_groups", "convolution", "bottleneck", "zeroed_token_id"),):
        if getattr(config, name) is not None:
            return name
    return f"positions={config.positions}" if config.positions == "sinusoidal" else None


def _is_of_layers(name: str) -> bool:
    return name.startswith("encoder.") and not name.startswith("encoder.pooler")


def _shapes(config: EncoderConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the names and shapes of the tensors of embeddings and layers."""
    width = config.hidden_size
    tables: Mapping[str, int] = {
        "word": config.vocab_size,
        "position": config.max_position_embeddings if config.positions == "learned" else 0,
        "token_type": config.type_vocab_size,
        "task_type": config.task_type_vocab_size,
    }
    for kind, rows in tables.items():
        if rows:
            yield f"{_EMBEDDINGS}.{kind}_embeddings.weight", (rows, config.embedding_width)
    if config.embedding_size is not None:
        yield f"{_PROJECTION}.weight", (width, config.embedding_width)
        yield f"{_PROJECTION}.bias", (width,)
    bias = config.score_bias
    if bias is not None and bias.kind == "buckets":
        assert bias.num_buckets is not None
        yield TABLE, (bias.num_buckets, config.num_attention_heads)
    if (rotary := rotary_tensor(config)) is not None:
        yield rotary
    biases = (config.use_bias, config.use_bias, config.has_intermediate_bias, config.use_bias)
    norms = ["encoder.final_norm"] if config.norm_first else []
    for number in range(config.num_weighted_layers):
        prefix = f"encoder.layers.{number}"
        first = 0 if config.has_attention_norm(number) else 1
        norms += [f"{prefix}.{name}" for name in NORMS[first:]]
        for name, shape, has_bias in zip(MAPS, map_shapes(config), biases, strict=True):
            yield f"{prefix}.{name}.weight", shape
            if has_bias:
                yield f"{prefix}.{name}.bias", shape[:1]
    widths = dict.fromkeys(norms, width)
    if config.embedding_norm:
        widths[f"{_EMBEDDINGS}.norm"] = config.embedding_width
    for name, size in widths.items():
        yield f"{name}.weight", (size,)
        if config.norm_bias:
            yield f"{name}.bias", (size,)

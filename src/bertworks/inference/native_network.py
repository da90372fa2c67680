"""Weights of an encoder in safetensors files, packed for native code without PyTorch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..checkpoints.families import family_of
from ..checkpoints.family import Family
from ..checkpoints.store import check_geometry
from ..checkpoints.weight_files import (
    CALIBRATED_CODES,
    CODES,
    FLOATS,
    INPUTS,
    SAFETENSORS,
    SCALES,
    SHIFT,
    check_calibration,
    find_weight_files,
    list_arrays,
    state_of,
    unchanged_file,
)
from ..checkpoints.wrappers import remove_wrapper_names
from ..errors import CheckpointError, needs_pytorch_error
from ..native.embeddings_and_pooling import NativeEmbeddings
from ..native.layer import MAPS, NORMS, FixedCodes, NativeLayer, NativeLayers
from ..native.library import Precision, has_kernels
from ..native.quantization import to_floats
from ..nn.config import EncoderConfig
from ..settings.literals import InferencePrecision
from .native_encoder import NativeEncoder, unsupported_part

_EMBEDDINGS = "encoder.embeddings"


class FileArray(Protocol):
    """An array whose numbers are read when they are needed."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> str: ...

    def read(self) -> NDArray[Any]: ...


@dataclass(frozen=True)
class _CodedArray:
    """A matrix that a file holds as 8-bit numbers, with a scale for each row."""

    codes: FileArray
    scales: FileArray
    inputs: FileArray | None  # steps and offsets of calibrated inputs
    dtype: str = "F32"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.codes.shape

    def read(self) -> NDArray[Any]:
        codes: NDArray[np.float32] = self.codes.read().astype(np.float32)
        codes *= to_floats(self.scales.read())[:, None]
        if self.inputs is not None:
            codes /= self.inputs.read()[0]
        return codes


class NativeNetwork:
    """An encoder in native code, for each precision that is used; safe for threads.

    Args:
        directory: of the weights.
        config: the geometry.
        family: names the tensors.
        heads: the names of heads that the files hold under their own names.

    Raises:
        CheckpointError: native code cannot compute the encoder on this processor, there are no
            safetensors files, or a tensor is missing, unknown or not finite.
    """

    def __init__(
        self, directory: Path, config: EncoderConfig, family: Family, heads: Collection[str] = ()
    ) -> None:
        self.config, self._where = config, str(directory)
        self._source = (directory, tuple(heads))
        self._family, self._keys = family, family.keys_for(config)
        self._encoders: dict[Precision, NativeEncoder] = {}
        self._lock = Lock()
        self._finite_names: set[str] = set()
        part = unsupported_part(config) or _unsupported_weights(config)
        if part is not None:
            raise needs_pytorch_error(f"a model with {part}", where=self._where)
        self._files = find_weight_files(directory, SAFETENSORS)
        if not self._files:
            raise needs_pytorch_error(f"a model without {SAFETENSORS}", where=self._where)
        self._states = [*map(state_of, self._files)]
        file_arrays = remove_wrapper_names(list_arrays(self._files), family, self._where)
        self._file_arrays = {
            family.normalize_tensor_name(name): one for name, one in file_arrays.items()
        }
        self._arrays = self._decode()
        check_geometry(config, self._arrays, family, self._where)
        self._check_names(family, heads)
        self.encoder("auto")

    def encoder(self, precision: InferencePrecision) -> NativeEncoder:
        """The encoder in a precision; its weights are read and packed at the first call.

        Raises:
            CheckpointError: the processor has no native code for the precision; or the files are
                damaged, or have changed.
        """
        if precision == "fp16" or precision == "tf32":  # noqa: PLR1714 - narrows the type
            raise needs_pytorch_error(f"precision={precision}, on CUDA,", where=self._where)
        native_precision: Precision = auto_precision() if precision == "auto" else precision
        with self._lock:
            if native_precision not in self._encoders:
                if not has_kernels(native_precision):
                    what = f"precision={native_precision} on this processor"
                    raise needs_pytorch_error(what, where=self._where)
                self._encoders[native_precision] = self._make_encoder(native_precision)
            return self._encoders[native_precision]

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker reads the files again.
        return _reopen, (self.config, *self._source, self._states)

    def named_arrays(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yield the weights in float32, with the names of a network's encoder, in their order."""
        names = sorted(name.removeprefix("encoder.") for name, _ in _shapes(self.config))
        with self._unchanged_files():
            for name in names:
                yield name, to_floats(self._read(f"encoder.{name}"))

    @contextmanager
    def _unchanged_files(self) -> Iterator[None]:
        """Check that the files are those of the constructor, also at the end of the block."""
        if [*map(state_of, self._files)] != self._states:
            raise CheckpointError("has changed since it was loaded", where=self._where)
        with ExitStack() as stack:
            for file in self._files:
                stack.enter_context(unchanged_file(file))
            yield

    def _make_encoder(self, precision: Precision) -> NativeEncoder:
        config, int8 = self.config, precision == "int8"
        # With 8-bit products, all other numbers are bfloat16 if the processor has it.
        fp32 = precision == "fp32" or not has_kernels("bf16")
        with self._unchanged_files():
            tables = [self._table(kind) for kind in ("word", "position", "token_type")]
            words, positions, types = tables
            assert words is not None
            norm = [self._vector(f"{_EMBEDDINGS}.norm.{part}") for part in ("weight", "bias")]
            embeddings = NativeEmbeddings(
                words,
                positions,
                types,
                (norm[0], norm[1], config.layer_norm_eps),
                config.position_offset,
                fp32=fp32,
            )
            layers = [
                self._make_layer(number, int8=int8, fp32=fp32)
                for number in range(config.num_weighted_layers)
            ]
        return NativeEncoder(
            embeddings, NativeLayers([layers[group] for group in config.layer_groups])
        )

    def _make_layer(self, number: int, *, int8: bool, fp32: bool) -> NativeLayer:
        config, prefix = self.config, f"encoder.layers.{number}"
        names = [f"{part}.{kind}" for part in (*MAPS, *NORMS) for kind in ("weight", "bias")]
        codes = {name: self._codes(f"{prefix}.{name}.weight") for name in MAPS} if int8 else {}
        return NativeLayer.from_arrays(
            {
                name: self._read(f"{prefix}.{name}")
                for name in names
                if self._has(f"{prefix}.{name}")
            },
            int8=int8,
            epsilons=(config.layer_norm_eps, config.layer_norm_eps),
            heads=config.num_attention_heads,
            activation=config.hidden_act,
            codes={name: one for name, one in codes.items() if one is not None},
            fp32=fp32,
        )

    def _table(self, kind: str) -> NDArray[np.float32] | None:
        name = f"{_EMBEDDINGS}.{kind}_embeddings.weight"
        return np.ascontiguousarray(to_floats(self._read(name))) if self._has(name) else None

    def _vector(self, name: str) -> NDArray[np.float32]:
        if not self._has(name):
            return np.zeros(self.config.hidden_size, np.float32)
        return np.ascontiguousarray(to_floats(self._read(name)))

    def _read(self, name: str) -> NDArray[Any]:
        """Read our tensor of a name, whose numbers are finite."""
        parts = [self._arrays[theirs].read() for theirs in self._keys.theirs(name)]
        if name not in self._finite_names:
            for theirs, part in zip(self._keys.theirs(name), parts, strict=True):
                floats = to_floats(part)
                if not np.isfinite(floats.sum()) and not np.isfinite(floats).all():
                    what = f"the tensor {theirs!r} holds numbers that are not finite"
                    raise CheckpointError(f"{what} (NaN or infinity)", where=self._where)
            self._finite_names.add(name)
        if len({part.dtype for part in parts}) > 1:
            parts = [to_floats(part) for part in parts]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _codes(self, name: str) -> FixedCodes | None:
        """The fixed codes of a map's inputs, if the files have them; see `InputCodes`."""
        inputs, shifts = (
            [self._file_arrays.get(part + end) for part in self._keys.theirs(name)]
            for end in (INPUTS, SHIFT)
        )
        if inputs[0] is None:
            return None
        steps, offsets = inputs[0].read()  # equal in all parts: they form one map of ours
        slope = np.float32(1) / steps
        width = self._arrays[self._keys.theirs(name)[0]].shape[1]
        start, slope = (np.broadcast_to(part, width) for part in (-offsets * slope, slope))
        shift = np.concatenate([one.read() for one in shifts if one is not None])
        return FixedCodes(steps, start, slope, shift)

    def _has(self, name: str) -> bool:
        return self._family.has(name, self._arrays)

    def _decode(self) -> dict[str, FileArray]:
        """The arrays by their names; matrices of 8-bit numbers become one array each."""
        arrays: dict[str, FileArray] = dict(self._file_arrays)
        for name, codes in self._file_arrays.items():
            end = next((end for end in (CALIBRATED_CODES, CODES) if name.endswith(end)), None)
            if end is None:
                continue
            del arrays[name]
            matrix = name.removesuffix(end)
            scales = arrays.get(matrix + SCALES)
            if codes.dtype != "I8" or scales is None or scales.shape != codes.shape[:1]:
                what = f"{name!r} is not int8, or has no {SCALES!r} of its rows"
                raise CheckpointError(what, where=self._where)
            inputs = None
            if end == CALIBRATED_CODES:
                inputs, shift = (self._file_arrays.get(matrix + part) for part in (INPUTS, SHIFT))
                check_calibration(
                    *(matrix, codes.shape),
                    None if inputs is None else inputs.read(),
                    None if shift is None else shift.read(),
                    self._where,
                )
                del arrays[matrix + INPUTS], arrays[matrix + SHIFT]
            del arrays[matrix + SCALES]
            arrays[matrix] = _CodedArray(codes, scales, inputs)
        return arrays

    def _check_names(self, family: Family, heads: Collection[str]) -> None:
        """Check the shapes of the encoder's tensors, and that no other is unknown."""
        used_names: set[str] = set()
        for name, shape in _shapes(self.config):
            for part, expected in self._keys.parts(name, shape).items():
                array = self._arrays.get(part)
                if array is None:
                    raise CheckpointError(f"the tensor {part!r} is missing", where=self._where)
                if array.shape != expected:
                    what = f"the tensor {part!r} has shape {array.shape}, not {expected}"
                    raise CheckpointError(what, where=self._where)
                if array.dtype not in FLOATS:
                    what = f"the tensor {part!r} is of type {array.dtype}"
                    raise CheckpointError(what, where=self._where)
                used_names.add(part)
        rules = [rule for rule in family.keys.rules if not _is_of_layers(rule.ours)]
        for name in self._arrays.keys() - used_names:
            is_head = any(rule.theirs_pattern.fullmatch(name) for rule in rules)
            is_own = name.partition(".")[0] in heads or name in (family.decoder_bias or ())
            if not is_head and not is_own and family.drop_reason(name) is None:
                raise CheckpointError(f"the tensor {name!r} is not known", where=self._where)


def _reopen(
    config: EncoderConfig, directory: Path, heads: tuple[str, ...], states: Sequence[object]
) -> NativeNetwork:
    """Open the files of a network again."""
    network = NativeNetwork(directory, config, family_of(config), heads)
    if network._states != states:
        raise CheckpointError("has changed since it was loaded", where=str(directory))
    return network


def auto_precision() -> Precision:
    """The precision that "auto" means: bfloat16 if the processor is fast at it."""
    return "bf16" if is_fast_at_bfloat16() else "fp32"


def is_fast_at_bfloat16() -> bool:
    """Whether native code computes in bfloat16 on this processor."""
    return has_kernels("bf16")


def _unsupported_weights(config: EncoderConfig) -> str | None:
    """A part that the native form of a network has, but this reader of weights does not."""
    for name in (
        *("embedding_size", "word_map", "linear_groups", "convolution", "bottleneck"),
        *("score_bias", "zeroed_token_id", "intermediate_bias", "num_key_value_heads"),
    ):
        if getattr(config, name) is not None:
            return name
    if config.positions not in ("learned", "none"):
        return f"positions={config.positions}"
    if config.task_type_vocab_size or config.norm != "layer" or not config.embedding_norm:
        return "such embeddings or norms"
    return None


def _is_of_layers(name: str) -> bool:
    return name.startswith("encoder.") and not name.startswith("encoder.pooler")


def _shapes(config: EncoderConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the names and shapes of the tensors of embeddings and layers."""
    width, inner = config.hidden_size, config.intermediate_size
    tables: Mapping[str, int] = {
        "word": config.vocab_size,
        "position": config.max_position_embeddings if config.positions == "learned" else 0,
        "token_type": config.type_vocab_size,
    }
    for kind, rows in tables.items():
        if rows:
            yield f"{_EMBEDDINGS}.{kind}_embeddings.weight", (rows, width)
    shapes = ((3 * width, width), (width, width), (inner, width), (width, inner))
    norms = [f"{_EMBEDDINGS}.norm"]
    for number in range(config.num_weighted_layers):
        prefix = f"encoder.layers.{number}"
        norms += [f"{prefix}.{name}" for name in NORMS]
        for name, shape in zip(MAPS, shapes, strict=True):
            yield f"{prefix}.{name}.weight", shape
            if config.use_bias:
                yield f"{prefix}.{name}.bias", shape[:1]
    for name in norms:
        yield f"{name}.weight", (width,)
        if config.norm_bias:
            yield f"{name}.bias", (width,)

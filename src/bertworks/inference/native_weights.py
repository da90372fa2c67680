"""The tensors of an encoder and its heads in safetensors files, as arrays, without PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..checkpoints.families import family_of
from ..checkpoints.keymap import Rule
from ..checkpoints.store import check_geometry
from ..checkpoints.weight_files import (
    CALIBRATED_CODES,
    CODES,
    INPUTS,
    PARAMETRIZATIONS,
    SAFETENSORS,
    SCALES,
    SHIFT,
    NewVector,
    check_calibration,
    find_weight_files,
    list_arrays,
    state_of,
    unchanged_files,
)
from ..checkpoints.wrappers import remove_wrapper_names
from ..errors import CheckpointError, needs_pytorch_error
from ..native.maps import FixedCodes
from ..native.quantization import to_floats
from ..nn.config import EncoderConfig

WORDS = "encoder.embeddings.word_embeddings.weight"
DECODER = "mlm_head.decoder"


class FileArray(Protocol):
    """An array whose numbers are read when they are needed."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> str: ...

    def read(self, empty: NewVector = np.empty) -> NDArray[Any]: ...


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

    def read(self, empty: NewVector = np.empty) -> NDArray[Any]:
        codes: NDArray[np.float32] = self.codes.read(empty).astype(np.float32)
        codes *= to_floats(self.scales.read())[:, None]
        if self.inputs is not None:
            codes /= self.inputs.read()[0]
        return codes


class NativeWeights:
    """The tensors of a model, under our names, which are read when they are needed.

    Args:
        directory: of the files.
        config: the geometry.

    Attributes:
        arrays: the tensors, under their names.
        states: of the files, by which a change is detected.

    Raises:
        NeedsPyTorchError: there are no safetensors files, or they hold adapters.
        CheckpointError: they are damaged, or the encoder in them has another geometry.
    """

    def __init__(self, directory: Path, config: EncoderConfig) -> None:
        self.directory, self.config, self.where = directory, config, str(directory)
        family = family_of(config)
        self.family, self.keys = family, family.keys_for(config)
        self._files = find_weight_files(directory, SAFETENSORS)
        if not self._files:
            raise needs_pytorch_error(f"a model without {SAFETENSORS}", where=self.where)
        self._finite_names: set[str] = set()
        self.states = [*map(state_of, self._files)]
        file_arrays = list_arrays(self._files)
        if any(PARAMETRIZATIONS in name for name in file_arrays):
            raise needs_pytorch_error("a model with adapters inside its weights", where=self.where)
        file_arrays = remove_wrapper_names(file_arrays, family, self.where)
        self._file_arrays = {
            family.normalize_tensor_name(name): one for name, one in file_arrays.items()
        }
        self.arrays = self._decode()
        self._merge_decoder()
        check_geometry(config, self.arrays, family, self.where)

    def has(self, name: str) -> bool:
        """Whether the files have our tensor of a name."""
        return self.family.has(name, self.arrays)

    def has_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        """Whether the files have our tensor of a name, with a shape."""
        if not self.has(name):
            return False
        parts = self.keys.parts(name, shape)
        return all(self.arrays[part].shape == expected for part, expected in parts.items())

    def read(self, name: str, empty: NewVector = np.empty) -> NDArray[Any]:
        """Read our tensor of a name, whose numbers are finite; see `StoredArray.read`."""
        parts = [self.arrays[theirs].read(empty) for theirs in self.keys.theirs(name)]
        if name not in self._finite_names:
            for theirs, part in zip(self.keys.theirs(name), parts, strict=True):
                floats = to_floats(part)
                with np.errstate(over="ignore", invalid="ignore"):
                    total = floats.sum()  # a sum of finite numbers may overflow
                if not np.isfinite(total) and not np.isfinite(floats).all():
                    what = f"the tensor {theirs!r} holds numbers that are not finite"
                    raise CheckpointError(f"{what} (NaN or infinity)", where=self.where)
            self._finite_names.add(name)
        if len({part.dtype for part in parts}) > 1:
            parts = [to_floats(part) for part in parts]
        return _join(self.keys.rule_of(name), parts)

    def codes(self, name: str) -> FixedCodes | None:
        """The fixed codes of a map's inputs, if the files have them; see `InputCodes`."""
        inputs, shifts = (
            [self._file_arrays.get(part + end) for part in self.keys.theirs(name)]
            for end in (INPUTS, SHIFT)
        )
        if inputs[0] is None:
            return None
        steps, offsets = inputs[0].read()  # equal in all parts: they form one map of ours
        slope = np.float32(1) / steps
        width = self.arrays[self.keys.theirs(name)[0]].shape[1]
        start, slope = (np.broadcast_to(part, width) for part in (-offsets * slope, slope))
        shift = _join(self.keys.rule_of(name), [one.read() for one in shifts if one is not None])
        return FixedCodes(steps, start, slope, shift)

    @contextmanager
    def unchanged_files(self) -> Iterator[None]:
        """Raise an error if the files change in the block, or have changed before."""
        if [*map(state_of, self._files)] != self.states:
            raise CheckpointError("has changed since it was loaded", where=self.where)
        with unchanged_files(self._files):
            yield

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
                raise CheckpointError(what, where=self.where)
            inputs = None
            if end == CALIBRATED_CODES:
                inputs, shift = (self._file_arrays.get(matrix + part) for part in (INPUTS, SHIFT))
                check_calibration(
                    *(matrix, codes.shape),
                    None if inputs is None else inputs.read(),
                    None if shift is None else shift.read(),
                    self.where,
                )
                del arrays[matrix + INPUTS], arrays[matrix + SHIFT]
            del arrays[matrix + SCALES]
            arrays[matrix] = _CodedArray(codes, scales, inputs)
        return arrays

    def _merge_decoder(self) -> None:
        """Give the word embeddings and the decoder's bias the names that this package reads."""
        arrays = self.arrays
        (words,), (decoder,) = self.keys.theirs(WORDS), self.keys.theirs(DECODER)
        if words not in arrays and decoder in arrays:
            arrays[words] = arrays.pop(decoder)
        if self.family.decoder_bias is not None:
            head_bias, decoder_bias = self.family.decoder_bias
            if decoder_bias in arrays:  # the logits use it
                arrays[head_bias] = arrays.pop(decoder_bias)


def _join(rule: Rule, parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return our tensor, of theirs; see `KeyMap.fetch`."""
    if rule.is_by_head:
        parts = [part.reshape(len(part), -1) if part.ndim == 3 else part for part in parts]
    if rule.is_transposed:
        parts = [part.T for part in parts]
    elif rule.is_convolution:
        parts = [part[..., 0] if part.ndim == 3 else part for part in parts]
    if rule.is_swapped:
        parts = [np.concatenate(np.array_split(part, 2)[::-1]) for part in parts]
    return np.ascontiguousarray(parts[0]) if len(parts) == 1 else np.concatenate(parts)

"""Files of weights: safetensors and PyTorch's, single or sharded.

Weights are read into memory of their own, never mapped: another program may overwrite or truncate
the file while a server or a long command uses them.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..errors import BertworksWarning, CheckpointError, first_line
from ..nn.quantization import dequantize_rows
from ..utils.memory import start_thread
from ..utils.regular_files import check_regular_file
from .weight_files import (
    CALIBRATED_CODES,
    CODES,
    INPUTS,
    PYTORCH,
    SAFETENSORS,
    SCALES,
    SHIFT,
    check_calibration,
    find_weight_files,
    unchanged_file,
)


def read_weights(
    directory: Path,
    stacks: Callable[[Iterable[str]], Iterable[list[str]]] = lambda _: (),
) -> dict[str, Tensor]:
    """Read all tensors of a directory, under their names in the files.

    A calibrated matrix comes with the tensors that code its inputs (`INPUTS`, `SHIFT`).

    Args:
        stacks: groups of a file's names whose tensors must be adjacent in memory.

    Raises:
        CheckpointError: there are no weights, or a file is damaged, holds more than weights, or
            was changed while it was read.
    """
    files = find_weight_files(directory, SAFETENSORS) or find_weight_files(directory, PYTORCH)
    if not files:
        raise CheckpointError(f"there is no {SAFETENSORS} and no {PYTORCH}", where=str(directory))
    tensors: dict[str, Tensor] = {}
    for file in files:
        with unchanged_file(file):
            file_tensors = _read_file(file)
            if file.suffix == ".safetensors":
                file_tensors = _read_safetensors(file, file_tensors, stacks(file_tensors))
        tensors.update(file_tensors)
    calibration_names: set[str] = set()
    for suffix in (CODES, CALIBRATED_CODES):
        for name in [name for name in tensors if name.endswith(suffix)]:
            whole = name.removesuffix(suffix)
            codes, scales = tensors.pop(name), tensors.pop(whole + SCALES, None)
            if codes.dtype is not torch.int8 or scales is None or scales.shape != codes.shape[:1]:
                raise CheckpointError(
                    f"{name!r} is not int8, or has no {SCALES!r} of its rows", where=str(directory)
                )
            tensors[whole] = dequantize_rows(codes, scales)
            if suffix == CALIBRATED_CODES:
                inputs, shift = (_to_array(tensors.get(whole + end)) for end in (INPUTS, SHIFT))
                check_calibration(whole, codes.shape, inputs, shift, str(directory))
                tensors[whole] /= tensors[whole + INPUTS][0]
                calibration_names |= {whole + INPUTS, whole + SHIFT}
    for name in tensors:
        if name.endswith((INPUTS, SHIFT)) and name not in calibration_names:
            what = f"{name!r} does not belong to a calibrated matrix"
            raise CheckpointError(what, where=str(directory))
    return tensors


def read_weights_file(file: Path) -> dict[str, Tensor]:
    """Read all tensors of one file into memory of their own.

    Raises:
        CheckpointError: the file is damaged, holds more than weights, or was changed meanwhile.
    """
    with unchanged_file(file):
        return {name: tensor.clone() for name, tensor in _read_file(file).items()}


def _to_array(tensor: Tensor | None) -> NDArray[Any] | None:
    """A float32 tensor as an array, without a copy; None for any other."""
    is_float = tensor is not None and tensor.dtype is torch.float32
    return tensor.numpy() if tensor is not None and is_float else None


def write_weights(file: Path, tensors: Mapping[str, Tensor], **metadata: str) -> None:
    """Write a safetensors file.

    Raises:
        OSError: it cannot be written.
    """
    try:
        save_file(dict(tensors), file, metadata or None)
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise OSError(str(error)) from None
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from None


def _read_file(file: Path) -> dict[str, Tensor]:
    try:
        check_regular_file(file)
        if file.suffix == ".safetensors":
            return load_file(file)
        content = _unpickle(file)
    except pickle.UnpicklingError:
        raise CheckpointError(
            "holds objects other than weights, which are not executed",
            where=str(file),
            fix="If you trust its source, save its state_dict alone.",
        ) from None
    except (SafetensorError, OSError, RuntimeError, ValueError, EOFError) as error:
        raise CheckpointError(f"cannot be read ({first_line(error)})", where=str(file)) from None
    values = _state_dict(content, str(file))
    tensors = {str(name): value for name, value in values.items() if isinstance(value, Tensor)}
    for name, value in tensors.items():
        if not _is_stored_completely(value):
            raise CheckpointError(
                f"the tensor {name!r} is not stored as plain numbers", where=str(file)
            )
    return tensors


_STATE_DICT_KEYS = ("state_dict", "model_state_dict", "model", "module")
"""Keys under which programs save a model's weights among other things, the usual ones first."""


def _state_dict(content: Any, where: str) -> Mapping[str, Any]:
    """Return the mapping from names to tensors in what a PyTorch file holds.

    Raises:
        CheckpointError: there is none, or it is not clear which one is the model's.
    """
    if not isinstance(content, Mapping):
        raise CheckpointError("holds no state_dict", where=where)
    if any(isinstance(value, Tensor) for value in content.values()):
        return content
    state_dicts = {
        key: value
        for key, value in content.items()
        if isinstance(value, Mapping) and any(isinstance(part, Tensor) for part in value.values())
    }
    if not state_dicts:
        raise CheckpointError("holds no state_dict", where=where)
    key = next((key for key in _STATE_DICT_KEYS if key in state_dicts), None)
    if key is None and len(state_dicts) > 1:
        which = ", ".join(repr(key) for key in state_dicts)
        raise CheckpointError(
            f"holds several state_dicts, under {which}",
            where=where,
            fix="Save the model's alone.",
        )
    key = next(iter(state_dicts)) if key is None else key
    warnings.warn(
        f"{where}: the weights under {key!r} are read, and nothing else",
        BertworksWarning,
        stacklevel=2,
    )
    return state_dicts[key]


def _read_safetensors(
    file: Path, tensors: Mapping[str, Tensor], stacks: Iterable[list[str]]
) -> dict[str, Tensor]:
    """Read all tensors of a safetensors file; those of a stack are adjacent in memory.

    Args:
        tensors: those of the file, which was already checked to be complete. Their numbers
            are not read.
        stacks: if the tensors of a stack differ in type, they are read singly.
    """
    with file.open("rb", buffering=0) as data:
        size = int.from_bytes(data.read(8), "little")
        header = json.loads(data.read(size))
    copies: dict[str, Tensor] = {}
    errors: list[BaseException] = []

    def read_stack(stack: list[str], data: FileIO) -> None:
        originals = [tensors[name] for name in stack]
        sizes = [original.nbytes for original in originals]
        parts = torch.split(torch.empty(sum(sizes), dtype=torch.uint8), sizes)
        for name, original, part in zip(stack, originals, parts, strict=True):
            data.seek(8 + size + header[name]["data_offsets"][0])
            buffer = part.numpy().data
            while buffer and (count := data.readinto(buffer)):
                buffer = buffer[count:]
            if buffer:
                raise CheckpointError("was truncated while it was read", where=str(file))
            copies[name] = part.view(original.dtype).view(original.shape)

    def read_all(stacks: Sequence[list[str]]) -> None:
        try:
            with file.open("rb", buffering=0) as data:
                for stack in stacks:
                    read_stack(stack, data)
        except BaseException as error:  # raised below, in the caller's thread
            errors.append(error)

    groups = [stack for stack in stacks if len({tensors[name].dtype for name in stack}) == 1]
    names = {name for stack in groups for name in stack}
    groups += [[name] for name in tensors if name not in names]
    first, second = groups, list[list[str]]()
    # Half of the time goes to the faults of new pages, which two threads take side by side.
    if torch.get_num_threads() > 1:
        first, second = _halves(groups, lambda stack: sum(tensors[name].nbytes for name in stack))
    wait: Callable[[], object] | None = None
    with suppress(MemoryError, RuntimeError):  # there may be no memory for a thread
        wait = start_thread(read_all, second) if second else None
    read_all(first if wait else groups)
    if wait:
        wait()
    if errors:
        raise errors[0]
    return copies


def _halves(
    groups: list[list[str]], size: Callable[[list[str]], int]
) -> tuple[list[list[str]], list[list[str]]]:
    """Split groups into two lists of about the same size."""
    lists: tuple[list[list[str]], list[list[str]]] = ([], [])
    sizes = [0, 0]
    for group in sorted(groups, key=size, reverse=True):
        smaller = sizes.index(min(sizes))
        lists[smaller].append(group)
        sizes[smaller] += size(group)
    return lists


def _unpickle(file: Path) -> Any:
    """The content of a PyTorch file: tensors and containers of them; no code is executed."""
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, OSError, RuntimeError, EOFError):
        raise
    except Exception as error:  # a damaged instruction may raise any error in the unpickler
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _is_stored_completely(tensor: Tensor) -> bool:
    """Whether the file holds each of a tensor's numbers.

    A pickle may hold sparse or quantized tensors, or one number expanded to any shape, a copy of
    which could take unlimited memory.
    """
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        return False
    return tensor.numel() * tensor.itemsize <= tensor.untyped_storage().nbytes()

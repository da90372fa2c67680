"""Names of files of weights, and safetensors files as arrays, which need no PyTorch."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from ..errors import CheckpointError, first_line, truncate_repr
from ..utils import json_files
from ..utils.regular_files import check_regular_file

SAFETENSORS, PYTORCH = "model.safetensors", "pytorch_model.bin"
# A file with an int8 matrix `x` has these two instead of `x`: int8 `[outputs, inputs]`, float32
# `[outputs]`. Readers that do not know them find no `x`, and cannot mistake codes for weights.
CODES, SCALES = ".codes", ".scales"
# If its inputs were calibrated, it has the codes of `x · steps`, their scales, and two float32
# tensors: `[2, inputs]`, the steps and offsets of the inputs (`[2, 1]`: one for all inputs), and
# `[outputs]`, the shift (see `quantization.InputCodes`).
CALIBRATED_CODES, INPUTS, SHIFT = ".calibrated_codes", ".calibrated_inputs", ".calibrated_shift"

NewVector: TypeAlias = Callable[[int, type[np.generic]], NDArray[Any]]
"""Makes a vector of a length and a type, with any content: `numpy.empty`, `Blocks.empty`."""


PARAMETRIZATIONS = ".parametrizations."
"""In names of tensors: the model has adapters inside its weights (`task_adapters.py`)."""

ENCODER_FIX = (
    "Load only the encoder: --task encoder; or, for commands without that option, save it: "
    'bertworks.load(…, task="encoder").save(DIR).'
)
"""How a checkpoint with an unknown head can be used."""


def has_weights(directory: Path) -> bool:
    """Whether a directory has weights in safetensors or PyTorch's format."""
    return any(find_weight_files(directory, name) for name in (SAFETENSORS, PYTORCH))


@dataclass(frozen=True)
class StoredArray:
    """An array in a safetensors file, which is read when it is needed."""

    file: Path
    offset: int
    shape: tuple[int, ...]
    dtype: str  # as the file names it

    def read(self, empty: NewVector = np.empty) -> NDArray[Any]:
        """Return the numbers; those of bfloat16 as their bits (uint16).

        Args:
            empty: makes the vector that is filled.

        Raises:
            CheckpointError: the file has become shorter.
        """
        numbers = empty(math.prod(self.shape), _DTYPES[self.dtype])
        rest = numbers.view(np.uint8)
        with self.file.open("rb", buffering=0) as file:
            file.seek(self.offset)
            while len(rest):
                count = file.readinto(rest.data)
                if not count:
                    raise CheckpointError("was truncated while it was read", where=str(self.file))
                rest = rest[count:]
        return numbers.reshape(self.shape)


_DTYPES: Mapping[str, type[np.generic]] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": np.uint16,
    "I64": np.int64,
    "I32": np.int32,
    "I8": np.int8,
    "U8": np.uint8,
    "BOOL": np.bool_,
}
FLOATS = ("F64", "F32", "F16", "BF16")
"""Names of the types of numbers with a point."""


def list_arrays(files: list[Path]) -> dict[str, StoredArray]:
    """Return the arrays of safetensors files by name.

    Raises:
        CheckpointError: a file is damaged, or has numbers of an unknown type.
    """
    arrays: dict[str, StoredArray] = {}
    for file in files:
        try:
            check_regular_file(file)
            with safe_open(file, framework="np"):  # which checks the file
                pass
            with file.open("rb") as data:
                size = int.from_bytes(data.read(8), "little")
                header = json.loads(data.read(size))
        except (SafetensorError, OSError, ValueError) as error:
            what = f"cannot be read ({first_line(error)})"
            raise CheckpointError(what, where=str(file)) from None
        header.pop("__metadata__", None)
        for name, entry in header.items():
            if entry["dtype"] not in _DTYPES:
                what = f"the tensor {name!r} is of type {entry['dtype']}"
                raise CheckpointError(what, where=str(file))
            offset = 8 + size + entry["data_offsets"][0]
            arrays[name] = StoredArray(file, offset, tuple(entry["shape"]), entry["dtype"])
    return arrays


def check_calibration(
    matrix: str,
    shape: Sequence[int],
    inputs: NDArray[Any] | None,
    shift: NDArray[Any] | None,
    where: str,
) -> None:
    """Check the arrays that a calibrated matrix of a name and shape needs; see `INPUTS`.

    Raises:
        CheckpointError: one is missing, has another shape or type, or holds an impossible number.
    """
    for end, array, shapes in (
        (INPUTS, inputs, ((2, 1), (2, shape[-1]))),
        (SHIFT, shift, ((shape[0],),)),
    ):
        if array is None or array.dtype != np.float32 or array.shape not in shapes:
            what = f"{matrix!r} has no {end!r}, or one of another shape or type"
            raise CheckpointError(what, where=where)
        if not np.isfinite(array).all() or (end == INPUTS and not (array[0] > 0).all()):
            raise CheckpointError(f"{matrix + end!r} holds an impossible number", where=where)


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file.

    Raises:
        CheckpointError: there is no such file, or it does not hold an object.
    """
    if not path.exists():
        raise CheckpointError(
            f"there is no {path.name}", where=str(path.parent), fix="Is it a model's directory?"
        )
    return json_files.read_json(path, CheckpointError)


def find_weight_files(directory: Path, name: str) -> list[Path]:
    """Return the file with that name, or else the shards that its index lists.

    Raises:
        CheckpointError: the index is damaged, or a shard is missing.
    """
    if (directory / name).exists():
        return [directory / name]
    index = directory / f"{name}.index.json"
    if index.exists():
        shards = read_json(index).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(s, str) for s in shards.values()):
            raise CheckpointError("there is no weight_map", where=str(index))
        files = sorted({directory / Path(shard).name for shard in shards.values()})
        names = {file.name for file in directory.iterdir() if file.is_file()}
        for file in files:
            if file.name not in names:
                raise CheckpointError(
                    f"names {truncate_repr(file.name)}, which is missing", where=str(index)
                )
        return files
    return []


def list_weight_files(directory: Path) -> list[Path]:
    """Return the files of weights in a directory and the folders in it, by name.

    In each folder, they are of one format.
    """
    patterns = ("*.safetensors", "adapter_model.bin", "pytorch_model*.bin", "*.h5", "*.ckpt.*")
    files: dict[Path, tuple[str, list[Path]]] = {}
    for pattern in patterns:
        for file in directory.rglob(pattern):
            of_folder, names = files.setdefault(file.parent, (pattern, []))
            if of_folder == pattern:
                names.append(file)
    return sorted(file for _, names in files.values() for file in names)


def digest_weights(directory: Path) -> str:
    """Return the SHA-256 of the weights in a directory and the folders in it, in hexadecimal.

    For one file it is what `sha256sum FILE` prints; for several files it is the digest of the lines
    that `sha256sum` prints for them, in the order of their names.
    """
    lines = []
    for file in list_weight_files(directory):
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        lines.append(f"{digest}  {file.relative_to(directory).as_posix()}\n")
    if len(lines) == 1:
        return lines[0].partition(" ")[0]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


@contextmanager
def unchanged_file(file: Path) -> Iterator[None]:
    """Check that a file stays as it is within the block.

    Raises:
        CheckpointError: another program wrote to it.
    """
    state = state_of(file)
    yield
    if state_of(file) != state:
        raise CheckpointError(
            "was changed while it was read", where=str(file), fix="Load it when it is complete."
        )


@contextmanager
def unchanged_files(files: Iterable[Path]) -> Iterator[None]:
    """Check that files stay as they are within the block; see `unchanged_file`."""
    with ExitStack() as stack:
        for file in files:
            stack.enter_context(unchanged_file(file))
        yield


def state_of(file: Path) -> tuple[int, int, int] | None:
    """Return a file's inode, size and time; None if it is missing."""
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns

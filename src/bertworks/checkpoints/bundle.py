"""Read and write TensorFlow's files of tensors ("bundles") without TensorFlow.

    bert_model.ckpt.index                  a sorted table: name → type, shape, offset, checksum
    bert_model.ckpt.data-00000-of-00001    the tensors' bytes, end to end

The table has LevelDB's format: blocks of entries, an index block, and a footer. The key of an entry
omits the prefix that it shares with the previous key. Formats: LevelDB's `table_format.md`,
TensorFlow's `tensor_bundle.proto`. Checksums are CRC-32C, masked as LevelDB masks them.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import torch
from torch import Tensor

from ..errors import CheckpointError
from ..utils.atomic_writes import atomic_write, write_file
from ..utils.protobuf import bytes_field, fields, number_field, read_varint, varint
from ..utils.regular_files import check_regular_file, read_bytes

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48
_TRAILER = 5  # a block's compression and checksum
_MAX_NAME_LENGTH = 4096
_RESTART_INTERVAL = 16  # every 16th key is complete (without a shared prefix)

_TYPES = {
    1: torch.float32,
    2: torch.float64,
    3: torch.int32,
    9: torch.int64,
    14: torch.bfloat16,
    19: torch.float16,
}
_STRING = 7
_NUMBERS = {dtype: number for number, dtype in _TYPES.items()}


@dataclass(frozen=True)
class Entry:
    """The type, shape and position of a tensor."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int


def read_bundle(
    prefix: Path, *, is_used: Callable[[str], bool] = lambda _: True
) -> dict[str, Tensor]:
    """Return all tensors of a bundle, by name, except those of non-numeric types.

    Args:
        prefix: the path without `.index`.
        is_used: whether a tensor will be used, by its name. Others, such as optimizer state, are
            views of the memory-mapped files, and their checksums are not compared, since that
            takes as long as to read them.

    Raises:
        CheckpointError: a file is missing, damaged, or compressed.
    """
    entries, files, maps = _open_bundle(prefix)
    tensors: dict[str, Tensor] = {}
    for name, entry in entries.items():
        dtype = _TYPES.get(entry.dtype)
        if dtype is None:
            continue
        file, content = files[entry.shard], maps[entry.shard]
        count = int(np.prod(entry.shape, dtype=object))
        if count * dtype.itemsize != entry.size:
            raise CheckpointError(f"the size of {name!r} does not match its shape", where=str(file))
        if entry.offset + entry.size > len(content):
            raise CheckpointError(f"ends before the tensor {name!r} does", where=str(file))
        if count == 0:
            tensors[name] = torch.empty(entry.shape, dtype=dtype)
            continue
        stored = memoryview(content)[entry.offset : entry.offset + entry.size]
        if is_used(name) and masked_checksum(stored) != entry.checksum:
            raise _checksum_error(name, file)
        part = torch.frombuffer(content, dtype=dtype, count=count, offset=entry.offset)
        tensors[name] = part.view(entry.shape).clone() if is_used(name) else part.view(entry.shape)
    return tensors


def read_text(prefix: Path, name: str) -> bytes | None:
    """Return the value of a scalar string tensor; None if there is no such tensor.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    entries, files, maps = _open_bundle(prefix)
    entry = entries.get(name)
    if entry is None or entry.dtype != _STRING or entry.shape:
        return None
    try:
        content = bytes(maps[entry.shard][entry.offset : entry.offset + entry.size])
        length, position = read_varint(content, 0)
        position += 4  # the checksum of the length
        if len(content) != position + length:
            raise ValueError("its length is wrong")
        checked_bytes = struct.pack("<I", length) + content[position - 4 :]
    except (IndexError, ValueError) as error:
        what = f"the tensor {name!r} cannot be read ({error})"
        raise CheckpointError(what, where=str(files[entry.shard])) from None
    if masked_checksum(checked_bytes) != entry.checksum:
        raise _checksum_error(name, files[entry.shard])
    return content[position:]


def _checksum_error(name: str, file: Path) -> CheckpointError:
    return CheckpointError(
        f"the tensor {name!r} does not match its checksum",
        where=str(file),
        fix="The file is damaged: copy or download it again.",
    )


def write_bundle(prefix: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors as a bundle with one data file.

    Raises:
        OutputError: a file cannot be written.
    """
    names = sorted(tensors, key=str.encode)
    rows: list[tuple[bytes, bytes]] = [(b"", number_field(1, 1) + bytes_field(3, b"\x08\x01"))]
    offset = 0
    with atomic_write(f"{prefix}.data-00000-of-00001") as new, new.open("wb") as data:
        for name in names:
            tensor = tensors[name].detach().cpu().contiguous()
            content = tensor.view(-1).view(torch.uint8).numpy().tobytes()
            data.write(content)
            shape = b"".join(
                bytes_field(2, number_field(1, size) if size else b"") for size in tensor.shape
            )
            rows.append(
                (
                    name.encode(),
                    number_field(1, _NUMBERS[tensor.dtype])
                    + bytes_field(2, shape)
                    + number_field(4, offset)
                    + number_field(5, len(content))
                    + varint(6 << 3 | 5)
                    + struct.pack("<I", masked_checksum(content)),
                )
            )
            offset += len(content)
    write_file(f"{prefix}.index", _table(rows))


def masked_checksum(content: bytes | memoryview) -> int:
    """CRC-32C, rotated and offset as in LevelDB: a CRC of data that contains CRCs is weak."""
    data = np.frombuffer(content, np.uint8)
    data.flags.writeable = False  # the library takes no other views
    value: int = google_crc32c.value(data)
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _map_file(file: Path) -> mmap.mmap | bytearray:
    try:
        check_regular_file(file)
        with file.open("rb") as data:
            # Copy on write: tensors may be changed in memory, never in the file.
            return mmap.mmap(data.fileno(), 0, access=mmap.ACCESS_COPY)
    except FileNotFoundError:
        raise CheckpointError("no such file", where=str(file)) from None
    except OSError as error:
        raise CheckpointError(f"cannot be read ({error.strerror})", where=str(file)) from None
    except ValueError:  # an empty file cannot be mapped
        return bytearray()


def _open_bundle(
    prefix: Path,
) -> tuple[dict[str, Entry], dict[int, Path], dict[int, mmap.mmap | bytearray]]:
    """A bundle's entries by name; its data files, and their mappings, by shard number."""
    index = Path(f"{prefix}.index")
    try:
        entries, shards = _read_index(read_bytes(index))
    except FileNotFoundError:
        raise CheckpointError("no such file", where=str(index)) from None
    except OSError as error:
        raise CheckpointError(f"cannot be read ({error.strerror})", where=str(index)) from None
    except (IndexError, KeyError, ValueError, TypeError, struct.error, UnicodeDecodeError) as error:
        raise CheckpointError(f"cannot be read ({error})", where=str(index)) from None
    numbers = sorted({entry.shard for entry in entries.values()})
    files = {n: Path(f"{prefix}.data-{n:05}-of-{shards:05}") for n in numbers}
    return entries, files, {n: _map_file(file) for n, file in files.items()}


def _read_index(table: bytes) -> tuple[dict[str, Entry], int]:
    if len(table) < _FOOTER or struct.unpack("<Q", table[-8:])[0] != _MAGIC:
        raise ValueError("it is not a TensorFlow index")
    position = len(table) - _FOOTER
    for _ in range(2):  # skip the handle of the meta-index, which is not needed
        _, position = read_varint(table, position)
    rows: dict[bytes, bytes] = {}
    for _, handle in _entries(_block(table, position)):
        rows.update(_entries(_block(handle, 0, table)))
    header = dict(fields(rows.pop(b"")))
    if header.get(2, 0) != 0:
        raise ValueError("it was written on a big-endian machine")
    return {name.decode(): _entry(value) for name, value in rows.items()}, _number(header, 1, 1)


def _entry(value: bytes) -> Entry:
    values: dict[int, Any] = dict(fields(value))
    if 7 in values:
        raise ValueError("a tensor is in slices")
    dims = [dict(fields(dim)) for number, dim in fields(values.get(2, b"")) if number == 2]
    shape = tuple(_number(dim, 1) for dim in dims)
    if math.prod(size for size in shape if size) >= 1 << 63:
        raise ValueError("a tensor is too large")
    return Entry(
        dtype=_number(values, 1),
        shape=shape,
        shard=_number(values, 3),
        offset=_number(values, 4),
        size=_number(values, 5),
        checksum=struct.unpack("<I", values[6])[0] if 6 in values else 0,
    )


def _number(message: Mapping[int, Any], field: int, default: int = 0) -> int:
    """A message's field, which must be a number."""
    value = message.get(field, default)
    if not isinstance(value, int):
        raise ValueError(f"field {field} is not a number")
    return value


def _block(handle: bytes, position: int, table: bytes | None = None) -> bytes:
    """The content of the block to which the handle at `position` of `handle` points.

    Without `table`, the handle is in the table itself.
    """
    table = handle if table is None else table
    offset, position = read_varint(handle, position)
    size, _ = read_varint(handle, position)
    if offset + size + _TRAILER > len(table):
        raise ValueError("it ends too early")
    if table[offset + size] != 0:
        raise ValueError("it is compressed")
    (checksum,) = struct.unpack_from("<I", table, offset + size + 1)
    if masked_checksum(table[offset : offset + size + 1]) != checksum:
        raise ValueError("a part does not match its checksum: the file is damaged")
    return table[offset : offset + size]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    (restarts,) = struct.unpack("<I", block[-4:])
    end = len(block) - 4 * (restarts + 1)
    key = b""
    position = 0
    while position < end:
        prefix_length, position = read_varint(block, position)
        length, position = read_varint(block, position)
        size, position = read_varint(block, position)
        if prefix_length + length > _MAX_NAME_LENGTH:
            raise ValueError("a name is too long")
        key = key[:prefix_length] + block[position : position + length]
        yield key, block[position + length : position + length + size]
        position += length + size


def _table(rows: list[tuple[bytes, bytes]]) -> bytes:
    """A table with one data block."""
    table = bytearray()

    def add(entries: list[tuple[bytes, bytes]]) -> bytes:
        block = _pack_block(entries)
        handle = varint(len(table)) + varint(len(block))
        table.extend(block + b"\0" + struct.pack("<I", masked_checksum(block + b"\0")))
        return handle

    data = add(rows)
    meta = add([])
    index = add([(rows[-1][0], data)])
    footer = (meta + index).ljust(_FOOTER - 8, b"\0") + struct.pack("<Q", _MAGIC)
    return bytes(table) + footer


def _pack_block(entries: list[tuple[bytes, bytes]]) -> bytes:
    block = bytearray()
    restarts: list[int] = []
    previous_key = b""
    for number, (key, value) in enumerate(entries):
        if number % _RESTART_INTERVAL == 0:
            restarts.append(len(block))
            previous_key = b""
        prefix_length = 0
        while (
            prefix_length < min(len(previous_key), len(key))
            and previous_key[prefix_length] == key[prefix_length]
        ):
            prefix_length += 1
        block += varint(prefix_length) + varint(len(key) - prefix_length) + varint(len(value))
        block += key[prefix_length:] + value
        previous_key = key
    restarts = restarts or [0]
    return bytes(block) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))

"""Vector files written window by window: NumPy and Parquet; of texts, or of tokens or words."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ..errors import DataError, first_line
from ..settings.literals import Quantization
from ..settings.pooling import NO_POOLING, SPARSE_POOLINGS
from ..utils.atomic_writes import atomic_write
from ..utils.lazy_module import LazyModule
from ..utils.memory import is_memory_short
from .similarity import import_sparse
from .token_features import Features
from .token_vectors import read_parts, write_token_vectors
from .vector_codes import CODE_TYPES
from .window_files import AppendableFormat, FileFormat, OutputManifest

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
else:
    pa = LazyModule("pyarrow", "parquet", "A file of vectors in Parquet")
    pq = LazyModule("pyarrow.parquet", "parquet", "A file of vectors in Parquet")


class VectorFormat(FileFormat):
    """A format of vector files.

    Args:
        width: the length of each vector.
        quantization: whether vectors are codes; they are float32 otherwise.
    """

    def __init__(self, width: int, quantization: Quantization = "none") -> None:
        self.width, self.dtype = width, CODE_TYPES[quantization]

    @abstractmethod
    def window(self, start: int, texts: Sequence[str], vectors: Any) -> bytes:
        """The bytes to append for the rows from `start` on."""


class Npy(AppendableFormat, VectorFormat):
    """NumPy's format; its header has room for any number of rows, and is rewritten at the end."""

    def head(self, rows: int = 0) -> bytes:
        header = BytesIO()
        shape = (rows, self.width)
        fields = {"descr": self.dtype.str, "fortran_order": False, "shape": shape}
        npy.write_array_header_1_0(header, fields)
        return header.getvalue()

    def window(self, start: int, texts: Sequence[str], vectors: NDArray[Any]) -> bytes:
        del start, texts  # the order tells which vector belongs to which text
        return vectors.astype(self.dtype, copy=False).tobytes()


class Parquet(VectorFormat):
    """Parquet; the unfinished file is an Arrow stream, since Parquet's footer comes last."""

    @cached_property
    def schema(self) -> Any:
        vector = pa.list_(pa.from_numpy_dtype(self.dtype), self.width)
        return pa.schema([("row", pa.int64()), ("text", pa.string()), ("vector", vector)])

    def head(self) -> bytes:
        return bytes(self.schema.serialize())

    def window(self, start: int, texts: Sequence[str], vectors: Any) -> bytes:
        rows = np.arange(start, start + len(texts))
        return self.batch(pa.array(rows), pa.array(texts, pa.string()), self.lists(vectors))

    def lists(self, vectors: NDArray[Any]) -> Any:
        """Vectors as an Arrow array of lists."""
        return pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), self.width)

    def batch(self, *columns: Any) -> bytes:
        """Columns as a message of the Arrow stream."""
        return bytes(pa.record_batch(list(columns), schema=self.schema).serialize())

    @contextmanager
    def finished_file(self, part: Path, out: Path, rows: int) -> Iterator[Path]:
        with part.open("r+b") as file:
            file.write(self.head())  # the checksum does not cover it, so it may be damaged
        with pa.OSFile(str(part)) as stream, atomic_write(out) as new:
            self._write(pa.ipc.open_stream(stream), new, rows)
            yield new

    def join(self, parts: Mapping[Path, OutputManifest], out: Path, rows: int) -> None:
        self._write(_join_row_groups(parts), out, rows)

    def _write(self, batches: Iterable[Any], out: Path, rows: int) -> None:
        del rows
        with pq.ParquetWriter(out, self.schema, use_dictionary=False) as writer:
            for batch in batches:
                writer.write_batch(batch)


class TokenParquet(Parquet):
    """Parquet with a row for each token or word; its column `row` is the number of the text."""

    def __init__(self, width: int, unit: str) -> None:
        super().__init__(width)
        self.unit = unit

    @cached_property
    def schema(self) -> Any:
        vector = pa.list_(pa.float32(), self.width)
        span = [("start", pa.int32()), ("end", pa.int32())]
        name = (self.unit.removesuffix("s"), pa.string())
        return pa.schema([("row", pa.int64()), name, *span, ("vector", vector)])

    def window(self, start: int, texts: Sequence[str], vectors: Features) -> bytes:
        del texts
        return self.batch(
            pa.array(vectors.rows + start),
            pa.array(vectors.names, pa.string()),
            pa.array(vectors.spans[:, 0]),
            pa.array(vectors.spans[:, 1]),
            self.lists(vectors.vectors),
        )


def _join_row_groups(parts: Mapping[Path, OutputManifest]) -> Iterator[Any]:
    """Yield the row groups of all parts; those of a window that was cut are one again."""
    group = None
    for path, manifest in parts.items():
        for number, next_group in enumerate(_row_groups(path)):
            if group is not None and manifest.continues_window and number == 0:
                group = pa.concat_batches([group, next_group])
            else:
                if group is not None:
                    yield group
                group = next_group
    if group is not None:
        yield group


def _row_groups(path: Path) -> Iterator[Any]:
    """Yield the row groups of a file, which are the windows in which it was written."""
    try:
        with pq.ParquetFile(path) as file:
            for number in range(file.num_row_groups):
                table = file.read_row_group(number).combine_chunks()
                empty = [pa.RecordBatch.from_pylist([], table.schema)]  # of texts without tokens
                yield (table.to_batches() or empty)[0]
    except pa.ArrowException as error:
        if is_memory_short(error):
            raise
        fix = "Remove it, and make it again."
        raise DataError(f"is damaged ({first_line(error)})", where=str(path), fix=fix) from None


class SparseParquet(Parquet):
    """Parquet with the columns and values of each text's sparse vector."""

    @cached_property
    def schema(self) -> Any:
        lists = [("indices", pa.list_(pa.int32())), ("values", pa.list_(pa.float32()))]
        return pa.schema([("row", pa.int64()), ("text", pa.string()), *lists])

    def window(self, start: int, texts: Sequence[str], vectors: Any) -> bytes:
        rows, edges = np.arange(start, start + len(texts)), pa.array(vectors.indptr, pa.int32())
        lists = (
            pa.ListArray.from_arrays(edges, pa.array(values))
            for values in (vectors.indices.astype(np.int32), vectors.data)
        )
        return self.batch(pa.array(rows), pa.array(texts, pa.string()), *lists)


class Npz(SparseParquet):
    """SciPy's format of a sparse matrix; the unfinished file is an Arrow stream."""

    def join(self, parts: Mapping[Path, OutputManifest], out: Path, rows: int) -> None:
        del rows
        sparse = import_sparse()
        matrices = [sparse.load_npz(part) for part in parts]
        self._save(sparse.vstack(matrices, format="csr"), out)

    def _write(self, batches: Iterable[Any], out: Path, rows: int) -> None:
        del rows
        # A part may have no rows.
        columns, values = [np.empty(0, np.int32)], [np.empty(0, np.float32)]
        lengths = [np.empty(0, np.int64)]
        for batch in batches:
            indices = batch.column("indices")
            columns.append(indices.flatten().to_numpy())
            values.append(batch.column("values").flatten().to_numpy())
            lengths.append(np.diff(indices.offsets.to_numpy()))
        edges = np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64)
        shape = (len(edges) - 1, self.width)
        data = np.concatenate(values), np.concatenate(columns), edges
        self._save(import_sparse().csr_matrix(data, shape=shape), out)

    def _save(self, matrix: Any, out: Path) -> None:
        with out.open("wb") as file:  # with a name, SciPy would add a suffix to it
            import_sparse().save_npz(file, matrix)


class MatrixParquet(Parquet):
    """Parquet with a list of vectors for each text: those of its tokens, for late interaction."""

    @cached_property
    def schema(self) -> Any:
        vectors = pa.list_(pa.list_(pa.float32(), self.width))
        return pa.schema([("row", pa.int64()), ("text", pa.string()), ("vectors", vectors)])

    def window(self, start: int, texts: Sequence[str], vectors: Any) -> bytes:
        rows = np.arange(start, start + len(texts))
        edges = pa.array(np.cumsum([0, *map(len, vectors)]), pa.int32())
        matrix = np.concatenate([np.empty((0, self.width), np.float32), *vectors])
        lists = pa.ListArray.from_arrays(edges, self.lists(matrix))
        return self.batch(pa.array(rows), pa.array(texts, pa.string()), lists)


class MatrixSafetensors(MatrixParquet):
    """The format of `token_vectors.py`; the unfinished file is an Arrow stream."""

    def join(self, parts: Mapping[Path, OutputManifest], out: Path, rows: int) -> None:
        write_token_vectors(out, self.width, rows, read_parts(parts))

    def _write(self, batches: Iterable[Any], out: Path, rows: int) -> None:
        lists = (batch.column("vectors") for batch in batches)
        parts = (
            (
                one.flatten().flatten().to_numpy().reshape(-1, self.width),
                np.diff(one.offsets.to_numpy()).astype(np.int64),
            )
            for one in lists
        )
        write_token_vectors(out, self.width, rows, parts)


def vector_format_of(
    out: Path, width: int, pooling: str = "mean", quantization: Quantization = "none"
) -> VectorFormat:
    """The format for the suffix of a file name.

    Args:
        pooling: how a text's vector is made; it may be sparse, or a matrix.
        quantization: of dense vectors.

    Raises:
        DataError: the suffix is unknown.
    """
    kinds: dict[str, type[VectorFormat]] = {".npy": Npy, ".parquet": Parquet}
    what = "unknown file format"
    if pooling in SPARSE_POOLINGS:
        kinds = {".npz": Npz, ".parquet": SparseParquet}
        what = "sparse vectors are not written in this format"
    elif pooling == NO_POOLING:
        kinds = {".safetensors": MatrixSafetensors, ".parquet": MatrixParquet}
        what = "matrices for late interaction are not written in this format"
    if out.suffix not in kinds:
        raise DataError(
            what,
            where=str(out),
            fix=f"Use a name that ends in {' or '.join(kinds)}.",
        )
    return kinds[out.suffix](width, quantization)

"""Files of vectors that are made window by window: NumPy's and Parquet, of texts or their parts."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from .. import files
from ..errors import DataError
from ..lazily import Lazily
from ..memory import is_memory_short
from .features import Features

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
else:
    pa = Lazily("pyarrow")
    pq = Lazily("pyarrow.parquet")


class Layout(ABC):
    """A file of vectors whose part can be appended to."""

    def __init__(self, width: int) -> None:
        self.width = width

    @abstractmethod
    def head(self) -> bytes:
        """What a part begins with."""

    @abstractmethod
    def window(self, start: int, texts: Sequence[str], made: Any) -> bytes:
        """What is appended for the rows from `start` on."""

    @abstractmethod
    def finished(self, part: Path, out: Path, rows: int) -> AbstractContextManager[Path]:
        """The file of a part, which gets its name at the end; if broken off, do it again."""

    @abstractmethod
    def join(self, parts: Sequence[Path], out: Path, rows: int) -> None:
        """Put finished files together, in their order; they have so many rows in all."""


def append(parts: Sequence[Path], out: Path, head: bytes) -> None:
    """Put files together whose heads are as long as this one, which is written instead."""
    with out.open("wb") as whole:
        whole.write(head)
        for part in parts:
            with part.open("rb") as file:
                file.seek(len(head))
                shutil.copyfileobj(file, whole)


class Npy(Layout):
    """NumPy's; its header has room for any number of rows, and is written again at the end."""

    def head(self, rows: int = 0) -> bytes:
        header = BytesIO()
        shape = (rows, self.width)
        npy.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
        return header.getvalue()

    def window(self, start: int, texts: Sequence[str], made: NDArray[np.float32]) -> bytes:
        del start, texts  # the order says which vector is whose
        return made.astype("<f4", copy=False).tobytes()

    @contextmanager
    def finished(self, part: Path, out: Path, rows: int) -> Iterator[Path]:
        with part.open("r+b") as file:
            file.write(self.head(rows))
        yield part
        files.rename(part, out)

    def join(self, parts: Sequence[Path], out: Path, rows: int) -> None:
        append(parts, out, self.head(rows))


class Parquet(Layout):
    """Parquet, whose part is a stream of Arrow's, since Parquet's end is known at the end alone."""

    @cached_property
    def schema(self) -> Any:
        vector = pa.list_(pa.float32(), self.width)
        return pa.schema([("row", pa.int64()), ("text", pa.string()), ("vector", vector)])

    def head(self) -> bytes:
        return bytes(self.schema.serialize())

    def window(self, start: int, texts: Sequence[str], made: Any) -> bytes:
        rows = np.arange(start, start + len(texts))
        return self.batch(pa.array(rows), pa.array(texts, pa.string()), self.lists(made))

    def lists(self, vectors: NDArray[np.float32]) -> Any:
        """Vectors as an array of lists."""
        return pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), self.width)

    def batch(self, *columns: Any) -> bytes:
        """Columns as a message of the stream."""
        return bytes(pa.record_batch(list(columns), schema=self.schema).serialize())

    @contextmanager
    def finished(self, part: Path, out: Path, rows: int) -> Iterator[Path]:
        del rows
        with part.open("r+b") as file:
            file.write(self.head())  # which the part's checksum leaves out
        with pa.OSFile(str(part)) as stream, files.atomic(out) as new:
            self._write(pa.ipc.open_stream(stream), new)
            yield new

    def join(self, parts: Sequence[Path], out: Path, rows: int) -> None:
        del rows
        self._write((batch for part in parts for batch in _row_groups(part)), out)

    def _write(self, batches: Iterable[Any], out: Path) -> None:
        with pq.ParquetWriter(out, self.schema, use_dictionary=False) as writer:
            for batch in batches:
                writer.write_batch(batch)


class TokenParquet(Parquet):
    """A row of Parquet for each token or word; `row` is the text's."""

    def __init__(self, width: int, of: str) -> None:
        super().__init__(width)
        self.of = of

    @cached_property
    def schema(self) -> Any:
        vector = pa.list_(pa.float32(), self.width)
        place = [("start", pa.int32()), ("end", pa.int32())]
        name = (self.of.removesuffix("s"), pa.string())
        return pa.schema([("row", pa.int64()), name, *place, ("vector", vector)])

    def window(self, start: int, texts: Sequence[str], made: Features) -> bytes:
        del texts
        return self.batch(
            pa.array(made.rows + start),
            pa.array(made.names, pa.string()),
            pa.array(made.spans[:, 0]),
            pa.array(made.spans[:, 1]),
            self.lists(made.vectors),
        )


def _row_groups(path: Path) -> Iterator[Any]:
    """The row groups of a file, which are the windows that it was made by."""
    try:
        with pq.ParquetFile(path) as file:
            for number in range(file.num_row_groups):
                table = file.read_row_group(number).combine_chunks()
                empty = [pa.RecordBatch.from_pylist([], table.schema)]  # of texts without tokens
                yield (table.to_batches() or empty)[0]
    except pa.ArrowException as error:
        if is_memory_short(error):
            raise
        why = str(error).splitlines()[0]
        fix = "Remove it, and make it again."
        raise DataError(f"is damaged ({why})", where=str(path), fix=fix) from None


def layout_of(out: Path, width: int) -> Layout:
    """The layout that a file's name asks for.

    Raises:
        DataError: it asks for none.
    """
    kinds: dict[str, type[Layout]] = {".npy": Npy, ".parquet": Parquet}
    if out.suffix not in kinds:
        raise DataError(
            "unknown file format", where=str(out), fix="Use a name that ends in .npy or .parquet."
        )
    return kinds[out.suffix](width)

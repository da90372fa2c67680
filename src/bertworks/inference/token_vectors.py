"""Files of the token vectors of texts, for late interaction: a matrix for each text.

    vectors.safetensors     `offsets`, int64 `[texts + 1]`; `vectors`, float32 `[tokens, width]`

The matrix of text N is `vectors[offsets[N] : offsets[N + 1]]`. The offsets come first, so that the
vectors can be written, and read, a few at a time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError

Matrix = NDArray[np.float32]

_HEADER_BYTES = 256  # enough for two tensors, with any numbers


class TokenVectors(Sequence[Matrix]):
    """The matrices of texts, in a file that is read as needed.

    Args:
        vectors: float32 `[tokens, width]` of all texts.
        offsets: `[texts + 1]`: where each text's begin, and the end.
    """

    def __init__(self, vectors: Matrix, offsets: NDArray[np.int64]) -> None:
        self.vectors, self.offsets = vectors, offsets

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> TokenVectors:
        """Open a file that `embed_to` wrote.

        Raises:
            DataError: it is no such file, or is damaged.
        """
        file = Path(path)
        try:
            with file.open("rb") as stream:
                size = int.from_bytes(stream.read(8), "little")
                header = json.loads(stream.read(min(size, 1 << 16)))
            arrays = {
                name: np.memmap(
                    file, dtype, "r", 8 + size + entry["data_offsets"][0], tuple(entry["shape"])
                )
                if np.prod(entry["shape"])
                else np.empty(entry["shape"], dtype)
                for name, dtype in (("vectors", "<f4"), ("offsets", "<i8"))
                for entry in [header[name]]
            }
        except OSError as error:
            raise DataError(f"cannot be read ({error.strerror})", where=str(file)) from None
        except (ValueError, KeyError, TypeError, IndexError) as error:
            what = f"is not a file of token vectors ({error!r})"
            raise DataError(what, where=str(file)) from None
        vectors, offsets = arrays["vectors"], np.array(arrays["offsets"])
        ends = (0, len(vectors)) if vectors.ndim == 2 else ()
        if (
            offsets.ndim != 1
            or (*offsets[:1], *offsets[-1:]) != ends
            or (np.diff(offsets) < 0).any()
        ):
            raise DataError("its offsets do not fit its vectors", where=str(file))
        return cls(vectors, offsets)

    @classmethod
    def from_matrices(cls, matrices: Sequence[Matrix]) -> TokenVectors:
        """The matrices of at least one text, in memory."""
        offsets = np.cumsum([0, *map(len, matrices)])
        return cls(np.concatenate(matrices), offsets.astype(np.int64))

    @property
    def shape(self) -> tuple[int]:
        """The number of texts, as that of an array of which each row is a text."""
        return (len(self),)

    @property
    def dtype(self) -> np.dtype[np.float32]:
        """The type of the numbers."""
        return self.vectors.dtype

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: int) -> Matrix: ...

    @overload
    def __getitem__(self, index: slice) -> TokenVectors: ...

    def __getitem__(self, index: int | slice) -> Matrix | TokenVectors:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            assert step == 1, "texts that follow each other"
            edges = self.offsets[start : max(start, stop) + 1]
            return TokenVectors(self.vectors[edges[0] : edges[-1]], edges - edges[0])
        number = range(len(self))[index]
        return np.asarray(self.vectors[self.offsets[number] : self.offsets[number + 1]])


def write_token_vectors(
    out: Path, width: int, rows: int, parts: Iterable[tuple[Matrix, NDArray[np.int64]]]
) -> None:
    """Write a file of token vectors.

    Args:
        rows: the number of texts of all parts.
        parts: for some texts, `[tokens, width]` of all of them, and the number of each one's rows.
    """
    lengths = np.zeros(rows + 1, np.int64)
    first = 1
    start = 8 + _HEADER_BYTES
    with out.open("wb") as file:
        file.seek(start + lengths.nbytes)
        for vectors, counts in parts:
            file.write(vectors.astype("<f4", copy=False).tobytes())
            lengths[first : first + len(counts)] = counts
            first += len(counts)
        offsets = np.cumsum(lengths).astype("<i8")
        tokens = int(offsets[-1])
        tensors = {
            "offsets": ("I64", [rows + 1], [0, offsets.nbytes]),
            "vectors": (
                "F32",
                [tokens, width],
                [offsets.nbytes, offsets.nbytes + 4 * width * tokens],
            ),
        }
        header = json.dumps(
            {
                name: dict(zip(("dtype", "shape", "data_offsets"), entry, strict=True))
                for name, entry in tensors.items()
            }
        )
        file.seek(0)
        file.write(_HEADER_BYTES.to_bytes(8, "little") + header.encode().ljust(_HEADER_BYTES))
        file.write(offsets.tobytes())


def read_parts(paths: Iterable[Path]) -> Iterator[tuple[Matrix, NDArray[np.int64]]]:
    """Yield the texts of several files in parts that `write_token_vectors` takes."""
    for path in paths:
        file = TokenVectors.from_file(path)
        for start in range(0, len(file), 4096):
            edges = file.offsets[start : start + 4097]
            yield np.asarray(file.vectors[edges[0] : edges[-1]]), np.diff(edges)

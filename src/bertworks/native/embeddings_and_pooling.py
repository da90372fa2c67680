"""Both ends of an encoder in native code, for inference: embeddings, and means of sequences."""

from __future__ import annotations

from ctypes import c_float, c_int64, c_void_p
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..packed import Layout, Packed
from ..utils.threads import num_threads
from .library import EmbeddingTables, empty, library
from .linear import apply_linear
from .quantization import to_bfloat16

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped

_INDEX_ERROR = 2  # what native code returns if an index is not in its table


class NativeEmbeddings:
    """The sum of token, position and segment embeddings, normalised if there is a norm.

    Args:
        words, positions, types: float32 `[entries, width]`, contiguous; None: there is no such
            table. With one type, the tokens' types are ignored.
        norm: weight and bias; None: there is no norm, or it has no bias.
        epsilon: of the norm.
        is_rms: whether it divides by the root mean square, and subtracts no mean.
        projection: weight and bias of a linear map to the layers' width; None: there is none.
        offset: of position 0 in its table.
        fp32: whether the result is float32; otherwise it is rounded to bfloat16.
    """

    def __init__(
        self,
        words: NDArray[np.float32],
        positions: NDArray[np.float32] | None,
        types: NDArray[np.float32] | None,
        norm: tuple[NDArray[np.float32] | None, NDArray[np.float32] | None],
        offset: int,
        *,
        epsilon: float,
        is_rms: bool = False,
        projection: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None,
        fp32: bool = False,
    ) -> None:
        tables = (words, positions, types)
        self._arrays = (*tables, *norm)
        for array in self._arrays:
            if array is not None:
                assert array.dtype == np.float32 and array.flags.c_contiguous
                assert array.shape[-1] == words.shape[1]
        assert projection is None or projection[0].shape == (len(projection[1]), words.shape[1])
        self._projection = projection
        self._width = words.shape[1]
        self._struct = EmbeddingTables(
            (c_void_p * 3)(*(None if table is None else table.ctypes.data for table in tables)),
            (c_void_p * 2)(*(None if part is None else part.ctypes.data for part in norm)),
            (c_int64 * 3)(*(0 if table is None else len(table) for table in tables)),
            self._width,
            offset,
            c_float(epsilon),
            fp32 or projection is not None,  # a map's inputs are float32
            is_rms,
        )
        self._dtype = np.float32 if fp32 else np.uint16
        self._run = library().bertworks_embeddings

    @property
    def num_bytes(self) -> int:
        """The bytes of the tables and the norm."""
        arrays = (*self._arrays, *(self._projection or ()))
        return sum(array.nbytes for array in arrays if array is not None)

    @property
    def words(self) -> Float[np.ndarray, "entries width"]:
        """The table of words."""
        words = self._arrays[0]
        assert words is not None
        return words

    @staticmethod
    def with_tasks(
        types: NDArray[np.float32] | None, tasks: NDArray[np.float32] | None
    ) -> NDArray[np.float32] | None:
        """The table of types, with the first entry of the table of tasks added to each."""
        if tasks is None:
            return types
        return tasks[:1] if types is None else types + tasks[0]

    def __call__(self, packed: Packed) -> Shaped[np.ndarray, "tokens width"] | None:
        """Return the embeddings of a pack of arrays, or of tensors on the CPU.

        Returns:
            Float32, or the bits of bfloat16 numbers (uint16).
            None if a token, position or type is not in its table, or they are not three equally
            long vectors of int64.

        Raises:
            MemoryError: there is no memory for intermediate results.
        """
        ids = np.asarray(packed.input_ids)
        indices = (ids, np.asarray(packed.position_ids), np.asarray(packed.token_type_ids))
        for part in indices:
            if part.dtype != np.int64 or part.shape != (len(ids),) or not part.flags.c_contiguous:
                return None
        dtype = self._dtype if self._projection is None else np.float32
        result = empty((len(ids), self._width), dtype)
        error_code = self._run(
            self._struct,
            *(part.ctypes.data for part in indices),
            len(ids),
            result.ctypes.data,
            num_threads(),
        )
        if error_code and error_code != _INDEX_ERROR:
            raise MemoryError("no memory for the embeddings of tokens")
        if error_code:
            return None
        if self._projection is not None:
            result = apply_linear(result, *self._projection)
            return result if self._dtype == np.float32 else to_bfloat16(result)
        return result


def mean_of_sequences(
    hidden: Shaped[np.ndarray, "tokens width"], layout: Layout, *, unit_length: bool
) -> Float[np.ndarray, "sequences width"]:
    """The mean of each sequence's vectors, in float32; optionally scaled to length 1.

    Args:
        hidden: float32, or the bits of bfloat16 numbers (uint16).
    """
    assert hidden.flags.c_contiguous
    code = library()
    write_means = code.bertworks_means_fp32 if hidden.dtype == np.float32 else code.bertworks_means
    edges = np.asarray(layout.cu_seqlens)
    result = empty((len(edges) - 1, hidden.shape[1]), np.float32)
    write_means(
        hidden.ctypes.data,
        edges.ctypes.data,
        len(result),
        hidden.shape[1],
        unit_length,
        result.ctypes.data,
        num_threads(),
    )
    return result

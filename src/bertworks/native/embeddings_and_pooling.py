"""Both ends of an encoder in native code, for inference: embeddings, and means of sequences."""

from __future__ import annotations

from ctypes import c_float, c_int64, c_void_p

import torch
from jaxtyping import Float
from torch import Tensor

from ..packed import Layout, Packed
from .library import EmbeddingTables, library, parallel

_INDEX_ERROR = 2  # what native code returns if an index is not in its table


class NativeEmbeddings:
    """The normalised sum of token, position and segment embeddings, rounded to bfloat16.

    Args:
        words, positions, types: float32 `[entries, width]`, contiguous; None: there is no such
            table. With one type, the tokens' types are ignored.
        norm: weight, bias and epsilon.
        offset: of position 0 in its table.
    """

    def __init__(
        self,
        words: Tensor,
        positions: Tensor | None,
        types: Tensor | None,
        norm: tuple[Tensor, Tensor, float],
        offset: int,
    ) -> None:
        *weights, epsilon = norm
        tables = (words, positions, types)
        self._tensors = (*tables, *weights)
        self._width = words.shape[1]
        self._struct = EmbeddingTables(
            (c_void_p * 3)(*(None if table is None else table.data_ptr() for table in tables)),
            (c_void_p * 2)(*(part.data_ptr() for part in weights)),
            (c_int64 * 3)(*(0 if table is None else len(table) for table in tables)),
            self._width,
            offset,
            c_float(epsilon),
        )
        self._run, self._parallel = library().bertworks_embeddings, parallel()

    def __call__(self, packed: Packed) -> Float[Tensor, "tokens width"] | None:
        """Return the embeddings of a pack.

        Returns:
            None if a token, position or type is not in its table, or they are not three equally
            long vectors of int64 on the CPU.

        Raises:
            MemoryError: there is no memory for intermediate results.
        """
        indices = (packed.input_ids, packed.position_ids, packed.token_type_ids)
        count = len(packed.input_ids)
        for part in indices:
            fits = part.dtype is torch.int64 and part.is_cpu and part.shape == (count,)
            if not (fits and part.is_contiguous()):
                return None
        result = torch.empty(count, self._width, dtype=torch.bfloat16, device="cpu")
        error_code = self._run(
            self._struct,
            *map(Tensor.data_ptr, indices),
            count,
            result.data_ptr(),
            torch.get_num_threads(),
            self._parallel,
        )
        if error_code and error_code != _INDEX_ERROR:
            raise MemoryError("no memory for the embeddings of tokens")
        return None if error_code else result


def mean_of_sequences(
    hidden: Float[Tensor, "tokens width"], layout: Layout, *, unit_length: bool
) -> Float[Tensor, "sequences width"]:
    """The mean of each sequence's bfloat16 vectors, in float32; optionally scaled to length 1.

    Args:
        hidden: the width is a multiple of 16.
    """
    assert hidden.dtype is torch.bfloat16 and hidden.is_contiguous()
    edges = layout.cu_seqlens
    result = torch.empty(len(edges) - 1, hidden.shape[1], dtype=torch.float32, device="cpu")
    library().bertworks_means(
        hidden.data_ptr(),
        edges.data_ptr(),
        len(result),
        hidden.shape[1],
        unit_length,
        result.data_ptr(),
        torch.get_num_threads(),
        parallel(),
    )
    return result

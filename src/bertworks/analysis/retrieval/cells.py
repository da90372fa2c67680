"""Approximate search: vectors in cells, of which a search visits some, by Faiss."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import import_optional
from ...utils.atomic_writes import atomic_write
from ...utils.outputs import locked_output

_BLOCK = 65536
_POINTS = 64  # vectors per cell to train its centre; Faiss recommends from 39 to 256
_CELLS_PER_VISIT = 16  # a search visits one cell in this many,
_MIN_CELLS = 8  # but at least this number


def open_cells(vectors: NDArray[np.float32], file: Path | None = None) -> Any:
    """Sort vectors into cells, or load cells that were saved before.

    A query is compared only with the vectors of the nearest cells. Source: Jégou et al. (2011),
    "Product Quantization for Nearest Neighbor Search", §4, without the quantization: products are
    exact, but some of the nearest vectors may be missed.

    Args:
        vectors: `[vectors, width]` of length 1; may be memory-mapped.
        file: file in which the cells are saved; they are not saved if omitted.

    Raises:
        BertworksError: Faiss is not installed.
    """
    faiss: Any = import_optional("faiss", "search", "Approximate search")
    count, width = vectors.shape
    if file is not None and file.exists():
        with suppress(RuntimeError):  # a damaged file, or one of other vectors, is replaced
            index = faiss.read_index(str(file))
            if (index.ntotal, index.d) == (count, width):
                return index
    number = max(1, min(int(4 * count**0.5), count // _POINTS))
    centres = faiss.IndexFlatIP(width)
    cells = faiss.IndexIVFFlat(centres, width, number, faiss.METRIC_INNER_PRODUCT)
    cells.cp.min_points_per_centroid = 1  # else Faiss warns if there are few texts
    chosen = np.random.default_rng(0).choice(count, min(count, _POINTS * number), replace=False)
    cells.train(np.ascontiguousarray(vectors[np.sort(chosen)]))
    for start in range(0, count, _BLOCK):
        cells.add(np.ascontiguousarray(vectors[start : start + _BLOCK]))
    cells.nprobe = max(_MIN_CELLS, number // _CELLS_PER_VISIT)
    if file is not None:
        with locked_output(file), atomic_write(file) as new:
            try:
                faiss.write_index(cells, str(new))
            except RuntimeError as error:
                raise OSError(str(error)) from None
    return cells

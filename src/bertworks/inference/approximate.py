"""Search among many vectors by looking at the likeliest part of them alone, with Faiss.

Vectors are sorted into cells around centres (k-means); a query is compared with those of the
nearest cells. Source: Jégou et al. (2011), "Product Quantization for Nearest Neighbor Search", §4,
without the quantization: products are exact, and some of the nearest may be missed.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import files
from ..errors import need
from ..locks import claim

_BLOCK = 65536
_POINTS = 64  # that a cell's centre is the mean of, as Faiss wants: from 39 to 256
_VISITED = 16  # one cell in so many, and
_LEAST = 8  # so many at least


def open_cells(vectors: NDArray[np.float32], file: Path | None = None) -> Any:
    """Sort vectors into cells, or read the cells of an earlier time.

    Args:
        vectors: `[vectors, width]` of length 1; may lie in a mapped file.
        file: where the cells are kept; nowhere, if left out.

    Raises:
        BertworksError: Faiss is not installed.
    """
    faiss: Any = need("faiss", "search", "Approximate search")
    count, width = vectors.shape
    if file is not None and file.exists():
        with suppress(RuntimeError):  # a damaged file is made anew, and so is one of other vectors
            kept = faiss.read_index(str(file))
            if (kept.ntotal, kept.d) == (count, width):
                return kept
    number = max(1, min(int(4 * count**0.5), count // _POINTS))
    centres = faiss.IndexFlatIP(width)
    cells = faiss.IndexIVFFlat(centres, width, number, faiss.METRIC_INNER_PRODUCT)
    cells.cp.min_points_per_centroid = 1  # or Faiss warns where there are few texts
    chosen = np.random.default_rng(0).choice(count, min(count, _POINTS * number), replace=False)
    cells.train(np.ascontiguousarray(vectors[np.sort(chosen)]))
    for start in range(0, count, _BLOCK):
        cells.add(np.ascontiguousarray(vectors[start : start + _BLOCK]))
    cells.nprobe = max(_LEAST, number // _VISITED)
    if file is not None:
        with claim(file), files.atomic(file) as new:
            try:
                faiss.write_index(cells, str(new))
            except RuntimeError as error:
                raise OSError(str(error)) from None
    return cells

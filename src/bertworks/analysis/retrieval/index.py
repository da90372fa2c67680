"""Semantic search: the texts whose meaning is nearest to that of a query.

    texts ─ embed ─► vectors ─┐
    query ─ embed ─► vector ──┴─► cosines, block by block ─► the nearest ─► reranked by a
                                                                            cross-encoder

All texts are compared unless the user asks for an approximation, which compares a part of them.
"""

from __future__ import annotations

import os
import warnings
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

import numpy as np
from numpy.typing import NDArray

from ...checkpoints.sentence_settings import PromptRole
from ...data.reading import TableOptions
from ...data.tables import Table
from ...data.text_inputs import Texts, read_texts
from ...errors import BertworksError, BertworksWarning
from ...inference.settings import EngineSettings
from ...inference.similarity import (
    import_sparse,
    is_sparse,
    max_similarities,
    of_unit_length,
    similarities,
)
from ...inference.token_vectors import TokenVectors
from ...inference.vector_codes import vectors_of_codes
from ...settings.keywords import EngineKeywords, RowKeywords
from ...settings.literals import Quantization
from ...settings.pooling import SPARSE_POOLINGS
from ...tasks.retrieval.exact_search import top_k as nearest
from ...utils.formatting import format_count
from ...utils.outputs import check_inputs, locked_output
from .cells import open_cells
from .text_index import Ranking, TextIndex, open_texts, sort_ranking, with_checksums

if TYPE_CHECKING:
    from .text_index import AnyModel

MANY = 1_000_000
"""Number of texts from which an approximation may be useful."""

_VECTORS, _SPARSE_VECTORS, _TOKEN_VECTORS = "vectors.npy", "vectors.npz", "vectors.safetensors"


class Index(TextIndex):
    """A searchable index of texts and their vectors; create it with `Index.open`.

    Args:
        model: the model that computed the vectors.
        texts: the texts, which are read again for results.
        vectors: float32 `[texts, width]`, perhaps sparse, of the texts that are not blank; of
            length 1 if cosines are compared. Or their codes (`inference.vector_codes`).
            `TokenVectors` for late interaction.
        cells: file of the approximate index; not kept if omitted.
        checksums: of the texts that are not blank, by which changed ones are recognised; not
            checked if omitted.
        settings: settings of `EngineSettings`, for queries.
    """

    def __init__(
        self,
        model: AnyModel,
        texts: Texts,
        vectors: NDArray[np.float32] | Any,
        *,
        cells: Path | None = None,
        checksums: Sequence[int] = (),
        **settings: Unpack[EngineKeywords],
    ) -> None:
        engine = EngineSettings.resolve(**settings).model_dump(exclude_unset=True)
        super().__init__(texts, checksums, engine)
        self.model, self.vectors, self.num_truncated = model, vectors, 0
        self.score_name = str(model.similarity_function)
        self._cells = cells

    @classmethod
    def open(
        cls,
        model: AnyModel,
        data: Table | Texts | Iterable[str],
        directory: str | os.PathLike[str] | None = None,
        *,
        column: str | None = None,
        quantization: Quantization = "none",
        overwrite: bool = False,
        progress: Callable[[int, int], None] | None = None,
        **settings: Unpack[RowKeywords],
    ) -> Self:
        """Compute the vectors of texts, or reuse those in the directory; warn of truncated texts.

        Args:
            model: pooling, prompts and the similarity are read from its files. Models trained for
                retrieval work best (`finetune retrieval`, or sentence-transformers).
            data: texts, rows, a `.txt` file (one text per line), or a table; blank texts are left
                out.
            directory: directory of the vectors, which are read as needed; in memory if omitted. An
                unfinished one is resumed.
            column: the text column of a table; detected if omitted.
            quantization: keep vectors as 8-bit integers or bits, with which queries' vectors are
                compared as they are.
            overwrite: delete the vectors in the directory, and start again.
            progress: called with the number of texts done, and of all texts.
            settings: settings of `TableOptions` (`header`, `format`, `encoding`, `max_line_bytes`)
                and of `EngineSettings`.

        Raises:
            DataError: there are no texts; or the directory holds vectors of other texts or of
                another model.
            OutputError: the directory cannot be written, is being written by another process, or
                is, contains or is inside an input.
        """
        options, others = TableOptions.split(settings)
        engine = EngineSettings.resolve(**others).model_dump(exclude_unset=True)
        texts = open_texts(data, column, **options)
        name, checksums = _file_name(model), array("I")

        def embed_texts(folder: Path) -> tuple[Any, int]:
            if not (folder / name).exists():  # an existing approximation is of other vectors
                (folder / f"{_VECTORS}.faiss").unlink(missing_ok=True)
            result = model.embed_to(
                folder / name,
                with_checksums(texts.without_blank(), checksums),
                progress=progress,
                quantization=quantization,
                **vector_settings(model),
                **engine,
            )
            if result.num_truncated:
                counts = f"{result.num_truncated:,} of {result.rows:,} texts"
                what = f"{counts} were too long for {model.source or 'the model'}, and truncated"
                warnings.warn(f"{texts.rows.name}: {what}", BertworksWarning, stacklevel=3)
            vectors = _load_vectors(folder / name, mmap_mode=None if directory is None else "r")
            return vectors, result.num_truncated

        cells = None
        if directory is None:
            with TemporaryDirectory() as temporary:
                vectors, num_truncated = embed_texts(Path(temporary))
        else:
            folder, marks = Path(directory), [f"{name}*", f".{name}.*"]
            cells = folder / f"{_VECTORS}.faiss"
            check_inputs(folder, [data])
            is_finished = (folder / name).exists() and not overwrite  # it is only read
            lock = locked_output(folder, kind="directory", overwrite=overwrite, marks=marks)
            with nullcontext() if is_finished else lock:
                vectors, num_truncated = embed_texts(folder)
        index = cls(model, texts, vectors, cells=cells, checksums=checksums, **engine)
        index.num_truncated = num_truncated
        return index

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state.pop("_approximation", None)
        if isinstance(self.vectors, np.memmap):  # a worker maps the same file
            state["vectors"] = Path(str(self.vectors.filename))
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(self.vectors, Path):
            self.vectors = _load_vectors(self.vectors, mmap_mode="r")

    def __repr__(self) -> str:
        count = format_count(len(self), "text")
        return f"<Index of {count} in {self._texts.rows.name}, {self.model!r}>"

    def __len__(self) -> int:
        """Number of texts that can be found: those that are not blank."""
        return int(self.vectors.shape[0])

    def rank(self, queries: Sequence[str], count: int, *, approximate: bool = False) -> Ranking:
        vectors = embed_queries(self.model, queries, self._engine)
        find = self._find_approximately if approximate else self._find_nearest
        return find(vectors, min(count, len(self)))

    def _find_nearest(self, queries: Any, count: int) -> Ranking:
        """Return the scores and rows of the texts nearest to each query's vector."""
        function = self.model.similarity_function
        if self._is_quantized:
            decode = partial(_unit_vectors_of_codes, width=queries.shape[1])
            scores, rows = nearest(queries, self.vectors, count, decode=decode, longest=1.0)
        elif function in _PRODUCTS and not is_sparse(queries):
            longest = 1.0 if function == "cosine" else None
            scores, rows = nearest(queries, self.vectors, count, longest=longest)
        elif function == "maxsim":
            matrices: Any = TokenVectors.from_matrices(queries)
            compare: Any = max_similarities
            scores, rows = nearest(matrices, self.vectors, count, compare=compare)
        else:
            compare = partial(similarities, function=function)
            scores, rows = nearest(queries, self.vectors, count, compare=compare)
        # Products of rounded vectors may exceed 1.
        return np.clip(scores, -1, 1) if function == "cosine" else scores, rows

    def _find_approximately(self, queries: Any, count: int) -> Ranking:
        """As `_find_nearest`, which is used for queries of whose cells there are too few texts."""
        function = self.model.similarity_function
        problem = ""
        if function not in _PRODUCTS:
            problem = f"compared by similarity_fn_name={function!r}"
        elif is_sparse(queries):
            problem = "sparse"
        elif self._is_quantized:
            problem = "quantized"
        if problem:
            raise BertworksError(
                f"the model's vectors are {problem}, which approximate search does not support",
                fix="Leave approximate out.",
            )
        scores, rows = self._approximation.search(queries, count)
        is_short = (rows < 0).any(1)  # the cells that were visited have fewer texts
        if is_short.any():
            scores[is_short], rows[is_short] = self._find_nearest(queries[is_short], count)
        scores, rows = sort_ranking(scores, rows)
        return np.clip(scores, -1, 1) if function == "cosine" else scores, rows

    @property
    def _is_quantized(self) -> bool:
        return getattr(self.vectors, "dtype", None) in (np.int8, np.uint8)

    @cached_property
    def _approximation(self) -> Any:
        return open_cells(self.vectors, self._cells)


def _file_name(model: AnyModel) -> str:
    """Return the name of the file of a model's vectors."""
    if model.similarity_function == "maxsim":
        return _TOKEN_VECTORS
    return _SPARSE_VECTORS if model.embedder().pooling in SPARSE_POOLINGS else _VECTORS


def _load_vectors(file: Path, mmap_mode: Literal["r"] | None = None) -> Any:
    """Read a file of vectors; sparse ones are read into memory."""
    if file.suffix == ".safetensors":
        matrices = TokenVectors.from_file(file)
        return matrices if mmap_mode else TokenVectors(np.array(matrices.vectors), matrices.offsets)
    if file.suffix == ".npy":
        return np.load(file, mmap_mode=mmap_mode)
    return import_sparse().load_npz(file).tocsr()


_PRODUCTS = ("cosine", "dot")
"""Functions that are inner products of the index's vectors."""


def _unit_vectors_of_codes(codes: NDArray[Any], width: int) -> NDArray[Any]:
    """Return the vectors of codes, of length 1."""
    return of_unit_length(vectors_of_codes(codes)[:, :width])  # bits fill a whole byte


def embed_queries(model: AnyModel, queries: Sequence[str], engine: Mapping[str, Any]) -> Any:
    """Return the vectors of queries, to compare with those of texts.

    Raises:
        DataError: a query is too long for the model.
    """
    return model.embed(
        data=read_texts(queries, name="query"),
        # Late interaction was trained with queries cut to a length.
        truncation="longest_first" if model.similarity_function == "maxsim" else "error",
        is_query=True,
        **vector_settings(model, "query"),
        **engine,
    )


def vector_settings(model: AnyModel, role: PromptRole = "document") -> dict[str, Any]:
    """Return settings of vectors of texts, whose inner products are the model's cosines, if any."""
    prompt = "" if model.sentence is None else model.sentence.prompt(role)
    comparison = {"normalize": True} if model.similarity_function == "cosine" else {}
    return {"prompt": prompt, **comparison}

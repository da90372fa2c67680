"""Semantic search: the texts whose meaning is nearest to that of a query.

    texts ─ embed ─► vectors ─┐
    query ─ embed ─► vector ──┴─► cosines, block by block ─► the nearest ─► reranked by a
                                                                            cross-encoder

All texts are compared unless the user asks for an approximation, which compares a part of them.
"""

from __future__ import annotations

import math
import os
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, Unpack

import numpy as np
from numpy.typing import NDArray

from ..checkpoints.sentence_settings import PromptRole
from ..data.rows import LocatedRow
from ..data.settings import TableOptions
from ..data.tables import Table
from ..data.text_inputs import Texts, read_texts
from ..errors import BertworksError, DataError, SettingsError, import_optional
from ..inference.settings import EngineSettings
from ..inference.similarity import is_sparse, max_similarities, similarities
from ..inference.token_vectors import TokenVectors
from ..settings.keywords import EngineKeywords, RowKeywords
from ..settings.pooling import SPARSE_POOLINGS
from ..tasks.retrieval.exact_search import top_k as nearest
from ..utils.atomic_writes import atomic_write
from ..utils.outputs import check_inputs, locked_output

if TYPE_CHECKING:
    from ..inference.native_model import NativeModel
    from ..model import Model
    from ..tasks.task import Prediction

    AnyModel = Model | NativeModel

MANY = 1_000_000
"""Number of texts from which an approximation may be useful."""

_VECTORS, _SPARSE_VECTORS, _TOKEN_VECTORS = "vectors.npy", "vectors.npz", "vectors.safetensors"


class Hit(NamedTuple):
    """A text that was found.

    Attributes:
        score: the score for the ranking: the reranker's, if there is one, or else the similarity.
        similarity: of the text's vector and the query's: the cosine, or what the model's files
            name: the inner product, or a distance, which is negative.
        row: the text's index among the given texts, from 0; blank ones count.
        where: its place: file and line, or row.
        text: the text.
    """

    score: float
    similarity: float
    row: int
    where: str
    text: str


class Index:
    """A searchable index of texts and their vectors; create it with `Index.open`.

    Args:
        model: the model that computed the vectors.
        texts: the texts, which are read again for results.
        vectors: float32 `[texts, width]`, perhaps sparse, of the texts that are not blank; of
            length 1 if cosines are compared. `TokenVectors` for late interaction.
        cells: file of the approximate index; not kept if omitted.
        cut: number of texts that were too long for the model and were truncated.
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
        num_truncated: int = 0,
        checksums: Sequence[int] = (),
        **settings: Unpack[EngineKeywords],
    ) -> None:
        self.model, self.vectors, self.num_truncated = model, vectors, num_truncated
        self._texts, self._cells, self._checksums = texts, cells, checksums
        self._engine = EngineSettings.resolve(**settings).model_dump(exclude_unset=True)

    @classmethod
    def open(
        cls,
        model: AnyModel,
        data: Table | Iterable[str],
        directory: str | os.PathLike[str] | None = None,
        *,
        column: str | None = None,
        overwrite: bool = False,
        progress: Callable[[int, int], None] | None = None,
        **settings: Unpack[RowKeywords],
    ) -> Self:
        """Compute the vectors of texts, or reuse those in the directory.

        Args:
            model: pooling, prompts and the similarity are read from its files. Models trained for
                retrieval work best (`finetune retrieval`, or sentence-transformers).
            data: texts, rows, a `.txt` file (one text per line), or a table; blank texts are left
                out.
            directory: directory of the vectors, which are read as needed; in memory if omitted. An
                unfinished one is resumed.
            column: the text column of a table; detected if omitted.
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
        if isinstance(data, str) and data == "-":
            raise DataError(
                "texts to search cannot be read from standard input", fix="Give a file."
            )
        given = list(data) if isinstance(data, Iterator) else data
        texts = read_texts(given, column=column, **options)
        name, checksums = _file_name(model), array("I")

        def embed_texts(folder: Path) -> tuple[Any, int]:
            if not (folder / name).exists():  # an existing approximation is of other vectors
                (folder / f"{_VECTORS}.faiss").unlink(missing_ok=True)
            result = model.embed_to(
                folder / name,
                _with_checksums(texts.without_blank(), checksums),
                progress=progress,
                prompt=_prompt(model, "document"),
                **_comparison(model),
                **engine,
            )
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
        return cls(
            model,
            texts,
            vectors,
            cells=cells,
            num_truncated=num_truncated,
            checksums=checksums,
            **engine,
        )

    def __repr__(self) -> str:
        return f"<Index of {len(self):,} texts in {self._texts.rows.name}, {self.model!r}>"

    def __len__(self) -> int:
        """Number of texts that can be found: those that are not blank."""
        return int(self.vectors.shape[0])

    def search(
        self,
        queries: str | Iterable[str],
        top_k: int = 5,
        *,
        rerank: AnyModel | None = None,
        candidates: int = 50,
        approximate: bool = False,
    ) -> list[list[Hit]]:
        """The texts nearest to each query, best first; of equal ones, the earlier text.

        With `rerank`, of equal ones the text that is nearer to the query.

        Args:
            queries: one query, or any number.
            top_k: number of texts per query.
            rerank: a classifier or regression model for pairs (a cross-encoder), or a model of
                late interaction (ColBERT), which scores each query with each of its candidates and
                sets the final order.
            candidates: number of texts to rerank; at least `top_k`.
            approximate: search only part of the texts, with Faiss, which may miss some.

        Raises:
            DataError: a query is too long; or the texts have changed since the index was opened.
            SettingsError: `top_k` is less than 1.
            BertworksError: the reranker does not score pairs of texts; with `approximate`, Faiss
                is not installed, or the model's vectors are compared by a distance.
        """
        queries = [queries] if isinstance(queries, str) else list(queries)
        if top_k < 1:
            raise SettingsError(f"top_k={top_k}: must be at least 1")
        if not queries:
            return []
        score = None if rerank is None else _pair_scorer(rerank, self._engine)
        function = self.model.similarity_function
        vectors: Any = self.model.embed(
            data=read_texts(queries, name="query"),
            # Late interaction was trained with queries cut to a length.
            truncation="longest_first" if function == "maxsim" else "error",
            prompt=_prompt(self.model, "query"),
            is_query=True,
            **_comparison(self.model),
            **self._engine,
        )
        count = min(top_k if rerank is None else max(top_k, candidates), len(self))
        find = self._find_approximately if approximate else self._find_nearest
        scores, rows = find(vectors, count)
        texts = self._texts_of(set(rows.ravel().tolist()))
        hits_of_queries = [
            [
                Hit(score, score, *texts[row])
                for score, row in zip(own_scores, own_rows, strict=True)
                if row >= 0  # -1: Faiss has found none
            ]
            for own_scores, own_rows in zip(scores.tolist(), rows.tolist(), strict=True)
        ]
        if score is not None:
            hits_of_queries = _rerank(queries, hits_of_queries, score)
        return [hits[:top_k] for hits in hits_of_queries]

    def _find_nearest(
        self, queries: Any, count: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the scores and rows of the texts nearest to each query's vector."""
        function = self.model.similarity_function
        if function in _PRODUCTS and not is_sparse(queries):
            scores, rows = nearest(queries, self.vectors, count)
        elif function == "maxsim":
            matrices: Any = TokenVectors.from_matrices(queries)
            compare: Any = max_similarities
            scores, rows = nearest(matrices, self.vectors, count, compare=compare)
        else:
            compare = partial(similarities, function=function)
            scores, rows = nearest(queries, self.vectors, count, compare=compare)
        # Products of rounded vectors may exceed 1.
        return np.clip(scores, -1, 1) if function == "cosine" else scores, rows

    def _find_approximately(
        self, queries: Any, count: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """As `_find_nearest`; of equal scores, the earlier text first, and row -1 for none."""
        function = self.model.similarity_function
        problem = ""
        if function not in _PRODUCTS:
            problem = f"compared by similarity_fn_name={function!r}"
        elif is_sparse(queries):
            problem = "sparse"
        if problem:
            raise BertworksError(
                f"the model's vectors are {problem}, which approximate search does not support",
                fix="Leave approximate out.",
            )
        scores, rows = _sort_results(*self._approximation.search(queries, count))
        return np.clip(scores, -1, 1) if function == "cosine" else scores, rows

    @cached_property
    def _approximation(self) -> Any:
        return open_cells(self.vectors, self._cells)

    def _texts_of(self, rows: set[int]) -> dict[int, tuple[int, str, str]]:
        """Return the indices, places and texts of some rows of the vectors."""
        filled = ((at, *placed) for at, placed in enumerate(self._texts) if placed[1].strip())
        some = islice(filled, max(rows) + 1)
        texts = {row: placed for row, placed in enumerate(some) if row in rows}
        what = ""
        if len(texts) < len(rows - {-1}):  # -1: Faiss has found none
            what = "has fewer texts than when it was opened"
        elif self._checksums and any(
            self._checksums[row] != _checksum(text) for row, (*_, text) in texts.items()
        ):
            what = "has other texts than when it was opened"
        if what:
            raise DataError(what, where=self._texts.rows.name, fix="Open it again.")
        return texts


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
    sparse: Any = import_optional("scipy.sparse", "metrics", "Sparse vectors")
    return sparse.load_npz(file).tocsr()


def _with_checksums(texts: Texts, checksums: array[int]) -> Texts:
    """The texts, whose checksums are noted each time that they are read."""

    def rows() -> Iterator[LocatedRow]:
        del checksums[:]
        for row in texts.rows:
            checksums.append(_checksum(str(row.values.get(texts.column))))
            yield row

    return replace(texts, rows=replace(texts.rows, read=rows))


def _checksum(text: str) -> int:
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))


_PRODUCTS = ("cosine", "dot")
"""Functions that are inner products of the index's vectors."""


def _comparison(model: AnyModel) -> dict[str, Any]:
    """Return settings of vectors whose inner products are the model's cosines, if it uses these."""
    return {"normalize": True} if model.similarity_function == "cosine" else {}


def _prompt(model: AnyModel, role: PromptRole) -> str:
    """Return the prompt to put before texts."""
    return "" if model.sentence is None else model.sentence.prompt(role)


def _sort_results(
    scores: NDArray[np.float32], rows: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Sort each query's results by score, and equal ones by the number of the text."""
    order = np.lexsort((rows, -scores))
    return np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)


class Relevance(NamedTuple):
    """The relevance of a text to a query."""

    score: float
    # rises with the score, but still differs where the score is rounded to 0 or 1
    order: float


PairScorer = Callable[[Sequence[tuple[str, str]]], Iterable[Relevance]]
"""Computes the relevance of each text to its query, from pairs of query and text."""


def _rerank(
    queries: Sequence[str], hits_of_queries: Sequence[Sequence[Hit]], score: PairScorer
) -> list[list[Hit]]:
    """Order each query's hits by their relevance; equal ones stay as retrieved."""
    pairs = [
        (query, hit.text)
        for query, hits in zip(queries, hits_of_queries, strict=True)
        for hit in hits
    ]
    relevances = iter(score(pairs))
    reranked_hits = []
    for hits in hits_of_queries:
        scored = [(hit, next(relevances)) for hit in hits]
        scored.sort(key=lambda pair: -pair[1].order)
        reranked_hits.append([hit._replace(score=relevance.score) for hit, relevance in scored])
    return reranked_hits


def _pair_scorer(model: AnyModel, engine: Mapping[str, Any]) -> PairScorer:
    """Return the function of a reranker: late interaction, or predictions for pairs.

    Raises:
        BertworksError: the model does not score pairs of texts.
    """
    if model.similarity_function == "maxsim":

        def score_late(pairs: Sequence[tuple[str, str]]) -> Iterator[Relevance]:
            for query, group in groupby(pairs, itemgetter(0)):
                (scores,) = model.similarity(query, [text for _, text in group], **engine)
                yield from (Relevance(score, score) for score in scores.tolist())

        return score_late
    relevance = _relevance(model)
    return lambda pairs: map(relevance, model.predict(pairs, **engine))


def _log_odds(probabilities: Mapping[str, float], label: str) -> float:
    """Return the logarithm of a label's probability over that of all others."""
    others = sum(share for name, share in probabilities.items() if name != label)
    if not probabilities[label] or not others:
        return math.inf if probabilities[label] else -math.inf
    return math.log(probabilities[label]) - math.log(others)


def _relevance(model: AnyModel) -> Callable[[Prediction], Relevance]:
    """Return a function from a model's prediction for two texts to their relevance."""
    from ..tasks.classification import TextClassifierTask
    from ..tasks.regression import RegressionTask

    task = model.task
    if not isinstance(task, TextClassifierTask | RegressionTask):
        name = "nothing" if task is None else task.name
        raise BertworksError(
            f"the reranker was trained for {name}",
            fix="Give a classifier or a regression of pairs of texts.",
        )
    if task.settings.pair_column is None and not task.settings.is_pair_optional:
        raise BertworksError("the reranker takes single texts, not pairs")
    if isinstance(task, RegressionTask):
        return lambda answer: Relevance(answer["value"], answer["value"])
    labels, positive = task.labels, task.positive
    if positive is None:
        raise BertworksError(
            f"the reranker does not say which of its labels {', '.join(labels)} is the "
            "positive one",
            fix="Train it with positive_label=NAME.",
        )

    def of_classes(answer: Prediction) -> Relevance:
        shares = answer["probabilities"]
        return Relevance(shares[positive], _log_odds(shares, positive))

    return of_classes


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
            kept = faiss.read_index(str(file))
            if (kept.ntotal, kept.d) == (count, width):
                return kept
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

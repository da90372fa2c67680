"""Open an index of texts for what ranks them: models, BM25, or several."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Unpack

from ...data.reading import TableOptions
from ...data.tables import Table
from ...data.text_inputs import Texts
from ...errors import SettingsError, closest_name, truncate_repr
from ...settings.keywords import RowKeywords
from ...settings.literals import Quantization
from .bm25 import BM25Index
from .fusion import HybridIndex
from .index import Index
from .store import VectorStore, is_store
from .text_index import TextIndex

if TYPE_CHECKING:
    from .text_index import AnyModel

    Retriever: TypeAlias = AnyModel | Literal["bm25"]
    """What ranks texts: a model's vectors, or BM25."""


def check_retriever(retriever: object) -> None:
    """Check that a retriever is a model or "bm25".

    Raises:
        SettingsError: it is something else, such as the name of a model.
    """
    if retriever == "bm25" or hasattr(retriever, "similarity_function"):
        return
    what = f"{truncate_repr(retriever)} is neither a model nor 'bm25'"
    is_misspelt = isinstance(retriever, str) and closest_name(retriever, ["bm25"]) is not None
    fix = "Did you mean 'bm25'?" if is_misspelt else "Give a loaded model: load(NAME)."
    raise SettingsError(what, fix=fix)


def open_index(
    retrievers: Retriever | Sequence[Retriever],
    data: Table | Texts | Iterable[str],
    directory: str | os.PathLike[str] | None = None,
    *,
    column: str | None = None,
    quantization: Quantization = "none",
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
    **settings: Unpack[RowKeywords],
) -> TextIndex:
    """Open an index of texts.

    Args:
        retrievers: a model, or "bm25"; with several of them, their rankings are fused.
        data, column, quantization, overwrite, progress, settings: see `Index.open`; or the
            directory or URL of a `VectorStore`, which one model searches.
        directory: keeps the vectors of one model; BM25's weights are computed again.

    Raises:
        SettingsError: a retriever is neither a model nor "bm25"; or the directory would hold the
            vectors of several models, or of none.
        DataError, OutputError: see `Index.open`.
    """
    is_one = isinstance(retrievers, str) or not isinstance(retrievers, Sequence)
    parts: Any = [retrievers] if is_one else retrievers
    for part in parts:
        check_retriever(part)
    if isinstance(data, str | os.PathLike) and is_store(data):
        if quantization != "none":
            what = f"quantization={quantization} is for texts, and a store has its own"
            raise SettingsError(what, fix="Leave it out.")
        if directory is not None or len(parts) != 1 or parts[0] == "bm25":
            raise SettingsError(
                "a store is searched by its model alone",
                fix="Give the model that it was made with (answer: --retriever MODEL).",
            )
        _, engine = TableOptions.split(settings)
        options: Any = engine
        return VectorStore.open(parts[0], data, create=False, **options)
    num_models = sum(part != "bm25" for part in parts)
    if directory is not None and num_models != 1:
        raise SettingsError(f"an index keeps the vectors of one model, and there are {num_models}")
    if quantization != "none" and not num_models:
        raise SettingsError(f"quantization={quantization} is for the vectors of models")
    if isinstance(data, Iterator):  # each index reads the texts
        data = list(data)
    indexes: list[TextIndex] = []
    for part in parts:
        if isinstance(part, str):
            indexes.append(BM25Index.open(data, column=column, **settings))
        else:
            index = Index.open(
                part,
                data,
                directory,
                column=column,
                quantization=quantization,
                overwrite=overwrite,
                progress=progress,
                **settings,
            )
            indexes.append(index)
    return indexes[0] if len(indexes) == 1 else HybridIndex(indexes)

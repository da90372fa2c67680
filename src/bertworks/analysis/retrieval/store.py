"""A store: texts with their vectors in a directory or a database, which takes changes.

texts ─ embed ─► vectors ─► backend: a directory, PostgreSQL or Qdrant
query ─ embed ─► vector ──► backend.nearest ─► the best texts
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, get_args
from urllib.parse import urlsplit

import numpy as np

from ...data.rows import id_of, text_of
from ...data.tables import Table
from ...data.texts_by_id import ID
from ...errors import DataError, SettingsError, did_you_mean, truncate_repr
from ...inference.settings import EngineSettings
from ...inference.similarity import is_sparse
from ...settings.keywords import EngineKeywords, TableKeywords
from ...settings.literals import Quantization
from ...utils.formatting import format_count
from . import store_postgres, store_qdrant
from .index import embed_queries, vector_settings
from .store_backend import StoreBackend
from .store_files import DirectoryBackend, is_store_directory
from .text_index import Ranking, TextIndex, open_texts

if TYPE_CHECKING:
    from .text_index import AnyModel

_DATABASES: dict[str, Any] = {
    **dict.fromkeys(store_postgres.SCHEMES, store_postgres.PostgresBackend),
    **dict.fromkeys(store_qdrant.SCHEMES, store_qdrant.QdrantBackend),
}

_BATCH_TEXTS = 2048
_IDS = "Ids are texts or whole numbers, not empty."


def is_database(address: object) -> bool:
    """Whether something is the URL of a database."""
    return isinstance(address, str) and urlsplit(address).scheme in _DATABASES


def is_store(address: str | os.PathLike[str]) -> bool:
    """Whether something is the URL of a database, or the directory of a store."""
    return is_database(address) or is_store_directory(address)


class VectorStore(TextIndex):
    """Texts and their vectors in a directory or a database; open it with `VectorStore.open`."""

    def __init__(self, model: AnyModel, backend: StoreBackend, engine: dict[str, Any]) -> None:
        self.model, self._backend, self._engine = model, backend, engine
        self.score_name = str(model.similarity_function)

    @property
    def source(self) -> str:
        return ""  # the places of its texts are ids

    @classmethod
    def open(
        cls,
        model: AnyModel,
        address: str | os.PathLike[str],
        *,
        quantization: Quantization | None = None,
        create: bool = True,
        **settings: Unpack[EngineKeywords],
    ) -> VectorStore:
        """Open a store, or create an empty one.

        Args:
            model: a model of dense vectors that are compared by cosine or inner product.
            address: a directory, or the URL of a database: `postgresql://…` (its query may have
                `table=NAME`), `qdrant://HOST:PORT/COLLECTION`.
            quantization: of a new directory; an existing one has its own. Databases have none.
            create: create a store that is absent.
            settings: settings of `EngineSettings`.

        Raises:
            DataError: the store is damaged, or its vectors are another model's.
            SettingsError: the model has other vectors; the quantization is unknown, or the store
                has another one.
            OutputError: the store cannot be written or reached, or is no store.
            BertworksError: the database's client is not installed.
        """
        names = get_args(Quantization)
        if quantization is not None and quantization not in names:
            what = f"unknown quantization {truncate_repr(quantization)}"
            raise SettingsError(what, fix=f"{did_you_mean(str(quantization), names)}.")
        engine = EngineSettings.resolve(**settings).model_dump(exclude_unset=True)
        vectors: Any = model.embed(["a"], **engine)
        if model.similarity_function not in ("cosine", "dot") or is_sparse(vectors):
            raise SettingsError("a store is for dense vectors, compared by cosine or inner product")
        if model.similarity_function == "dot" and quantization not in (None, "none"):
            raise SettingsError(f"quantization={quantization} is for models that use cosines")
        backend: StoreBackend
        if isinstance(address, str) and is_database(address):
            if quantization not in (None, "none"):
                raise SettingsError(f"quantization={quantization} is for stores in directories")
            database = _DATABASES[urlsplit(address).scheme]
            width = vectors.shape[1]
            backend = database(address, _fingerprint(model), width=width, create=create)
        else:
            backend = DirectoryBackend(
                Path(address), _fingerprint(model), quantization=quantization, create=create
            )
        return cls(model, backend, engine)

    @property
    def quantization(self) -> Quantization:
        """How vectors are compared at first."""
        return self._backend.quantization

    def refresh(self) -> None:
        """As `TextIndex.refresh`, which costs little if nothing has changed."""
        self._backend.refresh()

    def __repr__(self) -> str:
        count = format_count(len(self), "text")
        return f"<VectorStore of {count} in {self._backend.name}, {self.model!r}>"

    def __len__(self) -> int:
        return len(self._backend)

    @property
    def name(self) -> str:
        """What messages call it: without a password."""
        return self._backend.name

    @property
    def ids(self) -> list[str]:
        """The ids of all texts."""
        return self._backend.ids()

    def texts(self, ids: str | Iterable[str]) -> dict[str, str]:
        """The texts with these ids, of those that are there."""
        return self._backend.texts(_list_ids(ids))

    def add(
        self,
        texts: str | Iterable[str],
        ids: str | Iterable[str],
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> int:
        """Add texts; one whose id is already there replaces the earlier text.

        Texts are added in batches of 2,048, each of which is there as a whole or not at all if this
        is interrupted. A text that is already there is skipped, so a second call completes it.

        Args:
            texts: one text, or any number.
            ids: their ids, as many; whole numbers are read as texts.
            progress: called with the number of texts done, and of all texts.

        Returns:
            How many of them replaced an earlier, different text.

        Raises:
            DataError: a text is blank or no text, an id is empty or no id, an id occurs twice, or
                their numbers differ.
            OutputError: the store cannot be written, or another process is writing it.
        """
        texts, ids = [texts] if isinstance(texts, str) else list(texts), _list_ids(ids)
        if len(texts) != len(ids):
            what = f"{format_count(len(texts), 'text')}, but {format_count(len(ids), 'id')}"
            raise DataError(what)
        if len(set(ids)) < len(ids):
            duplicate, _ = Counter(ids).most_common(1)[0]
            raise DataError(
                f"the id {truncate_repr(duplicate)} occurs twice among the texts to add"
            )
        for name, text in zip(ids, texts, strict=True):
            if not isinstance(text, str):
                what = f"the text with the id {name!r} is no text, but {truncate_repr(text)}"
                raise DataError(what)
            if not text.strip():
                raise DataError(f"the text with the id {name!r} is blank")
        num_replaced = 0
        if progress is not None:
            progress(0, len(texts))  # the rate counts from here
        for start in range(0, len(texts), _BATCH_TEXTS):
            stop = start + _BATCH_TEXTS
            batch = dict(zip(ids[start:stop], texts[start:stop], strict=True))
            num_replaced += self._add_batch(batch)
            if progress is not None:
                progress(min(stop, len(texts)), len(texts))
        return num_replaced

    def _add_batch(self, batch: dict[str, str]) -> int:
        """Add the texts, by their ids, that are not there; return how many replaced another."""
        self.refresh()
        present = self._backend.texts(batch)
        new = {name: text for name, text in batch.items() if present.get(name) != text}
        if new:
            settings = {**vector_settings(self.model), **self._engine}
            vectors: Any = self.model.embed(list(new.values()), **settings)
            self._backend.put(list(new), list(new.values()), np.asarray(vectors, np.float32))
        return len(new.keys() & present.keys())

    def delete(self, ids: str | Iterable[str]) -> int:
        """Delete texts by one id, or any number; return how many of the ids were there.

        Raises:
            DataError: an id is empty or no text.
            OutputError: as in `add`.
        """
        return self._backend.delete(_list_ids(ids))

    def compact(self) -> None:
        """Remove what was deleted from the disk.

        Raises:
            SettingsError: the store is a database, which does this itself.
            OutputError: as in `add`.
        """
        self._backend.compact()

    def rank(self, queries: Sequence[str], count: int, *, approximate: bool = False) -> Ranking:
        """As `TextIndex.rank`; in a directory, quantized vectors are always an approximation."""
        vectors = embed_queries(self.model, queries, self._engine)
        count = min(count, len(self))
        if not count:
            return np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
        scores, rows = self._backend.nearest(vectors, count, approximate=approximate)
        if self.model.similarity_function == "cosine":
            scores = np.clip(scores, -1, 1)
        return scores, rows

    def _texts_of(self, rows: set[int]) -> dict[int, tuple[int, str, str]]:
        texts = self._backend.texts_in_rows(rows - {-1})
        return {row: (row, name, text) for row, (name, text) in texts.items()}


def read_rows_to_add(
    data: Table, column: str | None, id_column: str | None, **options: Unpack[TableKeywords]
) -> dict[str, str]:
    """Return the texts of a table by their ids; blank ones are empty.

    Args:
        column: the column of texts; as in `open_texts` if omitted.
        id_column: the column of ids; if omitted, `_id`, or the places of the texts.

    Raises:
        DataError: a column is missing, an id is neither a text nor a whole number, or occurs twice.
    """
    texts = open_texts(data, column, is_read_once=True, **options)
    if id_column is None and ID in texts.rows.columns:
        id_column = ID
    elif id_column is not None:
        id_column = texts.rows.column(id_column)
    contents: dict[str, str] = {}
    for row in texts.rows:
        value = row.where if id_column is None else row.values.get(id_column)
        name = id_of(value)
        if name is None:
            what = f"{truncate_repr(value)} (column {id_column!r}) is no id"
            raise DataError(what, where=row.where, fix=_IDS)
        if name in contents:
            raise DataError(f"the id {truncate_repr(name)} occurs twice", where=row.where)
        text = text_of(row.values, texts.column, row.where)
        contents[name] = text if text.strip() else ""
    return contents


def _list_ids(ids: str | Iterable[object]) -> list[str]:
    """Return ids as texts; a text is one id."""
    names = []
    for value in [ids] if isinstance(ids, str) else ids:
        name = id_of(value)
        if name is None:
            raise DataError(f"{truncate_repr(value)} is no id", fix=_IDS)
        names.append(name)
    return names


def _fingerprint(model: AnyModel) -> str:
    """Return a digest of what vectors of texts depend on: weights, pooling, prompts."""
    defaults = model.embed_defaults()
    prompt = vector_settings(model)["prompt"]
    if prompt != defaults.get("prompt", ""):
        defaults = {**defaults, "prompt": prompt}
    content = [model.fingerprint(), defaults, model.similarity_function]
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

"""A store in a collection of Qdrant: `qdrant://HOST:PORT/COLLECTION`.

`qdrant+https://HOST/COLLECTION` is encrypted, with the key in QDRANT_API_KEY, and
`qdrant:///FOLDER/COLLECTION` is a folder that the client itself searches. A point has the id and
the text; its number is a digest of the id. The collection's metadata have the model's fingerprint.
"""

from __future__ import annotations

import hashlib
import os
import weakref
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError, OutputError, import_optional
from .store_backend import StoreBackend, not_store_error, public_address, ranking_of
from .text_index import Ranking

SCHEMES = ("qdrant", "qdrant+https")

_POINTS = 256  # in a request: its body may have 32 MB
_TIMEOUT = 60  # seconds


class QdrantBackend(StoreBackend):
    """A collection of texts and vectors.

    Args:
        address: its address.
        width: of the vectors, for a new collection.
        create: make the collection if it is absent.

    Raises:
        BertworksError: qdrant-client is not installed.
        OutputError: the database cannot be reached, or has no such collection.
        DataError: the collection is another model's, or no store.
    """

    def __init__(self, address: str, fingerprint: str, *, width: int, create: bool) -> None:
        module: Any = import_optional("qdrant_client", "qdrant", "A store in Qdrant")
        self._models: Any = module.models
        url = urlsplit(address)
        folder, _, self._collection = url.path.rpartition("/")
        super().__init__(public_address(address), fingerprint)
        try:
            port = url.port or 6333
        except ValueError as error:
            raise OutputError(str(error), where=self.name) from None
        if not self._collection or (url.hostname and folder):
            raise not_store_error(self.name, "An address is qdrant://HOST:PORT/COLLECTION.")
        self._is_server = bool(url.hostname)
        with self._errors():
            if self._is_server:
                scheme = "https" if url.scheme == "qdrant+https" else "http"
                key = os.environ.get("QDRANT_API_KEY")
                server = f"{scheme}://{url.hostname}:{port}"
                self._client = module.QdrantClient(server, api_key=key, timeout=_TIMEOUT)
            else:
                self._client = module.QdrantClient(path=folder)
        close = weakref.finalize(self, self._client.close)
        try:
            self._prepare(width, create=create)
        except BaseException:
            close()  # the error's frames refer to this object, and the folder stays locked
            raise

    def _prepare(self, width: int, *, create: bool) -> None:
        with self._errors():
            if not self._client.collection_exists(self._collection):
                if not create:
                    raise not_store_error(self.name)
                self._client.create_collection(
                    self._collection,
                    self._models.VectorParams(size=width, distance=self._models.Distance.DOT),
                    metadata={"bertworks": 1, "model": self.fingerprint},
                )
        self.refresh()

    def __len__(self) -> int:
        with self._errors():
            return int(self._client.count(self._collection).count)

    def refresh(self) -> None:
        with self._errors():
            metadata = self._client.get_collection(self._collection).config.metadata
        if not metadata or metadata.get("bertworks") != 1:
            fix = "Choose another collection."
            raise DataError("is no store of texts", where=self.name, fix=fix)
        self.check_model(metadata.get("model"))

    def ids(self) -> list[str]:
        names: list[str] = []
        offset: Any = None
        while True:
            with self._errors():
                points, offset = self._client.scroll(
                    self._collection, limit=_POINTS, offset=offset, with_payload=["id"]
                )
            names += [point.payload["id"] for point in points]
            if offset is None:
                return names

    def texts(self, ids: Collection[str]) -> dict[str, str]:
        texts = self.texts_in_rows(set(map(_number_of, ids)))
        names = {_number_of(name): name for name in ids}
        for name in ids:
            other, _ = texts.get(_number_of(name), (names[_number_of(name)], ""))
            if other != name:
                what = f"the ids {name!r} and {other!r} have the same number; change one"
                raise DataError(what, where=self.name)
        return dict(texts.values())

    def texts_in_rows(self, rows: set[int]) -> dict[int, tuple[str, str]]:
        numbers = [row for row in rows if row >= 0]
        points: list[Any] = []
        with self._errors():
            for start in range(0, len(numbers), _POINTS):
                points += self._client.retrieve(self._collection, numbers[start : start + _POINTS])
        return {point.id: (point.payload["id"], point.payload["text"]) for point in points}

    def put(self, ids: Sequence[str], texts: Sequence[str], vectors: NDArray[np.float32]) -> None:
        """As `StoreBackend.put`, but each few hundred of them are whole or absent."""
        self.refresh()
        self.texts(ids)
        points = [
            self._models.PointStruct(
                id=_number_of(name), vector=vector, payload={"id": name, "text": text}
            )
            for name, text, vector in zip(ids, texts, vectors.tolist(), strict=True)
        ]
        with self._errors():
            for start in range(0, len(points), _POINTS):
                self._client.upsert(self._collection, points[start : start + _POINTS], wait=True)

    def delete(self, ids: Collection[str]) -> int:
        self.refresh()
        numbers = [_number_of(name) for name in self.texts(ids)]
        with self._errors():
            self._client.delete(self._collection, numbers, wait=True)
        return len(numbers)

    def nearest(self, queries: NDArray[np.float32], count: int, *, approximate: bool) -> Ranking:
        # The client's own search is always exact, and warns about parameters.
        parameters = self._models.SearchParams(exact=not approximate) if self._is_server else None
        pairs = []
        with self._errors():
            for query in queries.tolist():
                points = self._client.query_points(
                    self._collection,
                    query,
                    limit=count,
                    search_params=parameters,
                    with_payload=False,
                ).points
                pairs.append([(point.id, point.score) for point in points])
        return ranking_of(pairs, count)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Report errors of the client in one line."""
        exceptions: Any = import_optional("qdrant_client.http.exceptions", "qdrant", "Qdrant")
        try:
            yield
        except (exceptions.ApiException, OSError, RuntimeError) as error:
            raise OutputError(" ".join(str(error).split())[:300], where=self.name) from None


def _number_of(name: str) -> int:
    """Return the number of a point: 63 bits of a digest of the text's id."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1

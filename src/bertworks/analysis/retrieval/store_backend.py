"""What keeps the texts of a store and their vectors: files, or a database."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError, OutputError, SettingsError
from ...settings.literals import Quantization
from .text_index import Ranking


class StoreBackend(ABC):
    """Texts with ids and vectors, which are compared by inner products.

    Attributes:
        name: what messages call it.
        fingerprint: of the model whose vectors these are.
        quantization: how vectors are compared at first.
    """

    quantization: Quantization = "none"

    def __init__(self, name: str, fingerprint: str) -> None:
        self.name, self.fingerprint = name, fingerprint

    @abstractmethod
    def __len__(self) -> int:
        """Number of texts."""

    @abstractmethod
    def ids(self) -> list[str]:
        """The ids of all texts; the order is the backend's."""

    @abstractmethod
    def texts(self, ids: Collection[str]) -> dict[str, str]:
        """The texts with these ids, of those that are there."""

    @abstractmethod
    def texts_in_rows(self, rows: set[int]) -> dict[int, tuple[str, str]]:
        """The id and the text of each of some rows."""

    @abstractmethod
    def put(self, ids: Sequence[str], texts: Sequence[str], vectors: NDArray[np.float32]) -> None:
        """Add texts, or replace those with the same ids: all of them, or none if interrupted."""

    @abstractmethod
    def delete(self, ids: Collection[str]) -> int:
        """Delete texts; return how many of them were there."""

    @abstractmethod
    def nearest(self, queries: NDArray[np.float32], count: int, *, approximate: bool) -> Ranking:
        """Return the largest inner products with each query, and the rows of their texts."""

    def refresh(self) -> None:  # noqa: B027  a database is always read as it is
        """Read the state that the last writer has left."""

    def compact(self) -> None:
        """Remove what was deleted from the disk."""
        raise SettingsError("a database removes deleted texts from the disk itself")

    def check_model(self, fingerprint: object) -> None:
        """Check the fingerprint that is stored with the vectors.

        Raises:
            DataError: it is another model's.
        """
        if fingerprint != self.fingerprint:
            fix = "Use the model that it was made with, or make another store."
            raise DataError("has vectors of another model", where=self.name, fix=fix)


def not_store_error(name: str, fix: str = "Create one: --add FILE.") -> OutputError:
    """Return the error about a place that is no store, or absent."""
    return OutputError("is no store of texts", where=name, fix=fix)


def ranking_of(pairs: Sequence[Sequence[tuple[Any, Any]]], count: int) -> Ranking:
    """Return the rows and scores that a database lists for each query as a ranking."""
    scores = np.full((len(pairs), count), -np.inf, np.float32)
    rows = np.full((len(pairs), count), -1, np.int64)
    for number, query_pairs in enumerate(pairs):
        for place, (row, score) in enumerate(query_pairs):
            rows[number, place], scores[number, place] = row, score
    return scores, rows


def public_address(address: str) -> str:
    """Return a database's address for messages, without user, password and options.

    Raises:
        DataError: the user or the password has a character that must be escaped: its place would
            be misread, and be part of messages.
    """
    scheme, _, rest = address.partition("://")
    user, _, place = rest.partition("?")[0].rpartition("@")
    public = f"{scheme}://{place}"
    if re.search(r"[@/]|%(?![0-9A-Fa-f]{2})", user):
        what = "the user or the password has a character that must be escaped"
        raise DataError(what, where=public, fix="Write @ as %40, / as %2F and % as %25.")
    return public

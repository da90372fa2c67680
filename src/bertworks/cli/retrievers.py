"""What verbs that retrieve texts share: an index, where texts are, and why there are none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..utils.progress import Progress
from .models import BM25, ModelSource

if TYPE_CHECKING:
    from ..analysis.retrieval.text_index import TextIndex


class Passages(NamedTuple):
    """Texts that are searched.

    Attributes:
        directory: the one that keeps their vectors, if any.
        unit: what they are called while they are embedded.
        settings: of the table, the engine and the index.
    """

    directory: Path | None
    column: str | None
    overwrite: bool
    unit: str
    settings: dict[str, Any]

    def check(self, models: Sequence[ModelSource]) -> None:
        """Raise an error if the index would replace a file of a model."""
        from ..utils.outputs import check_inputs

        if self.directory is not None:
            check_inputs(self.directory, [path for one in models for path in one.directories()])

    def open(self, retrievers: Sequence[Any], table: Any) -> TextIndex:
        """Embed the texts of a table, or open their index."""
        from ..analysis.retrieval.opening import open_index

        with Progress() as progress:
            return open_index(
                retrievers,
                table,
                self.directory,
                column=self.column,
                overwrite=self.overwrite,
                progress=progress.counter("embedding", self.unit),
                **self.settings,
            )


def no_match(retrievers: list[ModelSource]) -> str:
    """Return why retrievers found no text for a query."""
    if all(one.name == BM25 for one in retrievers):
        return "bm25 finds no text that shares a word with it"
    return "there are no texts"


def short_places(places: list[str], file: str) -> tuple[str, list[str]]:
    """Return what the places of texts in a file are called, and the places without its name."""
    from ..analysis.retrieval.store import is_store

    if is_store(file):
        return "id", places
    short = [place.removeprefix(file).lstrip(":, /") for place in places]
    if all(place.startswith("row ") for place in short):
        return "row", [place.removeprefix("row ") for place in short]
    return "line" if all(place.isdecimal() for place in short) else "place", short

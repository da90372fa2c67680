"""What verbs that retrieve texts print: where texts are, and why there are none."""

from __future__ import annotations

from .models import BM25, ModelSource


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
    short = [place.removeprefix(file).lstrip(":, ") for place in places]
    if all(place.startswith("row ") for place in short):
        return "row", [place.removeprefix("row ") for place in short]
    return "line" if all(place.isdecimal() for place in short) else "place", short

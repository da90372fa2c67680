"""A sentence among the others of its document, which are seen with it and not tagged.

Source: paper §5.3: "we include the maximal document context provided by the data".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, groupby, islice

from ..placed import PlacedRow
from ..task import Row
from .columns import WordColumns, strings_of

BEFORE, BEHIND = "context_before", "context_behind"
"""The columns of a row that hold the words around its own."""


def in_context(
    rows: Iterable[PlacedRow], columns: WordColumns, limit: int
) -> Iterator[tuple[PlacedRow, Row]]:
    """Each row, and the same with the words of its document around it.

    Rows are read as far ahead as `limit` words go, no further than the document does. A row that
    names no document, has no words, or brings its context along, is left as it is.

    Args:
        rows: of a table whose documents' rows follow one another.
        columns: where words and documents stand.
        limit: the most words on either side.

    Raises:
        DataError: a row of a document has no list of words.
    """

    def document(row: PlacedRow) -> object:
        if columns.document is None or columns.word not in row.values:  # it may be a plain text
            return None
        return row.values.get(columns.document)

    for told, own in groupby(rows, document):
        if told is None:
            yield from ((row, row.values) for row in own)
        else:
            yield from _of_document(own, columns.word, limit)


def _of_document(
    rows: Iterable[PlacedRow], column: str, limit: int
) -> Iterator[tuple[PlacedRow, Row]]:
    before: deque[str] = deque(maxlen=limit)
    waiting: deque[tuple[PlacedRow, list[str]]] = deque()
    behind = 0  # how many words wait behind the first row's

    def first() -> tuple[PlacedRow, Row]:
        nonlocal behind
        row, words = waiting.popleft()
        behind -= len(waiting[0][1]) if waiting else 0
        after = islice(chain.from_iterable(others for _, others in waiting), limit)
        seen = {BEFORE: list(before), BEHIND: list(after), **row.values}
        before.extend(words)
        return row, seen

    for row in rows:
        words = strings_of(row.values, column, row.where)
        behind += len(words) if waiting else 0
        waiting.append((row, words))
        while behind >= limit:
            yield first()
    while waiting:
        yield first()

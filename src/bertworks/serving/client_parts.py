"""How a client sends many rows in several requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import (
    Any,
)

from ..data.rows import Rows as TableRows
from ..errors import DataError

MAX_REQUEST_TEXTS = 512
_MAX_REQUEST_CHARACTERS = 1 << 18
"""The most texts, and their characters, in a request; more texts are sent in several requests.

If a server refuses so many (`max_texts`), the client requests its limit.
The server counts up to three tokens for a character, and its queue holds 1 << 20 by default.
"""


def split_texts(texts: Sequence[Any], max_texts: int) -> list[list[Any]]:
    """Split texts into lists of at most `max_texts` that fit in one request each."""
    parts: list[list[Any]] = []
    characters = 0
    for text in texts:
        size = len(text) if isinstance(text, str) else len(str(text))
        if not parts or len(parts[-1]) == max_texts or characters + size > _MAX_REQUEST_CHARACTERS:
            parts.append([])
            characters = 0
        parts[-1].append(text)
        characters += size
    return parts


def add_neighbours(parts: list[list[Any]], context: Mapping[str, Any] | None) -> list[list[Any]]:
    """Give rows the words of their document that are in the rows of other requests.

    Args:
        context: `row_context` of `/info`.

    Raises:
        DataError: a row has no list of words, or which rows belong together is not known.
    """
    if context is None:
        return parts
    if not context:
        count = sum(map(len, parts))
        raise DataError(
            f"the task reads neighbouring rows, and these {count:,} need several requests",
            fix=f"Send at most {len(parts[0])} rows in a call, all that belong together.",
        )
    from ..data.schema import RoleColumns
    from ..data.tables import rows_in_memory
    from ..tasks.tagging.columns import add_context, find_columns

    def locate_rows(rows: Iterable[Any], first: int = 0) -> TableRows:
        values = [row if isinstance(row, Mapping) else {"text": row} for row in rows]
        return rows_in_memory(values, "rows", place=lambda at: f"rows[{first + at}]")

    training_columns: RoleColumns = {
        "word": context["word"],
        "tag": None,
        "document": context["document"],
    }
    columns = find_columns(
        locate_rows(chain.from_iterable(parts)),
        training_columns,
        labelled=False,
        document_context=True,
    )
    word, document = str(columns["word"]), columns["document"]
    assert not isinstance(document, tuple), "one column"

    def values_in_context(rows: Iterable[Any], first: int) -> Iterator[Any]:
        """Yield each row as the task sees it among these rows; the first one has number `first`."""
        rows_in_context = add_context(locate_rows(rows, first), word, document, context["words"])
        return (values for _, values in rows_in_context)

    results, first = [], 0
    full_values = values_in_context(chain.from_iterable(parts), first)
    for part in parts:
        pairs = zip(part, values_in_context(part, first), full_values, strict=False)
        results.append(
            [row if part_values == values else values for row, part_values, values in pairs]
        )
        first += len(part)
    return results


def select_columns(rows: Sequence[Any], columns: Sequence[str]) -> list[Any]:
    """Return rows with these columns only, so that the server reads them from no others.

    A server detects columns by the rows of a request; those of the first one hold for all.
    """
    return [
        {name: row[name] for name in columns if name in row} if isinstance(row, Mapping) else row
        for row in rows
    ]

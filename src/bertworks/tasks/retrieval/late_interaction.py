"""How late interaction (ColBERT) writes texts: with prefixes, and queries filled with `[MASK]`.

    query:    [CLS] [Q] tokens [SEP] [MASK] … up to a fixed length
    document: [CLS] [D] tokens [SEP], whose punctuation is not compared

Source: Khattab and Zaharia (2020), "ColBERT", §3.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...checkpoints.late_interaction import LateInteractionSettings
from ...errors import SettingsError
from ...text.definition import Side
from ...text.encoding import TokenIds, Truncation
from ...text.tokenizer import Tokenizer
from .settings import RetrievalSettings

_PREFIXES = (("[Q] ", "[D] "), ("[unused0]", "[unused1]"))
"""PyLate's, which it adds to vocabularies, and those of the original release."""


class TextForm:
    """Writes queries and documents as late interaction does.

    Attributes:
        start: the pieces before a text, by whether it is a query.
        skipped_ids: the pieces of documents that are not compared.

    Raises:
        SettingsError: a prefix is not a piece.
    """

    def __init__(self, tokenizer: Tokenizer, settings: LateInteractionSettings) -> None:
        self._tokenizer, self._settings = tokenizer, settings
        ids = tokenizer.definition.ids
        start = [ids[piece] for piece in tokenizer.definition.frame.start]
        self.start = {
            is_query: np.array([*start, *_find_prefix(tokenizer, prefix)], np.int32)
            for is_query, prefix in (
                (True, settings.query_prefix),
                (False, settings.document_prefix),
            )
        }
        skipped = (ids.get(word) for word in settings.skipped_words)
        self.skipped_ids = np.array([one for one in skipped if one is not None], np.int64)

    def encode(
        self,
        texts: Sequence[str],
        where: Sequence[str],
        max_length: int,
        truncation: Truncation,
        side: Side | None = None,
        *,
        is_query: bool,
    ) -> list[TokenIds]:
        """Tokenise texts; queries are not filled yet. See `Tokenizer.sequences`.

        Raises:
            DataError: a text is not valid, or is too long and `truncation` is "error".
        """
        return self._tokenizer.sequences(
            texts,
            max_length=max_length,
            truncation=truncation,
            side=side,
            start=self.start[is_query],
            where=where,
        )

    def encode_both(
        self,
        texts: Sequence[str],
        where: Sequence[str],
        limits: tuple[int, int],
        truncation: Truncation,
        is_query: Sequence[bool],
    ) -> list[TokenIds]:
        """Tokenise queries, which are filled, and documents; see `encode`.

        Args:
            limits: the length of queries, and the maximum length of documents.
            is_query: which of the texts are queries.
        """
        encodings: dict[int, TokenIds] = {}
        for kind, limit in zip((True, False), limits, strict=True):
            rows = [row for row, one in enumerate(is_query) if one == kind]
            parts, places = ([of[row] for row in rows] for of in (texts, where))
            ids = self.encode(parts, places, limit, truncation, is_query=kind)
            encodings |= dict(zip(rows, ids, strict=True))
        return [
            replace(one, input_ids=self.fill(one, limits[0])) if is_query[row] else one
            for row, one in sorted(encodings.items())
        ]

    def fill(self, query: TokenIds, length: int) -> NDArray[np.int32]:
        """A query's ids, filled with `[MASK]` up to a length."""
        ids = np.full(max(length, query.num_tokens), self._tokenizer.mask_id, np.int32)
        ids[: query.num_tokens] = query.input_ids
        return ids


def _find_prefix(tokenizer: Tokenizer, prefix: str) -> list[int]:
    """The id of a prefix, which files write with or without a space after it."""
    if not prefix:
        return []
    for piece in (prefix, prefix.strip()):
        if (number := tokenizer.definition.ids.get(piece)) is not None:
            return [number]
    raise SettingsError(f"the prefix {prefix!r} of late interaction is not in the vocabulary")


def trained_form(tokenizer: Tokenizer, settings: RetrievalSettings) -> LateInteractionSettings:
    """The settings of a model that is trained here.

    Prefixes that are not given are the first that are in the vocabulary, or none. The tokens of a
    query attend to its expansion, which is a part of its sequence.
    """
    ids = tokenizer.definition.ids
    query_prefix, document_prefix = next(
        (pair for pair in _PREFIXES if all({one, one.strip()} & ids.keys() for one in pair)),
        ("", ""),
    )
    query_marker, passage_marker = settings.query_marker, settings.passage_marker
    words = settings.skipped_words
    return LateInteractionSettings(
        query_prefix=query_prefix if query_marker is None else query_marker,
        document_prefix=document_prefix if passage_marker is None else passage_marker,
        query_length=settings.query_length,
        document_length=settings.max_seq_length,
        attends_to_expansion=True,
        **({} if words is None else {"skipped_words": words}),
    )

"""Read BERT's vocabulary: one piece a line, or pieces with their ids."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from itertools import count
from pathlib import Path

from ..errors import BertworksWarning, DataError, truncate_repr
from ..utils.regular_files import read_text_lines
from .definition import AddedPiece, check_texts
from .schemas import AddedToken
from .wordpiece import CONTINUATION


def read_vocabulary(file: Path) -> dict[str, int]:
    """Read one piece per line; the number of the line, from 0, is the id.

    As in `transformers`, a piece in several lines has the id of the last one, and an empty line is
    no piece.
    """
    # The Chinese vocabulary has the piece U+2028, which ends no line.
    pieces = [line.removesuffix("\r") for line in read_text_lines(file, DataError)]
    while pieces and not pieces[-1]:
        pieces.pop()
    if 2 * sum(" " in piece for piece in pieces) > len(pieces):
        raise DataError("is no vocabulary: its lines are texts, not pieces", where=str(file))
    ids = {piece: number for number, piece in enumerate(pieces) if piece}
    idle = [number for number, piece in enumerate(pieces) if ids.get(piece) != number]
    if idle:
        first = idle[0]
        what = (
            "is empty"
            if not pieces[first]
            else f"has {truncate_repr(pieces[first])}, as a later line"
        )
        more = "" if len(idle) == 1 else f" (and {len(idle) - 1:,} more)"
        warnings.warn(
            f"{file}:{first + 1}: the line {what}{more}; no text gets its id",
            BertworksWarning,
            stacklevel=2,
        )
    return ids


def is_cased(pieces: list[str]) -> bool:
    """Whether a vocabulary has capital letters, except in bracketed names like `[CLS]`."""
    words = (piece.removeprefix(CONTINUATION) for piece in pieces)
    return any(word.isalpha() and word != word.lower() for word in words)


def number_pieces(
    vocabulary: dict[str, int], added_tokens: list[AddedToken], *, where: str
) -> tuple[list[str], list[AddedPiece]]:
    """Pieces in the order of their ids, and the pieces added after them.

    An added token that is in the vocabulary, or has an id inside its range, is an ordinary piece:
    only pieces added at the end are searched for before a text is split into words.
    """
    ids = dict(vocabulary)
    end = max(ids.values(), default=-1) + 1
    added_pieces: list[AddedPiece] = []
    for token in sorted(added_tokens, key=lambda token: token.id):
        if token.content in ids:
            continue
        if token.id == end + len(added_pieces):
            added_pieces.append(AddedPiece(**token.model_dump(exclude={"id"})))
        else:
            ids[token.content] = token.id
    pieces = _without_holes(ids, where=where)
    check_texts([*pieces, *(token.content for token in added_pieces)], where=where)
    return pieces, added_pieces


def _without_holes(ids: Mapping[str, int], *, where: str) -> list[str]:
    """Return the pieces in the order of their ids; an id without a piece gets an unused one."""
    if [*ids.values()] == [*range(len(ids))]:  # usual, and fast
        return [*ids]
    by_id = {number: piece for piece, number in ids.items()}
    end = max(by_id, default=-1) + 1
    if len(by_id) < len(ids) or min(by_id, default=0) < 0 or end > 2 * len(ids):
        raise DataError("the ids of the vocabulary are not 0, 1, 2, …", where=where)
    unused = (name for name in map("[unused{}]".format, count()) if name not in ids)
    return [by_id[number] if number in by_id else next(unused) for number in range(end)]

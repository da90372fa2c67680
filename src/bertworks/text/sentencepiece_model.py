"""Read SentencePiece's model files (Kudo 2018), for Unigram models only.

The file is a protocol buffer of the type `ModelProto`; of its fields, only those that affect tokens
are read.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import DataError
from ..utils.protobuf import fields
from ..utils.regular_files import read_content

UNIGRAM = 1
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5


class Piece(NamedTuple):
    """A piece, its log-probability, and its kind."""

    text: str
    score: float
    kind: int


@dataclass(frozen=True)
class SentencePieceModel:
    """The contents of a model file."""

    pieces: tuple[Piece, ...]  # in the order of their ids
    unk_id: int  # the id of the unknown piece
    charsmap: bytes  # the compiled normalisation of characters
    strips_spaces: bool  # whether to remove spaces at both ends, and to merge repeated ones
    begins_with_space: bool  # whether to put a space before a text
    byte_fallback: bool  # whether unknown characters become pieces for their bytes


def read_model(file: Path) -> SentencePieceModel:
    """Read a SentencePiece model file.

    Raises:
        DataError: it is not a model file, or its model is not Unigram.
    """
    data = read_content(file, DataError)
    pieces: list[Piece] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    try:
        for number, value in fields(data):
            if number == 1:
                values = dict(fields(value))
                score = struct.unpack("<f", values[2])[0] if 2 in values else 0.0
                pieces.append(Piece(values[1].decode("utf-8"), score, values.get(3, NORMAL)))
            elif number == 2:
                trainer = dict(fields(value))
            elif number == 3:
                normalizer = dict(fields(value))
    except (IndexError, KeyError, ValueError, AttributeError, TypeError, struct.error):
        raise DataError("is not a SentencePiece model, or a damaged one", where=str(file)) from None
    if not pieces:
        raise DataError("is not a SentencePiece model, or a damaged one", where=str(file))
    if trainer.get(3, UNIGRAM) != UNIGRAM:
        raise DataError("only Unigram models of SentencePiece are read", where=str(file))
    return SentencePieceModel(
        pieces=tuple(pieces),
        unk_id=next((at for at, piece in enumerate(pieces) if piece.kind == UNKNOWN), 0),
        charsmap=normalizer.get(2, b""),
        strips_spaces=bool(normalizer.get(4, 1)),
        begins_with_space=bool(normalizer.get(3, 1)),
        byte_fallback=bool(trainer.get(35, 0)),
    )

"""Read tokenizers of SentencePiece models: ALBERT's, XLM-RoBERTa's and CamemBERT's."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..utils.regular_files import read_content
from .definition import Frame, Roles
from .sentencepiece_model import (
    CONTROL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Piece,
    SentencePieceModel,
    read_model,
)
from .tree import NO_LIMITS, TreeDefinition, template

# Of RoBERTa, and of all models trained with fairseq.
_ROLES = Roles(pad="<pad>", unk="<unk>", cls="<s>", sep="</s>", mask="<mask>")
_FRAME = Frame(("<s>",), ("</s>", "</s>"), ("</s>",), 0)


def read_albert(file: Path, config: Mapping[str, Any], *, lowercase: bool | None) -> TreeDefinition:
    """Read ALBERT's tokenizer, which first simplifies quotes, strips accents and lower-cases text.

    Args:
        file: `spiece.model`.
        config: `tokenizer_config.json`; only its `do_lower_case` and `keep_accents` are used.
        lowercase: overrides `do_lower_case`; None: as in `config`.
    """
    model = read_model(file)
    normalizers: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": quotes}, "content": '"'}
        for quotes in ("``", "''")
    ]
    if not config.get("keep_accents", False):
        normalizers += [{"type": "NFKD"}, {"type": "StripAccents"}]
    if config.get("do_lower_case", True) if lowercase is None else lowercase:
        normalizers.append({"type": "Lowercase"})
    # The original splits a comma from a number if they are one piece; a low score does the same.
    pieces = [
        piece._replace(score=piece.score - 100) if re.search(r"\d,$", piece.text) else piece
        for piece in model.pieces
    ]
    roles = Roles(pad="<pad>", unk="<unk>", cls="[CLS]", sep="[SEP]", mask="[MASK]")
    return _definition(file, model, pieces, model.unk_id, normalizers, roles, Frame(), config)


def read_fairseq(file: Path, config: Mapping[str, Any], *, camembert: bool) -> TreeDefinition:
    """Read XLM-RoBERTa's or CamemBERT's tokenizer, with fairseq's ids instead of the model file's.

    CamemBERT has some ids that are never used.
    """
    model = read_model(file)
    if camembert:
        own = model.pieces[1:]
        names = ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"]
    else:
        own, names = model.pieces[3:], ["<s>", "<pad>", "</s>", "<unk>"]
    special = [Piece(text, 0.0, CONTROL) for text in names]
    pieces = [*special, *own, Piece("<mask>", 0.0, CONTROL)]
    return _definition(file, model, pieces, 3, [], _ROLES, _FRAME, config)


def _definition(
    file: Path,
    model: SentencePieceModel,
    pieces: list[Piece],
    unk_id: int,
    first_normalizers: list[dict[str, Any]],
    roles: Roles,
    frame: Frame,
    config: Mapping[str, Any],
) -> TreeDefinition:
    normalizers = list(first_normalizers)
    if model.charsmap:
        charsmap = base64.b64encode(model.charsmap).decode()
        normalizers.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if model.strips_spaces:
        normalizers += [
            {"type": "Strip", "strip_left": True, "strip_right": True},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
        ]
    flags = ("single_word", "lstrip", "rstrip", "normalized")
    plain = {**dict.fromkeys(flags, False), "special": True}
    metaspace = {
        "type": "Metaspace",
        "replacement": "▁",
        "prepend_scheme": "always" if model.begins_with_space else "never",
        "split": True,
    }
    tree = {
        "version": "1.0",
        **NO_LIMITS,
        "added_tokens": [
            {"id": number, "content": piece.text, **plain, "lstrip": piece.text == roles.mask}
            for number, piece in enumerate(pieces)
            if piece.kind in (CONTROL, UNKNOWN, UNUSED)
        ],
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": metaspace,
        "post_processor": template(frame, {p.text: n for n, p in enumerate(pieces)}),
        "decoder": metaspace,
        "model": {
            "type": "Unigram",
            "unk_id": unk_id,
            "vocab": [[piece.text, _score(piece)] for piece in pieces],
            "byte_fallback": model.byte_fallback,
        },
    }
    return TreeDefinition(
        tree, roles, frame, dict(config), {file.name: read_content(file, DataError)}
    )


def _score(piece: Piece) -> float:
    """The score of a piece; user-defined pieces score above all others, whose scores are logs.

    Their score is the one that SentencePiece 0.2 computes, whatever the file has: 0.1 for each byte
    after the first.
    """
    if piece.kind == USER_DEFINED:
        return 0.1 * (len(piece.text.encode()) - 1)
    return piece.score

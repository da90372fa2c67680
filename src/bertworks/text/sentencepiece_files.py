"""Read tokenizers of SentencePiece models, as each class does.

Tokens are those of Google's own code, which trained the models: the file's normalisation of
characters is used. Since version 5, some classes of `transformers` leave it out.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..utils.regular_files import read_content
from .combining_marks import removal_of_marks
from .file_names import ALBERT, DEBERTA_V2, KOBERT, REMBERT, VOCAB
from .sentencepiece_model import (
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Piece,
    SentencePieceModel,
    read_model,
)
from .special_pieces import named_pieces
from .tokenizer_classes import CLASSES, TokenizerClass, check_case_is_kept
from .tree import NO_LIMITS, TreeDefinition, template
from .wordpiece_vocabulary import read_vocabulary

_CLASS_OF_FILE = {
    ALBERT: "AlbertTokenizer",
    DEBERTA_V2: "DebertaV2Tokenizer",
    REMBERT: "RemBertTokenizer",
    KOBERT: "KoBertTokenizer",
}
"""The class of a file's name, if no file names a class; else XLM-RoBERTa's."""
_CASED = {"XLMRobertaTokenizer", "CamembertTokenizer", "BigBirdTokenizer"}
_QUOTES = [
    {"type": "Replace", "pattern": {"String": quotes}, "content": '"'} for quotes in ("``", "''")
]
_SPACES = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}


def read_sentencepiece(
    file: Path, config: Mapping[str, Any], opener: TokenizerClass | None, *, lowercase: bool | None
) -> TreeDefinition:
    """Read a model file as its class does.

    Args:
        file: the model file.
        config: `tokenizer_config.json`.
        opener: the class of the directory; None: the one that has files of this name.
        lowercase: overrides `do_lower_case`; None: as in `config`.

    Raises:
        DataError: the file is not a Unigram model, or its class has no case to change.
    """
    if opener is None:
        opener = CLASSES[_CLASS_OF_FILE.get(file.name, "XLMRobertaTokenizer")]
    if opener.name in _CASED:
        check_case_is_kept(lowercase, file)
    model = read_model(file)
    lowers = config.get("do_lower_case", opener.name == "AlbertTokenizer")
    lowers = lowers if lowercase is None else lowercase
    if opener.name == "BertJapaneseTokenizer":  # ALBERT's code, on words that are lower-cased
        lowers, config = False, {**config, "keep_accents": True}
    lowering = [{"type": "Lowercase"}] if lowers else []
    if opener.name in ("XLMRobertaTokenizer", "CamembertTokenizer"):
        return _with_fairseq_ids(file, model, config, opener)
    if opener.name == "BigBirdTokenizer":
        return _definition(file, model, model.pieces, [], config, opener)
    if opener.name == "DebertaV2Tokenizer":
        return _read_deberta(file, model, lowering, config, opener)
    if opener.name == "RemBertTokenizer":
        stripping = [] if config.get("keep_accents", True) else removal_of_marks()
        # As in `transformers`, spaces at both ends count.
        model = replace(model, strips_spaces=False)
        steps = [*_QUOTES, _SPACES, *stripping, *lowering]
        return _definition(file, model, model.pieces, steps, config, opener)
    pieces = [piece._replace(score=_score_before_commas(piece)) for piece in model.pieces]
    if opener.name == "KoBertTokenizer":
        pieces = _in_order_of_vocabulary(pieces, file.with_name(VOCAB))
    stripping = [] if config.get("keep_accents", False) else removal_of_marks()
    steps = [*_QUOTES, *stripping, *lowering]
    return _definition(file, model, pieces, steps, config, opener)


def _score_before_commas(piece: Piece) -> float:
    """The score of a piece in ALBERT and XLNet.

    Their code splits a comma from a number if they are one piece; a low score does the same.
    """
    return piece.score - 100 if re.search(r"\d,$", piece.text) else piece.score


def _with_fairseq_ids(
    file: Path, model: SentencePieceModel, config: Mapping[str, Any], opener: TokenizerClass
) -> TreeDefinition:
    """XLM-RoBERTa's or CamemBERT's tokenizer, with fairseq's ids instead of the model file's.

    CamemBERT has some ids that are never used.
    """
    if opener.name == "CamembertTokenizer":
        own = model.pieces[1:]
        names = ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"]
    else:
        own, names = model.pieces[3:], ["<s>", "<pad>", "</s>", "<unk>"]
    special = [Piece(text, 0.0, CONTROL) for text in names]
    pieces = [*special, *own, Piece("<mask>", 0.0, CONTROL)]
    return _definition(file, model, pieces, [], config, opener, unk_id=3)


def _read_deberta(
    file: Path,
    model: SentencePieceModel,
    steps: Sequence[dict[str, Any]],
    config: Mapping[str, Any],
    opener: TokenizerClass,
) -> TreeDefinition:
    """DeBERTa's tokenizer of versions 2 and 3, which may split words around punctuation first."""
    definition = _definition(file, model, model.pieces, steps, config, opener)
    if not config.get("split_by_punct", False):
        return definition
    isolating = {"type": "Punctuation", "behavior": "Isolated"}
    splitters = [isolating, definition.tree["pre_tokenizer"]]
    splitter = {"type": "Sequence", "pretokenizers": splitters}
    return replace(definition, tree={**definition.tree, "pre_tokenizer": splitter})


def _in_order_of_vocabulary(pieces: Sequence[Piece], vocabulary: Path) -> list[Piece]:
    """The pieces of a model in the order of `vocab.txt`, which has special pieces of its own.

    Raises:
        DataError: the vocabulary lacks a piece of the model.
    """
    ids = read_vocabulary(vocabulary)
    by_text = {piece.text: piece for piece in pieces if piece.kind == NORMAL}
    missing = by_text.keys() - ids.keys()
    if missing:
        raise DataError(f"has no {min(missing)!r}, a piece of the model", where=str(vocabulary))
    return [
        by_text.get(text, Piece(text, 0.0, CONTROL)) for text in sorted(ids, key=ids.__getitem__)
    ]


def _definition(
    file: Path,
    model: SentencePieceModel,
    pieces: Sequence[Piece],
    first_normalizers: Sequence[dict[str, Any]],
    config: Mapping[str, Any],
    opener: TokenizerClass,
    unk_id: int | None = None,
) -> TreeDefinition:
    ids = {piece.text: number for number, piece in enumerate(pieces)}
    roles = named_pieces(file.parent, config, opener.roles, ids)
    if unk_id is None:
        unk_id = model.unk_id if roles.unk is None else ids.get(roles.unk, model.unk_id)
    normalizers = list(first_normalizers)
    if model.charsmap:
        charsmap = base64.b64encode(model.charsmap).decode()
        normalizers.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if model.strips_spaces:
        normalizers += [
            {"type": "Strip", "strip_left": True, "strip_right": True},
            _SPACES,
        ]
    flags = ("single_word", "lstrip", "rstrip", "normalized")
    plain = {**dict.fromkeys(flags, False), "special": True}
    metaspace = {
        "type": "Metaspace",
        "replacement": "▁",
        "prepend_scheme": "always" if model.begins_with_space else "never",
        "split": True,
    }
    special = [
        {"id": number, "content": piece.text, **plain, "lstrip": piece.text == roles.mask}
        for number, piece in enumerate(pieces)
        if piece.kind in (CONTROL, UNKNOWN, UNUSED) or piece.text in (roles.cls, roles.sep)
    ]
    if roles.mask is not None and roles.mask not in ids:  # it follows the model's pieces
        ids[roles.mask] = len(pieces)
        special.append({"id": len(pieces), "content": roles.mask, **plain, "lstrip": True})
    frame = opener.frame.frame_for(roles)
    tree = {
        "version": "1.0",
        **NO_LIMITS,
        "added_tokens": special,
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": metaspace,
        "post_processor": template(frame, ids),
        "decoder": metaspace,
        "model": {
            "type": "Unigram",
            "unk_id": unk_id,
            "vocab": [[piece.text, _score(piece)] for piece in pieces],
            "byte_fallback": model.byte_fallback,
        },
    }
    return TreeDefinition(
        tree,
        roles,
        frame,
        opener.saved_settings(config),
        {file.name: read_content(file, DataError)},
    )


def _score(piece: Piece) -> float:
    """The score of a piece; user-defined pieces score above all others, whose scores are logs.

    Their score is the one that SentencePiece 0.2 computes, whatever the file has: 0.1 for each byte
    after the first.
    """
    if piece.kind == USER_DEFINED:
        return 0.1 * (len(piece.text.encode()) - 1)
    return piece.score

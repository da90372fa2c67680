"""Read tokenizers other than WordPiece, as trees that the `tokenizers` library understands.

Byte-pair encoding is read from `vocab.json` and `merges.txt`. There are two kinds: RoBERTa's (and
GPT-2's), whose alphabet is the 256 bytes, so that nothing is unknown; and the first GPT's, on
BERT's words in lower case, whose pieces end in `</w>` at the end of a word. (GPT's original code
split words with spaCy if that was installed; here, words are split as without spaCy.)

SentencePiece is read from `spiece.model` or `sentencepiece.bpe.model`, for Unigram models only
(Kudo 2018): ALBERT, XLM-RoBERTa and CamemBERT. The file is a protocol buffer of the type
`ModelProto`; only those of its fields are read that affect tokens.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import DataError
from ..utils.json_files import parse_json
from ..utils.protobuf import fields
from ..utils.regular_files import read_content
from .definition import Frame, Roles
from .normalization import Normalization
from .tree import NO_LIMITS, TreeDefinition, template

END_OF_WORD = "</w>"
# Of RoBERTa, and of all models trained with fairseq.
_ROLES = Roles(pad="<pad>", unk="<unk>", cls="<s>", sep="</s>", mask="<mask>")
_FRAME = Frame(("<s>",), ("</s>", "</s>"), ("</s>",), 0)


def read_bpe(vocabulary: Path, merges: Path, config: Mapping[str, Any]) -> TreeDefinition:
    """Read both files; the pieces tell which kind it is.

    Args:
        vocabulary: pieces and their ids, a JSON object.
        merges: the pairs to merge, best first, one per line.
        config: `tokenizer_config.json`; only its `add_prefix_space` is used.

    Raises:
        DataError: a file is invalid, or special pieces are missing.
    """
    try:
        ids = parse_json(read_content(vocabulary, DataError))
    except ValueError as error:
        raise DataError(f"not valid JSON ({error})", where=str(vocabulary)) from None
    if not isinstance(ids, dict) or not all(isinstance(n, int) for n in ids.values()):
        raise DataError("must hold pieces and their ids", where=str(vocabulary))
    pairs = _read_merges(merges, ids)
    gpt = any(piece.endswith(END_OF_WORD) and len(piece) > len(END_OF_WORD) for piece in ids)
    steps: dict[str, Any]
    if gpt:
        roles, frame = Roles(unk="<unk>"), Frame((), (), (), 0)
        steps = {
            "normalizer": {"type": "BertNormalizer", **Normalization().options},
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": None,
            "decoder": {"type": "BPEDecoder", "suffix": END_OF_WORD},
        }
    else:
        roles, frame = _ROLES, _FRAME
        prefix = bool(config.get("add_prefix_space", False))
        byte_level = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
        steps = {
            "normalizer": None,
            "pre_tokenizer": {**byte_level, "add_prefix_space": prefix},
            "post_processor": template(frame, ids),
            "decoder": {**byte_level, "add_prefix_space": True},
        }
    special = [piece for piece in ("<s>", "<pad>", "</s>", "<unk>", "<mask>") if piece in ids]
    plain = {"single_word": False, "rstrip": False, "normalized": False, "special": True}
    tree = {
        "version": "1.0",
        **NO_LIMITS,
        "added_tokens": [
            {"id": ids[piece], "content": piece, "lstrip": piece == "<mask>", **plain}
            for piece in sorted(special, key=lambda piece: int(ids[piece]))
        ],
        **steps,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>" if gpt else None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": END_OF_WORD if gpt else "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": ids,
            "merges": pairs,
        },
    }
    files = {file.name: read_content(file, DataError) for file in (vocabulary, merges)}
    return TreeDefinition(tree, roles, frame, dict(config), files)


def _read_merges(file: Path, ids: Mapping[str, int]) -> list[list[str]]:
    try:
        lines = read_content(file, DataError).decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8 ({error})", where=str(file)) from None
    pairs: list[list[str]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        pair = line.rstrip("\r").split(" ")
        if len(pair) != 2:
            raise DataError("not two pieces", where=f"{file}:{number}")
        for piece in (*pair, "".join(pair)):
            if piece not in ids:
                raise DataError(f"{piece!r} is not in the vocabulary", where=f"{file}:{number}")
        pairs.append(pair)
    return pairs


UNIGRAM = 1
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


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

"""Byte-pair encoding from `vocab.json` and `merges.txt`, as a tree that the library understands.

Two kinds: RoBERTa's (and GPT-2's), whose alphabet is the 256 bytes, so that nothing is unknown; and
the first GPT's, on BERT's words in lower case, whose pieces end in `</w>` where a word ends. (GPT's
own code split words with spaCy where that was installed; what is done here is what it did without.)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..json_text import parse_json
from .definition import Frame, Roles
from .tree import TreeDefinition, template

END_OF_WORD = "</w>"
_ROBERTA = Roles(pad="<pad>", unk="<unk>", cls="<s>", sep="</s>", mask="<mask>")
_ROBERTA_FRAME = Frame(("<s>",), ("</s>", "</s>"), ("</s>",), 0)


def read_bpe(vocabulary: Path, merges: Path, config: Mapping[str, Any]) -> TreeDefinition:
    """Read both files; which kind it is, the pieces tell.

    Args:
        vocabulary: pieces and their ids, a JSON object.
        merges: the pairs that are merged, best first, one a line.
        config: `tokenizer_config.json`, whose `add_prefix_space` counts.

    Raises:
        DataError: a file is not what it should be, or special pieces are missing.
    """
    try:
        ids = parse_json(vocabulary.read_bytes())
    except ValueError as error:
        raise DataError(f"not valid JSON ({error})", where=str(vocabulary)) from None
    if not isinstance(ids, dict) or not all(isinstance(n, int) for n in ids.values()):
        raise DataError("must hold pieces and their ids", where=str(vocabulary))
    pairs = _read_merges(merges, ids)
    gpt = any(piece.endswith(END_OF_WORD) and len(piece) > len(END_OF_WORD) for piece in ids)
    roles = Roles(unk="<unk>") if gpt else _ROBERTA
    frame = Frame((), (), (), 0) if gpt else _ROBERTA_FRAME
    special = [piece for piece in ("<s>", "<pad>", "</s>", "<unk>", "<mask>") if piece in ids]
    plain = {"single_word": False, "rstrip": False, "normalized": False, "special": True}
    prefix = bool(config.get("add_prefix_space", False))
    byte_level = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    tree = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": ids[piece], "content": piece, "lstrip": piece == "<mask>", **plain}
            for piece in sorted(special, key=lambda piece: int(ids[piece]))
        ],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        }
        if gpt
        else None,
        "pre_tokenizer": {"type": "BertPreTokenizer"}
        if gpt
        else {**byte_level, "add_prefix_space": prefix},
        "post_processor": None if gpt else template(frame, ids),
        "decoder": {"type": "BPEDecoder", "suffix": END_OF_WORD}
        if gpt
        else {**byte_level, "add_prefix_space": True},
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
    files = {file.name: file.read_bytes() for file in (vocabulary, merges)}
    return TreeDefinition(tree, roles, frame, dict(config), files)


def _read_merges(file: Path, ids: Mapping[str, int]) -> list[list[str]]:
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
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

"""Read byte-pair encoding from `vocab.json` and `merges.txt`.

There are two kinds: RoBERTa's (and GPT-2's, and DeBERTa's), whose alphabet is the 256 bytes, so
that nothing is unknown; and the first GPT's (and HerBERT's), on BERT's words, whose pieces end in
`</w>` at the end of a word. (GPT's original code split words with spaCy if that was installed;
here, words are split as without spaCy.)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..utils.json_files import read_json_value
from ..utils.regular_files import read_content, read_text_lines
from .special_pieces import named_pieces
from .tokenizer_classes import CLASSES, TokenizerClass, check_algorithm
from .tree import NO_LIMITS, TreeDefinition, template
from .wordpiece import Normalization

END_OF_WORD = "</w>"


def read_bpe(
    vocabulary: Path, merges: Path, config: Mapping[str, Any], opener: TokenizerClass | None
) -> TreeDefinition:
    """Read both files; the pieces tell which kind it is.

    Args:
        vocabulary: pieces and their ids, a JSON object.
        merges: the pairs to merge, best first, one per line.
        config: `tokenizer_config.json`; its `add_prefix_space` and special pieces are used.
        opener: the class of the directory; None: RoBERTa's or the first GPT's.

    Raises:
        DataError: a file is invalid or of a kind that the class does not read, or special pieces
            are missing.
    """
    ids = read_json_value(vocabulary, DataError)
    if not isinstance(ids, dict) or not all(isinstance(n, int) for n in ids.values()):
        raise DataError("must hold pieces and their ids", where=str(vocabulary))
    pairs = _read_merges(merges, ids)
    is_words = any(piece.endswith(END_OF_WORD) and len(piece) > len(END_OF_WORD) for piece in ids)
    check_algorithm(opener, "BPE of words" if is_words else "byte-level BPE", vocabulary)
    if opener is None:
        opener = CLASSES["OpenAIGPTTokenizer" if is_words else "RobertaTokenizer"]
    roles = named_pieces(vocabulary.parent, config, opener.roles, ids)
    frame = opener.frame.frame_for(roles)
    steps: dict[str, Any]
    if is_words:
        is_cased = opener.name == "HerbertTokenizer"
        normalization = Normalization(False, False) if is_cased else Normalization()
        steps = {
            "normalizer": {"type": "BertNormalizer", **normalization.options},
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": template(frame, ids) if frame.end else None,
            "decoder": {"type": "BPEDecoder", "suffix": END_OF_WORD},
        }
    else:
        prefix = bool(config.get("add_prefix_space", False))
        byte_level = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
        steps = {
            "normalizer": None,
            "pre_tokenizer": {**byte_level, "add_prefix_space": prefix},
            "post_processor": template(frame, ids),
            "decoder": {**byte_level, "add_prefix_space": True},
        }
    special = roles.pieces & ids.keys()
    plain = {"single_word": False, "rstrip": False, "normalized": False, "special": True}
    tree = {
        "version": "1.0",
        **NO_LIMITS,
        "added_tokens": [
            {"id": ids[piece], "content": piece, "lstrip": piece == roles.mask, **plain}
            for piece in sorted(special, key=lambda piece: int(ids[piece]))
        ],
        **steps,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": roles.unk if is_words else None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": END_OF_WORD if is_words else "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": ids,
            "merges": pairs,
        },
    }
    files = {file.name: read_content(file, DataError) for file in (vocabulary, merges)}
    return TreeDefinition(tree, roles, frame, opener.saved_settings(config), files)


def _read_merges(file: Path, ids: Mapping[str, int]) -> list[list[str]]:
    pairs: list[list[str]] = []
    for number, line in enumerate(read_text_lines(file, DataError), 1):
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

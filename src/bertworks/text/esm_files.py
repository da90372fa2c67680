"""Read the tokenizer of ESM: each letter of a protein is a piece."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..utils.regular_files import read_content
from .special_pieces import named_pieces
from .tokenizer_classes import TokenizerClass
from .tree import NO_LIMITS, TreeDefinition, template
from .wordpiece_vocabulary import read_vocabulary


def read_esm(file: Path, config: Mapping[str, Any], opener: TokenizerClass) -> TreeDefinition:
    """Read `vocab.txt`. In a text, the longest known piece is taken, from the left; each other word
    is unknown."""
    ids = {piece.strip(): number for piece, number in read_vocabulary(file).items()}
    roles = named_pieces(file.parent, config, opener.roles)
    frame = opener.frame.frame_for(roles)
    special = roles.pieces & ids.keys()
    letters = sorted(ids.keys() - special, key=lambda piece: (-len(piece), ids[piece]))
    pattern = "|".join(re.escape(letter) for letter in letters)
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tree = {
        "version": "1.0",
        **NO_LIMITS,
        "added_tokens": [
            {"id": ids[piece], "content": piece, **plain, "special": True}
            for piece in sorted(special, key=lambda piece: ids[piece])
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": pattern},
                    "behavior": "Isolated",
                    "invert": False,
                },
                {"type": "WhitespaceSplit"},
            ],
        },
        "post_processor": template(frame, ids),
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": ids, "unk_token": roles.unk},
    }
    files = {file.name: read_content(file, DataError)}
    return TreeDefinition(tree, roles, frame, opener.saved_settings(config), files)

"""The special pieces that a tokenizer's settings name, and their usual names."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .definition import CLS, MASK, PAD, SEP, UNK, Roles
from .file_names import SPECIAL, read_optional

# The usual special pieces, for tokenizers that do not name theirs.
_USUAL_PIECES = {
    "pad": (PAD, "<pad>"),
    "unk": (UNK, "<unk>"),
    "cls": (CLS, "<s>"),
    "sep": (SEP, "</s>"),
    "mask": (MASK, "<mask>"),
}


def usual_roles(pieces: Container[str]) -> Roles:
    """The usual special pieces among all pieces."""
    first = {role: (one for one in usual if one in pieces) for role, usual in _USUAL_PIECES.items()}
    return Roles(**{role: next(matches, None) for role, matches in first.items()})


def piece_of_entry(entry: Any) -> str | None:
    """The piece that a setting names, either alone or with its flags."""
    named = entry.get("content") if isinstance(entry, dict) else entry
    return named if isinstance(named, str) else None


def named_roles(roles: Roles) -> dict[str, str]:
    """The special pieces as entries of `tokenizer_config.json`."""
    return {f"{role}_token": piece for role, piece in asdict(roles).items() if piece is not None}


def named_pieces(
    directory: Path,
    config: Mapping[str, Any],
    usual: Roles,
    vocabulary: Container[str] | None = None,
) -> Roles:
    """The special pieces of a class's tokenizer: those that its settings name, else the usual.

    Args:
        directory: the directory of its files.
        config: `tokenizer_config.json`.
        usual: the class's pieces.
        vocabulary: a name that is not in it is not used; None: all names are used.
    """
    entries = {**read_optional(directory / SPECIAL), **config}
    roles = asdict(usual)
    for role in roles:
        named = piece_of_entry(entries.get(f"{role}_token"))
        if named and (vocabulary is None or named in vocabulary):
            roles[role] = named
    return Roles(**roles)

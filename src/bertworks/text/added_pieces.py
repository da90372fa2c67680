"""Read the pieces that were added to a vocabulary, from files next to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import DataError
from .file_names import ADDED_TOKENS_FILE, CONFIG, SPECIAL, read_optional
from .schemas import AddedToken, parse
from .special_pieces import piece_of_entry
from .tree import TreeDefinition


def read_added(directory: Path, config: dict[str, Any]) -> tuple[list[AddedToken], str]:
    """Read the pieces added to a vocabulary without `tokenizer.json`; also return the file's name.

    Since version 4.34 of `transformers` they are in `tokenizer_config.json`; before, they were in a
    separate file, without flags.
    """
    in_config = "added_tokens_decoder" in config
    where = str(directory / (CONFIG if in_config else ADDED_TOKENS_FILE))
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "special": False}
    try:
        if in_config:
            decoder = config["added_tokens_decoder"]
            entries_of_file = [{**entry, "id": number} for number, entry in decoder.items()]
        else:
            entries_of_file = _read_bare(directory, config)
        entries = [
            {"normalized": not entry.get("special"), **plain, **entry} for entry in entries_of_file
        ]
    except (AttributeError, TypeError) as error:
        raise DataError(f"holds no added pieces ({error!r})", where=where) from None
    added = [parse(AddedToken, entry, where=where, fix=None) for entry in entries]
    return sorted(added, key=lambda token: token.id), where


def _read_bare(directory: Path, config: dict[str, Any]) -> list[dict[str, Any]]:
    """Read the pieces of `added_tokens.json`; other files tell which of them are special."""
    marks = {**config, **read_optional(directory / SPECIAL)}
    special_entries = [entry for key, entry in marks.items() if key.endswith("_token")]
    for kind in ("additional", "extra"):
        special_entries += marks.get(f"{kind}_special_tokens") or []
    special = {piece_of_entry(entry) for entry in special_entries}
    return [
        {"id": number, "content": piece, "special": piece in special}
        for piece, number in read_optional(directory / ADDED_TOKENS_FILE).items()
    ]


def check_added(added_tokens: Sequence[AddedToken], ids: Mapping[str, int], where: str) -> None:
    """Check that each has its id in the vocabulary, or the next id after it."""
    end = max(ids.values(), default=-1) + 1
    for token in added_tokens:
        due = ids.get(token.content, end)
        if token.id != due:
            raise DataError(
                f"{token.content!r} has the id {token.id}, but the vocabulary leaves {due} for it",
                where=where,
                fix="The vocabulary is another one, or ids are missing.",
            )
        end += token.content not in ids


def extend_vocabulary(
    definition: TreeDefinition, added_tokens: Sequence[AddedToken], where: str
) -> TreeDefinition:
    """The tokenizer with the pieces that were added to its vocabulary."""
    check_added(added_tokens, definition.ids, where)
    entries = definition.tree["added_tokens"]
    new = [token.model_dump() for token in added_tokens if token.content not in definition.added]
    if not new:
        return definition
    return replace(definition, tree={**definition.tree, "added_tokens": [*entries, *new]})

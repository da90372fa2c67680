"""Read and write BERT's tokenizer: `tokenizer.json` or `vocab.txt`, and its settings."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..errors import BertworksWarning, DataError, truncate_repr
from ..utils.regular_files import read_content
from .added_pieces import check_added, read_added
from .definition import AddedPiece, Frame, Roles
from .file_names import CONFIG, TOKENIZER, VOCAB
from .schemas import ConfigFile, TokenizerFile, parse
from .special_pieces import named_pieces, usual_roles
from .tokenizer_classes import CLASSES, GENERAL_CLASS, TokenizerClass
from .tree import NO_LIMITS, find_frame, template
from .wordpiece import CONTINUATION, MAX_WORD_CHARACTERS, Normalization, WordPieceDefinition
from .wordpiece_vocabulary import is_cased, number_pieces, read_vocabulary


def read_wordpiece(
    file: Path,
    whole: dict[str, Any] | None,
    settings: dict[str, Any],
    lowercase: bool | None,
    *,
    directory: Path,
    opener: TokenizerClass | None,
) -> WordPieceDefinition:
    """Read BERT's tokenizer, or one that differs in its special pieces only.

    Args:
        file: `tokenizer.json` or `vocab.txt`.
        whole: the content of `tokenizer.json`; None: the file is `vocab.txt`.
        settings: `tokenizer_config.json`.
        lowercase: overrides the files.
        directory: the directory of the file, or the file itself if it is read alone.
        opener: the class of the directory; None: one that uses `tokenizer.json` unchanged.
    """
    added_pieces: list[AddedPiece] = []
    limit = MAX_WORD_CHARACTERS
    uses_settings = whole is None or opener is not None
    entry = opener or CLASSES["BertTokenizer"]
    roles = named_pieces(directory, settings, entry.roles)
    frame = entry.frame.frame_for(roles)
    if whole is not None:
        tree = parse(TokenizerFile, whole, where=str(file))
        if opener is None:
            frame = _find_wordpiece_frame(whole, settings)
            roles = _find_roles(tree, frame, directory, settings)
        pieces, added_pieces = number_pieces(tree.model.vocab, tree.added_tokens, where=str(file))
        limit = tree.model.max_input_chars_per_word
        normalization = Normalization(**tree.normalizer.model_dump(exclude={"type"}))
    else:
        ids = read_vocabulary(file)
        tokens, source = read_added(directory, settings)
        check_added(tokens, ids, source)
        pieces, added_pieces = number_pieces(ids, tokens, where=source)
        normalization = Normalization(lowercase=not is_cased(pieces))
    if uses_settings:
        config = parse(ConfigFile, settings, where=str(directory / CONFIG))
        entries = config.model_dump(exclude_unset=True)
        if whole is not None and lowercase is None:
            _compare_settings(file, normalization, entries)
        normalization = replace(normalization, **entries)
    if lowercase is not None:
        normalization = replace(normalization, lowercase=lowercase)
    definition = WordPieceDefinition(
        tuple(pieces), tuple(added_pieces), normalization, limit, frame, roles
    )
    if whole is not None and file.with_name(VOCAB).is_file():
        _compare_vocabularies(file, tree.model.vocab, definition)
    return definition


def _find_roles(
    tree: TokenizerFile, frame: Frame, directory: Path, settings: Mapping[str, Any]
) -> Roles:
    """The special pieces of a file that is used unchanged.

    They are those that the settings name, or those of the frame, or usual ones: first of the pieces
    that the file lists as special, then of the vocabulary.
    """
    special_pieces = {token.content for token in tree.added_tokens}
    sources = (
        named_pieces(directory, settings, Roles()),
        Roles(cls=next(iter(frame.start), None), sep=next(iter(frame.end), None)),
        usual_roles(special_pieces),
        usual_roles(tree.model.vocab),
    )
    roles: dict[str, str | None] = {"unk": tree.model.unk_token}
    for role in ("pad", "cls", "sep", "mask"):
        roles[role] = next(filter(None, (getattr(source, role) for source in sources)), None)
    return Roles(**roles)


def _compare_vocabularies(
    file: Path, vocabulary: Mapping[str, int], definition: WordPieceDefinition
) -> None:
    """Warn if `vocab.txt` has other ids than the `tokenizer.json` next to it.

    Args:
        vocabulary: what the words of texts are split into, which `vocab.txt` must have.
        definition: has the same pieces, and those added later, which `vocab.txt` may have.
    """
    vocabulary_file, ids = file.with_name(VOCAB), definition.ids
    if (
        read_content(vocabulary_file, DataError) == vocabulary_text(definition).encode()
    ):  # usual, and fast
        return
    lines = read_vocabulary(vocabulary_file)
    differing = sorted(number for piece, number in lines.items() if ids.get(piece) != number)
    missing = sorted(vocabulary.items() - lines.items(), key=lambda entry: entry[1])
    if differing or missing:
        number = differing[0] if differing else missing[0][1]
        of_lines = {at: piece for piece, at in lines.items()}.get(number, "")
        of_tree = {at: piece for piece, at in ids.items()}.get(number, "")
        warnings.warn(
            f"{vocabulary_file}:{number + 1}: {truncate_repr(of_lines)}, but {TOKENIZER} has "
            f"{truncate_repr(of_tree)} with the id {number}; {TOKENIZER} is used",
            BertworksWarning,
            stacklevel=2,
        )


_KEYS = {
    "lowercase": ("do_lower_case", "lowercase"),
    "strip_accents": ("strip_accents", "strip_accents"),
    "split_ideographs": ("tokenize_chinese_chars", "handle_chinese_chars"),
}
"""The settings of the normalisation in `tokenizer_config.json` and in `tokenizer.json`."""


def _compare_settings(file: Path, normalization: Normalization, entries: Mapping[str, Any]) -> None:
    """Warn if `tokenizer_config.json` contradicts `tokenizer.json`, or is silent where the
    `transformers` class has another default.

    Args:
        normalization: that of `tokenizer.json`.
        entries: the settings in `tokenizer_config.json`.
    """
    usual = Normalization(**entries)
    for name, (key, own_key) in _KEYS.items():
        own, other = getattr(normalization, name), getattr(usual, name)
        if own == other:
            continue
        what = f"{own_key} is {_json_value(own)}"
        if name in entries:
            what += f", but {key} in {CONFIG} is {_json_value(other)}, which is used"
        else:
            what += f", which is used; {CONFIG} has no {key}, so transformers takes "
            what += _json_value(other)
        warnings.warn(f"{file}: {what}", BertworksWarning, stacklevel=2)


def _json_value(value: bool | None) -> str:
    """A setting as it is in a JSON file."""
    return "null" if value is None else str(value).lower()


def _find_wordpiece_frame(tree: dict[str, Any], config: dict[str, Any]) -> Frame:
    """The frame of a file that is used unchanged.

    A file with neither a frame nor settings next to it has BERT's frame: programs that train a
    vocabulary write no frame, since the model's class adds it.
    """
    if tree.get("post_processor") is None:
        return Frame((), (), ()) if config else Frame()
    return find_frame(tree)


def vocabulary_text(definition: WordPieceDefinition) -> str:
    return "\n".join((*definition.pieces, ""))


def class_name(definition: WordPieceDefinition) -> str:
    """The `transformers` class that gives the same ids.

    Since version 5, BERT's classes build a new tokenizer from the vocabulary, with a limit of 100
    characters per word; the general class uses `tokenizer.json` unchanged.
    """
    if not definition.normalization.clean_text or definition.added:
        return GENERAL_CLASS
    if definition.max_word_characters != 100:
        return GENERAL_CLASS
    own = definition.roles
    for entry in CLASSES.values():
        # A vocabulary may lack the pieces of pad and mask.
        roles = replace(
            entry.roles, pad=own.pad and entry.roles.pad, mask=own.mask and entry.roles.mask
        )
        same = roles == own and entry.frame.frame_for(own) == definition.frame
        if entry.algorithm == "WordPiece" and same:
            return entry.name
    return GENERAL_CLASS


def tokenizer_json(definition: WordPieceDefinition) -> dict[str, Any]:
    """The tokenizer in the format of the `tokenizers` library."""
    base = len(definition.base_pieces)
    frame, roles = definition.frame, definition.roles
    special = roles.pieces | frame.pieces
    plain = {"single_word": False, "rstrip": False, "normalized": False, "special": True}
    added_tokens = [
        # As in RoBERTa, a mask of this name includes the space before it.
        {"id": number, "content": piece, "lstrip": piece == roles.mask == "<mask>", **plain}
        for piece in special
        if (number := definition.ids[piece]) < base
    ]
    added_tokens += [
        {"id": base + place, **asdict(piece)} for place, piece in enumerate(definition.added)
    ]
    return {
        "version": "1.0",
        **NO_LIMITS,
        "added_tokens": sorted(added_tokens, key=lambda entry: int(entry["id"])),
        "normalizer": {"type": "BertNormalizer", **definition.normalization.options},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": template(frame, definition.ids),
        "decoder": {"type": "WordPiece", "prefix": CONTINUATION, "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": roles.unk,
            "continuing_subword_prefix": CONTINUATION,
            "max_input_chars_per_word": definition.max_word_characters,
            "vocab": {piece: number for number, piece in enumerate(definition.base_pieces)},
        },
    }

"""Read and write BERT's tokenizer: `tokenizer.json`, or `vocab.txt`, and the settings beside it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..errors import BertworksWarning, DataError, truncate_repr
from ..utils.json_files import read_json
from .added_pieces import check_added, read_added
from .definition import (
    CONTINUATION,
    MAX_WORD_CHARACTERS,
    SPECIAL_PIECES,
    UNK,
    AddedPiece,
    Frame,
    WordPieceDefinition,
)
from .file_names import CONFIG, TOKENIZER, VOCAB
from .normalization import Normalization
from .schemas import ConfigFile, TokenizerFile, parse
from .tokenizer_classes import find_class
from .tree import NO_LIMITS, find_frame, template
from .wordpiece_vocabulary import is_cased, number_pieces, read_vocabulary


def read_wordpiece(
    file: Path, config_tree: dict[str, Any], lowercase: bool | None, *, directory: Path
) -> WordPieceDefinition:
    """Read BERT's tokenizer from `tokenizer.json` or `vocab.txt`."""
    added_pieces: list[AddedPiece] = []
    limit = MAX_WORD_CHARACTERS
    frame = Frame()
    uses_config = True  # whether to use the settings next to the file
    if file.suffix == ".json":
        whole = read_json(file, DataError)
        tree = parse(TokenizerFile, whole, where=str(file))
        uses_config = (
            find_class(directory, config_tree) is not None
        )  # BERT's class uses BERT's frame
        if not uses_config:
            frame = _find_wordpiece_frame(whole, config_tree)
        pieces, added_pieces = number_pieces(tree.model.vocab, tree.added_tokens, where=str(file))
        limit = tree.model.max_input_chars_per_word
        normalization = Normalization(**tree.normalizer.model_dump(exclude={"type"}))
    else:
        ids = read_vocabulary(file)
        tokens, source = read_added(directory, config_tree)
        check_added(tokens, ids, source)
        pieces, added_pieces = number_pieces(ids, tokens, where=source)
        normalization = Normalization(lowercase=not is_cased(pieces))
    if uses_config:
        config = parse(ConfigFile, config_tree, where=str(directory / CONFIG))
        entries = config.model_dump(exclude_unset=True)
        if file.suffix == ".json" and lowercase is None:
            _compare_settings(file, normalization, entries)
        normalization = replace(normalization, **entries)
    if lowercase is not None:
        normalization = replace(normalization, lowercase=lowercase)
    definition = WordPieceDefinition(
        tuple(pieces), tuple(added_pieces), normalization, limit, frame
    )
    if file.suffix == ".json" and file.with_name(VOCAB).is_file():
        _compare_vocabularies(file, tree.model.vocab, definition)
    return definition


def _compare_vocabularies(
    file: Path, vocabulary: Mapping[str, int], definition: WordPieceDefinition
) -> None:
    """Warn if `vocab.txt` has other ids than the `tokenizer.json` beside it.

    Args:
        vocabulary: what the words of texts are split into, which `vocab.txt` must have.
        definition: has the same pieces, and those added later, which `vocab.txt` may have.
    """
    vocabulary_file, ids = file.with_name(VOCAB), definition.ids
    if vocabulary_file.read_bytes() == vocabulary_text(definition).encode():  # usual, and fast
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
    few = {**tree, "added_tokens": [], "model": {**tree["model"], "vocab": {UNK: 0}}}  # for speed
    return find_frame(few)


def vocabulary_text(definition: WordPieceDefinition) -> str:
    return "".join(f"{piece}\n" for piece in definition.pieces)


def tokenizer_class(definition: WordPieceDefinition) -> str:
    """The `transformers` class that gives the same ids.

    Since version 5, `BertTokenizer` builds a new tokenizer from the vocabulary, with a limit of 100
    characters per word; the general class uses `tokenizer.json` unchanged.
    """
    plain = definition.normalization.clean_text and not definition.added
    same = plain and definition.max_word_characters == 100 and definition.frame == Frame()
    return "BertTokenizer" if same else "PreTrainedTokenizerFast"


def tokenizer_json(definition: WordPieceDefinition) -> dict[str, Any]:
    """The tokenizer in the format of the `tokenizers` library."""
    base = len(definition.base_pieces)
    special = {piece: definition.ids[piece] for piece in SPECIAL_PIECES if piece in definition.ids}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added_tokens = [
        {"id": number, "content": piece, **plain, "special": True}
        for piece, number in special.items()
        if number < base
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
        "post_processor": template(definition.frame, definition.ids),
        "decoder": {"type": "WordPiece", "prefix": CONTINUATION, "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": UNK,
            "continuing_subword_prefix": CONTINUATION,
            "max_input_chars_per_word": definition.max_word_characters,
            "vocab": {piece: number for number, piece in enumerate(definition.base_pieces)},
        },
    }

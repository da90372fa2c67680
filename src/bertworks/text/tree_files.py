"""Read a `tokenizer.json` of any kind that the `tokenizers` library supports."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..utils.regular_files import read_content
from .definition import Frame, Roles
from .file_names import SPECIAL, VOCABULARY_FILES, read_optional
from .special_pieces import named_pieces, piece_of_entry, usual_roles
from .tokenizer_classes import GENERAL_CLASS, Algorithm, TokenizerClass
from .tree import NO_LIMITS, TreeDefinition, find_frame


def is_berts(tree: Mapping[str, Any], opener: TokenizerClass | None) -> bool:
    """Whether a tree is BERT's WordPiece, with BERT's splitting of texts into words.

    Args:
        tree: the content of `tokenizer.json`; it may be of any kind, or damaged.
        opener: the class of the directory; one of BERT's kind splits words itself.
    """
    model = tree.get("model")
    if not isinstance(model, dict):
        return True  # damaged: its reader says what is missing
    if model.get("type") not in ("WordPiece", None):
        return False
    steps = [tree.get(name) for name in ("normalizer", "pre_tokenizer")]
    kinds = [step.get("type") if isinstance(step, dict) else None for step in steps]
    is_other = "normalizer" in tree and kinds != ["BertNormalizer", "BertPreTokenizer"]
    return opener is not None or not is_other


def algorithm_of(tree: Mapping[str, Any]) -> Algorithm | None:
    """What a tree is to the classes of the table; None: nothing that one of them reads."""
    model = tree["model"]
    if model["type"] == "Unigram":
        return "Unigram"
    if model["type"] == "BPE" and model.get("end_of_word_suffix"):
        return "BPE of words"
    if model["type"] == "BPE" and '"ByteLevel"' in json.dumps(tree.get("pre_tokenizer")):
        return "byte-level BPE"
    return None


@contextmanager
def tree_of(file: Path, tree: Mapping[str, Any]) -> Iterator[None]:
    """Check that a `tokenizer.json` has its parts; errors about them within the block name it."""
    try:
        missing = {"added_tokens", "normalizer", "pre_tokenizer", "decoder"} - tree.keys()
        if missing:
            raise DataError(f"{min(missing)} is missing")
        yield
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"is not a tokenizer ({error!r})", where=str(file)) from None
    except DataError as error:
        raise DataError(error.what, where=error.where or str(file), fix=error.fix) from None


def read_tree(
    file: Path, tree: dict[str, Any], config: dict[str, Any], opener: TokenizerClass | None
) -> TreeDefinition:
    """Read any other `tokenizer.json`; `opener` is the result of `find_class`."""
    with tree_of(file, tree):
        tree = {**tree, **NO_LIMITS}
        splitter = tree["pre_tokenizer"]
        reads_prefix = opener is not None and opener.reads_prefix_space
        if reads_prefix and splitter is not None and splitter["type"] == "ByteLevel":
            prefix = bool(config.get("add_prefix_space", False))
            tree["pre_tokenizer"] = {**splitter, "add_prefix_space": prefix}
        if opener is None and "tokenizer_class" in config:
            # Else a copy saved without the model's `config.json` would be read as another class.
            config = {**config, "tokenizer_class": GENERAL_CLASS}
        elif opener is not None:
            config = opener.saved_settings(config)
        frame, roles = _find_frame_and_roles(file, tree, config, opener)
        others = {name: file.with_name(name) for name in sorted(VOCABULARY_FILES)}
        files = {
            name: read_content(path, DataError) for name, path in others.items() if path.exists()
        }
        return TreeDefinition(tree, roles, frame, config, files)


def _find_frame_and_roles(
    file: Path, tree: dict[str, Any], config: Mapping[str, Any], opener: TokenizerClass | None
) -> tuple[Frame, Roles]:
    """The special pieces around texts, and those of the roles.

    Raises:
        DataError: the file has another frame than its class.
    """
    known = {entry["content"] for entry in tree["added_tokens"]}
    entries = {**read_optional(file.with_name(SPECIAL)), **config}
    roles = asdict(named_pieces(file.parent, config, usual_roles(known)))
    frame = find_frame(tree)
    if opener is None:
        _check_ends(frame, entries, file)
    else:
        own = opener.frame.frame_for(named_pieces(file.parent, config, opener.roles))
        if frame not in (own, *(other.frame_for(Roles(**roles)) for other in opener.other_frames)):
            raise DataError(
                f"puts {_describe(frame)} around texts, but the tokenizer class {opener.name} "
                f"{_describe(own)}",
                where=str(file),
                fix=f"Set tokenizer_class in tokenizer_config.json to {GENERAL_CLASS} if "
                "tokenizer.json is right.",
            )
    # Llama's tokenizers, for one, name the pieces that begin and end each text bos and eos.
    for role, name, part in (("cls", "bos", frame.start), ("sep", "eos", frame.end)):
        piece = piece_of_entry(entries.get(f"{name}_token"))
        if roles[role] is None and part == (piece,):
            roles[role] = piece
    return frame, Roles(**roles)


def _check_ends(frame: Frame, entries: Mapping[str, Any], file: Path) -> None:
    """Check that the settings do not put other pieces around a text than the file.

    The general class obeys `add_bos_token` and `add_eos_token` if its settings have one of them.

    Raises:
        DataError: they do.
    """
    if not {"add_bos_token", "add_eos_token"} & entries.keys():
        return
    for name, part in (("bos", frame.start), ("eos", frame.end)):
        is_added = bool(entries.get(f"add_{name}_token", False))
        piece = piece_of_entry(entries.get(f"{name}_token"))
        if part != ((piece,) if is_added and piece is not None else ()):
            raise DataError(
                f"puts {_describe(frame)} around texts, which contradicts add_{name}_token in "
                "tokenizer_config.json",
                where=str(file),
                fix="Remove add_bos_token and add_eos_token from tokenizer_config.json if "
                "tokenizer.json is right.",
            )


def _describe(frame: Frame) -> str:
    """A frame as a pair of texts has it."""
    return " ".join([*frame.start, "A", *frame.between, "B", *frame.end])

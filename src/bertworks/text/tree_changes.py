"""Add pieces to vocabularies other than BERT's, or remove pieces: byte-level BPE and Unigram.

A new piece is a whole word; everything else is tokenised as before. With BPE, a known word is used
before any merge is tried. With Unigram, the score of a new piece is the sum of its former pieces'
scores, plus a small margin. So it replaces exactly these pieces, wherever they occurred, also at
the beginning of a longer word. A word of a script without spaces is no word to these tokenizers;
it is searched for before a text is split, as `transformers` does.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from ..errors import DataError
from .definition import AddedPiece, check_text
from .tokenizer import Tokenizer
from .tokenizer_classes import GENERAL_CLASS
from .tree import TreeDefinition
from .trial import check_pieces_found, is_unspaced

_STALE = ("added_tokens_decoder",)  # in a tokenizer's config; it has outdated ids
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_MARGIN = 1e-6  # by which a new piece scores better than its former pieces
_UNKNOWN_PENALTY = 10.0  # by which the library scores an unknown character below the worst piece


@dataclass(frozen=True)
class TreeAddition:
    """A tokenizer with more pieces."""

    definition: TreeDefinition
    # for each new piece, in the order of their ids, the ids of its former pieces
    former: tuple[tuple[int, ...], ...]
    added_words: tuple[str, ...]  # the words that became pieces
    known_words: tuple[str, ...]  # the words that already were pieces


def add_words(
    definition: TreeDefinition, words: Sequence[str], where: Sequence[str] | None = None
) -> TreeAddition:
    """Turn words into pieces; in byte-level BPE most get two, with a space before and without.

    Args:
        where: the place of each word; see `places_of`.

    Raises:
        DataError: a word is empty, or is several words; or the tokenizer is of another kind, or
            cannot be extended without changing other tokens; or a word would not be found in
            texts.
    """
    tree = copy.deepcopy(dict(definition.tree))
    kind = _kind(tree)
    library = definition.library(typed_mask=False, split=False)
    scores = dict(tree["model"]["vocab"]) if kind == "Unigram" else {}
    new: dict[str, tuple[int, ...]] = {}
    new_words: list[tuple[str, list[str], str]] = []  # each word, its forms and its place
    known_words: list[str] = []
    for word, place in zip(words, places_of(words, where), strict=True):
        forms = _forms(library, word, where=place)
        if is_unspaced(word) and not definition.ids.keys() & forms:
            forms = [word.strip()]
            if forms[0] not in new:
                entry = asdict(AddedPiece(forms[0]))
                tree["added_tokens"].append({"id": len(definition.pieces) + len(new), **entry})
            parts = library.encode(forms[0], add_special_tokens=False).ids
            sources = {forms[0]: [at for at in parts if at not in definition.marks] or parts}
        else:
            sources = {form: [t.id for t in library.model.tokenize(form)] for form in forms}
        fresh = [form for form in forms if form not in definition.ids and form not in new]
        new.update({form: tuple(sources[form]) for form in fresh})
        if fresh:
            new_words.append((word, forms, f"{place} ({word!r})"))
        else:
            known_words.append(word)
    if kind == "Unigram":
        if len(scores) < len(definition.pieces):  # new pieces would get their ids
            raise DataError("the tokenizer has added pieces that are not in its vocabulary")
        worst = min(scores.values()) - _UNKNOWN_PENALTY
        unknown = tree["model"]["unk_id"]
        for piece, former in new.items():
            parts = [worst if at == unknown else scores[definition.pieces[at]] for at in former]
            tree["model"]["vocab"].append([piece, sum(parts) + _MARGIN])
    else:
        # Added pieces get their ids from the vocabulary's size, unless they are in it.
        ids = {piece: at for at, piece in enumerate([*definition.pieces, *new])}
        tree["model"] |= {"vocab": ids, "ignore_merges": True}
    new_definition = _with_tree(definition, tree)
    _check_unchanged(definition, new_definition)
    check_pieces_found(Tokenizer(new_definition), new_words)
    return TreeAddition(
        new_definition,
        tuple(new.values()),
        tuple(word for word, _, _ in new_words),
        tuple(known_words),
    )


def places_of(words: Sequence[str], where: Sequence[str] | None) -> Sequence[str]:
    """Return the place of each word, for errors: by default `word 1` and so on."""
    return where or [f"word {number}" for number in range(1, len(words) + 1)]


def keep_pieces(
    definition: TreeDefinition, is_used_piece: NDArray[np.bool_]
) -> tuple[TreeDefinition, list[int]]:
    """Remove pieces that are not used; texts without removed pieces keep their tokens.

    Special and added pieces stay in any case, and so do single characters and bytes; with BPE, also
    the pieces from which the kept pieces are merged.

    Args:
        is_used_piece: bool `[pieces]`.

    Returns:
        The tokenizer, and the former ids of its pieces.
    """
    tree = copy.deepcopy(dict(definition.tree))
    kind = _kind(tree)
    model = tree["model"]
    pieces = definition.pieces
    kept_pieces = {piece for piece, is_used in zip(pieces, is_used_piece, strict=True) if is_used}
    kept_pieces |= definition.special | set(definition.added)
    if kind == "Unigram":
        kept_pieces |= {piece for piece in pieces if len(piece) == 1 or _BYTE.fullmatch(piece)}
        kept_pieces.add(pieces[model["unk_id"]])
        model["vocab"] = [[piece, score] for piece, score in model["vocab"] if piece in kept_pieces]
    else:
        pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
        merged = {"".join(pair) for pair in pairs}
        kept_pieces |= {piece for piece in pieces if piece not in merged}
        # A merge comes after those of its parts: in reverse order, it is known which are needed.
        for first, second in reversed(pairs):
            if first + second in kept_pieces:
                kept_pieces |= {first, second}
        model["merges"] = [pair for pair in pairs if "".join(pair) in kept_pieces]
    former = [at for at, piece in enumerate(pieces) if piece in kept_pieces]
    ids = {pieces[at]: number for number, at in enumerate(former)}
    if kind == "Unigram":
        model["unk_id"] = ids[pieces[model["unk_id"]]]
    else:
        model["vocab"] = {piece: ids[piece] for piece in model["vocab"] if piece in ids}
    for entry in tree["added_tokens"]:
        entry["id"] = ids[entry["content"]]
    _renumber(tree["post_processor"], ids)
    return _with_tree(definition, tree), former


def _kind(tree: dict[str, Any]) -> str:
    """`BPE` or `Unigram`; DataError if it is of another kind."""
    model = tree["model"]
    is_bytes = '"ByteLevel"' in json.dumps(tree["pre_tokenizer"])
    if model["type"] == "Unigram" or (model["type"] == "BPE" and is_bytes):
        return str(model["type"])
    raise DataError(
        f"this {model['type']} tokenizer cannot be changed: only those of BERT, byte-level BPE and "
        "Unigram can"
    )


def _forms(library: tokenizers.Tokenizer, word: str, *, where: str) -> list[str]:
    """The forms of a word in the vocabulary: after a space, and without one."""
    check_text(word, where=where)
    forms: list[str] = []
    for text in (f" {word.strip()}", word.strip()):
        normal = library.normalizer.normalize_str(text) if library.normalizer else text
        pieces = [part for part, _ in library.pre_tokenizer.pre_tokenize_str(normal)]
        if not word.strip() or not pieces:
            raise DataError("nothing is left of it", where=f"{where} ({word!r})")
        if len(pieces) > 1:
            parts = ", ".join(repr(part) for part in pieces)
            raise DataError(
                f"is several words to this tokenizer: {parts}",
                where=f"{where} ({word!r})",
                fix="Add its parts.",
            )
        forms += [pieces[0]] if pieces[0] not in forms else []
    return forms


def _with_tree(definition: TreeDefinition, tree: dict[str, Any]) -> TreeDefinition:
    """The tokenizer of a changed tree, without the files it came with: they are outdated."""
    config = {key: value for key, value in definition.config.items() if key not in _STALE}
    # Other `transformers` classes would rebuild the tokenizer from its vocabulary.
    config["tokenizer_class"] = GENERAL_CLASS
    return replace(definition, tree=tree, config=config, files={})


def _check_unchanged(original: TreeDefinition, new_definition: TreeDefinition) -> None:
    """Check that the text of every former piece has the same tokens, or new pieces."""
    old, new = (one.library(typed_mask=False, split=False) for one in (original, new_definition))
    texts = [original.decode([at]) for at in range(len(original.pieces))]
    encoded = zip(old.encode_batch_fast(texts), new.encode_batch_fast(texts), strict=True)
    for text, (one, two) in zip(texts, encoded, strict=True):
        if one.ids != two.ids and max(two.ids, default=-1) < len(original.pieces):
            raise DataError(f"the text {text!r} would have other tokens than before")


def _renumber(tree: Any, ids: dict[str, int]) -> None:
    """Give a post-processor's special pieces their new ids."""
    if isinstance(tree, dict):
        for name, part in tree.items():
            if name in ("cls", "sep") and isinstance(part, list):
                part[1] = ids[part[0]]
            elif name == "special_tokens" and isinstance(part, dict):
                for entry in part.values():
                    entry["ids"] = [ids[piece] for piece in entry["tokens"]]
            else:
                _renumber(part, ids)
    elif isinstance(tree, list):
        for part in tree:
            _renumber(part, ids)

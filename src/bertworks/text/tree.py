"""Tokenizers other than BERT's: byte-level BPE, SentencePiece, and all others of the library.

Such a tokenizer is described by the tree in a `tokenizer.json`, the format of the `tokenizers`
library: a normaliser, a splitter, a model, a decoder. Readers of other files (`bpe_files.py`,
`sentencepiece_files.py`) build the same tree. Only one thing in it is changed: special pieces never
match text.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from ..errors import DataError
from .character_map import ClusterCorrection, find_charsmap
from .definition import AddedPiece, Definition, Frame, Origin, Roles, Side, check_text
from .special_pieces import piece_of_entry
from .tokenizer_classes import GENERAL_CLASS

NO_LIMITS = {"truncation": None, "padding": None}
"""A tree's entries for truncation and padding, which are not used."""

_ANY_WORD = "any word"
_SPACE_MARKS = ("▁", "Ġ")  # prefixes of pieces that begin a word: SentencePiece, byte-level BPE


@dataclass(frozen=True)
class TreeDefinition(Definition):
    """Any tokenizer that the library can describe; raises DataError if it cannot read the tree."""

    tree: Mapping[str, Any]  # the description, without padding and truncation
    roles: Roles  # the special piece of each role
    frame: Frame  # the special pieces around texts
    # the `tokenizer_config.json` it came with, which is saved with it again
    config: Mapping[str, Any] = field(default_factory=dict)
    # other files it came with (`merges.txt`, `spiece.model`), also saved again
    files: Mapping[str, bytes] = field(default_factory=dict)
    # the id of unknown pieces, if they are left out of every text
    unknown_id: int | None = None
    truncation_side: Side = "right"

    def __post_init__(self) -> None:
        self.check()
        self.library(typed_mask=False, split=False)  # an error in the tree is raised now

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the library's tokenizer, which may have parts that cannot be pickled."""
        return {name: value for name, value in self.__dict__.items() if name != "_usual_library"}

    @cached_property
    def added(self) -> dict[str, AddedPiece]:
        """Pieces that are searched for before a text is split into words, and special pieces."""
        names = AddedPiece.__slots__
        return {
            entry["content"]: AddedPiece(**{name: entry[name] for name in names})
            for entry in self.tree["added_tokens"]
        }

    @cached_property
    def special(self) -> frozenset[str]:
        """The pieces that never match text."""
        return self.roles.pieces | {name for name, piece in self.added.items() if piece.special}

    @cached_property
    def pieces(self) -> tuple[str, ...]:
        vocabulary = self.tree["model"]["vocab"]
        if isinstance(vocabulary, list):
            ids = {piece: number for number, (piece, _score) in enumerate(vocabulary)}
        else:
            ids = dict(vocabulary)
        ids |= {entry["content"]: entry["id"] for entry in self.tree["added_tokens"]}
        by_id = {number: piece for piece, number in ids.items()}
        if len(by_id) < len(ids) or not all(number in by_id for number in range(len(by_id))):
            raise DataError("the ids of the vocabulary are not 0, 1, 2, …")
        return tuple(map(by_id.__getitem__, range(len(by_id))))

    @property
    def kind(self) -> str:
        return str(self.tree["model"]["type"])

    @cached_property
    def lowercase(self) -> bool:
        return _lowers(self.tree.get("normalizer"))

    def to_lowercase(self) -> TreeDefinition:
        if self.lowercase:
            return self
        normalizer = self.tree.get("normalizer")
        steps = [{"type": "Lowercase"}, *([] if normalizer is None else [normalizer])]
        return replace(
            self, tree={**self.tree, "normalizer": {"type": "Sequence", "normalizers": steps}}
        )

    @cached_property
    def continuation(self) -> NDArray[np.bool_]:
        """bool [pieces]: those without the mark at the beginning of a word.

        If word ends are marked instead, any piece may continue a word (`word_end`).
        """
        if self._end_mark:
            return np.array([piece not in self.special for piece in self.pieces])
        if self.tree["model"].get("type") == "WordPiece":
            prefix = self.tree["model"]["continuing_subword_prefix"]
            return np.array([p.startswith(prefix) and len(p) > len(prefix) for p in self.pieces])
        marks = [mark for mark in _SPACE_MARKS if any(p.startswith(mark) for p in self.pieces)]
        if not marks:
            return np.zeros(len(self.pieces), np.bool_)
        return np.array(
            [not piece.startswith(marks[0]) and piece not in self.special for piece in self.pieces]
        )

    @cached_property
    def word_end(self) -> NDArray[np.bool_]:
        """bool [pieces]: those with the mark at the end of a word, such as `</w>`."""
        mark = self._end_mark
        if not mark:
            return super().word_end
        return np.array([piece.endswith(mark) or piece in self.special for piece in self.pieces])

    @property
    def _end_mark(self) -> str:
        return self.tree["model"].get("end_of_word_suffix") or ""

    @property
    def end(self) -> str | None:
        """`[SEP]` or the piece in that role; else the `eos_token` of `tokenizer_config.json`."""
        piece = self.roles.sep or piece_of_entry(self.config.get("eos_token"))
        return piece if piece in self.ids else None

    @cached_property
    def marks(self) -> frozenset[int]:
        """The ids of pieces that stand for a space only."""
        return frozenset(self.ids[mark] for mark in _SPACE_MARKS if mark in self.ids)

    def description(self) -> Mapping[str, Any]:
        parts = {"tree": self.tree, "roles": asdict(self.roles), "frame": self.frame.description()}
        return parts if self.unknown_id is None else {**parts, "unknown_id": self.unknown_id}

    @cached_property
    def cluster_correction(self) -> ClusterCorrection | None:
        """What composes characters as SentencePiece does; None if the tree has no table for it."""
        charsmap = find_charsmap(self.tree.get("normalizer"))
        return None if charsmap is None else ClusterCorrection(charsmap)

    def correct(self, text: str, *, where: str) -> tuple[str, Origin]:
        check_text(text, where=where)
        correction = self.cluster_correction
        return (text, None) if correction is None else correction.correct_text(text)

    def library(self, *, typed_mask: bool, split: bool) -> tokenizers.Tokenizer:
        if typed_mask or split:
            return self.make_library(typed_mask=typed_mask, split=split)
        return self._usual_library

    @cached_property
    def _usual_library(self) -> tokenizers.Tokenizer:
        return self.make_library(typed_mask=False, split=False)

    def make_library(self, *, typed_mask: bool, split: bool) -> tokenizers.Tokenizer:
        """Return a new tokenizer of the library; see `library`."""
        tree = {**self.tree, "post_processor": None}
        if split and _splits_before_bytes(tree["pre_tokenizer"]):
            # A byte-level step would put a space before each part of a word.
            steps = [{"type": "Prepend", "prepend": " "}, tree.get("normalizer")]
            parts = [step for step in steps if step is not None]
            tree["normalizer"] = {"type": "Sequence", "normalizers": parts}
        elif split:
            tree["pre_tokenizer"] = copy.deepcopy(tree.get("pre_tokenizer"))
            _mark_first_words(tree["pre_tokenizer"])
        hidden = self.special - ({self.roles.mask} if typed_mask else set())
        added_tokens = [
            {**entry, "special": entry["content"] in hidden} for entry in tree["added_tokens"]
        ]
        model = tree["model"]
        is_list = isinstance(model["vocab"], list)
        if is_list or model["type"] == "WordLevel":
            # Unigram's lattice would find special pieces in a text, and a whole word may be one.
            # With a real space in front they never match, since the splitter replaces all spaces.
            entries = model["vocab"] if is_list else model["vocab"].items()
            matched = {piece for piece, _ in entries} & hidden
            renamed = matched if is_list else matched - {model["unk_token"]}
            vocabulary = [(f" {one}" if one in renamed else one, value) for one, value in entries]
            tree["model"] = {**model, "vocab": vocabulary if is_list else dict(vocabulary)}
            # Those after the vocabulary stay: the library counts added pieces to assign their ids.
            added_tokens = [entry for entry in added_tokens if entry["content"] not in matched]
        tree["added_tokens"] = added_tokens
        library = _build_library(tree)
        library.encode_special_tokens = True
        return library

    def with_frame(self, frame: Frame) -> TreeDefinition:
        """The tokenizer with special pieces around texts; new pieces get the next ids."""
        new = frame.pieces - self.ids.keys()
        first = len(self.pieces)
        entries = [
            {"id": number, **asdict(AddedPiece(piece, special=True, normalized=False))}
            for number, piece in enumerate(sorted(new), first)
        ]
        ids = {**self.ids, **{entry["content"]: entry["id"] for entry in entries}}
        tree = {
            **self.tree,
            "added_tokens": [*self.tree["added_tokens"], *entries],
            "post_processor": template(frame, ids),
        }
        # The class that it came with would build another tree, without the frame.
        config = {**self.config, "tokenizer_class": GENERAL_CLASS}
        return replace(self, tree=tree, frame=frame, config=config)

    @cached_property
    def _plain(self) -> tokenizers.Tokenizer:
        return _build_library(self.tree)

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._plain.decode(list(ids), skip_special_tokens=False)
        return text


def find_frame(tree: Mapping[str, Any]) -> Frame:
    """The special pieces that a tree's post-processor puts around texts, found by trying it.

    Raises:
        DataError: the library cannot read the tree, or it frames one text differently from two.
    """
    if tree.get("post_processor") is None:
        return Frame((), (), (), 0)
    # A vocabulary of hundreds of thousands of pieces takes a second; the frame needs none of it.
    model = {"type": "WordLevel", "vocab": {_ANY_WORD: 0}, "unk_token": _ANY_WORD}
    library = _build_library({**tree, "added_tokens": [], "model": model})
    with _readable():
        one, two = library.encode("a"), library.encode("a", "a")
    if all(one.special_tokens_mask):
        raise DataError("the tokenizer makes nothing of the letter a")
    start, end = _split_frame(one.tokens, one.special_tokens_mask)
    first, last = _split_frame(two.tokens, two.special_tokens_mask)
    if (start, end) != (first, last):
        raise DataError("the tokenizer puts other special tokens around one text than around two")
    specials = [
        t for t, special in zip(two.tokens, two.special_tokens_mask, strict=True) if special
    ]
    middle = specials[len(first) : len(specials) - len(last)]
    places = [at for at, special in enumerate(two.special_tokens_mask) if not special]
    second_type = two.type_ids[places[-1]]
    special_types: dict[str, int] = {}
    for encoding, second_place in ((one, len(one.ids)), (two, places[-1])):
        for place, piece in enumerate(encoding.tokens):
            kind = encoding.type_ids[place]
            usual = second_type if place > second_place else 0
            if encoding.special_tokens_mask[place] and kind != usual:
                special_types[piece] = kind
    return Frame(
        tuple(start), tuple(middle), tuple(end), second_type, tuple(sorted(special_types.items()))
    )


def template(frame: Frame, ids: Mapping[str, int]) -> dict[str, Any]:
    """A frame in the library's format; raises DataError if a piece has no id."""
    pieces = sorted(frame.pieces)
    for piece in pieces:
        if piece not in ids:
            raise DataError(f"the vocabulary has no {piece}")

    special_types = dict(frame.special_types)

    def special(piece: str, kind: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": piece, "type_id": special_types.get(piece, kind)}}

    def text(name: str, kind: int) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": kind}}

    second = frame.second_type
    start = [special(piece, 0) for piece in frame.start]
    return {
        "type": "TemplateProcessing",
        "single": [*start, text("A", 0), *(special(piece, 0) for piece in frame.end)],
        "pair": [
            *start,
            text("A", 0),
            *(special(piece, 0) for piece in frame.between),
            text("B", second),
            *(special(piece, second) for piece in frame.end),
        ],
        "special_tokens": {
            piece: {"id": piece, "ids": [ids[piece]], "tokens": [piece]} for piece in pieces
        },
    }


def _split_frame(tokens: Sequence[str], special: Sequence[int]) -> tuple[list[str], list[str]]:
    """The special tokens before the first text, and after the last one."""
    places = [at for at, is_special in enumerate(special) if not is_special]
    return list(tokens[: places[0]]), list(tokens[places[-1] + 1 :])


def _build_library(tree: Mapping[str, Any]) -> tokenizers.Tokenizer:
    with _readable():
        return tokenizers.Tokenizer.from_str(json.dumps({**tree, **NO_LIMITS}))


@contextmanager
def _readable() -> Iterator[None]:
    """Turn any error of the library into a DataError about the tree."""
    try:
        yield
    except BaseException as error:  # the library raises nothing more specific, and panics
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise DataError(f"the tokenizer cannot be read ({error})") from None


def _lowers(normalizer: Mapping[str, Any] | None) -> bool:
    if normalizer is None:
        return False
    if normalizer["type"] == "Sequence":
        return any(_lowers(part) for part in normalizer["normalizers"])
    return normalizer["type"] == "Lowercase" or bool(normalizer.get("lowercase"))


def _splits_before_bytes(splitter: Mapping[str, Any] | None) -> bool:
    """Whether words are split by a pattern before the byte-level step, as in Llama 3."""
    if splitter is None or splitter["type"] != "Sequence":
        return False
    kinds = [part["type"] for part in splitter["pretokenizers"]]
    return kinds[:1] == ["Split"] and "ByteLevel" in kinds


def _mark_first_words(splitter: dict[str, Any] | None) -> None:
    """Make each word that is given separately begin like a word within a text."""
    if splitter is None:
        return
    if splitter["type"] == "Sequence":
        for part in splitter["pretokenizers"]:
            _mark_first_words(part)
    elif splitter["type"] == "ByteLevel":
        splitter["add_prefix_space"] = True
    elif splitter["type"] == "Metaspace":
        splitter["prepend_scheme"] = "always"

"""Byte-pair encoding of words as fastBPE writes it: PhoBERT's and BERTweet's tokenizers.

    vocab.txt    a piece and its number of occurrences a line; four special pieces come before them
    bpe.codes    two parts to merge and their number of occurrences a line, best first

A piece that does not end a word ends in `@@`. Two parts are merged even if the result is no piece;
if it is not merged further, it is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import models, pre_tokenizers

from ..errors import DataError
from ..utils.regular_files import read_content, read_text_lines
from .added_pieces import read_added
from .definition import Definition, Frame, Origin, Roles, Side, check_text
from .file_names import CODES
from .special_pieces import named_pieces
from .tokenizer_classes import TokenizerClass
from .tweets import normalize_tweet

CONTINUATION_MARK = "@@"
"""The end of a piece that does not end a word."""
_END_OF_WORD = "</w>"


@dataclass(frozen=True)
class FastBpeDefinition(Definition):
    """PhoBERT's tokenizer, or BERTweet's."""

    base_pieces: tuple[str, ...]  # the vocabulary, in the order of ids
    merges: tuple[tuple[str, str], ...]  # parts to merge, best first; the last of a word in `</w>`
    roles: Roles
    frame: Frame
    normalizes_tweets: bool = False  # BERTweet's option `normalization`
    # the `tokenizer_config.json` and the other files that it came with, which are saved again
    config: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    truncation_side: Side = "right"

    def __post_init__(self) -> None:
        self.check()

    @property
    def pieces(self) -> tuple[str, ...]:
        return self.base_pieces

    @property
    def kind(self) -> str:
        return "BPE"

    @property
    def lowercase(self) -> bool:
        return False

    def to_lowercase(self) -> FastBpeDefinition:
        raise DataError("this tokenizer cannot lower-case text")

    @cached_property
    def continuation(self) -> NDArray[np.bool_]:
        """bool [pieces]: all but special pieces may continue a word; see `word_end`."""
        special = self.roles.pieces
        return np.array([piece not in special for piece in self.pieces])

    @cached_property
    def word_end(self) -> NDArray[np.bool_]:
        return np.array([not piece.endswith(CONTINUATION_MARK) for piece in self.pieces])

    def description(self) -> Mapping[str, Any]:
        return {
            "pieces": self.pieces,
            "merges": self.merges,
            "roles": asdict(self.roles),
            "frame": self.frame.description(),
            **({"normalization": True} if self.normalizes_tweets else {}),
        }

    def correct(self, text: str, *, where: str) -> tuple[str, Origin]:
        check_text(text, where=where)
        if not self.normalizes_tweets:
            return text, None
        return normalize_tweet(text, str(self.roles.mask))

    @cached_property
    def _symbols(self) -> dict[str, int]:
        """The library's pieces, without `@@` but with `</w>`: first those of the vocabulary."""
        special = self.roles.pieces
        whole = (self.roles.unk, self.roles.mask)
        symbols = {piece: self.ids[piece] for piece in whole if piece is not None}
        for piece, number in self.ids.items():
            if piece.endswith(CONTINUATION_MARK):
                symbols.setdefault(piece.removesuffix(CONTINUATION_MARK), number)
            elif piece not in special:
                symbols[f"{piece}{_END_OF_WORD}"] = number
        first = len(self.pieces)
        parts = [part for pair in self.merges for part in (*pair, "".join(pair))]
        missing = dict.fromkeys(part for part in parts if part not in symbols)
        return {**symbols, **{part: first + at for at, part in enumerate(missing)}}

    @cached_property
    def library_ids(self) -> NDArray[np.int32]:
        ids = np.arange(max(self._symbols.values()) + 1, dtype=np.int32)
        ids[len(self.pieces) :] = self.ids[str(self.roles.unk)]
        return ids

    def library(self, *, typed_mask: bool, split: bool) -> tokenizers.Tokenizer:
        del split  # a word has the same pieces alone and within a text
        model = models.BPE(
            vocab=self._symbols,
            merges=list(self.merges),
            unk_token=self.roles.unk,
            end_of_word_suffix=_END_OF_WORD,
        )
        library = tokenizers.Tokenizer(model)
        # As in the original code, a line feed belongs to the word before it.
        library.pre_tokenizer = pre_tokenizers.Split(
            tokenizers.Regex(r"\S+\n?"), behavior="removed", invert=True
        )
        if typed_mask:
            library.add_tokens([tokenizers.AddedToken(self.roles.mask, normalized=False)])
        library.encode_special_tokens = True
        return library

    def decode(self, ids: Sequence[int]) -> str:
        joined = " ".join(self.pieces[number] for number in ids)
        return joined.replace(f"{CONTINUATION_MARK} ", "").strip()


def read_fast_bpe(
    file: Path, config: Mapping[str, Any], opener: TokenizerClass
) -> FastBpeDefinition:
    """Read `vocab.txt` and `bpe.codes`.

    Raises:
        DataError: a file is missing or invalid.
    """
    roles = named_pieces(file.parent, config, opener.roles)
    pieces = [str(piece) for piece in (roles.cls, roles.pad, roles.sep, roles.unk)]
    for number, line in enumerate(read_text_lines(file, DataError), 1):
        piece, space, _ = line.strip().rpartition(" ")
        if not space:
            raise DataError("not a piece and a number", where=f"{file}:{number}")
        pieces.append(piece)
    if roles.mask is not None and roles.mask not in pieces:
        pieces.append(roles.mask)  # it follows the vocabulary
    added, where = read_added(file.parent, dict(config))
    if others := [token.content for token in added if token.content not in pieces]:
        what = f"the added piece {others[0]!r} is not in {file.name}, which is not supported"
        raise DataError(what, where=where)
    codes = file.with_name(CODES)
    ranks: dict[tuple[str, str], int] = {}
    for number, line in enumerate(read_text_lines(codes, DataError), 1):
        parts = line.split()[:-1]
        if len(parts) != 2:
            raise DataError("not two parts and a number", where=f"{codes}:{number}")
        ranks[parts[0], parts[1]] = number
    return FastBpeDefinition(
        tuple(pieces),
        tuple(sorted(ranks, key=lambda pair: ranks[pair])),
        roles,
        opener.frame.frame_for(roles),
        opener.name == "BertweetTokenizer" and bool(config.get("normalization")),
        {**config, "tokenizer_class": opener.name},
        {path.name: read_content(path, DataError) for path in (file, codes)},
    )

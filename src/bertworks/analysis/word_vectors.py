"""Static vectors of words: word2vec's and GloVe's text files, nearest words, analogies.

Each line of a file has a word and its numbers, separated by spaces. A word2vec file begins with a
line with the number of words and the width of the vectors; a GloVe file has no such line. Source:
the releases of Mikolov et al. (2013) and of Pennington et al. (2014).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, Self

import numpy as np
import torch
from jaxtyping import Float32
from torch import nn

from ..checkpoints.sentence_settings import SentenceSettings
from ..checkpoints.static import static_config
from ..data.lines import read_lines
from ..data.reading import ReadCounts, Reading
from ..errors import BertworksWarning, DataError, shorten_list
from ..inference.similarity import of_unit_length
from ..model import Model
from ..text.static_tokenizer import to_static
from ..text.tokenizer import Tokenizer
from ..text.tree import TreeDefinition
from ..text.wordpiece import Normalization
from ..utils.atomic_writes import write_file
from ..utils.outputs import locked_output

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclass(frozen=True, eq=False)
class WordVectors:
    """Words and their vectors.

    Attributes:
        words: distinct words.
        vectors: one per word.
    """

    words: Sequence[str]
    vectors: Float32[np.ndarray, "words width"]

    @classmethod
    def read(cls, path: str | Path, *, encoding: str = "utf-8") -> Self:
        """Read a file of word2vec's or GloVe's text format, plain or compressed.

        If a word occurs again, its first vector is kept, as in word2vec's tools.

        Raises:
            DataError: a line is not a word and its numbers, or the file has no vectors.
        """
        vectors: dict[str, np.ndarray] = {}
        width = 0
        for number, (_, line) in enumerate(
            read_lines(str(path), Reading(ReadCounts(), encoding=encoding)), 1
        ):
            # Other white space may be part of a word (GloVe's have some).
            word, *rest = line.rstrip("\r\n").rstrip(" ").split(" ")
            if number == 1 and len(rest) == 1 and word.isdecimal():
                width = int(rest[0]) if rest[0].isdecimal() else 0
                continue
            width = width or len(rest)
            if len(rest) > width:  # a word with spaces in it
                word, rest = " ".join([word, *rest[:-width]]), rest[-width:]
            try:
                vector = np.array(rest, np.float32)
            except ValueError:
                vector = np.empty(0, np.float32)
            if not width or len(vector) != width or not np.isfinite(vector).all():
                raise DataError(
                    f"expected a word and {width or 'its'} numbers",
                    where=f"{path}:{number}",
                    fix="Give word2vec's or GloVe's text format, not the binary one.",
                )
            vectors.setdefault(word, vector)
        if not vectors:
            raise DataError("holds no vectors", where=str(path))
        return cls(list(vectors), np.stack(list(vectors.values())))

    @classmethod
    def of_model(cls, model: Model) -> Self:
        """Take a model's word embeddings of the pieces that are whole words."""
        tokenizer = model.tokenizer
        special = {tokenizer.id_of("unk"), *tokenizer.special_ids.tolist()}
        special.update(tokenizer.unused_ids.tolist())
        is_continuation = tokenizer.continuation & ~tokenizer.word_end
        numbers: dict[str, int] = {}
        for number, piece in enumerate(tokenizer.pieces):
            if number in special or is_continuation[number]:
                continue
            word = piece
            if isinstance(tokenizer.definition, TreeDefinition):  # a piece marks a word's border
                if piece in tokenizer.definition.special:
                    continue
                word = tokenizer.definition.decode([number]).strip()
            if word:
                numbers.setdefault(word, number)
        table = model.encoder.embeddings.word_embeddings.weight.detach().float().cpu().numpy()
        return cls(list(numbers), table[list(numbers.values())])

    def write(
        self,
        path: str | Path,
        *,
        format: Literal["word2vec", "glove"] = "word2vec",
        overwrite: bool = False,
    ) -> None:
        """Write a text file, each number with the fewest digits that restore it exactly.

        Args:
            path: the file.
            format: word2vec's text format has a first line with the counts; GloVe's has none.
            overwrite: replace an existing file.

        Raises:
            OutputError: it already exists, or cannot be written.
        """
        lines = [f"{len(self.words)} {self.vectors.shape[1]}"] if format == "word2vec" else []
        for word, vector in zip(self.words, self.vectors, strict=True):
            lines.append(" ".join([word, *map(str, vector)]))
        with locked_output(path, overwrite=overwrite):
            write_file(path, "\n".join(lines) + "\n")

    def to_model(self) -> Model:
        """Return a static model with these vectors: a text's is the mean of its known words'.

        It can be saved for model2vec and sentence-transformers, and used with `embed`, `probe` and
        `finetune`. It lowercases texts if all words here are lower case, and removes accents if no
        word here has any. Texts are split at punctuation and around ideographs, as in BERT; a
        warning counts the words that no text has then.
        """
        lowercase = all(word == word.lower() for word in self.words)
        strip = Normalization(False, True, clean_text=False, split_ideographs=False).normalizer
        plain = all(word.isascii() or strip.normalize_str(word) == word for word in self.words)
        words = [word for word in self.words if word not in _SPECIAL]
        tokenizer = Tokenizer.from_vocabulary(
            [*_SPECIAL, *words], lowercase=lowercase, strip_accents=None if plain else False
        )
        pieces = zip(words, tokenizer.piece_ids(words), strict=True)
        missing = [word for word, ids in pieces if ids.tolist() != [tokenizer.token_to_id(word)]]
        if missing:
            what = f"{len(missing):,} of {len(words):,} words are found in no text, since texts are"
            what += f" split at punctuation and around ideographs: {shorten_list(missing)}"
            warnings.warn(what, BertworksWarning, stacklevel=2)
        tokenizer = Tokenizer(to_static(tokenizer.definition))
        model = Model.fresh(static_config(tokenizer.vocab_size, self.vectors.shape[1]), tokenizer)
        model.sentence = SentenceSettings()
        table = np.zeros((tokenizer.vocab_size, self.vectors.shape[1]), np.float32)
        table[len(_SPECIAL) :] = self.vectors[[self._places[word] for word in words]]
        embedding = model.encoder.embeddings.word_embeddings
        embedding.weight = nn.Parameter(torch.from_numpy(table))
        return model

    def neighbours(
        self,
        plus: Iterable[str],
        minus: Iterable[str] = (),
        *,
        top_k: int = 10,
        farthest: bool = False,
    ) -> list[tuple[str, float]]:
        """Return the words nearest to a sum of words, with their cosines; given words are omitted.

        `king - man + woman` is `neighbours(["king", "woman"], ["man"])`. Each word counts with a
        vector of length 1, as in word2vec's tools (Mikolov, Yih and Zweig 2013).

        Args:
            plus: words to add; at least one word in `plus` and `minus` together.
            minus: words to subtract.
            top_k: number of words to return.
            farthest: return the words with the smallest cosines instead.

        Raises:
            DataError: a word has no vector, or there is no word.
        """
        signed_places = [(self._place(word), 1) for word in plus]
        signed_places += [(self._place(word), -1) for word in minus]
        if not signed_places:
            raise DataError("there is no word to start from", fix="Give at least one.")
        target = sum(sign * self._unit[place] for place, sign in signed_places)
        products = self._unit @ (target / max(float(np.linalg.norm(target)), 1e-30))
        cosines = np.clip(products, -1, 1)  # rounding may exceed 1
        order = np.argsort(cosines if farthest else -cosines, kind="stable").tolist()
        given = {place for place, _ in signed_places}
        chosen = [place for place in order if place not in given][:top_k]
        return [(self.words[place], float(cosines[place])) for place in chosen]

    @cached_property
    def _places(self) -> dict[str, int]:
        return {word: place for place, word in enumerate(self.words)}

    @cached_property
    def _unit(self) -> Float32[np.ndarray, "words width"]:
        return of_unit_length(self.vectors)

    def _place(self, word: str) -> int:
        if word not in self._places:
            raise DataError(f"there is no vector for the word {word!r}")
        return self._places[word]

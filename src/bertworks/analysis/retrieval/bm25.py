"""BM25: texts are ranked by the words that they share with a query.

The weights of a text's words are a sparse vector, and so are the counts of a query's words, so that
BM25 is searched as vectors of SPLADE are. Words are those of BERT: without case and accents, each
Chinese character a word.

Source: Robertson and Zaragoza (2009), "The Probabilistic Relevance Framework: BM25 and Beyond",
§3.4; the inverse document frequency is Lucene's, which is never negative.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache, partial
from typing import Any, Self, Unpack

import numpy as np
from tokenizers.normalizers import BertNormalizer

from ...data.reading import TableOptions
from ...data.tables import Table
from ...data.text_inputs import Texts
from ...errors import BertworksError, import_optional
from ...inference.settings import EngineSettings
from ...inference.similarity import similarities
from ...settings.keywords import RowKeywords
from ...tasks.retrieval.exact_search import top_k
from ...utils.formatting import format_count
from .text_index import Ranking, TextIndex, open_texts, with_checksums

K1, B = 1.2, 0.75
"""How soon a repeated word stops counting, and how much long texts are discounted."""

_NORMALIZER = BertNormalizer()
_SPACING_MARKS = range(0x900, 0x20000)
"""Characters among which the vowels of Indic scripts are, which have a width."""


_ASCII_WORD = re.compile(r"\w+")


def split_words(text: str) -> list[str]:
    """Return the words of a text, in lower case."""
    text = _NORMALIZER.normalize_str(text)
    pattern = _ASCII_WORD if text.isascii() else _word_pattern()  # half the time
    words: list[str] = pattern.findall(text)
    return words


@cache
def _word_pattern() -> re.Pattern[str]:
    r"""Return the pattern of a word: `\w` and vowel signs, at which `\w+` would end a word."""
    marks = (mark for mark in map(chr, _SPACING_MARKS) if unicodedata.category(mark) == "Mc")
    return re.compile(rf"[\w{''.join(marks)}]+")


class BM25Index(TextIndex):
    """Texts that are searched by BM25; create it with `BM25Index.open`."""

    score_name = "bm25"

    @classmethod
    def open(
        cls,
        data: Table | Texts | Iterable[str],
        *,
        column: str | None = None,
        **settings: Unpack[RowKeywords],
    ) -> Self:
        """Count the words of texts.

        Args:
            data, column: see `Index.open`.
            settings: settings of `TableOptions`, and of `EngineSettings` for a reranker.

        Raises:
            DataError: there are no texts.
            BertworksError: SciPy is not installed.
        """
        options, others = TableOptions.split(settings)
        engine = EngineSettings.resolve(**others).model_dump(exclude_unset=True)
        checksums = array("I")
        texts = open_texts(data, column, **options)
        index = cls(texts, checksums, engine)
        index._weigh(text for _, text in with_checksums(texts.without_blank(), checksums))
        return index

    def _weigh(self, texts: Iterable[str]) -> None:
        """Compute the weights of the words of each text."""
        self._columns: dict[str, int] = {}
        counts = self._count(texts, is_new=True)
        lengths = np.asarray(counts.sum(1)).reshape(-1)
        frequencies = np.bincount(counts.indices, minlength=counts.shape[1])
        idf = np.log1p((counts.shape[0] - frequencies + 0.5) / (frequencies + 0.5))
        norm = K1 * (1 - B + B * lengths / max(lengths.mean(), 1))
        norms = np.repeat(norm, np.diff(counts.indptr))
        counts.data = (idf[counts.indices] * counts.data / (counts.data + norms)).astype(np.float32)
        self._weights = counts

    def _count(self, texts: Iterable[str], *, is_new: bool) -> Any:
        """Return how often each text has each word: `[texts, words]`, a sparse matrix."""
        sparse: Any = import_optional("scipy.sparse", "metrics", "BM25")
        indices, values, edges = array("i"), array("f"), array("q", [0])
        for text in texts:
            words = Counter(split_words(text))
            if is_new:
                for word in words:
                    self._columns.setdefault(word, len(self._columns))
            word_counts = {word: words[word] for word in words if word in self._columns}
            indices.extend(self._columns[word] for word in word_counts)
            values.extend(word_counts.values())
            edges.append(len(indices))
        arrays = (np.array(values, np.float32), np.array(indices, np.int32), np.array(edges))
        return sparse.csr_matrix(arrays, shape=(len(edges) - 1, len(self._columns)))

    def __repr__(self) -> str:
        return f"<BM25Index of {format_count(len(self), 'text')} in {self._texts.rows.name}>"

    def __len__(self) -> int:
        return int(self._weights.shape[0])

    def rank(self, queries: Sequence[str], count: int, *, approximate: bool = False) -> Ranking:
        """As `TextIndex.rank`; texts that share no word with a query are not returned."""
        if approximate:
            raise BertworksError("BM25 compares all texts", fix="Leave approximate out.")
        compare: Any = partial(similarities, function="dot")
        counts = self._count(queries, is_new=False)
        scores, rows = top_k(counts, self._weights, count, compare=compare)
        return scores.astype(np.float32), np.where(scores > 0, rows, -1)

"""Toy documents: the interface of a prepared corpus, from plain lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

VOCAB_SIZE = 1000
PAD, CLS, SEP, MASK = 0, 101, 102, 103
FIRST_CONTINUATION = 700  # ids from here on stand for pieces that go on a word


@dataclass
class ToyCorpus:
    """Documents as lists of sentences, and sentences as lists of ids."""

    texts: Sequence[Sequence[Sequence[int]]]

    def __post_init__(self) -> None:
        self._ids = [np.array([i for s in text for i in s], np.uint16) for text in self.texts]
        self._offsets = [np.cumsum([0, *map(len, text)]) for text in self.texts]

    @property
    def num_documents(self) -> int:
        return len(self.texts)

    @property
    def document_lengths(self) -> np.ndarray:
        return np.array([len(ids) for ids in self._ids], np.int64)

    @property
    def originals(self) -> np.ndarray:
        return np.arange(len(self.texts))

    def document(self, number: int, /) -> tuple[np.ndarray, np.ndarray]:
        return self._ids[number], self._offsets[number]


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """What pre-training asks of a tokenizer."""
    return SimpleNamespace(
        vocab_size=VOCAB_SIZE,
        pad_id=PAD,
        cls_id=CLS,
        sep_id=SEP,
        mask_id=MASK,
        special_types=[],
        puts_cls_last=False,
        has=lambda role: True,
        continues_word=lambda ids: ids >= FIRST_CONTINUATION,
    )


@pytest.fixture(scope="session")
def make_corpus() -> Callable[..., ToyCorpus]:
    """Random documents of so many sentences, of 1 to `longest` tokens each."""

    def make(documents: int, sentences: int = 30, longest: int = 40, seed: int = 0) -> ToyCorpus:
        rng = Random(seed)
        return ToyCorpus(
            [
                [
                    [rng.randrange(200, VOCAB_SIZE) for _ in range(rng.randint(1, longest))]
                    for _ in range(rng.randint(1, 2 * sentences - 1))
                ]
                for _ in range(documents)
            ]
        )

    return make

"""A small tokenizer and a made-up corpus for it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bertworks.text.tokenizer import Tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdefghijklmnop"


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    pieces = [*SPECIAL, ".", "!", *LETTERS, *(f"##{letter}" for letter in LETTERS), "hid", "##den"]
    return Tokenizer.from_vocabulary(pieces)


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 documents of a few sentences each; `z` and `é` are unknown pieces, or none at all."""
    draw = random.Random(1)
    documents = []
    for _ in range(300):
        sentences = [
            " ".join(
                "".join(draw.choices(LETTERS + "zé", k=draw.randint(1, 9)))
                for _ in range(draw.randint(1, 12))
            ).capitalize()
            + "."
            for _ in range(draw.randint(1, 9))
        ]
        documents.append("\n".join(sentences))
    path = tmp_path_factory.mktemp("text") / "made-up.txt"
    path.write_text("\n\n".join(documents), encoding="utf-8")
    return path

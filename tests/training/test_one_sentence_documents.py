"""A corpus with a blank line between all sentences: each document has one, and no next sentence."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from bertworks.data.prepare import prepare
from bertworks.data.shards import Corpus
from bertworks.errors import BertworksWarning
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.pretrain import PretrainingData
from bertworks.training.recipe import PretrainSettings

SENTENCE = "the river begins in the hills ."


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(SENTENCE.split())]
    Tokenizer.from_vocabulary(pieces).save(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ([1] * 6, "documents 6, sentences 6: no document has two sentences, so all pairs"),
        ([1] * 9 + [2], "documents 10, sentences 11: 9 documents have only one sentence"),
        ([1] * 5 + [30], "documents 6, sentences 35: 5 documents have only one sentence"),
        ([1] * 3 + [2] * 3, None),
        ([2] * 6, None),
    ],
)
@pytest.mark.parametrize(
    ("instances", "is_random"),
    [
        ({}, True),
        ({"format": "sentence-pair"}, True),
        ({"next_sentence_balance": "exact"}, False),
        ({"format": "full-sentences"}, False),
        ({"format": "sentence-order"}, False),
    ],
)
def test_documents_of_one_sentence_are_reported(
    tmp_path: Path,
    tokenizer: Path,
    sizes: list[int],
    says: str | None,
    instances: dict[str, Any],
    is_random: bool,
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join("\n".join([SENTENCE] * size) for size in sizes) + "\n")
    prepare([str(text)], tokenizer=tokenizer, out=tmp_path / "prepared")
    notes = Corpus.open(tmp_path / "prepared").notes
    assert [note[: len(says or "")] for note in notes] == ([says] if says else [])
    settings = PretrainSettings.parse(
        {
            "data": str(tmp_path / "prepared"),
            "steps": 1,
            "batch_size": 2,
            "phases": [{"max_seq_length": 16}],
            "instances": instances,
            "held_out": {"documents": 2},
        }
    )
    with pytest.warns(BertworksWarning, match=says) if says and is_random else nullcontext():
        PretrainingData.open(settings)

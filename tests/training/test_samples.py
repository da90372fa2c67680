"""The samples of a pre-training run: sentences with masked words, and their predictions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bertworks.data.prepare import prepare
from bertworks.data.shards import Corpus
from bertworks.inference.settings import EngineSettings
from bertworks.nn.config import EncoderConfig
from bertworks.tasks.pretraining.task import PretrainingTask
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.pretrain import sample_fill_ins

WORDS = ["a", "at", "sea", "land", "river", "forest"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "."]


@pytest.mark.parametrize(
    ("num_words", "num_stops", "answers"),
    [
        (6, 4, ["river", "forest"]),  # the longest words
        (5, 5, None),  # fewer than three words for each mask
        (6, 3, None),  # fewer than 10 tokens
        (6, 26, ["river", "forest"]),  # 32 tokens
        (6, 27, None),
    ],
)
def test_samples_are_sentences_with_enough_words(
    num_words: int, num_stops: int, answers: list[str] | None, tmp_path: Path
) -> None:
    Tokenizer.from_vocabulary([*SPECIAL, *WORDS]).save(tmp_path / "tokenizer")
    sentence = " ".join([*WORDS[-num_words:], *["."] * num_stops])
    (tmp_path / "text.txt").write_text(f"{sentence}\n")
    prepare([tmp_path / "text.txt"], tokenizer=tmp_path / "tokenizer", out=tmp_path / "corpus")
    corpus = Corpus.open(tmp_path / "corpus")
    task = PretrainingTask(corpus.load_tokenizer())
    config = EncoderConfig(
        vocab_size=task.tokenizer.vocab_size,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
    )
    samples = sample_fill_ins(
        task.network(config).eval(), task, corpus, np.arange(1), settings=EngineSettings()
    )
    assert [sample["answers"] for sample in samples] == ([] if answers is None else [answers])
    for sample in samples:
        assert "[MASK] [MASK]." in sample["text"]
        assert len(sample["guesses"]) == 2

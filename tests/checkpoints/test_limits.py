"""The most tokens of a text, if a sentence encoder's files name more than it has positions."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import bertworks as bw
from bertworks.checkpoints.sentence_directory import with_limit
from bertworks.checkpoints.sentence_settings import SentenceSettings
from bertworks.errors import BertworksWarning
from bertworks.tasks.answering.answers import USUAL_COLUMNS
from bertworks.tasks.answering.task import AnsweringTask
from tests.checkpoints.journeys import PIECES
from tests.checkpoints.oracles import geometry
from tests.checkpoints.test_store import minilm  # noqa: F401


@pytest.mark.parametrize(
    ("own", "tokenizers", "expected"),
    [(30, 40, 30), (40, 40, 40), (None, 40, None), (None, 20, 20)],
)
def test_limit_within_the_positions_stays(own, tokenizers, expected):
    settings = SentenceSettings(max_seq_length=own)
    assert with_limit(settings, tokenizers, 40, where="m").max_seq_length == expected


@pytest.mark.long
def test_limit_above_the_positions_is_the_positions(minilm, tmp_path):  # noqa: F811
    from sentence_transformers import SentenceTransformer

    folder = tmp_path / "m"
    shutil.copytree(minilm, folder)
    limits = json.loads((folder / "sentence_bert_config.json").read_text())
    limits["max_seq_length"] = 514
    (folder / "sentence_bert_config.json").write_text(json.dumps(limits))
    with pytest.warns(BertworksWarning, match="512 tokens, since .* not 514"):
        model = bw.load(folder, device="cpu")
    text = "a river runs through the old town " * 100
    with pytest.warns(BertworksWarning, match="truncated to 512 tokens"):
        (vector,) = model.embed([text], precision="fp32")
    peer = SentenceTransformer(str(folder), device="cpu")
    peer.max_seq_length = 512  # with 514 it fails at a text this long
    (expected,) = peer.encode([text])
    np.testing.assert_allclose(vector, expected, atol=1e-5)


@pytest.mark.parametrize(("positions", "expected"), [(512, 384), (100, 100)])
def test_published_answering_models_read_windows_of_384_tokens(positions, expected, tmp_path):
    """The length with which SQuAD's models are trained (the original's run_squad.py)."""
    tokenizer = bw.Tokenizer.from_vocabulary(PIECES)
    config = geometry("bert", vocab_size=len(PIECES), max_position_embeddings=positions)
    task = AnsweringTask.from_dict({**USUAL_COLUMNS, "max_seq_length": 20, "stride": 4}, tokenizer)
    bw.Model(tokenizer, task, task.network(config)).save(tmp_path)
    (tmp_path / "bertworks.json").unlink()  # as another tool saves it
    settings = bw.load(tmp_path, device="cpu").task.settings
    assert (settings.max_seq_length, settings.stride) == (expected, expected // 4)

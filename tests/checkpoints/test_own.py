"""The package's own family: settings that no published family has are saved and loaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bertworks.errors import CheckpointError
from bertworks.loading import load
from bertworks.model import Model
from bertworks.nn.config import EncoderConfig
from bertworks.text.tokenizer import Tokenizer
from tests.training.letters import WORD_PIECES

GEOMETRY = {
    **{"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16},
    **{"classifier_dropout": 0.0, "tagging_dropout": 0.2, "answering_dropout": 0.1},
}
KINDS = {
    "sinusoidal": {"positions": "sinusoidal"},
    "none": {"positions": "none", "type_vocab_size": 0, "norm_first": True},
    "no layers": {"positions": "none", "num_hidden_layers": 0, "embedding_norm": False},
    "narrow embeddings": {"embedding_size": 4, "gated": True, "use_bias": False},
    "narrow layers": {
        **{"embedding_size": 4, "output_embedding_size": 8, "word_map": {}, "norm": "none"},
        "bottleneck": {"size": 6, "num_feed_forward": 2},
    },
    "a global token": {"local_attention": 2, "global_tokens": {"position": "first"}},
    "a global question": {
        **{"local_attention": 2, "global_tokens": {"position": "question", "separator_id": 3}}
    },
}


def _model(**more: object) -> Model:
    tokenizer = Tokenizer.from_vocabulary(WORD_PIECES)
    values = {**GEOMETRY, "num_hidden_layers": 2, "vocab_size": tokenizer.vocab_size, **more}
    return Model.fresh(EncoderConfig.parse(values), tokenizer)


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_model_loads_with_every_bit(kind: str, tmp_path: Path) -> None:
    model = _model(family="bertworks", **KINDS[kind])
    reloaded_model = load(model.save(tmp_path / "model"))
    assert reloaded_model.encoder.config == model.encoder.config
    text = ["a b c"]
    assert np.array_equal(reloaded_model.embed(text), model.embed(text))


def test_a_published_family_says_which_has_it(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="family=bertworks"):
        _model(positions="none").save(tmp_path / "model")

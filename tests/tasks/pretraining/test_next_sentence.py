"""Checkpoints with a next-sentence head alone equal transformers'."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers

import bertworks as bw
from bertworks.errors import BertworksError
from bertworks.tasks.pretraining.next_sentence import NextSentenceTask
from tests.serving.conftest import running

SAVED_MODEL = Path(__file__).parents[2] / "saved_models" / "encoder"
FIRST, SECOND = "the river ran", "a door, opened"


@pytest.mark.long
@pytest.mark.parametrize("family", ["Bert", "Ernie"])
def test_next_sentence_head_alone_equals_transformers(family: str, tmp_path: Path) -> None:
    sizes = {"vocab_size": 234, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(1)
    config = getattr(transformers, f"{family}Config")(**sizes, intermediate_size=32)
    theirs = getattr(transformers, f"{family}ForNextSentencePrediction")(config).eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "seq_relationship" in name or "pooler" in name:
                parameter.normal_(std=0.5)
    theirs.save_pretrained(tmp_path / "m")
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SAVED_MODEL / name, tmp_path / "m" / name)
    model = bw.load(tmp_path / "m")
    assert isinstance(model.task, NextSentenceTask)
    encoding = model.tokenizer.encode(FIRST, SECOND)
    ids, types = (
        torch.from_numpy(encoding[name].astype("int64"))[None]
        for name in ("input_ids", "token_type_ids")
    )
    with torch.no_grad():
        expected = theirs(input_ids=ids, token_type_ids=types).logits.softmax(-1)[0, 0].item()
    assert model.next_sentence(FIRST, SECOND, precision="fp32") == pytest.approx(expected, abs=1e-6)
    with running({"m": str(tmp_path / "m")}, precision="fp32") as server:
        body = {"inputs": [FIRST, SECOND]}
        (answer,) = server.ask("/next-sentence", body)
    assert answer["next_sentence_probability"] == pytest.approx(expected, abs=1e-6)
    model.save(tmp_path / "saved")
    again = bw.load(tmp_path / "saved")
    assert again.next_sentence(FIRST, SECOND, precision="fp32") == pytest.approx(expected, abs=1e-6)
    saved = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert saved["architectures"] == [f"{family}ForNextSentencePrediction"]
    _, info = type(theirs).from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    with pytest.raises(BertworksError, match="no head for masked words"):
        model.fill_mask("the [MASK]")
    with pytest.raises(BertworksError, match="no head for masked words"):
        model.fill_mask("the [MASK]", candidates=["river"])
    with pytest.raises(BertworksError, match="Use next-sentence or embed"):
        model.predict("a text")

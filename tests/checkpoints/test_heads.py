"""The heads of tagging, answering and choice against Hugging Face's, there and back."""

from __future__ import annotations

import logging
import warnings

import pytest
import torch
import transformers
from torch.nn import functional as F
from transformers.models.modernbert import modeling_modernbert

import bertworks as bw
from bertworks.checkpoints.families import FAMILIES
from bertworks.packed import Batch
from bertworks.tasks.answering.task import AnsweringNetwork
from bertworks.tasks.choice import ChoiceNetwork
from bertworks.tasks.tagging.task import TaggingNetwork
from tests.checkpoints import published
from tests.checkpoints.published import CONFIG_CLASSES, error, geometry
from tests.checkpoints.test_exchange import saved_by_them
from tests.checkpoints.test_families import TOLERANCE, compare_gradients

ALL = [family for family in CONFIG_CLASSES if "tagging" in FAMILIES[family].classes]
DTYPES = [torch.float64, torch.float32]


@pytest.fixture(autouse=True)
def exact_rotation(monkeypatch):
    monkeypatch.setattr(modeling_modernbert, "apply_rotary_pos_emb", published.rotate_exactly)


def test_all_but_gpt_have_them():
    assert set(CONFIG_CLASSES) - set(ALL) == {"openai-gpt"}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ALL)
def test_tagging(family, dtype):
    config = geometry(family)
    theirs = published.theirs_of(config, "tagging", dtype, num_labels=5)
    pair = published.pair(TaggingNetwork(config, 5), theirs, config, dtype)
    positions = torch.tensor([0, 2, 5, 11, 30, 50, 60])
    labels = torch.arange(7) % 5
    batch = Batch(pair.packed, {"positions": positions, "labels": labels})
    expected = pair.theirs(**pair.padded).logits[pair.mask][positions]
    assert error(pair.ours.predict(batch)["logits"].detach(), expected.detach()) <= TOLERANCE[dtype]
    (pair.ours(batch)["tagging"] / len(labels)).backward()
    F.cross_entropy(expected, labels).backward()
    compare_gradients(pair, family, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ALL)
def test_answering(family, dtype):
    config = geometry(family)
    theirs = published.theirs_of(config, "answering", dtype)
    pair = published.pair(AnsweringNetwork(config), theirs, config, dtype)
    lengths = pair.packed.cu_seqlens.diff()
    spans = torch.stack([lengths // 3, lengths // 2], 1).long()
    batch = Batch(pair.packed, {"spans": spans})
    # Without this they would take a position past the shortest sequence for one to be left out.
    told = pair.theirs(**pair.padded)
    logits = torch.stack([told.start_logits, told.end_logits], -1)
    own = pair.ours.predict(batch)["logits"]
    assert error(own.detach(), logits[pair.mask].detach()) <= TOLERANCE[dtype]
    # Theirs lets pad tokens into the softmax; ours has none.
    masked = logits.masked_fill(~pair.mask[..., None], -torch.inf)
    loss = F.cross_entropy(masked[..., 0], spans[:, 0]) + F.cross_entropy(
        masked[..., 1], spans[:, 1]
    )
    (loss / 2).backward()
    (pair.ours(batch)["answering"] / len(spans)).backward()
    compare_gradients(pair, family, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ALL)
def test_choice(family, dtype):
    config = geometry(family)
    theirs = published.theirs_of(config, "choice", dtype)
    pair = published.pair(ChoiceNetwork(config), theirs, config, dtype)
    count = pair.packed.num_sequences
    assert count % 2 == 0
    labels = torch.arange(count // 2) % 2
    object.__setattr__(pair.packed, "sequence_number", torch.arange(count) % 2)
    targets = {"row": torch.arange(count) // 2, "most": torch.zeros(2), "labels": labels}
    batch = Batch(pair.packed, targets, examples=[None] * (count // 2))
    inputs = {name: value.view(count // 2, 2, -1) for name, value in pair.padded.items()}
    expected = pair.theirs(**inputs).logits
    assert error(pair.ours.predict(batch)["logits"].detach(), expected.detach()) <= TOLERANCE[dtype]
    (pair.ours(batch)["choice"] / len(labels)).backward()
    F.cross_entropy(expected, labels).backward()
    compare_gradients(pair, family, dtype)


@pytest.mark.parametrize("kind", ["tagging", "answering", "choice"])
@pytest.mark.parametrize("family", ALL)
def test_there_and_back(family, kind, tmp_path, caplog):
    more = {"id2label": {0: "O", 1: "B-X", 2: "I-X"}} if kind == "tagging" else {}
    theirs = saved_by_them(family, kind, tmp_path / "theirs", **more)
    model = bw.load(tmp_path / "theirs", device="cpu")
    assert model.task is not None
    assert model.task.name == kind
    model.save(tmp_path / "ours")
    again = bw.load(tmp_path / "ours", device="cpu")
    assert again.task is not None
    assert again.task.to_dict() == model.task.to_dict()
    own_class = getattr(transformers, FAMILIES[family].classes[kind])
    caplog.clear()
    with caplog.at_level(logging.WARNING), warnings.catch_warnings():
        warnings.simplefilter("error")
        opened, info = own_class.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not caplog.records
    assert not any(info.values()), info
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(opened.state_dict()[name], tensor), name

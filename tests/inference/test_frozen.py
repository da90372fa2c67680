"""Hidden states that are computed once equal the encoder's, window by window."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import pytest
import torch
from tests.training.letters import GEOMETRY, WORD_PIECES, tagged_row

from bertworks.errors import BertworksError
from bertworks.inference.settings import EngineSettings
from bertworks.lab.tagging_probe import LayerChoice, LstmSettings, ProbeTask, frozen_states
from bertworks.model import Model
from bertworks.packed import Packed
from bertworks.tasks.tagging.task import TaggingTask
from bertworks.text.tokenizer import Tokenizer


def task_of(**settings) -> TaggingTask:
    return TaggingTask.from_dict(
        {
            "labels": ("O", "B-NAME", "I-NAME"),
            "spans": True,
            "word_column": "words",
            "tag_column": "tags",
            **settings,
        },
        Tokenizer.from_vocabulary(WORD_PIECES),
    )


@pytest.fixture
def model() -> Model:
    return Model.fresh(GEOMETRY, Tokenizer.from_vocabulary(WORD_PIECES))


@pytest.mark.long
@pytest.mark.parametrize(
    "settings",
    [
        {"max_seq_length": 32},
        {"max_seq_length": 8, "stride": 3},
        {"max_seq_length": 8, "labelled_piece": "all"},
    ],
)
def test_states_are_the_encoders(model, tmp_path, settings):
    random = np.random.default_rng(0)
    task = task_of(**settings)
    rows = [*[tagged_row(random) for _ in range(20)], {"words": [], "tags": []}]
    examples = task.examples(rows, 0)
    old_state = {name: value.clone() for name, value in model.network.state_dict().items()}
    # Small batches: places in the file have to be right whatever goes through together.
    states = frozen_states(
        *(tmp_path / "s.npy", model.network, task, examples),
        EngineSettings(batch_tokens=40),
    )
    windows = [window for example in examples for window in example.sequences]
    assert len(windows) >= len(rows)
    pieces = sum(len(window.positions) for window in windows)
    assert states.values.shape == (3, pieces, GEOMETRY.hidden_size)
    for window in windows:
        packed = Packed.from_arrays([window.input_ids], [window.token_type_ids]).to("cpu")
        with torch.no_grad():
            hidden = torch.stack(list(model.encoder.hidden_states(packed)))
        expected = hidden[:, window.positions].numpy()
        np.testing.assert_allclose(states.select([window], [0, 1, 2]), expected, atol=1e-5)
        np.testing.assert_allclose(states.select([window], [2, 0]), expected[[2, 0]], atol=1e-5)
    after = model.network.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in old_state.items())

    # A probe's batch has them in the order of its labels, also of windows that are examples alone.
    probe = ProbeTask(task, states, LayerChoice((1, 2)), LstmSettings())
    alone = [piece for example in examples for piece in task.training_examples(example)]
    for some in (examples, alone[::-1]):
        batch = probe.collate(some).to("cpu")
        assert batch.targets["lengths"].sum() == len(batch.targets["labels"]) == pieces
        with torch.no_grad():
            hidden = torch.stack(list(model.encoder.hidden_states(batch.packed)))
        expected = hidden[1:, batch.targets["positions"]]
        torch.testing.assert_close(batch.targets["states"], expected, atol=1e-5, rtol=0)


def test_states_are_computed_once(model, tmp_path, monkeypatch):
    task = task_of()
    examples = task.examples([tagged_row(np.random.default_rng(0))], 0)
    arguments = (tmp_path / "s.npy", model.network, task, examples)
    first = np.array(frozen_states(*arguments).values)
    messages: list[str] = []
    monkeypatch.setattr(model.encoder, "hidden_states", None)
    again = frozen_states(*arguments, say=messages.append)
    assert np.array_equal(again.values, first)
    assert messages == []
    assert [file.name for file in tmp_path.iterdir()] == ["s.npy"]


def test_files_of_a_killed_process_take_no_space(model, tmp_path, monkeypatch):
    task = task_of()
    examples = task.examples([tagged_row(np.random.default_rng(0))], 0)
    left = tmp_path / ".s.npy.new"
    left.write_bytes(b"x" * 100_000)

    def usage(directory):  # a disk of 100 kB
        return namedtuple("Usage", "free")(
            100_000 - sum(file.stat().st_size for file in directory.iterdir())
        )

    monkeypatch.setattr("shutil.disk_usage", usage)
    frozen_states(tmp_path / "s.npy", model.network, task, examples)
    assert [file.name for file in tmp_path.iterdir()] == ["s.npy"]


def test_full_disk_is_an_error(model, tmp_path, monkeypatch):
    task = task_of()
    examples = task.examples([tagged_row(np.random.default_rng(0))], 0)
    monkeypatch.setattr("shutil.disk_usage", lambda _: namedtuple("Usage", "free")(100))
    with pytest.raises(BertworksError, match=r"0\.0 GB are free\. Make room"):
        frozen_states(tmp_path / "s.npy", model.network, task, examples)
    assert not list(tmp_path.iterdir())


def test_the_row_is_named_whose_states_are_not_finite(model, tmp_path):
    task = task_of(max_seq_length=32)
    rows = [{"words": ["a", "b"], "tags": ["O", "O"]}, {"words": ["c"], "tags": ["O"]}]
    examples = task.examples(rows, 0)
    piece = examples[1].sequences[0].input_ids[1]
    with torch.no_grad():
        model.encoder.embeddings.word_embeddings.weight[piece] = 3e38
    with pytest.raises(BertworksError, match=r"^row 2: the model's output is not finite"):
        frozen_states(tmp_path / "s.npy", model.network, task, examples)
    assert not (tmp_path / "s.npy").exists()

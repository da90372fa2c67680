"""A sentence encoder that learns from another one: what is learned, kept, resumed and refused."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertworks.errors import (
    BertworksError,
    CheckpointError,
    DataError,
    SettingsError,
    TrainingError,
)
from bertworks.loading import load
from bertworks.model import Model
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.finetune import finetune
from bertworks.utils.progress import Progress

from .letters import CONFIG, FAST, GEOMETRY, PIECES, WORD_PIECES, Lines, equal, weights_of

RANDOM = np.random.default_rng(3)
TEXTS = [" ".join(RANDOM.choice(list("abcdefgh"), RANDOM.integers(2, 9))) for _ in range(200)]
PAIRS = [
    {"sentence1": one, "sentence2": other, "score": float(at)}
    for at, (one, other) in enumerate(zip(TEXTS[::2], TEXTS[1::2], strict=True))
]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wider model, with another vocabulary: the letters in another order."""
    torch.manual_seed(1)
    pieces = [*WORD_PIECES[:5], *reversed(WORD_PIECES[5:])]
    model = Model.fresh(
        GEOMETRY.with_values(vocab_size=len(pieces)), Tokenizer.from_vocabulary(pieces)
    )
    return model.save(tmp_path_factory.mktemp("teacher") / "model")


def student() -> Model:
    torch.manual_seed(2)
    return Model.fresh(CONFIG, Tokenizer.from_vocabulary(PIECES))


def learn(out: Path, teacher: Path | str, train: Any = None, **changes: Any) -> Any:
    rows = [{"text": text} for text in TEXTS] if train is None else train
    settings = {**FAST, "teacher": str(teacher), **changes}
    return finetune(student(), "retrieval", train=rows, out=out, **settings)


def cosines(model: Model) -> np.ndarray:
    """Of texts that were not learned from."""
    fresh = np.random.default_rng(9)
    texts = [" ".join(fresh.choice(list("abcdefgh"), 6)) for _ in range(40)]
    return model.similarity(texts, texts)[np.triu_indices(40, 1)]


@pytest.mark.long
def test_texts_come_to_lie_as_with_the_teacher(tmp_path: Path, teacher: Path) -> None:
    teacher_cosines = cosines(load(teacher, device="cpu"))
    initial_error = np.abs(cosines(student()) - teacher_cosines).mean()
    result = learn(tmp_path / "run", teacher, epochs=20)
    trained_model = load(result.run.model, device="cpu")
    assert trained_model.task is not None and trained_model.task.name == "retrieval"
    assert trained_model.sentence is not None and trained_model.sentence.normalize
    assert np.abs(cosines(trained_model) - teacher_cosines).mean() < initial_error / 2
    assert np.corrcoef(cosines(trained_model), teacher_cosines)[0, 1] > 0.6
    assert np.array_equal(cosines(trained_model), cosines(result.model))
    # It is measured and asked as any retrieval is.
    assert trained_model.predict([PAIRS[0]])[0].keys() == {"similarity"}
    assert trained_model.evaluate(PAIRS).metrics.keys() >= {"pearson", "spearman"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("names", "settings"),
    [
        (("sentence1", "sentence2", "score"), {}),
        (("query", "passage", "score"), {"score_column": "score"}),  # as the student's own columns
    ],
)
def test_dev_is_of_pairs(
    tmp_path: Path, teacher: Path, names: tuple[str, ...], settings: dict[str, Any]
) -> None:
    stream = io.StringIO()
    result = finetune(
        student(),
        "retrieval",
        train=[{"text": text} for text in TEXTS],
        dev=[dict(zip(names, pair.values(), strict=True)) for pair in PAIRS],
        out=tmp_path / "run",
        teacher=str(teacher),
        progress=Progress(stream, every=0),
        **{**FAST, "epochs": 1, **settings},
    )
    assert "teacher 200/200" in stream.getvalue()
    assert result.metrics.keys() == {"loss", "pearson", "spearman"}
    assert result.data.train.rows == len(TEXTS)


@pytest.mark.long
def test_a_run_that_is_resumed_asks_the_teacher_once_and_ends_with_the_same_bits(
    tmp_path: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = learn(tmp_path / "whole", teacher, checkpoint_every=5)
    with pytest.raises(RuntimeError, match="switched off"):
        learn(tmp_path / "run", teacher, checkpoint_every=5, progress=Lines(stop_after=17))
    vectors_path = tmp_path / "run" / "teacher.npy"
    expected = load(teacher, device="cpu").embed(TEXTS, normalize=True)
    np.testing.assert_allclose(np.load(vectors_path), expected, atol=1e-6)

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("the teacher was asked again")

    monkeypatch.setattr("bertworks.inference.features.Embedder.embed", fail)
    resumed = learn(tmp_path / "run", teacher, checkpoint_every=5)
    assert equal(weights_of(resumed.model.network), weights_of(whole.model.network))


@pytest.mark.long
def test_settings_and_data_that_do_not_fit_are_refused(tmp_path: Path, teacher: Path) -> None:
    pairs = [{"sentence1": "a", "sentence2": "b"}] * 9
    cases: list[tuple[dict[str, Any], type[BertworksError], str]] = [
        ({"loss": "triplet"}, SettingsError, "loss='triplet' does nothing with a teacher"),
        ({"symmetric": True}, SettingsError, "symmetric=True does nothing with a teacher"),
        (
            {"negative_columns": "x"},
            SettingsError,
            "negative_columns='x' does nothing with",
        ),
        ({"temperature": 2.0}, SettingsError, r"temperature=2\.0 does nothing with a teacher"),
        ({"train": pairs}, DataError, "a student learns from texts, and these are pairs"),
        ({"teacher": tmp_path / "none"}, CheckpointError, "no such directory"),
        ({"train": [{"text": "a"}, {"text": ["b"]}] * 5}, DataError, "row 2"),
    ]
    for given, error, words in cases:
        with pytest.raises(error, match=words):
            learn(tmp_path / "run", **{"teacher": teacher, **given})
    with pytest.raises(SettingsError, match="text_column='text' does nothing without teacher"):
        finetune(
            student(), "retrieval", train=PAIRS, out=tmp_path / "x", text_column="text", **FAST
        )
    # Nothing was learned, so that the same directory will do.
    assert learn(tmp_path / "run", teacher, epochs=1).run.model.is_dir()


def test_vectors_are_put_into_no_other_directory(tmp_path: Path, teacher: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(TrainingError, match="holds no run"):
        learn(tmp_path, teacher)
    assert [file.name for file in tmp_path.iterdir()] == ["letter.txt"]


@pytest.mark.long
def test_a_run_keeps_to_its_teacher(tmp_path: Path, teacher: Path) -> None:
    learn(tmp_path / "run", teacher, epochs=1)
    other = student().save(tmp_path / "other")
    with pytest.raises(DataError, match="other"):
        learn(tmp_path / "run", other, epochs=1)

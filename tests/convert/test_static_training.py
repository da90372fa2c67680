"""Static models that are fitted to a teacher's vectors, beside the normal equations, solved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import bertworks as bw
from bertworks.convert.static_distillation import distil_static
from bertworks.convert.static_training import SMALLEST_LENGTH, StaticTraining, train_static
from bertworks.data.text_inputs import read_texts
from bertworks.errors import BertworksError

SAVED_MODELS = Path(__file__).parents[1] / "saved_models"
WORDS = ["the", "a", "river", "door", "wind", "ran", "opened", "and"]


def random_texts(count: int, seed: int = 0, words: list[str] | None = None) -> list[str]:
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(words or WORDS, draw.integers(2, 9))) for _ in range(count)]


def fit(
    student: bw.Model, texts: list[str], vectors: NDArray[np.float32], **settings: Any
) -> StaticTraining:
    return train_static(student, read_texts(texts), vectors, **settings)


def table_of(model: bw.Model) -> NDArray[np.float64]:
    return model.encoder.embeddings.word_embeddings.weight.detach().double().numpy()


def to_unit(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def solve(
    table: NDArray[np.float64],
    shares: NDArray[np.float64],
    vectors: NDArray[np.float64],
    ridge: float,
) -> NDArray[np.float64]:
    """The table of three rounds, each the solution of its normal equations."""
    width = table.shape[1]
    _, axes = np.linalg.eigh(vectors.T @ vectors)
    targets = to_unit(vectors @ axes[:, ::-1][:, :width])
    targets = np.pad(targets, ((0, 0), (0, width - targets.shape[1])))
    left, _, right = np.linalg.svd(to_unit(shares @ table).T @ targets)
    table = table @ left @ right
    means = shares @ table
    prior = table * (means * targets).sum() / (means**2).sum()
    lengths = np.ones((len(targets), 1))
    for _ in range(3):
        system = shares.T @ shares + ridge * np.eye(len(table))
        right_side = shares.T @ (targets * lengths) + ridge * lengths.mean() * prior
        table = np.linalg.solve(system, right_side)
        lengths = ((shares @ table) * targets).sum(1, keepdims=True).clip(SMALLEST_LENGTH)
    return table


@pytest.mark.parametrize("width", [4, 8])
def test_fitted_table_solves_the_normal_equations(width: int) -> None:
    teacher = bw.load(SAVED_MODELS / "encoder")
    student = distil_static(teacher, width=width)
    words = [piece for piece in teacher.tokenizer.pieces if piece.isalpha()][-8:]
    texts = random_texts(40, 0, words)  # of eight pieces, for which eight iterations are enough
    vectors = teacher.embed(texts, normalize=True)[:, :7]
    fitted_model = fit(student, texts, vectors, ridge=0.1).model
    ids = student.tokenizer.piece_ids(texts)
    shares = np.stack([np.bincount(row, minlength=len(table_of(student))) for row in ids])
    expected = solve(
        table_of(student), shares / shares.sum(1, keepdims=True), vectors.astype(np.float64), 0.1
    )
    # Axes have no sign, so the tables are compared by their inner products.
    ours = table_of(fitted_model)
    assert np.abs(ours @ ours.T - expected @ expected.T).max() < 1e-4


def test_fitted_model_is_nearer_to_its_teacher_on_other_texts() -> None:
    teacher = bw.load(SAVED_MODELS / "sentence-encoder")
    words = [piece for piece in teacher.tokenizer.pieces if piece.isalpha()][:60]
    student = distil_static(teacher)
    texts, others = random_texts(400, 1, words), random_texts(60, 2, words)
    training = fit(student, texts, teacher.embed(texts, normalize=True))
    assert training.num_texts == 392  # one of 50 is held out
    assert training.cosines is not None and training.cosines[1] > training.cosines[0]
    pairs = np.triu_indices(len(others), 1)

    def cosines(model: bw.Model) -> NDArray[np.float32]:
        vectors = model.embed(others, normalize=True)
        return (vectors @ vectors.T)[pairs]

    start_correlation, correlation = (
        np.corrcoef(cosines(model), cosines(teacher))[0, 1] for model in (student, training.model)
    )
    assert correlation > start_correlation + 0.1
    again = fit(student, texts, teacher.embed(texts, normalize=True))
    assert np.array_equal(table_of(again.model), table_of(training.model))


def test_texts_without_known_pieces_are_left_out() -> None:
    teacher = bw.load(SAVED_MODELS / "encoder")
    student = distil_static(teacher)
    texts = random_texts(12)
    vectors = teacher.embed(texts, normalize=True)
    with_unknown = fit(student, ["☃", *texts], np.concatenate([vectors[:1], vectors]))
    assert (with_unknown.num_texts, with_unknown.num_unknown) == (12, 1)
    assert with_unknown.cosines is None


@pytest.mark.parametrize(
    ("texts", "count", "settings", "message"),
    [
        (["a door"], 2, {}, r"2 vectors, but 1 text\b"),
        (["☃"], 1, {}, "no text has a known piece"),
        (["a door"], 1, {"ridge": 0}, "ridge"),
    ],
)
def test_impossible_trainings_are_named(
    texts: list[str], count: int, settings: dict[str, Any], message: str
) -> None:
    student = distil_static(bw.load(SAVED_MODELS / "encoder"))
    with pytest.raises(BertworksError, match=message):
        fit(student, texts, np.ones((count, 8), np.float32), **settings)


def test_only_static_models_are_trained() -> None:
    with pytest.raises(BertworksError, match="only static models"):
        fit(bw.load(SAVED_MODELS / "encoder"), ["a door"], np.ones((1, 8), np.float32))

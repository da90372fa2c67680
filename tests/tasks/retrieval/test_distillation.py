"""A teacher's vectors: the loss and the axes equal numpy's singular vectors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from bertworks.packed import Packed
from bertworks.tasks.example import LabelledExample
from bertworks.tasks.retrieval.distillation import StudentTask, principal_axes, vector_loss_sum
from bertworks.tasks.retrieval.settings import RetrievalSettings
from bertworks.text.tokenizer import Tokenizer

from ..hard_cases import CONFIG, PIECES

TEXTS = ["a b c", "d", "e f e f e", "a", "g h"]
SETTINGS = RetrievalSettings(query_column="query", passage_column="passage", max_seq_length=16)
TASK = StudentTask(Tokenizer.from_vocabulary(PIECES), SETTINGS, "text")


def unit_rows(rows: int, width: int, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(rows, width))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def with_vectors(vectors: np.ndarray) -> list[LabelledExample]:
    examples = TASK.examples([{"text": text} for text in TEXTS], 0, labelled=False)
    return [replace(one, target=row) for one, row in zip(examples, vectors, strict=True)]


@pytest.mark.parametrize("chunk_tokens", [None, 6])
@pytest.mark.parametrize("width", [7, 16, 30])
def test_the_loss_is_the_squared_distance_to_the_teachers_vectors(
    width: int, chunk_tokens: int | None
) -> None:
    torch.manual_seed(0)
    vectors = unit_rows(40, width)
    axes = principal_axes(vectors.astype(np.float32))
    settings = SETTINGS.with_values(chunk_tokens=chunk_tokens)
    task = StudentTask(TASK.tokenizer, settings, "text", axes)
    network = task.network(CONFIG).double().eval()
    loss = network(task.collate(with_vectors(vectors[: len(TEXTS)])).to("cpu"))["retrieval"]
    # By a singular value decomposition rather than by the eigenvectors of products.
    _, _, right = np.linalg.svd(vectors)
    right *= np.sign((right * axes.T).sum(1, keepdims=True))  # an axis has no direction
    expected, size = 0.0, CONFIG.hidden_size
    for text, vector in zip(TEXTS, vectors, strict=False):
        packed = Packed.from_arrays([TASK.tokenizer.encode(text).input_ids]).to("cpu")
        student = network.encoder(packed).mean(0).detach().numpy()
        target = np.zeros(size)
        target[: min(size, width)] = right[:size] @ vector
        expected += 2 - 2 * (student @ target) / np.linalg.norm(student) / np.linalg.norm(target)
    assert loss.item() == pytest.approx(expected, abs=1e-5)
    assert expected > 1
    gradients = torch.autograd.grad(loss, list(network.encoder.embeddings.parameters()))
    assert any(gradient.abs().sum() > 0 for gradient in gradients)


def test_axes_keep_the_cosines_of_vectors_that_lie_in_fewer_dimensions() -> None:
    narrow = unit_rows(50, 4)
    rotation, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(9, 9)))
    wide = (np.hstack([narrow, np.zeros((50, 5))]) @ rotation).astype(np.float32)
    projection = wide @ principal_axes(wide)[:, :4]
    np.testing.assert_allclose(projection @ projection.T, narrow @ narrow.T, atol=1e-6)
    remainder = wide @ principal_axes(wide)[:, 4:]
    np.testing.assert_allclose(remainder, 0, atol=1e-6)
    axes = torch.from_numpy(principal_axes(wide))
    student, teacher = torch.from_numpy(projection), torch.from_numpy(wide)
    assert vector_loss_sum(student, teacher, axes).item() == pytest.approx(0, abs=1e-9)
    assert vector_loss_sum(student.flip(0), teacher, axes).item() > 1


def test_pairs_are_read_as_retrieval_reads_them() -> None:
    task = StudentTask(TASK.tokenizer, SETTINGS)
    (example,) = task.examples([{"query": "a", "passage": "b c"}], 0)
    assert [len(one.input_ids) for one in example.sequences] == [3, 4]
    assert task.collate([example]).targets["query"].shape == (1,)

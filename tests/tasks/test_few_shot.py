"""Few rows: properties of pairs, the loss beside retrieval's, the head beside scikit-learn."""

from __future__ import annotations

from collections import Counter
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from bertworks.data.tables import read_rows
from bertworks.errors import DataError, SettingsError
from bertworks.inference.engine import outputs_of
from bertworks.inference.settings import EngineSettings
from bertworks.model import Model
from bertworks.nn.encoder_settings import Classifier
from bertworks.nn.pooling import pool
from bertworks.settings.literals import InferencePrecision
from bertworks.tasks.example import LabelledExample
from bertworks.tasks.few_shot import FewShotNetwork, FewShotTask, draw_pairs
from bertworks.tasks.retrieval.losses import loss_sum
from bertworks.tasks.retrieval.settings import RetrievalSettings
from bertworks.text.tokenizer import Tokenizer
from tests.training.letters import CONFIG, PIECES, make_rows

TOKENIZER = Tokenizer.from_vocabulary(PIECES)
ROWS = make_rows(24, 3)
THREE = [{**row, "label": f"{row['label']} {len(row['text']) > 9}"} for row in make_rows(30, 4)]


def task_of(rows: list[dict[str, Any]], **settings: Any) -> FewShotTask:
    options = FewShotTask.user_settings().parse(
        {"max_seq_length": 32, "classifier_pooling": "mean", "few_shot": True, **settings}
    )
    return FewShotTask.from_table(TOKENIZER, read_rows(rows), options)


def start(
    rows: list[dict[str, Any]], **geometry: Any
) -> tuple[FewShotTask, FewShotNetwork, list[LabelledExample]]:
    task = task_of(rows)
    torch.manual_seed(0)
    network = task.network(CONFIG.with_values(initializer_range=0.3, **geometry)).eval()
    assert isinstance(network, FewShotNetwork)
    return task, network, list(task.labelled_examples(read_rows(rows)))


@given(
    st.lists(st.integers(0, 4), min_size=2, max_size=40).filter(lambda own: len(set(own)) > 1),
    st.integers(1, 5),
    st.integers(0, 2**63 - 1),
)
def test_each_row_has_as_many_pairs_of_both_kinds(
    labels: list[int], pairs_per_row: int, seed: int
) -> None:
    pairs = draw_pairs(np.array(labels), pairs_per_row, seed)
    assert pairs == draw_pairs(np.array(labels), pairs_per_row, seed)
    assert all(first != second for first, second in pairs)
    counts = Counter((first, labels[first] == labels[second]) for first, second in pairs)
    for row, label in enumerate(labels):
        assert counts[row, False] == pairs_per_row
        assert counts[row, True] == (pairs_per_row if labels.count(label) > 1 else 0)


def test_all_pairs_are_drawn() -> None:
    pairs = draw_pairs(np.array([2, 0, 1, 0, 2, 0]), 200, 0)
    assert {(first, second) for first, second in pairs} == {
        (first, second) for first in range(6) for second in range(6) if first != second
    }
    assert pairs != draw_pairs(np.array([2, 0, 1, 0, 2, 0]), 200, 1)


def test_the_loss_is_that_of_retrieval_with_scores() -> None:
    task, network, examples = start(ROWS)
    pairs = task.training_pieces(examples, 0)[:15]
    batch = task.collate(pairs)
    assert len(batch.examples) < 2 * len(pairs)  # each row is encoded once
    (loss,) = network(batch.to("cpu")).values()
    with torch.no_grad():
        vectors = []
        for example in examples:
            packed = task.collate([example]).to("cpu").packed
            vectors.append(pool(network.encoder(packed), packed, "mean")[0])
    unit = torch.nn.functional.normalize(torch.stack(vectors), dim=-1)
    firsts, seconds = (unit[[pair[side].index for pair in pairs]] for side in (0, 1))
    scores = torch.tensor([float(pair.is_equal) for pair in pairs])
    expected = loss_sum(RetrievalSettings(loss="cosine"), firsts, seconds, {"labels": scores})
    torch.testing.assert_close(loss, expected)
    assert batch.counts == {"pairs": 15}


@pytest.mark.parametrize("rows", [ROWS, THREE], ids=["two", "more"])
@pytest.mark.parametrize("has_bias", [True, False])
def test_the_head_is_a_logistic_regression_on_mean_vectors(
    rows: list[dict[str, Any]], has_bias: bool
) -> None:
    task, network, examples = start(rows, **({} if has_bias else {"classifier": "none"}))
    task.fit_head(network, lambda: outputs_of(network, task, examples, EngineSettings()))
    model = Model(TOKENIZER, task, network)
    texts, labels = ([row[name] for row in rows] for name in ("text", "label"))
    vectors = model.embed(texts, pooling="mean", normalize=False).astype(np.float64)
    mean_vectors = vectors - vectors.mean(0) * has_bias
    mean_vectors /= np.linalg.norm(mean_vectors, axis=1).mean()
    oracle = LogisticRegression(tol=1e-8, max_iter=10_000, fit_intercept=has_bias)
    oracle.fit(mean_vectors, labels)
    ours = [list(answer["probabilities"].values()) for answer in model.predict(texts)]
    assert tuple(oracle.classes_) == task.labels
    np.testing.assert_allclose(ours, oracle.predict_proba(mean_vectors), atol=1e-4)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_head_is_fitted_in_every_precision(precision: InferencePrecision) -> None:
    task, network, examples = start(ROWS)
    engine = EngineSettings(precision=precision)
    task.fit_head(network, lambda: outputs_of(network, task, examples, engine))
    weights = network.output_layer.weight
    assert weights.dtype == torch.float32
    task, exact_network, examples = start(ROWS)
    task.fit_head(
        exact_network, lambda: outputs_of(exact_network, task, examples, EngineSettings())
    )
    exact = exact_network.output_layer.weight
    assert (weights - exact).norm() < 0.05 * exact.norm()


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("kind", get_args(Classifier))
def test_layers_of_a_head_pass_all_vectors_on(kind: Classifier, pooling: str) -> None:
    """The vectors that were trained can be computed back from those of the output layer."""
    task = task_of(THREE, classifier_pooling=pooling)
    torch.manual_seed(0)
    network = task.network(CONFIG.with_values(classifier=kind, initializer_range=0.3)).eval()
    assert isinstance(network, FewShotNetwork)
    network.pass_vectors_on()
    examples = list(task.labelled_examples(read_rows(THREE)))
    batch = task.collate(examples).to("cpu")
    with torch.no_grad():
        outputs = network.predict(batch)["vectors"].double()
        vectors = pool(network.encoder(batch.packed), batch.packed, pooling).double()  # type: ignore[arg-type]
    inputs = torch.cat([outputs, torch.ones(len(outputs), 1)], 1)
    solution = torch.linalg.lstsq(inputs, vectors).solution
    errors = (inputs @ solution - vectors).square().sum()
    assert errors < 0.02 * (vectors - vectors.mean(0)).square().sum()


def test_rows_of_few_shot_that_are_impossible() -> None:
    pairs = [{"text": "a", "pair": "b", "label": "x"}, {"text": "b", "pair": "c", "label": "y"}]
    with pytest.raises(SettingsError, match="few_shot=true is for single texts"):
        task_of(pairs)
    two = ROWS[:2]
    task, _, examples = start(two)
    with pytest.raises(DataError, match="no label has two rows"):
        task.training_pieces(examples, 0)
    task, _, examples = start(ROWS)
    with pytest.raises(DataError, match="no training row has the label 'yes'"):
        task.training_pieces(examples[::2], 0)
    one_of_yes = [*examples[::2], examples[1]]
    assert len(task.training_pieces(one_of_yes, 0)) == 10 * (2 * 12 + 1)

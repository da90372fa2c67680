"""Exact search against a full sort; ranking metrics against sentence-transformers'."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertworks.tasks.retrieval import exact_search
from bertworks.tasks.retrieval.evaluator import RankingEvaluator
from bertworks.tasks.retrieval.exact_search import top_k

from .test_losses import batch_of, task_of


@given(
    queries=st.integers(1, 4),
    passages=st.integers(1, 40),
    k=st.integers(1, 12),
    chunk_size=st.integers(1, 50),
    seed=st.integers(0, 99),
)
def test_top_k_is_a_full_sort(
    queries: int, passages: int, k: int, chunk_size: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    # Small whole numbers: products are exact, and many are equal.
    one, two = (random.integers(-2, 3, (n, 3)).astype(np.float32) for n in (queries, passages))
    scores, numbers = top_k(one, two, k, chunk_size=chunk_size)
    products = one @ two.T
    expected = np.argsort(-products, axis=1, kind="stable")[:, :k]
    assert np.array_equal(numbers, expected)
    assert np.array_equal(scores, np.take_along_axis(products, expected, 1))


@given(
    queries=st.integers(1, 6),
    passages=st.integers(2, 60),
    width=st.sampled_from([3, 32, 100, 256]),
    k=st.integers(1, 70),
    chunk_size=st.integers(1, 70),
    seed=st.integers(0, 99),
)
def test_products_depend_on_their_two_vectors_alone(
    queries: int, passages: int, width: int, k: int, chunk_size: int, seed: int
) -> None:
    """Equal passages have equal scores and keep their order, beside any others and any queries."""
    random = np.random.default_rng(seed)
    one, distinct = (random.standard_normal((n, width)).astype(np.float32) for n in (queries, 3))
    kinds = random.integers(0, 3, passages)
    scores, numbers = top_k(one, distinct[kinds], k, chunk_size=chunk_size)
    products = (one.astype(np.float64) @ distinct.astype(np.float64).T).astype(np.float32)
    expected = np.argsort(-products[:, kinds], axis=1, kind="stable")[:, :k]
    assert np.array_equal(numbers, expected)
    np.testing.assert_allclose(scores, np.take_along_axis(products[:, kinds], expected, 1), 1e-6)
    for row, query in enumerate(one):
        alone, _ = top_k(query[None], distinct[kinds], k, longest=100.0)
        assert np.array_equal(alone[0], scores[row])


def test_many_equal_passages_are_multiplied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(1)
    one, distinct = (random.standard_normal((n, 16)).astype(np.float32) for n in (20, 3))
    counts: list[int] = []
    multiply = exact_search.products_with

    def count_products(query: Any, vectors: Any) -> Any:
        counts.append(len(vectors))
        return multiply(query, vectors)

    monkeypatch.setattr(exact_search, "products_with", count_products)
    kinds = random.integers(0, 3, 2000)
    _, numbers = top_k(one, distinct[kinds], 10)
    assert sum(counts) <= 3 * 20
    expected = np.argsort(-(one @ distinct.T)[:, kinds], axis=1, kind="stable")[:, :10]
    assert np.array_equal(numbers, expected)


def test_ranking_metrics_are_those_of_sentence_transformers() -> None:
    from sentence_transformers.sentence_transformer.evaluation import (
        InformationRetrievalEvaluator,
    )

    random = np.random.default_rng(1)
    names = [f"{a} {b}" for a in "abcdefgh" for b in "ijklmnop"]
    vector = {name: random.standard_normal(4).astype(np.float32) for name in names}
    vector = {name: own / np.linalg.norm(own) for name, own in vector.items()}
    questions, answers = names[:20], names[20:]
    rows = [
        {
            "query": str(random.choice(questions)),
            "positive": str(random.choice(answers)),
            "negative": random.choice(answers, 2).tolist(),
        }
        for _ in range(60)
    ]
    task = task_of()
    evaluator = task.evaluator()
    assert isinstance(evaluator, RankingEvaluator)
    for start in range(0, len(rows), 7):
        part = rows[start : start + 7]
        predicted = [row["positive"] for row in part] + [n for row in part for n in row["negative"]]
        outputs = {
            "queries": torch.from_numpy(np.stack([vector[row["query"]] for row in part])),
            "passages": torch.from_numpy(np.stack([vector[text] for text in predicted])),
        }
        evaluator.add(outputs, batch_of(task, part))
    corpus = sorted(
        {row["positive"] for row in rows} | {n for row in rows for n in row["negative"]}
    )
    queries = sorted({row["query"] for row in rows})
    belongs = {q: {row["positive"] for row in rows if row["query"] == q} for q in queries}

    peer_evaluator = InformationRetrievalEvaluator(
        {q: q for q in queries}, {text: text for text in corpus}, belongs
    )
    hits = [
        [{"corpus_id": text, "score": float(vector[q] @ vector[text])} for text in corpus]
        for q in peer_evaluator.queries
    ]
    values = peer_evaluator.compute_metrics(
        [sorted(own, key=lambda hit: -hit["score"]) for own in hits]
    )
    expected = {
        "accuracy@1": values["accuracy@k"][1],
        "mrr@10": values["mrr@k"][10],
        "recall@10": values["recall@k"][10],
    }
    assert evaluator.result() == pytest.approx(expected, abs=1e-9)
    assert 0 < expected["accuracy@1"] < expected["mrr@10"] < expected["recall@10"] < 1
    assert evaluator.notes() == []


def test_few_passages_are_noted() -> None:
    evaluator, vectors = task_of().evaluator(), torch.eye(10)
    evaluator.add({"queries": vectors[:5], "passages": vectors}, batch_of(task_of()))
    assert evaluator.notes() == ["recall@10 is uninformative with only 9 passages"]


@pytest.mark.parametrize("settings", [{}, {"query_prompt": "e "}, {"passage_prompt": "f e "}])
def test_a_query_does_not_find_itself(settings: dict[str, Any]) -> None:
    """Paraphrases both ways: each text is a query and another's passage."""
    random = np.random.default_rng(2)
    pairs = [("a", "b"), ("b", "a"), *((f"c {x}", f"d {x}") for x in "efghijklmnop")]
    rows = [{"query": a, "positive": b, "negative": []} for a, b in pairs]
    vector: dict[str, np.ndarray] = {}
    for row in rows:
        own = random.standard_normal(16)
        for text in (row["query"], row["positive"]):
            vector.setdefault(text, own + 0.01 * random.standard_normal(16))
    task = task_of(**settings)
    evaluator = task.evaluator()
    outputs = {
        name: torch.from_numpy(np.stack([vector[row[key]] for row in rows]))
        for name, key in (("queries", "query"), ("passages", "positive"))
    }
    evaluator.add(outputs, batch_of(task, rows))
    assert evaluator.result()["mrr@10"] == 1


def test_queries_with_a_wrong_text_nearest_are_listed() -> None:
    rows = [
        {"query": f"q {name}", "positive": f"p {name}", "negative": [f"n {name}"]} for name in "abc"
    ]
    task = task_of()
    evaluator = task.evaluator()
    one, two, three = torch.eye(4)[:3]
    outputs = {
        "queries": torch.stack([one, two, three]),
        # The first query finds its passage; those of the others are nearer to a negative.
        "passages": torch.stack(
            [one, 0.5 * two, 0.9 * three, 0 * one, 0.75 * two, three + 0.25 * three]
        ),
    }
    evaluator.add(outputs, batch_of(task, rows))
    assert evaluator.result()["accuracy@1"] == pytest.approx(1 / 3)
    last, second = evaluator.breakdown().mistakes
    assert (last.text, last.gold, last.predicted, last.row) == ("q c", "p c", "n c", 3)
    assert last.margin == pytest.approx(0.35)
    assert last.where == "row 3"
    assert (second.text, second.predicted, second.margin) == ("q b", "n b", pytest.approx(0.25))

"""The losses of retrieval, row by row as their papers define them, and excluded negatives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertworks.packed import Batch, Packed
from bertworks.tasks.retrieval.network import RetrievalNetwork
from bertworks.tasks.retrieval.settings import RetrievalSettings
from bertworks.tasks.retrieval.task import RetrievalTask
from bertworks.text.tokenizer import Tokenizer

from ..hard_cases import CONFIG, PIECES

ROWS = [
    {"query": "a b", "positive": "c d e", "negative": "f"},
    {"query": "c", "positive": "d", "negative": ["g h", "a"]},
    {"query": "a b", "positive": "h", "negative": None},
    {"query": "e e e", "positive": "d", "negative": "c"},
    {"query": "x", "positive": "a b", "negative": "y z"},
]


def task_of(**settings: Any) -> RetrievalTask:
    columns = {"query_column": "query", "passage_column": "positive"}
    values = {**columns, "negative_columns": ("negative",), "max_seq_length": 16, **settings}
    return RetrievalTask(Tokenizer.from_vocabulary(PIECES), RetrievalSettings.parse(values))


def network_of(task: RetrievalTask, **geometry: Any) -> RetrievalNetwork:
    torch.manual_seed(0)
    return task.network(CONFIG.with_values(**geometry)).double()


def batch_of(task: RetrievalTask, rows: list[dict[str, Any]] = ROWS) -> Batch:
    return task.collate(task.examples(rows, 0)).to("cpu")


def unit_vector(task: RetrievalTask, network: RetrievalNetwork, text: str) -> torch.Tensor:
    """The mean of a text's hidden states, by itself, at length 1."""
    packed = Packed.from_arrays([task.tokenizer.encode(text).input_ids]).to("cpu")
    mean = network.encoder(packed).mean(0)
    return mean / mean.norm()


def negatives(row: dict[str, Any]) -> list[str]:
    value = row["negative"]
    return value if isinstance(value, list) else [value] if value else []


@pytest.mark.parametrize("symmetric", [False, True])
def test_loss_with_in_batch_negatives_is_the_cross_entropy_over_them(symmetric: bool) -> None:
    task = task_of(scale=7.0, symmetric=symmetric)
    network = network_of(task)
    loss = network(batch_of(task))["retrieval"]
    vector = {
        text: unit_vector(task, network, text)
        for row in ROWS
        for text in (row["query"], row["positive"], *negatives(row))
    }
    belongs = {(row["query"], row["positive"]) for row in ROWS}
    candidates = [row["positive"] for row in ROWS] + [n for row in ROWS for n in negatives(row)]

    def product(query: str, passage: str) -> torch.Tensor:
        return torch.exp(7.0 * vector[query] @ vector[passage])

    expected = torch.zeros((), dtype=torch.float64)
    for index, row in enumerate(ROWS):
        query, positive = row["query"], row["positive"]
        others = [
            text
            for number, text in enumerate(candidates)
            if number != index and (query, text) not in belongs and text != query
        ]
        own = product(query, positive)
        forward = -torch.log(own / (own + sum(product(query, text) for text in others)))
        asking = [
            other["query"]
            for number, other in enumerate(ROWS)
            if number != index
            and (other["query"], positive) not in belongs
            and other["query"] != positive
        ]
        backward = -torch.log(own / (own + sum(product(text, positive) for text in asking)))
        expected = expected + ((forward + backward) / 2 if symmetric else forward)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-10)
    own_gradients = torch.autograd.grad(loss, list(network.parameters()), allow_unused=True)
    gradients = torch.autograd.grad(expected, list(network.parameters()), allow_unused=True)
    for mine, other in zip(own_gradients, gradients, strict=True):
        assert (mine is None) == (other is None)
        if mine is not None:
            torch.testing.assert_close(mine, other, atol=1e-9, rtol=1e-9)


def test_triplet_loss_equals_the_formula() -> None:
    task = task_of(loss="triplet", margin=0.3)
    rows = [row for row in ROWS if negatives(row)]
    network = network_of(task)
    batch = batch_of(task, rows)
    expected = 0.0
    for row in rows:
        query, positive, *others = (
            unit_vector(task, network, text)
            for text in (row["query"], row["positive"], *negatives(row))
        )
        for other in others:  # half the squared distances: those of unit vectors are 2 - 2 cos
            distance = ((query - positive) ** 2).sum() / 2 - ((query - other) ** 2).sum() / 2
            expected += max(0.0, distance.item() + 0.3)
    assert expected > 0
    assert network(batch)["retrieval"].item() == pytest.approx(expected, abs=1e-10)
    assert batch.counts == {"retrieval": sum(len(negatives(row)) for row in rows)}
    assert task.additive
    halves = [network(batch_of(task, part))["retrieval"].item() for part in (rows[:2], rows[2:])]
    assert sum(halves) == pytest.approx(expected, abs=1e-10)


def test_cosine_loss_is_of_scores_brought_to_their_range() -> None:
    columns = {"query_column": "one", "passage_column": "two", "score_column": "score"}
    task = task_of(**columns, negative_columns=None, loss="cosine", score_range=(0, 5))
    network = network_of(task)
    rows = [
        {"one": row["query"], "two": row["positive"], "score": score}
        for row, score in zip(ROWS, ("5", 0, 2.5, 4, 1), strict=True)
    ]
    batch = batch_of(task, rows)
    assert batch.targets["labels"].tolist() == pytest.approx([1, 0, 0.5, 0.8, 0.2])
    cosines = [
        (unit_vector(task, network, row["one"]) @ unit_vector(task, network, row["two"])).item()
        for row in rows
    ]
    predicted = [
        answer["similarity"] for answer in task.decode(network.predict(batch), batch).values()
    ]
    assert predicted == pytest.approx(cosines, abs=1e-12)
    wanted = batch.targets["labels"].double().numpy()
    assert network(batch)["retrieval"].item() == pytest.approx(((cosines - wanted) ** 2).sum())


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("chunk", [1, 12, 1000])
def test_chunks_have_the_gradients_of_the_whole(
    dropout: float, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    geometry = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    whole_task, chunked_task = task_of(symmetric=True), task_of(symmetric=True, chunk_tokens=chunk)

    def gradients(task: RetrievalTask) -> tuple[list[torch.Tensor], torch.Tensor]:
        network = network_of(task, **geometry)
        expected_state = torch.manual_seed(3).get_state()
        network(batch_of(task))["retrieval"].backward()
        state = torch.get_rng_state()
        assert torch.equal(expected_state, state) == (dropout == 0)
        return [p.grad for p in network.parameters() if p.grad is not None], state

    chunk_gradients, state = gradients(chunked_task)
    if dropout:
        # The draws fall otherwise in parts than in the whole: so parts, but none computed twice.
        monkeypatch.setattr(
            "bertworks.tasks.text_network.checkpoint",
            lambda f, *arguments, use_reentrant: f(*arguments),
        )
        expected, expected_state = gradients(chunked_task)
        assert torch.equal(state, expected_state)
    else:
        expected, _ = gradients(whole_task)
    assert len(chunk_gradients) == len(expected) > 10
    for mine, other in zip(chunk_gradients, expected, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-12, rtol=1e-10)


@pytest.mark.long
def test_chunks_keep_nothing_but_vectors() -> None:
    """What the graph holds between forward and backward does not grow with what is encoded."""

    def saved_bytes(chunk: int | None, layers: int) -> int:
        task = task_of(chunk_tokens=chunk)
        network = network_of(task, num_hidden_layers=layers)
        sizes: dict[int, int] = {}

        def note(tensor: torch.Tensor) -> torch.Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            network(batch_of(task))
        return sum(sizes.values())

    assert (
        saved_bytes(10, 8) == saved_bytes(10, 1) < saved_bytes(None, 1) < saved_bytes(None, 8) / 4
    )


texts = st.sampled_from(["a", "b", "c", "d e"])


@pytest.mark.long
@given(st.lists(st.tuples(texts, texts, st.lists(texts, max_size=2)), min_size=1, max_size=6))
def test_positives_and_equal_texts_are_excluded(rows: list[tuple[str, str, list[str]]]) -> None:
    task = task_of()
    batch = batch_of(task, [{"query": q, "positive": p, "negative": n} for q, p, n in rows])
    candidates = [p for _, p, _ in rows] + [n for *_, own in rows for n in own]
    belongs = {(q, p) for q, p, _ in rows}
    expected = [
        [
            at != number and ((q, text) in belongs or q == text)
            for number, text in enumerate(candidates)
        ]
        for at, (q, *_) in enumerate(rows)
    ]
    assert batch.targets["is_excluded"].tolist() == expected
    assert batch.counts == {"retrieval": len(rows)}
    assert not task.additive

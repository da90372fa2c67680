"""The losses of retrieval, row by row as their papers define them, and excluded negatives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertworks.data.tables import read_rows
from bertworks.errors import DataError, SettingsError
from bertworks.packed import Batch, Packed
from bertworks.tasks.retrieval.losses import loss_sum
from bertworks.tasks.retrieval.network import RetrievalNetwork
from bertworks.tasks.retrieval.settings import ORDER_LOSSES, RetrievalSettings
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


@pytest.mark.long
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
@given(
    st.lists(st.tuples(texts, texts, st.lists(texts, max_size=2)), min_size=1, max_size=6),
    st.sampled_from(["", "a "]),
)
def test_positives_and_equal_texts_are_excluded(
    rows: list[tuple[str, str, list[str]]], prompt: str
) -> None:
    """Also a passage that equals a query but for the query's prompt."""
    task = task_of(query_prompt=prompt)
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


def sentence_vectors(rows: int, seed: int, scale: float = 1.0) -> torch.Tensor:
    torch.manual_seed(seed)
    vectors = torch.randn(rows, 8, dtype=torch.float64)
    return scale**0.5 * torch.nn.functional.normalize(vectors, dim=-1)


class VectorModel(torch.nn.Module):
    """A model of sentence-transformers' losses, whose texts are vectors."""

    def get_embedding_dimension(self) -> int:
        return 8

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"sentence_embedding": features["vectors"]}


def peer_loss(loss: Any, texts: list[torch.Tensor], labels: torch.Tensor | None) -> float:
    return float(loss([{"vectors": vectors} for vectors in texts], labels))


SCALE = 5.0
SCORES = torch.tensor([[3.0, -1.0, 0.5], [0.2, 0.1, -2.0], [4.0, 2.0, 1.0], [1.0, 1.5, -3.0]])


def distillation_targets() -> dict[str, torch.Tensor]:
    """Of four rows with two negatives each, row by row."""
    return {
        "negative_row": torch.arange(4).repeat_interleave(2),
        "labels": torch.cat([SCORES[:, 0], SCORES[:, 1:].reshape(-1)]),
        "is_excluded": torch.zeros(4, 12, dtype=torch.bool),
    }


def peer_of(loss: str) -> tuple[Any, torch.Tensor | None, int]:
    """The loss of sentence-transformers, its labels, and by what ours is divided."""
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    model = VectorModel()
    margins = SCORES[:, :1] - SCORES[:, 1:]
    return {
        "in-batch": (losses.MultipleNegativesRankingLoss(model, scale=1.0), None, 4),
        "margin-mse": (losses.MarginMSELoss(model), margins.double(), 8),
        "kl": (losses.DistillKLDivLoss(model, temperature=1.0), SCORES.double(), 4),
        "cosent": (losses.CoSENTLoss(model, scale=SCALE), SCORES[:, 0].double(), 4),
        "angle": (losses.AnglELoss(model, scale=SCALE), SCORES[:, 0].double(), 4),
    }[loss]


@pytest.mark.parametrize("loss", ["in-batch", "margin-mse", "kl", "cosent", "angle"])
def test_losses_are_equal_to_those_of_sentence_transformers(loss: str) -> None:
    peer, labels, count = peer_of(loss)
    names = {"query_column": "q", "passage_column": "p"}
    settings = RetrievalSettings.parse({**names, "loss": loss, "scale": SCALE})
    # Its products have no factor, and so its vectors are longer; CoSENT and in-batch take cosines.
    scale = SCALE if loss in ("margin-mse", "kl") else 1.0
    queries, positives = sentence_vectors(4, 0, scale), sentence_vectors(4, 1, scale)
    negatives = sentence_vectors(8, 2, scale)
    texts = [queries, positives]
    if loss not in ORDER_LOSSES:
        texts += [negatives[0::2], negatives[1::2]]
    if loss == "in-batch":
        peer.scale = SCALE
    units = [part / scale**0.5 for part in (queries, positives, negatives)]
    targets = distillation_targets()
    if loss in ORDER_LOSSES:
        targets["labels"] = SCORES[:, 0]
    own = loss_sum(settings, units[0], torch.cat(units[1:]), targets) / count
    assert own.item() == pytest.approx(peer_loss(peer, texts, labels), rel=1e-6)


@pytest.mark.parametrize("loss", ["in-batch", "cosent"])
def test_loss_of_several_dimensions_is_equal_to_sentence_transformers(loss: str) -> None:
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    peer, labels, count = peer_of(loss)
    if loss == "in-batch":
        peer.scale = SCALE
    peer_losses = losses.MatryoshkaLoss(peer.model, peer, [8, 4, 2])
    queries, positives = sentence_vectors(4, 0), sentence_vectors(4, 1)
    task = task_of(loss=loss, scale=SCALE, dimensions=(8, 4, 2), negative_columns=None)
    network = network_of(task)
    network.predict = lambda batch: {"queries": queries, "passages": positives}
    targets = {"labels": SCORES[:, 0], "is_excluded": torch.zeros(4, 4, dtype=torch.bool)}
    batch = replace(batch_of(task), targets=targets)
    own = network(batch)["retrieval"] / count
    assert own.item() == pytest.approx(
        peer_loss(peer_losses, [queries, positives], labels), rel=1e-6
    )


def test_lists_of_scores_are_read_in_the_order_of_passages() -> None:
    rows = [
        {"query": "a", "positive": "b", "negative": ["c", "d e"], "scores": "[3, -1, 0.5]"},
        {"query": "x", "positive": "y", "negative": "z", "scores": [2, 1]},
    ]
    for loss, count in (("margin-mse", 3), ("kl", 2)):
        task = task_of(loss=loss, score_column="scores")
        batch = batch_of(task, rows)
        assert batch.targets["labels"].tolist() == [3, 2, -1, 0.5, 1]
        assert batch.counts == {"retrieval": count}
        halves = [network_of(task)(batch_of(task, [row]))["retrieval"] for row in rows]
        whole = network_of(task)(batch)["retrieval"].item()
        assert sum(halves).item() == pytest.approx(whole, rel=1e-9)
    for row, message in (
        ({**rows[0], "scores": [1, 2]}, "has no list of 3 numbers"),
        ({**rows[0], "scores": 4}, "has no list of 3 numbers"),
        ({**rows[0], "negative": None}, "the row has no negative"),
    ):
        with pytest.raises(DataError, match=message):
            task.examples([row], 0)


def test_losses_and_columns_that_do_not_fit_are_refused() -> None:
    table = read_rows([{"query": "a", "positive": "b", "negatives": ["c"], "scores": [2.0, 1.0]}])
    tokenizer = Tokenizer.from_vocabulary(PIECES)
    task = RetrievalTask.from_table(tokenizer, table, RetrievalSettings(loss="kl"))
    assert task.columns["score"] == "scores"
    assert task.best_metric == "mrr@10"
    pairs = read_rows([{"query": "a", "passage": "b", "score": 0.5}])
    for rows, loss, message in (
        (pairs, "margin-mse", "which column holds the scores"),
        (table, "cosent", "which column holds the scores"),
    ):
        with pytest.raises(DataError, match=message):
            RetrievalTask.from_table(tokenizer, rows, RetrievalSettings.parse({"loss": loss}))
    with pytest.raises(SettingsError, match="dimensions=64 is more than the encoder's"):
        network_of(task_of(dimensions=(64,)))
    with pytest.raises(SettingsError, match="each must be at least 1"):
        task_of(dimensions=(4, 0))
    for loss in ORDER_LOSSES:
        with pytest.raises(SettingsError, match=f"loss={loss} compares the rows of a batch"):
            task_of(loss=loss, score_column="s", negative_columns=None).check_batches([], 1)


@pytest.mark.parametrize("loss", ["in-batch", "margin-mse"])
def test_sparse_losses_are_equal_to_those_of_sentence_transformers(loss: str) -> None:
    losses = pytest.importorskip("sentence_transformers.sparse_encoder.losses")
    model = VectorModel()
    if loss == "in-batch":
        inner: Any = losses.SparseMultipleNegativesRankingLoss(model, scale=2.0)
        labels, count = None, 4
    else:
        inner = losses.SparseMarginMSELoss(model)
        labels, count = peer_of(loss)[1:]
    weights = {"document_regularizer_weight": 0.3, "query_regularizer_weight": 0.7}
    peer = losses.SpladeLoss(model, inner, **weights)
    queries, positives, negatives = (
        sentence_vectors(number, seed).relu() for number, seed in ((4, 0), (4, 1), (8, 2))
    )
    texts = [queries, positives, negatives[0::2], negatives[1::2]]
    total = sum(peer([{"vectors": vectors} for vectors in texts], labels).values())
    task = task_of(
        loss=loss,
        pooling="splade-max",
        query_regularization=0.7,
        passage_regularization=0.3,
        **({"scale": 2.0} if loss == "in-batch" else {}),
    )
    network = task.network(CONFIG).double()
    targets = distillation_targets()
    vectors = {"queries": queries, "passages": torch.cat([positives, negatives])}
    network.predict = lambda batch: vectors
    batch = replace(batch_of(task_of()), targets=targets, counts={"retrieval": count})
    own = network(batch)["retrieval"] / count
    assert own.item() == pytest.approx(total.item(), rel=1e-6)
    assert not task.additive
    assert task.settings.score_scale == (2.0 if loss == "in-batch" else 1.0)
    with pytest.raises(SettingsError, match="sparse vectors are trained with in-batch"):
        task_of(loss="cosent", score_column="s", pooling="splade-max")
    with pytest.raises(SettingsError, match="without sparse vectors"):
        task_of(query_regularization=0.1)

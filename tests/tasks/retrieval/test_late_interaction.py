"""Late interaction: scores and losses as a plain loop over texts and tokens computes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from bertworks.errors import DataError, SettingsError
from bertworks.packed import Batch, Packed
from bertworks.tasks.retrieval.late_network import LateInteractionNetwork
from bertworks.tasks.retrieval.losses import max_similarities
from bertworks.tasks.retrieval.settings import RetrievalSettings
from bertworks.tasks.retrieval.task import RetrievalTask
from bertworks.text.tokenizer import Tokenizer

from ..hard_cases import CONFIG, PIECES

PREFIXES = ["[unused0]", "[unused1]"]
TOKENIZER = Tokenizer.from_vocabulary([*PIECES, *PREFIXES, ".", ","])
QUERY_LENGTH, WIDTH = 8, 6
ROWS = [
    {"query": "a b", "positive": "c, d e.", "negative": "f", "scores": [2.0, 0.5]},
    {"query": "c", "positive": "d", "negative": ["g . h", "a"], "scores": [1.0, 3.0, -1.0]},
    {"query": "a b", "positive": "h", "negative": "x y z", "scores": [0.0, 0.1]},
    {"query": "e e e e e e e e e", "positive": "d", "negative": ".", "scores": [4.0, -2.0]},
]


def task_of(tokenizer: Tokenizer = TOKENIZER, **settings: Any) -> RetrievalTask:
    values = {
        **{"query_column": "query", "passage_column": "positive", "pooling": "none"},
        **{"negative_columns": ("negative",), "max_seq_length": 16},
        **{"query_length": QUERY_LENGTH, "projection_size": WIDTH},
        **settings,
    }
    return RetrievalTask(tokenizer, RetrievalSettings.parse(values))


def network_of(task: RetrievalTask) -> LateInteractionNetwork:
    torch.manual_seed(0)
    network = task.network(CONFIG.with_values(vocab_size=TOKENIZER.vocab_size)).double()
    assert isinstance(network, LateInteractionNetwork)
    return network


def batch_of(task: RetrievalTask) -> Batch:
    return task.collate(task.examples(ROWS, 0)).to("cpu")


def rows_of(network: LateInteractionNetwork, text: str, *, is_query: bool) -> torch.Tensor:
    """The vectors of one text alone, as Khattab and Zaharia (2020), §3.2 describe them."""
    ids = [
        TOKENIZER.token_to_id(piece) for piece in text.replace(",", " ,").replace(".", " .").split()
    ]
    start, end, mask = (TOKENIZER.token_to_id(one) for one in ("[CLS]", "[SEP]", "[MASK]"))
    prefix = TOKENIZER.token_to_id(PREFIXES[0 if is_query else 1])
    limit = QUERY_LENGTH if is_query else 16
    ids = [start, prefix, *ids[: limit - 3], end]
    if is_query:
        ids += [mask] * (QUERY_LENGTH - len(ids))
    hidden = network.encoder(Packed.from_arrays([np.array(ids)]).to("cpu"))
    weight = network.projection.state_dict(keep_vars=True)["steps.0.linear.weight"]
    kept = [at for at, one in enumerate(ids) if is_query or TOKENIZER.pieces[one] not in ",."]
    return normalize(hidden[kept] @ weight.T, dim=-1)


def plain_score(network: LateInteractionNetwork, query: str, passage: str) -> torch.Tensor:
    one, other = rows_of(network, query, is_query=True), rows_of(network, passage, is_query=False)
    total = torch.zeros((), dtype=torch.float64)
    for token in one:
        total = total + max(token @ each for each in other)
    return total


def negatives(row: dict[str, Any]) -> list[str]:
    value = row["negative"]
    return value if isinstance(value, list) else [value]


def plain_loss(network: LateInteractionNetwork, loss: str, scale: float) -> torch.Tensor:
    passages = [row["positive"] for row in ROWS] + [one for row in ROWS for one in negatives(row)]
    total = torch.zeros((), dtype=torch.float64)
    for number, row in enumerate(ROWS):
        query = row["query"]
        own = scale * plain_score(network, query, row["positive"])
        others = [scale * plain_score(network, query, one) for one in negatives(row)]
        teacher = torch.tensor(row["scores"], dtype=torch.float64)
        if loss == "in-batch":
            belonging = {one["positive"] for one in ROWS if one["query"] == query} | {query}
            scores = [own] + [
                scale * plain_score(network, query, one)
                for at, one in enumerate(passages)
                if at != number and one not in belonging
            ]
            total = total - torch.stack(scores).log_softmax(0)[0]
        elif loss == "margin-mse":
            for other, score in zip(others, teacher[1:], strict=True):
                total = total + ((own - other) - (teacher[0] - score)) ** 2
        else:
            student = torch.stack([own, *others]).log_softmax(0)
            expected = teacher.log_softmax(0)
            total = total + (expected.exp() * (expected - student)).sum()
    return total


@pytest.mark.parametrize("chunk_tokens", [None, 9])
@pytest.mark.parametrize("loss", ["in-batch", "margin-mse", "kl"])
def test_losses_and_gradients_equal_those_of_a_plain_loop(
    loss: str, chunk_tokens: int | None
) -> None:
    scores = {} if loss == "in-batch" else {"score_column": "scores"}
    task = task_of(loss=loss, scale=0.5, chunk_tokens=chunk_tokens, **scores)
    network = network_of(task)
    own = network(batch_of(task))["retrieval"]
    expected = plain_loss(network, loss, 0.5)
    assert own.item() == pytest.approx(expected.item(), rel=1e-6)
    parameters = list(network.parameters())
    gradients, expected_gradients = (
        torch.autograd.grad(each, parameters, allow_unused=True) for each in (own, expected)
    )
    for one, other in zip(gradients, expected_gradients, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, atol=1e-7, rtol=1e-6)


def test_predictions_are_scores_of_a_plain_loop() -> None:
    task = task_of()
    network, batch = network_of(task), batch_of(task)
    outputs = network.predict(batch)
    expected = [plain_score(network, row["query"], row["positive"]).item() for row in ROWS]
    predicted = [one["similarity"] for one in task.decode(outputs, batch).values()]
    assert predicted == pytest.approx(expected, rel=1e-9)
    evaluator = task.evaluator()
    evaluator.add(outputs, batch)
    passages = list(
        dict.fromkeys(one for row in ROWS for one in (row["positive"], *negatives(row)))
    )
    accuracies = []
    for query in dict.fromkeys(row["query"] for row in ROWS):
        best = max(passages, key=lambda one: plain_score(network, query, one).item())
        accuracies.append(best in {row["positive"] for row in ROWS if row["query"] == query})
    assert evaluator.result()["accuracy@1"] == pytest.approx(np.mean(accuracies))


def test_copies_of_a_token_do_not_change_a_score() -> None:
    torch.manual_seed(0)
    queries, passages = torch.randn(3, 4, 5), torch.randn(2, 6, 5)
    longer = torch.cat([passages, passages[:, :1].expand(-1, 3, -1)], 1)
    expected = torch.einsum("qtw,psw->qpts", queries, passages).amax(-1).sum(-1)
    for each in (passages, longer):
        torch.testing.assert_close(max_similarities(queries, each), expected)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"loss": "cosent", "score_column": "s"}, "late interaction is trained with in-batch"),
        ({"dimensions": (4,)}, "vectors of tokens"),
        ({"query_length": 64}, "query_length=64 is more than"),
    ],
)
def test_settings_of_other_vectors_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        network_of(task_of(**settings))


def test_long_texts_are_cut_or_refused() -> None:
    (*_, long) = task_of().examples(ROWS, 0)
    assert [len(one.input_ids) for one in long.sequences[:2]] == [QUERY_LENGTH, 4]
    assert long.truncated_tokens == 4
    with pytest.raises(DataError, match=f"12 tokens, but at most {QUERY_LENGTH} fit"):
        task_of(truncation="error").examples(ROWS, 0)


def test_long_texts_keep_their_end_if_the_tokenizer_truncates_on_the_left() -> None:
    left = Tokenizer(replace(TOKENIZER.definition, truncation_side="left"))
    task = task_of(left, max_seq_length=6)
    long = {"query": "a b c d e f g", "positive": "a b c d e", "negative": "f"}
    short = {"query": "c d e f g", "positive": "c d e", "negative": "f"}
    (truncated,), (whole,) = (task.examples([row], 0) for row in (long, short))
    assert truncated.content == whole.content
    assert truncated.truncated_tokens == 4

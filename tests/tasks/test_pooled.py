"""Long texts by windows: against each window put through the network alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as options
from hypothesis import strategies as st
from torch.nn import functional as F

from bertworks.data.rows import LocatedRow
from bertworks.errors import DataError, SettingsError
from bertworks.inference.engine import predict
from bertworks.inference.settings import EngineSettings
from bertworks.packed import Packed
from bertworks.tasks.classification import ClassificationTask
from bertworks.tasks.regression import RegressionTask
from bertworks.tasks.text_network import pool_sequences
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.windows import segment_windows
from tests.tasks.test_choice import CONFIG, TOKENIZER

LIMIT = 8
TEXTS = st.lists(st.sampled_from("abcd"), max_size=30).map(" ".join)
KINDS = [ClassificationTask, RegressionTask]


def task_of(
    kind: type, *, pair: bool = False, tokenizer: Tokenizer = TOKENIZER, **values: Any
) -> Any:
    columns = {"text_column": "text", "pair_column": "pair" if pair else None}
    settings: dict[str, Any] = {
        **columns,
        "label_column": "label",
        "max_seq_length": LIMIT,
        "truncation": "windows",
        **values,
    }
    if kind is ClassificationTask:
        settings["labels"] = ("0", "1")
    return kind.from_dict(settings, tokenizer)


def predicted(task: Any, network: Any, batch: Any) -> torch.Tensor:
    """What the network says of each row, `[rows, outputs]`, in the order of the rows."""
    found = network.predict(batch)
    values = found["logits"] if "logits" in found else found["values"][:, None]
    rows = batch.packed.sequence_row[batch.packed.sequence_number == 0]
    return values[rows.argsort()]


def by_hand(task: Any, network: Any, texts: list[Any], stride: int | None) -> torch.Tensor:
    """Each window alone through encoder and head, and then NumPy's mean or maximum."""
    rows = []
    for text in texts:
        parts = text if isinstance(text, tuple) else (text,)
        num_other_tokens = 2 if len(parts) == 1 else 3 + len(parts[0].split())
        windows = segment_windows(
            TOKENIZER,
            *TOKENIZER.segments(parts),
            max_length=LIMIT,
            stride=stride or LIMIT - num_other_tokens,
        )
        logits = []
        for one in windows:
            packed = Packed.from_arrays([one.input_ids], [one.token_type_ids]).to("cpu")
            hidden = network.encoder(packed)
            logits.append(network.head(network.encoder, hidden, packed)[0])
        stacked = torch.stack(logits)
        pooling = task.settings.window_pooling
        rows.append(stacked.mean(0) if pooling == "mean" else stacked.amax(0))
    return torch.stack(rows)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pooling", ["mean", "max"])
@given(
    texts=st.lists(TEXTS, min_size=1, max_size=4),
    stride=st.sampled_from([None, 1, 4]),
    chunk_tokens=st.sampled_from([8, 17, 8192]),
)
@options(max_examples=12, deadline=None)
def test_a_text_s_answer_is_pooled_from_its_windows(kind, pooling, texts, stride, chunk_tokens):
    torch.manual_seed(0)
    task = task_of(kind, stride=stride, window_pooling=pooling)
    network = task.network(CONFIG).double().eval()
    rows = [{"text": text, "label": len(text) % 2} for text in texts]
    examples = task.examples(rows, 0)
    assert all(example.truncated_tokens == 0 for example in examples)
    batch = task.collate(examples).to("cpu")
    assert batch.packed.max_seqlen <= LIMIT
    assert batch.counts == {task.name: len(texts)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertworks.tasks.text_network.CHUNK_TOKENS", chunk_tokens)
        outputs = predicted(task, network, batch)
        loss = network(batch)[task.name]
        ours = torch.autograd.grad(loss, list(network.head.parameters()))
    expected = by_hand(task, network, texts, stride)
    torch.testing.assert_close(outputs, expected)
    labels = torch.tensor([len(text) % 2 for text in texts])
    expected_loss = (
        F.cross_entropy(expected, labels, reduction="sum")
        if kind is ClassificationTask
        else (expected[:, 0] - labels).square().sum()
    )
    torch.testing.assert_close(loss.double(), expected_loss, rtol=1e-6, atol=1e-6)
    theirs = torch.autograd.grad(expected_loss, list(network.head.parameters()))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)
    assert sorted(task.decode(network.predict(batch), batch)) == list(range(len(texts)))


@pytest.mark.parametrize("factor", [1.0, -2.0])
def test_equal_windows_share_the_gradient_of_their_maximum(factor):
    packed = Packed.from_arrays([np.zeros(2, np.int64)] * 3)
    packed = replace(
        packed,
        sequence_row=torch.tensor([0, 0, 1]),
        sequence_number=torch.tensor([0, 1, 0]),
    )
    logits = torch.tensor([[0.3], [0.3], [-0.1]], requires_grad=True)
    found = pool_sequences(logits, packed, "max")
    torch.testing.assert_close(found, torch.tensor([[0.3], [-0.1]]))
    (factor * found).sum().backward()
    assert logits.grad is not None
    assert logits.grad.tolist() == [[factor / 2], [factor / 2], [factor]]


@pytest.mark.long
def test_gradients_are_the_same_in_parts(monkeypatch):
    task = task_of(ClassificationTask, stride=3)
    network = task.network(CONFIG.with_values(hidden_dropout_prob=0.0)).double()
    rows = [{"text": "a b c d " * n, "label": "1"} for n in (1, 9, 4)]
    batch = task.collate(task.examples(rows, 0)).to("cpu")
    gradients = []
    for chunk_tokens in (8192, 24):
        monkeypatch.setattr("bertworks.tasks.text_network.CHUNK_TOKENS", chunk_tokens)
        network.zero_grad()
        torch.manual_seed(1)
        network(batch)["classification"].backward()
        gradients.append([p.grad for p in network.parameters()])
    for whole, parts in zip(*gradients, strict=True):
        torch.testing.assert_close(whole, parts)


def test_second_text_of_a_pair_has_windows(monkeypatch):
    task = task_of(ClassificationTask, pair=True)
    network = task.network(CONFIG).double().eval()
    pairs = [("a b", "c d a b c d a"), ("d", "a"), ("a b c d", "")]
    rows = [{"text": a, "pair": b} for a, b in pairs]
    batch = task.collate(task.examples(rows, 0, labelled=False)).to("cpu")
    torch.testing.assert_close(
        predicted(task, network, batch), by_hand(task, network, pairs, None), rtol=1e-6, atol=1e-8
    )
    # A first text has half a window if the pair does not fit; truncated tokens are counted.
    truncated_example = task.example({"text": "a b c d a b", "pair": "c d a b"}, 0, labelled=False)
    short = task.example({"text": "a b", "pair": "c d a b"}, 0, labelled=False)
    assert truncated_example.content == short.content
    assert [len(ids) for ids, _ in truncated_example.sequences] == [8, 6]
    assert (truncated_example.truncated_tokens, short.truncated_tokens) == (4, 0)


def test_first_text_keeps_its_end_if_the_tokenizer_truncates_on_the_left():
    left = Tokenizer(replace(TOKENIZER.definition, truncation_side="left"))
    task = task_of(ClassificationTask, pair=True, tokenizer=left)
    long = task.example({"text": "a b c d b a", "pair": "c d a b"}, 0, labelled=False)
    short = task.example({"text": "b a", "pair": "c d a b"}, 0, labelled=False)
    assert long.content == short.content
    assert long.truncated_tokens == 4


def test_a_row_that_is_twice_in_a_batch_is_answered_twice():
    task = task_of(ClassificationTask)
    network = task.network(CONFIG).double().eval()
    one, other = task.examples(
        [{"text": "a b c " * 5, "label": "0"}, {"text": "d", "label": "1"}], 0
    )
    batch = task.collate([one, other, one]).to("cpu")
    logits = network.predict(batch)["logits"]
    torch.testing.assert_close(logits[1], logits[2])
    assert batch.targets["labels"].tolist() == [1, 0, 0]


@pytest.mark.long
def test_a_text_of_a_hundred_thousand_words_needs_no_more_memory(monkeypatch):
    task = task_of(ClassificationTask, max_seq_length=32)
    network = task.network(CONFIG).eval()
    sizes = []
    network.encoder.register_forward_hook(lambda _, given, __: sizes.append(given[0].num_tokens))
    monkeypatch.setattr("bertworks.tasks.text_network.CHUNK_TOKENS", 1000)
    words = np.random.default_rng(0).choice(list("abcd"), 100_000)
    rows = [LocatedRow("f", {"text": text}) for text in ("a b", " ".join(words), "c")]
    answers = [
        predicted for _, predicted in predict(network, task, rows, EngineSettings(batch_tokens=500))
    ]
    assert len(answers) == 3
    assert sum(sizes) == 100_000 + 2 * -(-100_000 // 30) + 4 + 3
    assert max(sizes) <= 1000
    assert sum(answers[1]["probabilities"].values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"both_orders": True, "pair": True}, "'windows' and both_orders=true exclude each other"),
        ({"truncation": "error", "stride": 3}, "stride=3 does nothing without truncation=windows"),
        ({"window_pooling": "sum"}, "window_pooling='sum'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(values, message):
    with pytest.raises(SettingsError, match=message):
        task_of(ClassificationTask, **values)


def test_a_stride_that_leaves_tokens_out_is_refused():
    with pytest.raises(DataError, match="f:2: stride=7 is not between 1 and the 6 tokens"):
        task_of(ClassificationTask, stride=7).example(
            {"text": "a " * 9, "label": "0"}, 0, where="f:2"
        )

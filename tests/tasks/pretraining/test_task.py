"""Pre-training end to end: batches, both losses, measures, fill-ins."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bertworks.errors import DataError
from bertworks.inference.evaluate import evaluate
from bertworks.nn.config import EncoderConfig
from bertworks.packed import Batch, Padded
from bertworks.tasks.pretraining.instances import InstanceSettings
from bertworks.tasks.pretraining.masking import MaskingSettings
from bertworks.tasks.pretraining.network import PretrainingNetwork
from bertworks.tasks.pretraining.source import PretrainingExample, PretrainingSource
from bertworks.tasks.pretraining.task import PretrainingTask
from bertworks.text.tokenizer import Tokenizer

from .conftest import CLS, MASK, SEP, VOCAB_SIZE, ToyCorpus

MakeCorpus = Callable[..., ToyCorpus]


def config(**values: Any) -> EncoderConfig:
    sizes = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
    }
    return EncoderConfig(**{**sizes, **values})


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny networks are faster so
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def task(tokenizer: Any) -> PretrainingTask:
    return PretrainingTask(tokenizer, InstanceSettings(max_seq_length=64))


@pytest.fixture
def examples(make_corpus: MakeCorpus, tokenizer: Any) -> list[PretrainingExample]:
    corpus = make_corpus(20)
    instances = InstanceSettings(max_seq_length=64)
    source = PretrainingSource(corpus, np.arange(20), tokenizer, instances, seed=1)
    return source.block(0, 0)[:40]


@pytest.fixture
def network(task: PretrainingTask) -> PretrainingNetwork:
    torch.manual_seed(0)
    return task.network(config()).eval()


# --------------------------------------------------------------------------------------- batches


def test_collate_packs_in_order_of_length_and_masks(
    task: PretrainingTask, examples: list[PretrainingExample]
) -> None:
    batch = task.collate(examples)
    packed, edges = batch.packed, batch.packed.cu_seqlens
    lengths = np.diff(edges)
    assert np.all(np.diff(lengths) >= 0)
    assert sorted(packed.sequence_row) == list(range(40))
    positions, labels = batch.targets["masked_positions"], batch.targets["masked_labels"]
    original_ids = packed.input_ids.copy()
    original_ids[positions] = labels
    for index, row in enumerate(packed.sequence_row):
        own = slice(edges[index], edges[index + 1])
        example = examples[row]
        np.testing.assert_array_equal(original_ids[own], example.input_ids)
        is_second = np.arange(example.num_tokens) >= example.first_segment
        np.testing.assert_array_equal(packed.token_type_ids[own], is_second)
        assert batch.targets["next_sentence_labels"][index] == example.next_sentence_label
        is_in_sequence = (positions >= edges[index]) & (positions < edges[index + 1])
        assert is_in_sequence.sum() == max(1, round(example.num_tokens * 0.15))
    assert batch.counts == {"mlm": len(positions), "nsp": 40}
    assert (packed.input_ids == MASK).sum() > 0.6 * len(positions)


def test_a_batch_does_not_change_its_examples(
    task: PretrainingTask, examples: list[PretrainingExample]
) -> None:
    copies = [example.input_ids.copy() for example in examples]
    task.collate(examples[:1])
    task.collate(examples)
    for example, ids in zip(examples, copies, strict=True):
        np.testing.assert_array_equal(example.input_ids, ids)


def test_masks_do_not_depend_on_the_batch(
    task: PretrainingTask, examples: list[PretrainingExample]
) -> None:
    def rows(batch: Batch, numbers: list[int]) -> dict[int, list[int]]:
        ids, edges = batch.packed.input_ids, batch.packed.cu_seqlens
        owners = enumerate(batch.packed.sequence_row)
        return {
            numbers[row]: ids[edges[start] : edges[start + 1]].tolist() for start, row in owners
        }

    whole = rows(task.collate(examples), list(range(40)))
    backwards = rows(task.collate(examples[::-1]), list(range(40))[::-1])
    halves = [
        rows(task.collate(examples[start : start + 7]), list(range(start, 40))) for start in (0, 20)
    ]
    assert whole == backwards
    for half in halves:
        assert half == {row: whole[row] for row in half}


# ---------------------------------------------------------------------------------------- losses


def test_losses_are_sums_over_masked_positions_and_sequences(
    network: PretrainingNetwork, task: PretrainingTask, examples: list[PretrainingExample]
) -> None:
    batch = task.collate(examples).to("cpu")
    losses, outputs = network(batch), network.predict(batch)
    mlm = F.cross_entropy(outputs["mlm_logits"], batch.targets["masked_labels"], reduction="sum")
    nsp = F.cross_entropy(
        outputs["nsp_logits"], batch.targets["next_sentence_labels"], reduction="sum"
    )
    torch.testing.assert_close(losses, {"mlm": mlm, "nsp": nsp})
    halves = [network(task.collate(half).to("cpu")) for half in (examples[:13], examples[13:])]
    for name, loss in losses.items():
        torch.testing.assert_close(loss, halves[0][name] + halves[1][name], rtol=1e-5, atol=1e-3)


def test_every_parameter_learns(
    network: PretrainingNetwork, task: PretrainingTask, examples: list[PretrainingExample]
) -> None:
    batch = task.collate(examples).to("cpu")
    sum(network(batch).values(), torch.zeros(())).backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_a_batch_without_masks_has_a_loss_of_zero(
    network: PretrainingNetwork, tokenizer: Any
) -> None:
    task = PretrainingTask(tokenizer, masking=MaskingSettings(unit="whole-word"))
    ids = np.array([CLS, 300, 800, SEP, 301, 801, SEP])
    batch = task.collate([PretrainingExample(ids, 4, next_sentence_label=0, key=1)]).to("cpu")
    assert batch.counts == {"mlm": 0, "nsp": 1}
    losses = network(batch)
    assert losses["mlm"].item() == 0
    sum(losses.values(), torch.zeros(())).backward()


@pytest.mark.parametrize("nsp", [True, False])
def test_a_padded_batch_gives_what_a_pack_does(
    task: PretrainingTask, examples: list[PretrainingExample], nsp: bool
) -> None:
    examples = sorted(examples[:4], key=lambda one: len(one.input_ids))  # as in a pack
    batch = task.collate(examples).to("cpu")
    torch.manual_seed(0)
    network = PretrainingNetwork(config(), next_sentence=nsp).eval()
    ids, mask = batch.packed.to_padded()
    types, _ = batch.packed.to_padded(batch.packed.token_type_ids)
    padded_outputs, expected = (
        network.padded(Padded.from_tensors(ids, mask, types)),
        network.predict(batch),
    )
    assert set(padded_outputs) == (
        {"prediction_logits", "seq_relationship_logits"} if nsp else {"logits"}
    )
    mlm = padded_outputs["prediction_logits" if nsp else "logits"][mask]
    masked_logits = mlm[batch.targets["masked_positions"]]
    torch.testing.assert_close(masked_logits, expected["mlm_logits"], rtol=0, atol=1e-6)
    if nsp:
        pairs = padded_outputs["seq_relationship_logits"]
        torch.testing.assert_close(pairs, expected["nsp_logits"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("format_", ["full-sentences", "doc-sentences"])
def test_formats_without_pairs_have_no_next_sentence_head(
    make_corpus: MakeCorpus, tokenizer: Any, format_: str
) -> None:
    instances = InstanceSettings(format=format_, max_seq_length=64)  # type: ignore[arg-type]
    task = PretrainingTask(tokenizer, instances)
    network = task.network(config())
    assert network.nsp_head is None
    source = PretrainingSource(make_corpus(9), np.arange(9), tokenizer, instances, seed=1)
    batch = task.collate(source.block(0, 0)[:8]).to("cpu")
    assert set(batch.counts) == {"mlm"}
    assert not batch.packed.token_type_ids.any()
    losses = network(batch)
    assert set(losses) == {"mlm"}
    losses["mlm"].backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
    evaluator = task.evaluator()
    evaluator.add(network.predict(batch), batch)
    assert set(evaluator.result()) == {"loss", "mlm_loss", "mlm_perplexity", "mlm_accuracy"}


@pytest.mark.long
def test_training_lowers_both_losses(make_corpus: MakeCorpus, tokenizer: Any) -> None:
    """Documents that each repeat a few words: both losses fall far below chance."""
    texts = [[[200 + 5 * n, 201 + 5 * n] * 4] * 40 for n in range(12)]
    instances = InstanceSettings(max_seq_length=32)
    task = PretrainingTask(tokenizer, instances)
    source = PretrainingSource(ToyCorpus(texts), np.arange(12), tokenizer, instances, seed=1)
    torch.manual_seed(0)
    plain = config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.1)
    network = task.network(plain)
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)

    def measure() -> dict[str, float]:
        network.eval()
        evaluator = task.evaluator()
        with torch.no_grad():
            for start in range(0, 200, 50):
                batch = task.collate(source.block(99, 0)[start : start + 50]).to("cpu")
                evaluator.add(network.predict(batch), batch)
        network.train()
        return evaluator.result()

    initial_metrics = measure()
    assert initial_metrics["mlm_loss"] == pytest.approx(math.log(VOCAB_SIZE), rel=0.1)
    assert initial_metrics["nsp_loss"] == pytest.approx(math.log(2), rel=0.5)
    for epoch in range(16):
        block = source.block(epoch, 0)
        for start in range(0, len(block) - 15, 16):
            batch = task.collate(block[start : start + 16]).to("cpu")
            losses = network(batch)
            loss = losses["mlm"] / batch.counts["mlm"] + losses["nsp"] / batch.counts["nsp"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    final_metrics = measure()
    assert final_metrics["mlm_loss"] < 2
    assert final_metrics["mlm_accuracy"] > 0.5
    assert final_metrics["nsp_accuracy"] > final_metrics["nsp_majority"] + 0.1


# -------------------------------------------------------------------------------------- measures


def test_a_word_beyond_the_budget_leaves_nothing_to_measure(tokenizer: Any) -> None:
    instances = InstanceSettings(format="full-sentences", max_seq_length=64)
    task = PretrainingTask(tokenizer, instances, MaskingSettings(unit="whole-word"))
    word = np.array([CLS, 300, *[800] * 5, SEP])  # six pieces; one may be predicted
    network = task.network(config()).eval()
    with pytest.raises(DataError, match=r"can be predicted\. Mask .*masking\.unit=token"):
        evaluate(network, task, [PretrainingExample(word, len(word), key=key) for key in range(3)])


def test_measures_are_means_over_everything_added(
    network: PretrainingNetwork, task: PretrainingTask, examples: list[PretrainingExample]
) -> None:
    evaluator = task.evaluator()
    for part in (examples[:7], examples[7:]):
        batch = task.collate(part).to("cpu")
        evaluator.add(network.predict(batch), batch)
    result = evaluator.result()
    whole = task.collate(examples).to("cpu")
    losses, outputs = network(whole), network.predict(whole)
    right = outputs["mlm_logits"].argmax(-1) == whole.targets["masked_labels"]
    labels = whole.targets["next_sentence_labels"]
    not_next = labels.float().mean().item()
    expected = {
        "mlm_loss": losses["mlm"].item() / whole.counts["mlm"],
        "mlm_accuracy": right.float().mean().item(),
        "nsp_loss": losses["nsp"].item() / 40,
        "nsp_accuracy": (outputs["nsp_logits"].argmax(-1) == labels).float().mean().item(),
        "nsp_majority": max(not_next, 1 - not_next),
    }
    expected["mlm_perplexity"] = math.exp(expected["mlm_loss"])
    expected["loss"] = expected["mlm_loss"] + expected["nsp_loss"]
    assert result == pytest.approx(expected, rel=1e-4)


# -------------------------------------------------------------------------------------- fill-ins

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "mat", "."]


@pytest.fixture
def reader() -> PretrainingTask:
    return PretrainingTask(Tokenizer.from_vocabulary(PIECES), max_length=16, top_k=3)


def test_typed_masks_are_filled(reader: PretrainingTask) -> None:
    torch.manual_seed(0)
    network = reader.network(config(vocab_size=len(PIECES))).eval()
    rows = [
        {"text": "The [MASK] sat on the [MASK]."},
        {"text": "the cat"},
        {"text": "the [MASK]", "pair": "sat [MASK] ."},
    ]
    inputs = [reader.example(row, 10 + at, labelled=False) for at, row in enumerate(rows)]
    batch = reader.collate(inputs).to("cpu")
    assert not batch.counts
    assert (batch.packed.input_ids == 4).sum() == 4  # nothing but what was typed
    outputs = network.predict(batch)
    answers = reader.decode(outputs, batch)
    assert {row: len(answer["masks"]) for row, answer in answers.items()} == {10: 2, 11: 0, 12: 2}
    assert [row for row in answers if "next_sentence_probability" in answers[row]] == [12]
    assert 0 < answers[12]["next_sentence_probability"] < 1
    single_batch = reader.collate(inputs[:1]).to("cpu")
    probabilities = network.predict(single_batch)["mlm_logits"].softmax(-1)
    for mask, row in zip(answers[10]["masks"], probabilities, strict=True):
        assert [entry["id"] for entry in mask] == row.topk(3).indices.tolist()
        assert [entry["token"] for entry in mask] == [PIECES[entry["id"]] for entry in mask]
        predicted = [entry["probability"] for entry in mask]
        assert predicted == pytest.approx(row.topk(3).values.tolist(), rel=1e-4)


def test_bad_rows_are_named(reader: PretrainingTask) -> None:
    with pytest.raises(DataError, match=r"rows\.tsv:7: the row has no text"):
        reader.example({"sentence": "the cat"}, 0, where="rows.tsv:7")
    with pytest.raises(DataError, match="16"):
        reader.example({"text": "the cat " * 20}, 0)


def test_typed_rows_cannot_be_measured(reader: PretrainingTask) -> None:
    network = reader.network(config(vocab_size=len(PIECES)))
    batch = reader.collate([reader.example({"text": "the [MASK]"}, 0)]).to("cpu")
    with pytest.raises(DataError, match="no labels for their"):
        reader.evaluator().add(network.predict(batch), batch)


def test_a_task_is_rebuilt_from_its_description(tokenizer: Any) -> None:
    task = PretrainingTask(
        tokenizer,
        InstanceSettings(format="sentence-order", max_seq_length=200),
        MaskingSettings(unit="span", mlm_probability=0.2),
        max_length=300,
    )
    rebuilt_task = PretrainingTask.from_dict(task.to_dict(), tokenizer)
    assert rebuilt_task.to_dict() == task.to_dict()
    assert rebuilt_task.instances == task.instances
    assert rebuilt_task.masking == task.masking

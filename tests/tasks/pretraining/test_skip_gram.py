"""Skip-gram: its pairs and its loss equal plain loops'; its draws; what it learns."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import bertworks as bw
from bertworks.analysis.word_vectors import WordVectors
from bertworks.data.prepare import prepare
from bertworks.errors import DataError, SettingsError
from bertworks.inference.evaluate import evaluate
from bertworks.loading import load
from bertworks.nn.config import STATIC_SETTINGS, EncoderConfig
from bertworks.tasks.pretraining import hashing
from bertworks.tasks.pretraining.instances import InstanceSettings
from bertworks.tasks.pretraining.settings import SkipGramSettings
from bertworks.tasks.pretraining.skip_gram import SkipGramNetwork, SkipGramTask
from bertworks.tasks.pretraining.source import PretrainingExample
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import train_vocabulary
from bertworks.training.recipe import read_recipe
from tests.training.letters import WORD_PIECES, Lines
from tests.training.test_kill import assert_same
from tests.training.tiny_run import tiny_run

INSTANCES = InstanceSettings(format="full-sentences")


def _task(counts: np.ndarray, **settings: Any) -> SkipGramTask:
    tokenizer = Tokenizer.from_vocabulary(WORD_PIECES)
    task = SkipGramTask(tokenizer, INSTANCES, SkipGramSettings(**settings), "nowhere")
    task.__dict__["counts"] = counts  # of no corpus
    return task


def _counts() -> np.ndarray:
    counts = np.random.default_rng(0).integers(1, 1000, len(WORD_PIECES)).astype(float)
    counts[:5] = 0  # the special pieces
    return counts


def _examples(lengths: tuple[int, ...], seed: int = 1) -> list[PretrainingExample]:
    random = np.random.default_rng(seed)
    ids = [random.integers(5, len(WORD_PIECES), length) for length in lengths]
    sequences = [np.concatenate([[2], sequence, [3]]) for sequence in ids]
    return [
        PretrainingExample(sequence, len(sequence), key=n + 7)
        for n, sequence in enumerate(sequences)
    ]


def test_pairs_are_those_of_a_plain_loop() -> None:
    counts = _counts()
    task = _task(counts, window=3, negatives=2, subsample=0.01)
    examples = _examples((12, 4, 30, 1))
    batch = task.collate(examples)
    targets, packed = batch.targets, batch.packed
    pairs = set()
    for centre, pieces in zip(targets["centres"], targets["candidates"], strict=True):
        sequence = int(np.searchsorted(packed.cu_seqlens, centre, side="right")) - 1
        row, position = packed.sequence_row[sequence], packed.position_ids[centre]
        assert packed.input_ids[centre] not in (2, 3)
        pairs.add((int(row), int(position), *pieces.tolist()))
    expected = set()
    ends = np.cumsum(counts**0.75) / (counts**0.75).sum()
    for row, example in enumerate(examples):
        tokens = []
        for position, piece in enumerate(example.input_ids.tolist()):
            bits = hashing.draw(np.array([example.key], np.uint64), [position])
            if not counts[piece]:
                continue
            share = counts[piece] / counts.sum()
            if hashing.uniform(bits)[0] < math.sqrt(0.01 / share) + 0.01 / share:
                reach = 1 + hashing.integers_below(hashing.mix(bits ^ np.uint64(1 << 60)), 3)[0]
                tokens.append((position, piece, bits, reach))
        for index, (position, _, bits, reach) in enumerate(tokens):
            for other in range(max(0, index - reach), min(len(tokens), index + reach + 1)):
                if other != index:
                    other_position, piece = tokens[other][:2]
                    draws = hashing.uniform(hashing.draw(bits, other_position * 2 + np.arange(2)))
                    expected.add((row, position, *(int((ends <= x).sum()) for x in draws), piece))
    assert pairs == expected
    assert len(pairs) == batch.counts["skip_gram"] == len(targets["centres"])
    assert len(pairs) > 30


def test_a_sequence_s_pairs_do_not_depend_on_its_batch() -> None:
    task, examples = _task(_counts(), subsample=0.01), _examples((12, 30))
    whole_batch = task.collate(examples)
    single_batches = [task.collate([example]) for example in examples]
    candidates = [part.targets["candidates"] for part in single_batches]
    assert whole_batch.counts["skip_gram"] == sum(map(len, candidates))
    rows = np.concatenate(candidates).tolist()
    assert sorted(whole_batch.targets["candidates"].tolist()) == sorted(rows)


def test_tokens_are_kept_and_drawn_with_the_papers_probabilities() -> None:
    counts = _counts()
    task = _task(counts, window=1, negatives=5, subsample=0.005)
    batch = task.collate(_examples((500,) * 40))
    draw_counts = np.bincount(batch.targets["candidates"][:, :-1].ravel(), minlength=len(counts))
    probabilities = counts**0.75 / (counts**0.75).sum()
    total = draw_counts.sum()
    assert (
        np.abs(draw_counts - total * probabilities) < 5 * np.sqrt(total * probabilities) + 1e-9
    ).all()
    share = counts / counts.sum()
    keep_probabilities = np.minimum(
        1, np.sqrt(0.005 / np.maximum(share, 1e-9)) + 0.005 / np.maximum(share, 1e-9)
    )
    piece_counts = np.bincount(batch.packed.input_ids, minlength=len(counts))
    centres = np.unique(batch.targets["centres"])
    centre_counts = np.bincount(batch.packed.input_ids[centres], minlength=len(counts))
    expected = piece_counts * keep_probabilities * (counts > 0)
    assert (np.abs(centre_counts - expected) < 5 * np.sqrt(expected) + 1).all()


def test_the_loss_is_that_of_a_plain_loop() -> None:
    torch.manual_seed(0)
    size = {"vocab_size": len(WORD_PIECES), "hidden_size": 6}
    network = SkipGramNetwork(EncoderConfig.parse({**STATIC_SETTINGS, **size}))
    assert not network.contexts.weight.any()
    torch.nn.init.normal_(network.contexts.weight)
    batch = _task(_counts(), negatives=4).collate(_examples((20, 9))).to("cpu")
    loss = network(batch)["skip_gram"]
    table, total, clashes = network.encoder.embeddings.word_embeddings.weight, 0.0, 0
    for centre, (*negatives, other) in zip(
        batch.targets["centres"].tolist(), batch.targets["candidates"].tolist(), strict=True
    ):
        vector = table[batch.packed.input_ids[centre]]
        total -= F.logsigmoid(vector @ network.contexts.weight[other]).item()
        for piece in negatives:
            clashes += piece == other
            if piece != other:
                total -= F.logsigmoid(-(vector @ network.contexts.weight[piece])).item()
    assert clashes and loss.item() == pytest.approx(total, rel=1e-4)
    evaluator = _task(_counts()).evaluator()
    scores = network.predict(batch)["mlm_logits"]
    evaluator.add({"mlm_logits": scores}, batch)
    accuracy = (scores[:, -1:] > scores[:, :-1]).all(1).float().mean().item()
    assert evaluator.result()["skip_gram_accuracy"] == pytest.approx(accuracy)


def test_an_evaluation_without_pairs_is_an_error_with_advice() -> None:
    torch.manual_seed(0)
    size = {"vocab_size": len(WORD_PIECES), "hidden_size": 6}
    network = SkipGramNetwork(EncoderConfig.parse({**STATIC_SETTINGS, **size}))
    task = _task(_counts(), subsample=1e-12)
    with pytest.raises(DataError, match=r"can be predicted\. Keep .*skip_gram\.subsample"):
        evaluate(network, task, _examples((12, 4)))


ANIMALS, VEHICLES = ("cat", "dog", "cow", "pig"), ("car", "bus", "van", "ship")


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Animals eat, run and sleep; vehicles drive, stop and start."""
    random = np.random.default_rng(0)
    lines = []
    for number in range(400):
        kinds = ((ANIMALS, ("eats", "runs", "sleeps")), (VEHICLES, ("drives", "stops", "starts")))
        names, verbs = kinds[number % 2]
        one, other, *does = random.choice(names), random.choice(names), *random.choice(verbs, 2)
        lines.append(f"the {one} {does[0]} and the {other} {does[1]}." + "\n" * (number % 10 == 9))
    directory = tmp_path_factory.mktemp("sentences")
    (directory / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    prepare(
        directory / "text.txt",
        tokenizer=train_vocabulary(lines, size=300),
        out=directory / "data",
    )
    return directory / "data"


SETTINGS: dict[str, Any] = {
    **{"objective": "skip_gram", "model": {"hidden_size": 16}},
    "instances": {"format": "full-sentences"},
    **{"skip_gram": {"window": 2, "subsample": 0.1}, "learning_rate": 2e-2, "steps": 120},
    **{"phases": [{"max_seq_length": 16}], "precision": "fp32"},
    **{"batch_size": 16, "checkpoint_every": 50, "eval_every": 60, "log_every": 20},
}


@pytest.mark.long
def test_words_of_the_same_neighbours_come_near_and_a_run_resumes_exactly(
    sentences: Path, tmp_path: Path
) -> None:
    whole = tiny_run(sentences, tmp_path / "whole", **SETTINGS)
    with pytest.raises(RuntimeError, match="switched off"):
        tiny_run(sentences, tmp_path / "run", **SETTINGS, progress=Lines(stop_after=80))
    assert tiny_run(sentences, tmp_path / "run", **SETTINGS).resumed_step == 50
    assert_same(tmp_path / "whole", tmp_path / "run")
    assert whole.metrics["skip_gram_loss"] < 1.76  # at first log 6 = 1.79, all scores being zero
    model = load(whole.run.model)
    assert model.task is None and not len(model.encoder.layers)
    vectors = WordVectors.of_model(model)
    for words in (ANIMALS, VEHICLES):
        for word in words:
            nearest = [name for name, _ in vectors.neighbours([word], top_k=3)]
            assert set(nearest) <= set(words), (word, nearest)
    one, other = model.embed(["cat and dog", "dog and cat"], precision="fp32")
    assert np.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"num_hidden_layers": 2}}, "needs num_hidden_layers=0 and positions=none"),
        ({"model": {"positions": "learned"}}, "needs num_hidden_layers=0 and positions=none"),
        ({"instances": {"format": "segment-pair"}}, "skip_gram does not use pairs"),
        ({"masking": {"mlm_probability": 0.3}}, "does nothing with objective=skip_gram"),
        ({"objective": "mlm", "skip_gram": {"window": 2}}, "skip_gram needs objective=skip_gram"),
    ],
)
def test_unsuitable_settings_are_errors(changes: dict[str, Any], message: str) -> None:
    values = {"objective": "skip_gram", "instances": {"format": "full-sentences"}, **changes}
    with pytest.raises(SettingsError, match=message):
        read_recipe(None, data="x", steps=1, **values)


def test_an_estimate_needs_the_corpus(sentences: Path) -> None:
    values = ["objective=skip_gram", "instances.format=full-sentences", "model.hidden_size=8"]
    with pytest.raises(SettingsError, match="counts the pieces of a corpus"):
        bw.estimate("tiny", values, machine="cpu2")
    estimate = bw.estimate("tiny", [*values, f"data={sentences}"], machine="cpu2")
    assert estimate.parameters > 0

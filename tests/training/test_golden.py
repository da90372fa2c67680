"""The loss curve of the loop does not change.

Two guards: a curve kept in a file, and Hugging Face's BERT trained in the plainest PyTorch loop on
the same batches, padded.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from bertworks.model import Model
from bertworks.nn.config import EncoderConfig
from bertworks.packed import Batch
from bertworks.runs.run_directory import RunDirectory
from bertworks.tasks.pretraining.instances import InstanceSettings
from bertworks.tasks.pretraining.source import PretrainingSource
from bertworks.tasks.pretraining.task import PretrainingTask
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.fit import fit
from bertworks.training.plan import Phase
from bertworks.training.random_state import seed_everything
from bertworks.training.settings import FitSettings
from bertworks.training.stream import BatchSize, stream

from .plain_loop import PlainLoop

CURVE = Path(__file__).with_name("golden_curve.json")
STEPS = 30

# Random numbers and data are the same everywhere; sums of floats are not, and thirty steps widen
# the difference.
TOLERANCE = 1e-3


class Chains:
    """Documents in memory, each token mostly decided by the one before; the same everywhere."""

    num_documents = 60
    first_id, pieces = 104, 90

    def __init__(self) -> None:
        rng = Random(0)
        self.documents = []
        for _ in range(self.num_documents):
            lengths = [rng.randrange(4, 15) for _ in range(rng.randrange(4, 12))]
            ids = [rng.randrange(self.pieces)]
            while len(ids) < sum(lengths):
                likely = (5 * ids[-1] + 3) % self.pieces
                ids.append(likely if rng.random() < 0.8 else rng.randrange(self.pieces))
            offsets = np.cumsum([0, *lengths])
            self.documents.append((np.array(ids, np.uint16) + self.first_id, offsets))

    @property
    def document_lengths(self) -> np.ndarray:
        return np.array([len(ids) for ids, _ in self.documents])

    @property
    def originals(self) -> np.ndarray:
        return np.arange(self.num_documents)

    def document(self, number: int, /) -> tuple[np.ndarray, np.ndarray]:
        return self.documents[number]


def tokenizer() -> Tokenizer:
    unused = [f"[unused{number}]" for number in range(99)]
    pieces = [f"{first}{second}" for first in "abcdefghi" for second in "abcdefghij"]
    special = ["[PAD]", *unused, "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return Tokenizer.from_vocabulary([*special, *pieces])


def settings(**values: object) -> FitSettings:
    return FitSettings.parse(
        {
            "seed": 1,
            "batch_size": 16,
            "learning_rate": 2e-3,
            "warmup": 5,
            "weight_decay": 0.1,
            "log_every": 1,
            "tensorboard": False,
            **values,
        }
    )


def train(
    out: Path, *, dropout: float, **values: object
) -> tuple[list[float], PretrainingTask, PretrainingSource]:
    """A BERT of one small layer, thirty steps; its losses, step by step."""
    instances = InstanceSettings(max_seq_length=40)
    documents = Chains()
    task = PretrainingTask(tokenizer(), instances)
    source = PretrainingSource(documents, documents.originals, task.tokenizer, instances, seed=5)
    config = EncoderConfig(
        vocab_size=task.tokenizer.vocab_size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    seed_everything(1)
    network = task.network(config)
    Model(task.tokenizer, task, network).save(out / "start")
    run = RunDirectory.open(out / "run", settings(**values))
    fit(network, task, [Phase(source, STEPS)], settings=settings(**values), run=run)
    run.close()
    losses = [line["loss"] for line in run.lines() if line["kind"] == "train"]
    return losses, task, source


@pytest.mark.long
def test_the_curve_is_the_one_in_the_file(tmp_path: Path) -> None:
    """To make the file anew, delete it, run this test, and look at what changed."""
    losses, _, _ = train(tmp_path, dropout=0.1)
    if not CURVE.exists():
        CURVE.write_text(json.dumps([round(loss, 6) for loss in losses]) + "\n")
    assert losses == pytest.approx(json.loads(CURVE.read_text()), rel=TOLERANCE)
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.3, "it learns"


@pytest.mark.long
def test_the_curve_is_that_of_hugging_face_in_a_plain_loop(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    ours, task, source = train(tmp_path, dropout=0.0, micro_batch_size=6)

    peer = transformers.BertForPreTraining.from_pretrained(tmp_path / "start")
    loop = PlainLoop(peer, weight_decay=0.1)
    theirs = []
    batches = stream(source, task.collate, BatchSize(16))
    for step, batch in enumerate(itertools.islice(batches, STEPS)):
        (whole,) = batch.micro_batches
        lr = 2e-3 * (step / 5 if step < 5 else 1 - step / STEPS)
        theirs.append(loop.step(padded(whole), lr))
    assert ours == pytest.approx(theirs, rel=TOLERANCE)


def padded(batch: Batch) -> dict[str, torch.Tensor]:
    """The batch as Hugging Face takes it: padded, with -100 where nothing is to be guessed."""
    packed = batch.packed
    labels = np.full(packed.num_tokens, -100)
    labels[batch.targets["masked_positions"]] = batch.targets["masked_labels"]
    ids, mask = packed.to_padded()
    types, _ = packed.to_padded(packed.token_type_ids)
    all_labels, _ = packed.to_padded(labels, fill=-100)
    order = np.argsort(packed.sequence_row)  # `to_padded` gives rows in their own order
    arrays = {
        "input_ids": ids,
        "attention_mask": mask.astype(np.int64),
        "token_type_ids": types,
        "labels": all_labels,
        "next_sentence_label": batch.targets["next_sentence_labels"][order],
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}

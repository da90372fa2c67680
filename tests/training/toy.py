"""A task small enough to write the loop out: two losses, dropout, sequences of many lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bertworks.data.rows import Row
from bertworks.nn.config import EncoderConfig
from bertworks.packed import Batch, Packed
from bertworks.tasks.network import Network
from bertworks.tasks.task import Evaluator, Prediction, Task

from .toy_source import VOCAB, ToyExample, ToySource


class ToyNetwork(Network):
    """Predicts each token's parity, and a label of the whole row."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCAB, 8)
        self.norm = nn.LayerNorm(8)
        self.dropout = nn.Dropout(dropout)
        self.token_head = nn.Linear(8, 2)
        self.row_head = nn.Linear(8, 2)
        self.unused = nn.Linear(3, 3)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        outputs = self.predict(batch)
        ids = batch.packed.input_ids
        loss = {
            "token": nn.functional.cross_entropy(outputs["token"], ids % 2, reduction="sum"),
            "row": nn.functional.cross_entropy(
                outputs["row"], batch.targets["labels"], reduction="sum"
            ),
        }
        if bool((ids == VOCAB - 1).any()):  # the poisoned example
            loss["row"] = loss["row"] * float("nan")
        return loss

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        hidden = self.dropout(self.norm(self.words(batch.packed.input_ids)))
        return {
            "token": self.token_head(hidden),
            "row": self.row_head(hidden[batch.packed.first_tokens]),
        }


class ToyTask(Task[ToyExample]):
    name = "toy"
    best_metric = "loss"

    def network(self, config: EncoderConfig) -> Network:
        return ToyNetwork()

    def example(self, row: Row, index: int, *, where: str | None = None) -> ToyExample:
        raise NotImplementedError

    def collate(self, examples: Sequence[ToyExample]) -> Batch:
        packed = Packed.from_arrays([example.ids for example in examples])
        labels = np.array([example.label for example in examples])
        return Batch(packed, {"labels": labels}, {"token": packed.num_tokens, "row": len(labels)})

    def decode(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[int, Prediction]:
        raise NotImplementedError

    def evaluator(self) -> Evaluator:
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> ToyTask:
        return cls()


class ToyNegatives(ToyTask):
    name = "toy-negatives"
    additive = False


def toy_network(seed: int = 0, dropout: float = 0.1) -> ToyNetwork:
    torch.manual_seed(seed)
    return ToyNetwork(dropout)


def measure(network: Network) -> dict[str, float]:
    """An evaluation that draws random numbers, as a careless one may."""
    assert not network.training
    torch.rand(3)
    np.random.rand()
    batch = ToyTask().collate(ToySource(9).block(0, 0)).to("cpu")
    return {"loss": float(network(batch)["token"]) / batch.counts["token"]}

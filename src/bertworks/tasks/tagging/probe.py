"""Tagging on the hidden states of a frozen encoder, which are computed once: a probe.

    states [layers, pieces, hidden] ─► side by side, or mixed ─► BiLSTM ─► W ─► a tag for each word

Source: paper §5.3 and table 7. `inference.frozen` computes the states.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

from ...model.heads import cross_entropy_sum
from ...model.layers import Dropout
from ...packed import Batch
from ...settings import Settings
from ..example import by_length
from ..task import Network
from .examples import TaggingExample
from .task import TaggingTask
from .words import Window

if TYPE_CHECKING:
    from ...model.config import EncoderConfig


class LayerChoice(NamedTuple):
    """Which hidden states a probe is given.

    Attributes:
        layers: 0 for the embeddings, 1 for the first layer's output, and so on.
        mixed: whether they are added up with learned weights; else they are laid side by side.
    """

    layers: tuple[int, ...]
    mixed: bool = False


class LstmSettings(Settings):
    """The network of a probe. The paper says "a two-layer 768-dimensional BiLSTM"."""

    lstm_hidden_size: int = Field(768, ge=1, description="of each of the two directions")
    lstm_layers: int = Field(2, ge=1, description="one behind the other")
    dropout: float = Field(0.1, ge=0, lt=1, description="before each layer and the output layer")


@dataclass(frozen=True, eq=False)
class FrozenStates:
    """What an encoder makes of the pieces that tell a tag.

    Attributes:
        values: float32 `[layers + 1, pieces, hidden_size]`; the first are the embeddings.
        starts: where each window's pieces begin.
    """

    values: NDArray[np.float32]
    starts: Mapping[Window, int]

    def of(self, windows: Iterable[Window], layers: Sequence[int]) -> NDArray[np.float32]:
        """`[layers, pieces, hidden_size]`: of some windows' pieces, one window behind the other."""
        pieces = pieces_of(self.starts, windows)
        return np.stack([self.values[layer][pieces] for layer in layers])


def window_starts(examples: Iterable[TaggingExample]) -> tuple[dict[Window, int], int]:
    """Where each window's pieces begin if all are laid end to end, and how many there are."""
    starts: dict[Window, int] = {}
    total = 0
    for example in examples:
        for window in example.sequences:
            starts[window] = total
            total += len(window.positions)
    return starts, total


def pieces_of(starts: Mapping[Window, int], windows: Iterable[Window]) -> NDArray[np.int64]:
    """The numbers of windows' pieces, one window behind the other."""
    parts = [np.arange(len(window.positions)) + starts[window] for window in windows]
    return np.concatenate([np.empty(0, np.int64), *parts])


class ScalarMix(nn.Module):
    """A learned weighted sum of layers: `γ Σ softmax(s)ⱼ hⱼ`; at first their mean.

    Source: Peters et al. (2018), "Deep contextualized word representations", equation 1.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(count))
        self.scale = nn.Parameter(torch.ones(()))

    @property
    def weights(self) -> Float[Tensor, " layers"]:
        """Each layer's share; they add up to 1."""
        shares: Tensor = torch.softmax(self.scores, 0)
        return shares

    def forward(
        self, states: Float[Tensor, "layers pieces hidden_size"]
    ) -> Float[Tensor, "pieces hidden_size"]:
        mixed: Tensor = self.scale * torch.einsum("l,lph->ph", self.weights, states)
        return mixed


class ProbeNetwork(Network):
    """A BiLSTM and a layer that tells tags, on the words of each window; it has no encoder.

    Args:
        hidden_size: the encoder's.
        num_labels: how many tags there are.
        choice: which hidden states it is given.
        settings: the BiLSTM's.
    """

    def __init__(
        self, hidden_size: int, num_labels: int, choice: LayerChoice, settings: LstmSettings
    ) -> None:
        super().__init__()
        self.mix = ScalarMix(len(choice.layers)) if choice.mixed else None
        self.dropout = Dropout(settings.dropout)
        self.lstm = nn.LSTM(
            hidden_size * (1 if choice.mixed else len(choice.layers)),
            settings.lstm_hidden_size,
            settings.lstm_layers,
            bidirectional=True,
            dropout=settings.dropout if settings.lstm_layers > 1 else 0.0,
        )
        self.output = nn.Linear(2 * settings.lstm_hidden_size, num_labels)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The summed cross-entropies of the pieces that tell a tag: `tagging`."""
        return {"tagging": cross_entropy_sum(self._logits(batch), batch.targets["labels"])}

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """`logits` `[pieces, num_labels]`, of the pieces that tell a tag."""
        return {"logits": self._logits(batch)}

    def _logits(self, batch: Batch) -> Float[Tensor, "pieces num_labels"]:
        states: Tensor = batch.targets["states"]
        vectors: Tensor = (
            states.transpose(0, 1).flatten(1) if self.mix is None else self.mix(states)
        )
        lengths = [length for length in batch.targets["lengths"].tolist() if length]
        if not lengths:  # rows without a single word
            return vectors.new_empty(0, self.output.out_features)
        rows = self.dropout(vectors).split(lengths)
        found, _ = self.lstm(pack_sequence(rows, enforce_sorted=False))
        logits: Tensor = self.output(self.dropout(torch.cat(unpack_sequence(found))))
        return logits


class ProbeTask(TaggingTask):
    """A tagging task whose batches hold hidden states; rows, tags and metrics are the task's own.

    Args:
        task: what is to be learned.
        states: of all of its examples' windows.
        choice: which of the states are given.
        lstm: the network's settings.
    """

    def __init__(
        self, task: TaggingTask, states: FrozenStates, choice: LayerChoice, lstm: LstmSettings
    ) -> None:
        super().__init__(task.tokenizer, task.settings)
        self.states, self.choice, self.lstm = states, choice, lstm

    def network(self, config: EncoderConfig) -> ProbeNetwork:  # type: ignore[override]
        """A fresh network for the states of an encoder."""
        return ProbeNetwork(config.hidden_size, len(self.settings.labels), self.choice, self.lstm)

    def collate(self, examples: Sequence[TaggingExample]) -> Batch:
        """As tagging does; beside that `targets["states"]`, `[layers, pieces, hidden_size]`, and
        `targets["lengths"]`, `[windows]`: the pieces of each that tell a tag."""
        batch = super().collate(examples)
        windows = [examples[at].sequences[number] for at, number in by_length(examples)]
        more = {
            "states": self.states.of(windows, self.choice.layers),
            "lengths": np.array([len(window.positions) for window in windows]),
        }
        return replace(batch, targets={**batch.targets, **more})

"""A probe of a frozen encoder: how well a BiLSTM predicts tags from some of its hidden states.

    states [layers, pieces, hidden] ─► concatenated, or mixed ─► BiLSTM ─► W ─► a tag for each word

The states are computed once, for any number of probes and epochs. They are stored in a
memory-mapped NumPy file, `[layers + 1, pieces, hidden_size]`: each layer is contiguous, so that a
probe of one layer reads only one part of the file.

Source: paper §5.3 and table 7.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.lib.format import open_memmap
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

from ..errors import BertworksError, row_name
from ..inference.engine import DEFAULTS
from ..inference.evaluate import evaluate
from ..inference.frozen_network import inference
from ..inference.network_runner import check_finite
from ..inference.settings import EngineSettings
from ..nn.config import EncoderConfig
from ..nn.encoder import HasEncoder
from ..nn.layers import Dropout
from ..packed import Batch, by_tokens
from ..runs.run_directory import RunDirectory
from ..settings.base import Settings, with_default
from ..tasks.best_metric import BestMetric
from ..tasks.example import sort_sequences
from ..tasks.network import ClassifierNetwork
from ..tasks.tagging.task import TaggingTask
from ..tasks.tagging.windows import TaggingExample, Window
from ..training.checkpoint import load_weights
from ..training.fit import fit
from ..training.plan import Phase
from ..training.random_state import seed_everything
from ..training.row_source import RowSource
from ..training.settings import MAX_EPOCHS, FitSettings, TrainingSettings
from ..utils.atomic_writes import atomic_write
from ..utils.progress import Progress


class LayerChoice(NamedTuple):
    """The hidden states that are the input of a probe."""

    layers: tuple[int, ...]  # 0: the embeddings, 1: the first layer's output, and so on
    # True: summed with learned weights; False: concatenated
    mixed: bool = False


class LstmSettings(Settings):
    """The network of a probe. The paper says "a two-layer 768-dimensional BiLSTM"."""

    lstm_hidden_size: int = Field(768, ge=1, le=2**16, description="hidden size of each direction")
    lstm_layers: int = Field(2, ge=1, le=100, description="number of stacked LSTM layers")
    dropout: float = Field(
        0.1, ge=0, lt=1, description="dropout before each layer and the output layer"
    )


@dataclass(frozen=True, eq=False)
class FrozenStates:
    """An encoder's hidden states of the labelled pieces."""

    # float32 `[layers + 1, pieces, hidden_size]`; index 0 is the embeddings
    values: NDArray[np.float32]
    starts: Mapping[Window, int]  # the index of each window's first piece

    def select(self, windows: Iterable[Window], layers: Sequence[int]) -> NDArray[np.float32]:
        """`[layers, pieces, hidden_size]`: states of the windows' pieces, in order."""
        pieces = self.pieces(windows)
        return np.stack([self.values[layer][pieces] for layer in layers])

    def pieces(self, windows: Iterable[Window]) -> NDArray[np.int64]:
        """The indices of the windows' pieces, in order: `[pieces]`."""
        parts = [np.arange(len(window.positions)) + self.starts[window] for window in windows]
        return np.concatenate([np.empty(0, np.int64), *parts])


class ScalarMix(nn.Module):
    """A learned weighted sum of layers: `γ Σ softmax(s)ⱼ hⱼ`; initially their mean.

    Source: Peters et al. (2018), "Deep contextualized word representations", equation 1.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(count))
        self.scale = nn.Parameter(torch.ones(()))

    @property
    def weights(self) -> Float[Tensor, " layers"]:
        """The weight of each layer; they add up to 1."""
        shares: Tensor = torch.softmax(self.scores, 0)
        return shares

    def forward(
        self, states: Float[Tensor, "layers pieces hidden_size"]
    ) -> Float[Tensor, "pieces hidden_size"]:
        mixed: Tensor = self.scale * torch.einsum("l,lph->ph", self.weights, states)
        return mixed


class ProbeNetwork(ClassifierNetwork):
    """A BiLSTM over the words of each window, and a layer that predicts tags; without encoder."""

    loss_name = "tagging"

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

    def logits(self, batch: Batch) -> Float[Tensor, "pieces num_labels"]:
        """The logits of the labelled pieces."""
        states: Tensor = batch.targets["states"]
        vectors: Tensor = (
            states.transpose(0, 1).flatten(1) if self.mix is None else self.mix(states)
        )
        lengths = [length for length in batch.targets["lengths"].tolist() if length]
        if not lengths:  # no row has a word
            return vectors.new_empty(0, self.output.out_features)
        rows = self.dropout(vectors).split(lengths)
        found, _ = self.lstm(pack_sequence(rows, enforce_sorted=False))
        logits: Tensor = self.output(self.dropout(torch.cat(unpack_sequence(found))))
        return logits


class ProbeTask(TaggingTask):
    """A tagging task whose batches contain hidden states; rows, tags and metrics are unchanged.

    Args:
        states: the hidden states of all windows of its examples.
    """

    def __init__(
        self, task: TaggingTask, states: FrozenStates, choice: LayerChoice, lstm: LstmSettings
    ) -> None:
        super().__init__(task.tokenizer, task.settings)
        self.states, self.choice, self.lstm = states, choice, lstm

    # Of another class.
    def network(self, config: EncoderConfig) -> ProbeNetwork:  # type: ignore[override]
        """Return a new network for the states of an encoder."""
        return ProbeNetwork(config.hidden_size, len(self.settings.labels), self.choice, self.lstm)

    def collate(self, examples: Sequence[TaggingExample]) -> Batch:
        """As `TaggingTask.collate`, with two more targets.

        `targets["states"]` is `[layers, pieces, hidden_size]`; `targets["lengths"]` is `[windows]`,
        the number of labelled pieces of each window.
        """
        batch = super().collate(examples)
        windows = [examples[at].sequences[number] for at, number in sort_sequences(examples)]
        more = {
            "states": self.states.select(windows, self.choice.layers),
            "lengths": np.array([len(window.positions) for window in windows]),
        }
        return replace(batch, targets={**batch.targets, **more})


def frozen_states(
    file: Path,
    network: HasEncoder,
    task: TaggingTask,
    examples: Sequence[TaggingExample],
    engine: EngineSettings = DEFAULTS,
    say: Callable[[str], None] | None = None,
) -> FrozenStates:
    """Compute the hidden states of all layers for the labelled pieces, or load them from the file.

    Args:
        file: the file of the states, which is written atomically. If it exists, it must be of this
            encoder and these examples.
        say: called with a message that gives the size of the file.

    Raises:
        BertworksError: there is not enough free disk space for the file.
        CheckpointError: a vector is not finite.
    """
    starts: dict[Window, int] = {}
    pieces = 0
    for example in examples:
        for window in example.sequences:
            starts[window] = pieces
            pieces += len(window.positions)
    config = network.encoder.config
    shape = (config.num_hidden_layers + 1, pieces, config.hidden_size)
    if not file.exists():
        size = 4 * int(np.prod(shape))
        if say is not None:
            say(f"computing {pieces:,} pieces' {shape[0]} hidden states: {size / 1e6:,.0f} MB")
        with atomic_write(file) as new:
            free = shutil.disk_usage(file.parent).free
            if size > free:  # writing to a memory map on a full disk kills the process
                raise BertworksError(
                    f"the hidden states take {size / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free",
                    where=str(file.parent),
                    fix="Make room, or give another --out.",
                )
            values = open_memmap(new, "w+", np.float32, shape)
            _fill(FrozenStates(values, starts), network, task, examples, engine)
            values.flush()
    found = np.load(file, mmap_mode="r")
    assert found.shape == shape, "of this encoder and these examples"
    return FrozenStates(found, starts)


def _fill(
    states: FrozenStates,
    network: HasEncoder,
    task: TaggingTask,
    examples: Sequence[TaggingExample],
    engine: EngineSettings,
) -> None:
    device = next(network.parameters()).device
    for part in by_tokens(examples, engine.max_batch_tokens(device.type)):
        batch = task.collate(part).to(device)
        windows = (part[at].sequences[number] for at, number in sort_sequences(part))
        pieces = states.pieces(windows)
        with inference(network, engine) as form:
            for layer, hidden in enumerate(form.encoder.hidden_states(batch.packed)):
                vectors = hidden[batch.targets["positions"]]
                # The function is called in this turn of the loop.
                check_finite(vectors, lambda at: _row_of(batch, at))  # noqa: B023
                states.values[layer, pieces] = vectors.float().cpu().numpy()


def _row_of(batch: Batch, row: int) -> str:
    """The row of the labelled piece with index `row`, in words."""
    sequence = torch.searchsorted(
        batch.packed.cu_seqlens.long(), batch.targets["positions"][row], right=True
    )
    return row_name(int(batch.packed.sequence_row[sequence - 1]))


class TaggingProbeSettings(LstmSettings):
    """Training of the probe; the paper gives no settings, these are usual for an LSTM."""

    epochs: float = Field(10.0, gt=0, le=MAX_EPOCHS, description="passes over the training rows")
    batch_size: int = with_default(TrainingSettings, "batch_size", 32)
    learning_rate: float = Field(
        1e-3, gt=0, le=10, description="learning rate of Adam; decays linearly to 0"
    )
    max_grad_norm: float = with_default(TrainingSettings, "max_grad_norm", 1.0)
    bucket_batches: int = Field(
        16, ge=0, description="as in fine-tuning; an LSTM takes as many steps as the longest row"
    )

    def fit_settings(self, seed: int, steps_per_epoch: int) -> FitSettings:
        """Return these settings as settings of the training loop."""
        return FitSettings(
            seed=seed,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            weight_decay=0.0,
            warmup=0.0,
            max_grad_norm=self.max_grad_norm,
            eval_every=steps_per_epoch,
            checkpoint_every=min(steps_per_epoch, 500),
            keep_checkpoints=1,
            tensorboard=False,
        )


@dataclass(frozen=True)
class ProbeResult:
    """The result of a probe."""

    metrics: Mapping[str, float]  # on dev, of the best epoch
    best_step: int  # the step of these metrics
    shares: list[float]  # the weight of each layer in a learned sum; empty if there is no sum


def train_probe(
    task: ProbeTask,
    config: EncoderConfig,
    train: Sequence[TaggingExample],
    dev: Sequence[TaggingExample],
    *,
    out: Path,
    settings: TaggingProbeSettings,
    seed: int = 0,
    device: torch.device | str = "auto",
    progress: Progress | None = None,
) -> ProbeResult:
    """Train a probe and evaluate it; called again, it resumes.

    Args:
        task: the task, with the hidden states of all windows of `train` and `dev`.
        config: of the encoder.
        dev: examples for evaluation; they select the best epoch.
        out: the run directory.

    Raises:
        TrainingError, OutputError, RunInterrupted: as in `fit`.
    """
    pieces = task.training_pieces(train, seed)
    seed_everything(seed)
    network = task.network(config)
    source = RowSource(
        pieces,
        seed=seed,
        batch_size=settings.batch_size,
        bucket_batches=settings.bucket_batches,
    )
    metric = task.best_metric
    description: dict[str, Any] = {
        "layers": list(task.choice.layers),
        "mixed": task.choice.mixed,
        "seed": seed,
        **settings.model_dump(mode="json"),
    }
    with RunDirectory.open(out, description) as run:
        state = fit(
            network,
            task,
            [Phase(source, source.steps(settings.epochs), batch_size=source.batch_size)],
            settings=settings.fit_settings(seed, source.steps(1)),
            run=run,
            evaluate=lambda network: evaluate(network, task, dev).metrics,
            best=BestMetric(metric, metric in task.lower_is_better),
            device=device,
            progress=progress,
        ).state
        step = state.best_step
        assert step is not None, "it was measured at the end, if not before"
        evaluations = (line for line in run.lines() if line["kind"] == "eval")
        metrics = next(line["metrics"] for line in evaluations if line["step"] == step)
        shares = []
        if network.mix is not None:
            load_weights(run.best_weights(step), network, state.best_sha256)
            shares = network.mix.weights.tolist()
        return ProbeResult(metrics, step, shares)

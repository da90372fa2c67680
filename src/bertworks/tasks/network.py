"""The networks of tasks: modules of PyTorch, which are trained and compute predictions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from ..nn.encoder import Encoder, HasEncoder
from ..nn.losses import cross_entropy_sum
from ..nn.vector_modules import VectorModules
from ..packed import Batch, Padded


class Network(HasEncoder, ABC):
    """A task's network: one or more encoders, some perhaps frozen, and heads.

    `encoder` is the one that is kept when another task starts from the network.
    """

    has_array_form: ClassVar[bool] = False
    """Whether `Task.compute` gives what `predict` does. It counts for this class alone."""
    num_updates: int = 0
    """How often the weights have been updated; the training loop sets it, for losses that change
    in training."""

    @property
    def vector_modules(self) -> VectorModules | None:
        """What follows pooling in the sentence encoder that the network is saved as; or None."""
        return None

    @abstractmethod
    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the task's losses by name: each a scalar **sum** over what `batch.counts` counts.

        The caller divides by the counts of the whole global batch and adds up the quotients, so
        that accumulation and data parallelism give the update of one big batch.
        """

    @abstractmethod
    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """Return the outputs that the task decodes and evaluates; no targets are needed.

        All outputs must be finite: the engine raises an error otherwise.
        """

    def padded(self, padded: Padded) -> dict[str, Tensor]:
        """Return the outputs for a padded batch, under the names that other tools use.

        For exports to engines that do not support packs. A bare encoder returns `last_hidden_state`
        `[rows, length, hidden_size]`, and `pooler_output` `[rows, hidden_size]` if it has a pooler.
        """
        return compute_encoder_outputs(self.encoder, padded)


def compute_encoder_outputs(encoder: Encoder, padded: Padded) -> dict[str, Tensor]:
    """Return the outputs of a bare encoder for a padded batch; see `Network.padded`."""
    hidden = encoder(padded)
    outputs = {"last_hidden_state": reshape_by_row(hidden, padded)}
    if encoder.pooler is not None:
        outputs["pooler_output"] = encoder.pool(hidden, padded)
    return outputs


def reshape_by_row(values: Tensor, padded: Padded) -> Tensor:
    """Reshape per-token values of a padded batch to `[rows, length, …]`."""
    return values.reshape(*padded.mask.shape, *values.shape[1:])


class ClassifierNetwork(Network):
    """A network with a vector of logits for each target: a row, or a word."""

    loss_name: ClassVar[str] = "classification"
    """The loss's name, which the task's batches and `baseline_losses` use too."""

    @abstractmethod
    def logits(self, batch: Batch) -> Tensor:
        """Return `[targets, classes]`; if targets are rows, in the order of `batch.examples`."""

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the summed cross-entropy of the targets, by the name of the loss."""
        return {self.loss_name: cross_entropy_sum(self.logits(batch), batch.targets["labels"])}

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """`logits` `[targets, classes]`."""
        return {"logits": self.logits(batch)}

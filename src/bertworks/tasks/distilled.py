"""A small classifier that learns what a large one says of the task's own text, labelled or not.

The loss is the cross-entropy between what teacher and student say at a temperature, less the
teacher's own entropy, times the temperature squared (Hinton et al. 2015, §2). At temperature 1 this
is how the small released BERTs were distilled (Turc et al. 2019, §2). The teacher is asked once,
before training, so it may have a vocabulary of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..packed import Batch
from .classification.network import ClassificationNetwork
from .classification.settings import ClassificationSettings
from .classification.task import ClassificationTask
from .example import LabelledExample
from .pooled import Pooling
from .texts import labelled_batch

if TYPE_CHECKING:
    from ..model.config import EncoderConfig
    from ..text.tokenizer import Tokenizer


class DistilledNetwork(ClassificationNetwork):
    """A classifier that is trained on probabilities rather than on labels.

    Args:
        config: the geometry.
        num_labels: how many classes there are.
        dropout: before the output layer.
        temperature: what logits are divided by before they are compared.
        pooling: of the logits of a row's sequences.
    """

    def __init__(
        self,
        config: EncoderConfig,
        num_labels: int,
        dropout: float | None,
        temperature: float,
        pooling: Pooling = "mean",
    ) -> None:
        super().__init__(config, num_labels, dropout, pooling=pooling)
        self._temperature = temperature

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The summed divergences of the rows: `classification`."""
        logits = self._logits(batch.packed)
        logits = logits.float() if logits.dtype == torch.bfloat16 else logits
        wanted = batch.targets["labels"].to(logits.dtype)
        # Logarithms of probabilities are logits up to a constant.
        told = (wanted.clamp_min(1e-12).log() / self._temperature).log_softmax(-1)
        own = (logits / self._temperature).log_softmax(-1)
        loss = F.kl_div(own, told, reduction="sum", log_target=True)
        return {"classification": loss * self._temperature**2}


class DistilledTask(ClassificationTask):
    """Classification whose training rows have probabilities of all classes for labels.

    It is saved, used and measured as the classification that it is.

    Args:
        tokenizer: the student's.
        settings: classes, columns, limits.
        temperature: see `DistilledNetwork`.
    """

    def __init__(
        self, tokenizer: Tokenizer, settings: ClassificationSettings, temperature: float = 1.0
    ) -> None:
        super().__init__(tokenizer, settings)
        self.temperature = temperature

    def network(self, config: EncoderConfig) -> DistilledNetwork:
        own = self.settings
        return DistilledNetwork(
            own.geometry(config), len(own.labels), own.dropout, self.temperature, own.pooling
        )

    def collate(self, examples: Sequence[LabelledExample]) -> Batch:
        """As a classifier's; `targets["labels"]` is `[rows, classes]` float32 where rows have
        probabilities."""
        if isinstance(examples[0].target, np.ndarray):
            return labelled_batch(examples, np.float32, "classification")
        return super().collate(examples)

    def count_targets(self, examples: Sequence[LabelledExample]) -> Mapping[str, int]:
        """How often each class is the likeliest."""
        counts = Counter(
            int(np.argmax(label)) if isinstance(label := example.target, np.ndarray) else label
            for example in examples
        )
        return {name: counts[number] for number, name in enumerate(self.settings.labels)}

    def guessing_losses(self, counts: Mapping[str, int]) -> Mapping[str, float]:  # noqa: ARG002
        return {}

"""Classification that is learned from a teacher's probabilities instead of labels.

Source: Hinton et al. (2015), "Distilling the knowledge in a neural network".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from ..nn.config import EncoderConfig
from ..nn.layers import promote_to_float32
from ..text.tokenizer import Tokenizer
from .classification import ClassificationSettings, ClassificationTask
from .example import LabelledExample
from .text_network import TextClassifierNetwork


class DistilledNetwork(TextClassifierNetwork):
    """A classifier that is trained on a teacher's probabilities instead of labels.

    Args:
        temperature: the logits of teacher and student are divided by it.
    """

    has_array_form = True

    def __init__(
        self, config: EncoderConfig, settings: ClassificationSettings, temperature: float
    ) -> None:
        super().__init__(config, settings)
        self._temperature = temperature

    def loss_sum(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the sum of the rows' Kullback-Leibler divergences from the teacher's
        probabilities, `labels` `[rows, classes]`."""
        logits = promote_to_float32(logits)
        probabilities = labels.to(logits.dtype)
        # Logarithms of probabilities are logits up to a constant.
        teacher = (probabilities.clamp_min(1e-12).log() / self._temperature).log_softmax(-1)
        student = (logits / self._temperature).log_softmax(-1)
        loss = F.kl_div(student, teacher, reduction="sum", log_target=True)
        return loss * self._temperature**2


class DistilledTask(ClassificationTask):
    """Classification whose training rows have the probabilities of all classes as labels.

    It is saved, used and evaluated like any other classifier.

    Args:
        temperature: see `DistilledNetwork`.
    """

    def __init__(
        self, tokenizer: Tokenizer, settings: ClassificationSettings, temperature: float = 1.0
    ) -> None:
        super().__init__(tokenizer, settings)
        self.temperature = temperature

    def _build_network(self, config: EncoderConfig) -> TextClassifierNetwork:
        return DistilledNetwork(config, self.settings, self.temperature)

    def count_targets(self, examples: Sequence[LabelledExample]) -> Mapping[str, int]:
        """Count for each class the rows in which it is the most probable."""
        counts = Counter(
            int(np.argmax(label)) if isinstance(label := example.target, np.ndarray) else label
            for example in examples
        )
        return {name: counts[number] for number, name in enumerate(self.settings.labels)}

    def baseline_losses(self, counts: Mapping[str, int]) -> Mapping[str, float]:  # noqa: ARG002
        return {}

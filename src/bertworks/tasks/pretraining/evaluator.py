"""Held-out metrics of pre-training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from ...errors import DataError
from ...nn.losses import cross_entropy_sum
from ...packed import Batch
from ..task import Evaluator

_CHUNK_ROWS = 1024  # masked tokens whose logits are converted to float32 at a time
# Advice of the error that there is nothing to predict, by the metrics' prefix.
_NOTHING_TO_PREDICT_FIXES = {
    "mlm": "Mask single tokens (masking.unit=token) or a larger share (masking.mlm_probability), "
    "or give longer texts.",
    "lm": "Give longer texts.",
    "skip_gram": "Keep more of the frequent pieces (a larger skip_gram.subsample), or give longer "
    "texts.",
}


class PretrainingEvaluator(Evaluator):
    """Held-out metrics of pre-training.

    `mlm_loss`, `mlm_perplexity` and `mlm_accuracy` are over masked tokens (`lm_…` over all next
    tokens). `nsp_loss` and `nsp_accuracy` are over sequences; `nsp_majority` is the accuracy of
    always predicting the more frequent label. `loss` is the sum of the two losses.

    Args:
        name: prefix of the metrics of tokens: `mlm`, `lm` or `skip_gram`.
    """

    state_fields: ClassVar[tuple[str, ...]] = ("_sums", "_masked", "_sequences")

    def __init__(self, name: str = "mlm") -> None:
        self._name = name
        self._sums = dict.fromkeys(
            ("mlm_loss", "mlm_correct", "nsp_loss", "nsp_correct", "not_next"), 0.0
        )
        self._masked = self._sequences = 0

    def add(self, outputs: Mapping[str, Tensor], batch: Batch) -> None:
        """Add a batch of instances.

        Raises:
            DataError: the batch has rows of texts, whose `[MASK]`s have no labels.
        """
        if "masked_labels" not in batch.targets:
            raise DataError(
                "rows of texts have no labels for their [MASK]s",
                fix="Evaluate pre-training on the held-out documents of a prepared corpus.",
            )
        labels = batch.targets["masked_labels"]
        self._masked += len(labels)
        for start in range(0, len(labels), _CHUNK_ROWS):
            rows = slice(start, start + _CHUNK_ROWS)
            self._add_predictions("mlm", outputs["mlm_logits"][rows], labels[rows])
        if "nsp_logits" in outputs:
            labels = batch.targets["next_sentence_labels"]
            self._sequences += len(labels)
            self._add_predictions("nsp", outputs["nsp_logits"], labels)
            self._sums["not_next"] += labels.sum().item()

    def _add_predictions(self, name: str, logits: Tensor, labels: Tensor) -> None:
        self._sums[f"{name}_loss"] += cross_entropy_sum(logits, labels).item()
        self._sums[f"{name}_correct"] += (logits.argmax(-1) == labels).sum().item()

    def result(self) -> dict[str, float]:
        """The metrics over all batches.

        Raises:
            DataError: no sequence has a token to predict.
        """
        if not self._masked:
            raise DataError(
                "no token of the evaluated sequences can be predicted",
                fix=_NOTHING_TO_PREDICT_FIXES[self._name],
            )
        mlm_loss = self._sums["mlm_loss"] / self._masked
        metrics = {
            "loss": mlm_loss,
            f"{self._name}_loss": mlm_loss,
            f"{self._name}_perplexity": math.exp(mlm_loss) if mlm_loss < 700 else math.inf,
            f"{self._name}_accuracy": self._sums["mlm_correct"] / self._masked,
        }
        if self._sequences:
            not_next = self._sums["not_next"] / self._sequences
            metrics["nsp_loss"] = self._sums["nsp_loss"] / self._sequences
            metrics["nsp_accuracy"] = self._sums["nsp_correct"] / self._sequences
            metrics["nsp_majority"] = max(not_next, 1 - not_next)
            metrics["loss"] += metrics["nsp_loss"]
        return metrics

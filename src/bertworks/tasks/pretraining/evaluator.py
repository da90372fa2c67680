"""Held-out metrics of pre-training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from torch import Tensor

from ...errors import DataError
from ...nn.losses import cross_entropy_sum
from ...packed import Batch
from ..task import Evaluator
from .discriminator import binary_cross_entropy_sum

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


class ReplacedTokensEvaluator(Evaluator):
    """Held-out metrics of both networks.

    Of the generator, over masked tokens: `mlm_loss`, `mlm_perplexity` and `mlm_accuracy`.

    Of the discriminator, over all tokens:

    - `rtd_loss` and `rtd_accuracy`; `rtd_majority`, the accuracy of predicting that no token was
      replaced;
    - `rtd_precision` and `rtd_recall` of the class "replaced";
    - `rtd_auc`, the probability that a replaced token scores higher than an original one;
    - `replaced_share`, the share of replaced tokens.

    `loss` is the training loss: the MLM loss plus the weighted discriminator's loss.

    Replacements are drawn as in training and are a pure function of the instance, so that two
    evaluations of the same networks give the same metrics.
    """

    state_fields = ("_masked", "_loss", "_logits", "_is_replaced")

    def __init__(self, weight: float) -> None:
        self._weight = weight
        self._masked = PretrainingEvaluator()
        self._loss = 0.0
        self._logits: list[np.ndarray] = []
        self._is_replaced: list[np.ndarray] = []

    def add(self, outputs: Mapping[str, Tensor], batch: Batch) -> None:
        """Add a batch of instances.

        Raises:
            DataError: the batch has rows of texts, for which replaced tokens are unknown.
        """
        if "is_replaced" not in outputs:
            raise DataError(
                "rows of texts do not say which of their tokens were replaced",
                fix="Evaluate pre-training on the held-out documents of a prepared corpus.",
            )
        self._masked.add(outputs, batch)
        logits, is_replaced = outputs["rtd_logits"].float(), outputs["is_replaced"]
        self._loss += binary_cross_entropy_sum(logits, is_replaced).item()
        self._logits.append(np.asarray(logits.cpu()))
        self._is_replaced.append(np.asarray(is_replaced.cpu()))

    def result(self) -> dict[str, float]:
        metrics = self._masked.result()
        logits, is_replaced = np.concatenate(self._logits), np.concatenate(self._is_replaced)
        is_predicted = logits > 0
        num_correct = int((is_predicted & is_replaced).sum())
        share = float(is_replaced.mean())
        metrics |= {
            "rtd_loss": self._loss / len(logits),
            "rtd_accuracy": float((is_predicted == is_replaced).mean()),
            "rtd_majority": 1 - share,
            "rtd_precision": num_correct / max(1, int(is_predicted.sum())),
            "rtd_recall": num_correct / max(1, int(is_replaced.sum())),
            "replaced_share": share,
        }
        if 0 < share < 1:
            metrics["rtd_auc"] = area_under_curve(logits, is_replaced)
        metrics["loss"] += self._weight * metrics["rtd_loss"]
        return metrics


def area_under_curve(scores: np.ndarray, is_positive: np.ndarray) -> float:
    """The share of pairs in which the positive scores higher than the negative; ties count half."""
    positive, negative = scores[is_positive], np.sort(scores[~is_positive])
    counts_below = np.searchsorted(negative, positive) + np.searchsorted(
        negative, positive, "right"
    )
    return float(counts_below.mean() / (2 * len(negative)))

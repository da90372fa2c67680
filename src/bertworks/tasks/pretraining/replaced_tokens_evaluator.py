"""Held-out metrics of replaced-token detection."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from ...errors import DataError
from ...packed import Batch
from ..task import Evaluator
from .discriminator import binary_cross_entropy_sum
from .evaluator import PretrainingEvaluator


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

"""Calibrated probabilities and label sets: numbers that are fitted on labelled rows, such as dev.

    logits ─ / temperature, + shift ─► softmax ─► probabilities ─ at least 1 - quantile ─► label set

Sources: temperature and vector scaling: Guo et al. (2017), "On calibration of modern neural
networks", §4.2; label sets by split-conformal prediction: Angelopoulos and Bates (2023), "Conformal
prediction: a gentle introduction", §1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import import_optional
from .probabilities import cross_entropy_sum, softmax

if TYPE_CHECKING:
    from jaxtyping import Float, Int

NUM_FOLDS = 5
MAX_FITTED_ROWS = 20_000
MAX_SCORES = 1_000
"""Conformal scores that are saved with a model: their ranks are exact to a thousandth."""


class LogitScaling(NamedTuple):
    """A scaling of logits: temperature scaling has one number, vector scaling two for each class.

    The scaled logits are `logits / temperatures + shifts`.
    """

    temperatures: tuple[float, ...]
    shifts: tuple[float, ...] = ()

    def __call__(self, logits: NDArray[Any]) -> NDArray[np.float64]:
        """Return scaled logits, in float64."""
        result: NDArray[np.float64] = logits.astype(np.float64) / np.array(self.temperatures)
        return result + np.array(self.shifts) if self.shifts else result


def fit_scaling(
    logits: Float[np.ndarray, "rows classes"], labels: Int[np.ndarray, " rows"]
) -> LogitScaling:
    """Return the scaling that makes labelled rows most probable.

    Of more than two classes, the scaling is that whose cross-entropy in a cross-validation over
    the rows is lowest: none, one temperature, or vector scaling, which needs ten rows for each
    class. The logarithm of a temperature, and a shift, have a standard normal prior: a few rows
    that are all predicted correctly do not make all probabilities 1.

    Raises:
        BertworksError: SciPy is not installed.
    """
    if logits.shape[1] > 2 and len(labels) >= 2 * NUM_FOLDS:
        losses = {
            is_vector: cross_entropy_sum(cross_fit(logits, labels, is_vector=is_vector), labels)
            for is_vector in (False, True)
        }
        has_enough_rows = len(labels) >= 10 * logits.shape[1]
        if has_enough_rows and losses[True] < losses[False]:
            return _fit(logits, labels, is_vector=True)
        if losses[False] >= cross_entropy_sum(logits.astype(np.float64), labels):
            return LogitScaling((1.0,))
    return _fit(logits, labels, is_vector=False)


def cross_fit(
    logits: Float[np.ndarray, "rows classes"],
    labels: Int[np.ndarray, " rows"],
    *,
    is_vector: bool,
    rows_per_unit: int = 1,
) -> NDArray[np.float64]:
    """Return logits scaled by scalings that were fitted on other rows, for an honest measure.

    Args:
        is_vector: whether the scalings are vector scalings.
        rows_per_unit: how many rows in succession are scaled together, such as the labels of a
            text.
    """
    folds = np.arange(len(labels)) // rows_per_unit % NUM_FOLDS
    scaled_logits = np.empty(logits.shape)
    for fold in range(NUM_FOLDS):
        is_held_out = folds == fold
        scaling = _fit(logits[~is_held_out], labels[~is_held_out], is_vector=is_vector)
        scaled_logits[is_held_out] = scaling(logits[is_held_out])
    return scaled_logits


def _fit(logits: np.ndarray, labels: np.ndarray, *, is_vector: bool) -> LogitScaling:
    optimize: Any = import_optional("scipy.optimize", "metrics", "Calibrating a classifier")
    some = np.sort(np.random.default_rng(0).permutation(len(labels))[:MAX_FITTED_ROWS])
    logits, labels = logits[some].astype(np.float64), labels[some]
    num_classes = logits.shape[1] if is_vector else 1
    targets = np.eye(logits.shape[1])[labels]

    def compute_loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        """The loss of `[log scale of each class, shift of each class]`, and its gradient."""
        scales, shifts = np.exp(parameters[:num_classes]), parameters[num_classes:]
        scaled_logits = logits * scales + (shifts if is_vector else 0.0)
        differences = softmax(scaled_logits) - targets
        by_scale = differences * logits * scales
        gradient = np.concatenate([by_scale.sum(0), differences.sum(0)])
        if not is_vector:
            gradient = by_scale.sum(keepdims=True).ravel()
        loss = cross_entropy_sum(scaled_logits, labels) + 0.5 * float(parameters @ parameters)
        return loss, gradient + parameters

    start = np.zeros(2 * num_classes if is_vector else 1)
    parameters = optimize.minimize(compute_loss, start, jac=True, method="L-BFGS-B").x
    temperatures = np.exp(-parameters[:num_classes])
    return LogitScaling(tuple(temperatures.tolist()), tuple(parameters[num_classes:].tolist()))


def compute_conformal_scores(
    probabilities: Float[np.ndarray, "rows classes"], labels: Int[np.ndarray, " rows"]
) -> tuple[float, ...]:
    """Return 1 - the probability of each row's label, ascending, for `conformal_quantile`.

    Of more than `MAX_SCORES` rows, as many quantiles, rounded up: sets are never too small.
    """
    scores = np.sort(1 - probabilities[np.arange(len(labels)), labels])
    if len(scores) > MAX_SCORES:
        ranks = np.arange(1, MAX_SCORES + 1) * (len(scores) + 1) / (MAX_SCORES + 1)
        scores = scores[np.ceil(ranks - 1e-9).astype(int) - 1]
    return tuple((np.ceil(scores * 1e7) / 1e7).tolist())


def conformal_quantile(scores: Sequence[float], coverage: float) -> float:
    """Return the score that a label may have at most, to be in a row's set.

    A row's set then holds its label with a probability of at least `coverage`, if the row is
    exchangeable with those of the scores: the quantile has the rank ⌈(n + 1) · coverage⌉ of n.
    """
    rank = math.ceil((len(scores) + 1) * coverage - 1e-9)
    return scores[rank - 1] if rank <= len(scores) else 1.0

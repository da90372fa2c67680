"""Logistic regression on the vectors of texts: probes, and the output layers of classifiers.

scikit-learn trains it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import import_optional
from ..native.library import num_threads
from ..packed import to_array
from ..tasks.scores import EXTRA
from .engine import outputs_of
from .settings import EngineSettings

if TYPE_CHECKING:
    from ..tasks.example import LabelledExample
    from ..tasks.few_shot import FewShotNetwork, FewShotTask


def import_solver() -> tuple[Any, Any]:
    """Import scikit-learn's linear models, and `threadpoolctl`, which it needs too.

    Raises:
        BertworksError: scikit-learn is not installed.
    """
    names = ("sklearn.linear_model", "threadpoolctl")
    linear_model, threadpoolctl = (
        import_optional(name, EXTRA, "Logistic regression") for name in names
    )
    return linear_model, threadpoolctl


def fit_logistic_regression(
    vectors: NDArray[Any],
    labels: NDArray[Any],
    *,
    inverse_regularization: float = 1.0,
    max_iterations: int = 10_000,
    has_bias: bool = True,
) -> Any:
    """Return scikit-learn's `LogisticRegression`, trained on vectors `[rows, width]`.

    Raises:
        BertworksError: scikit-learn is not installed.
    """
    linear_model, threadpoolctl = import_solver()
    # Close to the optimum: with scikit-learn's default, some predictions depend on rounding.
    classifier = linear_model.LogisticRegression(
        C=inverse_regularization, max_iter=max_iterations, tol=1e-6, fit_intercept=has_bias
    )
    # On busy processors, threads of BLAS beyond those asked for only wait for one another: 20 times
    # the processor time.
    with threadpoolctl.threadpool_limits(num_threads(), user_api="blas"):
        classifier.fit(vectors.astype(np.float64), labels)
    return classifier


def fit_output_layer(
    network: FewShotNetwork,
    task: FewShotTask,
    examples: Sequence[LabelledExample],
    engine: EngineSettings,
) -> None:
    """Set the weights of a classifier's output layer to those of a logistic regression.

    Vectors are centred, if the layer has a bias, and divided by their mean length, so that the
    regularisation is the same for all encoders.

    Args:
        network: changed in place.
        examples: rows of all labels.

    Raises:
        BertworksError: scikit-learn is not installed.
    """
    network.pass_vectors_on()
    parts, labels = [], []
    for outputs, batch in outputs_of(network, task, examples, engine):
        parts.append(to_array(outputs["vectors"]).astype(np.float64))
        labels += [example.target for example in batch.examples]
    vectors, layer = np.concatenate(parts), network.output_layer
    centre = vectors.mean(0) if layer.bias is not None else np.zeros(vectors.shape[1])
    length = np.linalg.norm(vectors - centre, axis=1).mean() or 1.0
    classifier = fit_logistic_regression(
        (vectors - centre) / length, np.array(labels), has_bias=layer.bias is not None
    )
    weight, bias = classifier.coef_ / length, classifier.intercept_
    if len(weight) == 1:  # of two classes, it has the difference of the logits
        weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    network.set_output_layer(weight, bias - weight @ centre)

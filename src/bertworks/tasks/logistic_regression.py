"""Logistic regression on the vectors of texts: probes, and the output layers of classifiers.

scikit-learn trains it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import import_optional
from ..utils.threads import num_threads
from .scores import EXTRA


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

"""Estimators of texts in the manner of scikit-learn, for pipelines, searches and cross-validation.

    TextEncoder ─► vectors      TextClassifier, TextRegressor: `finetune`, then `predict`

X is a sequence of texts, or an array or table with one column of them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from .analysis.probing import features_of_texts
from .errors import OtherRunError, SettingsError, import_optional, truncate_repr
from .loading import load

_base: Any = import_optional("sklearn.base", "metrics", "bertworks.sklearn")
_multiclass: Any = import_optional("sklearn.utils.multiclass", "metrics", "bertworks.sklearn")
_validation: Any = import_optional("sklearn.utils.validation", "metrics", "bertworks.sklearn")

_COLUMNS = {"text_column": "text", "label_column": "label"}


class _TextEstimator(_base.BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Reads X, and tells scikit-learn that it is texts."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        tags.input_tags.one_d_array = True
        return tags

    @staticmethod
    def _read_texts(texts: Any) -> list[str]:
        """Return X as a list of texts.

        Raises:
            ValueError: X holds anything else, or is empty.
        """
        if isinstance(texts, str):
            raise ValueError("X is one text: give a list of texts")
        values = np.asarray(texts, dtype=object)
        if values.ndim == 2 and values.shape[1] == 1:
            values = values[:, 0]
        rows: list[str] = values.tolist()
        expected = "X must be a sequence of texts, or an array with one column of them"
        if values.ndim != 1:
            raise ValueError(expected)
        for index, row in enumerate(rows):
            if not isinstance(row, str):
                raise ValueError(f"X[{index}] is {truncate_repr(row)}: {expected}")
        if not rows:
            raise ValueError("X has no texts")
        return rows


class TextEncoder(_base.TransformerMixin, _TextEstimator):  # type: ignore[misc]
    """Transforms texts into vectors, as `Model.embed`; nothing is trained.

    Args:
        model: a directory, or a name on the hub.
        device: "auto", "cpu", "cuda", ….
        settings: settings of `embed`, such as `{"pooling": "cls"}`.

    Attributes:
        model_: the loaded model.
    """

    def __init__(
        self,
        model: str = "mini-sentences",
        *,
        device: str = "auto",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.model, self.device, self.settings = model, device, settings

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: ARG002
        """Load the model.

        Raises:
            ValueError: X is not texts.
            CheckpointError: there is no such model, or it is damaged.
        """
        self._read_texts(X)
        self.model_ = load(self.model, device=self.device)
        return self

    def transform(self, X: Any) -> NDArray[np.float32]:
        """Return vectors `[texts, width]`; quantized ones are decoded.

        Raises:
            SettingsError: the model makes a matrix for each text (late interaction).
        """
        _validation.check_is_fitted(self)
        vectors: NDArray[np.float32] = features_of_texts(
            self.model_, self._read_texts(X), **dict(self.settings or {})
        )
        return vectors


class _FinetunedEstimator(_TextEstimator):
    """Fine-tunes a model for a task.

    Args:
        model: a directory, or a name on the hub.
        epochs, learning_rate, batch_size, max_seq_length: as in `finetune`; its defaults if None.
        seed: of everything random.
        device: "auto", "cpu", "cuda", ….
        directory: the run directory of one `fit`; a temporary one if None. As in `finetune`, an
            earlier run with the same rows and settings is resumed, and any other is an error. In
            cross-validation and searches, leave it out: the clones would share it.
        overwrite: replace an earlier run in the directory.
        settings: other settings of `finetune`, by name, and `dev` (for a classifier, a share).

    Attributes:
        model_: the trained model.
    """

    _task: ClassVar[str]
    _fixed_settings: ClassVar[Mapping[str, Any]] = _COLUMNS

    def __init__(
        self,
        model: str = "mini",
        *,
        epochs: float | None = None,
        learning_rate: float | None = None,
        batch_size: int | None = None,
        max_seq_length: int | None = None,
        seed: int = 0,
        device: str = "auto",
        directory: str | Path | None = None,
        overwrite: bool = False,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.model, self.epochs, self.learning_rate = model, epochs, learning_rate
        self.batch_size, self.max_seq_length, self.seed = batch_size, max_seq_length, seed
        self.device, self.directory, self.overwrite = device, directory, overwrite
        self.settings = settings

    def _finetune(self, texts: list[str], labels: Sequence[Any]) -> None:
        from .training.finetune import finetune

        names = ("epochs", "learning_rate", "batch_size", "max_seq_length", "seed")
        values = {name: getattr(self, name) for name in names}
        settings = {name: value for name, value in values.items() if value is not None}
        rows = [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]
        with ExitStack() as stack:
            folder = self.directory or stack.enter_context(tempfile.TemporaryDirectory())
            try:
                result = finetune(
                    self.model,
                    self._task,
                    train=rows,
                    out=Path(folder) / "run" if self.directory is None else folder,
                    device=self.device,
                    overwrite=self.overwrite,
                    **{**self._fixed_settings, **settings, **self._other_settings()},
                )
            except OtherRunError as error:
                raise OtherRunError(
                    error.what,
                    where=error.where,
                    fix=f"{error.fix} In cross-validation and searches, leave directory out: the "
                    "clones would share it.",
                ) from None
        self.model_ = result.model

    def _other_settings(self) -> dict[str, Any]:
        """Return `settings`.

        Raises:
            SettingsError: one of them is an argument with a value, or fixed by the estimator; or
                `dev` is a table.
        """
        others = dict(self.settings or {})
        dev = others.get("dev")
        if self._task == "classification" and dev is not None and not isinstance(dev, Real):
            # The names of classes in a table are not those that training gives them.
            raise SettingsError("settings: dev is not a share of the texts", fix="Give dev=0.1.")
        own = {**self.get_params(deep=False), **self._fixed_settings}
        for name, value in others.items():
            if own.get(name) is not None:
                raise SettingsError(
                    f"settings has {name}={truncate_repr(value)}, but the estimator has "
                    f"{name}={truncate_repr(own[name])}",
                    fix="Leave it out of settings.",
                )
        return others

    def _predictions(self, texts: Any) -> list[dict[str, Any]]:
        _validation.check_is_fitted(self)
        predictions: list[dict[str, Any]] = self.model_.predict(self._read_texts(texts))
        return predictions


class TextClassifier(_base.ClassifierMixin, _FinetunedEstimator):  # type: ignore[misc]
    """A classifier of texts, as `finetune classification`; see `_FinetunedEstimator`.

    Attributes:
        classes_: the values of y, sorted.
    """

    _task = "classification"
    # each value of y is a class
    _fixed_settings: ClassVar[Mapping[str, Any]] = {**_COLUMNS, "no_label": ""}

    def fit(self, X: Any, y: Any) -> Self:
        """Fine-tune on texts and their classes.

        Raises:
            ValueError: X is not texts, y has another length, fewer than two classes, or a value
                that is missing, or a number with a fraction (give such classes as texts).
        """
        texts, labels = self._read_texts(X), _validation.column_or_1d(y, warn=True)
        _validation.check_consistent_length(texts, labels)
        if labels.dtype == object:  # texts, or numbers in a column that had gaps
            values = labels.tolist()
            if any(value is None or repr(value) == "<NA>" for value in values):
                raise ValueError("y has no class for a text: None or NA")
            kinds = {type(value) for value in values}
            labels = labels if len(kinds) > 1 else np.asarray(values)
        _validation.assert_all_finite(labels, input_name="y")
        _multiclass.check_classification_targets(labels)
        self.classes_, indices = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("y has one class: a classifier needs two")
        self._finetune(texts, [f"class {index}" for index in indices])
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return probabilities `[texts, classes]`, in the order of `classes_`."""
        predictions = self._predictions(X)
        names = [f"class {index}" for index in range(len(self.classes_))]
        return np.array([[one["probabilities"][name] for name in names] for one in predictions])

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of each text."""
        best = self.predict_proba(X).argmax(1)
        classes: NDArray[Any] = self.classes_[best]
        return classes


class TextRegressor(_base.RegressorMixin, _FinetunedEstimator):  # type: ignore[misc]
    """A regressor of texts, as `finetune regression`; see `_FinetunedEstimator`."""

    _task = "regression"

    def fit(self, X: Any, y: Any) -> Self:
        """Fine-tune on texts and their values.

        Raises:
            ValueError: X is not texts, y has another length, or is not numbers.
        """
        texts = self._read_texts(X)
        values = _validation.column_or_1d(y, warn=True, dtype=np.float64)
        _validation.check_consistent_length(texts, values)
        self._finetune(texts, values.tolist())
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return the value of each text."""
        return np.array([one["value"] for one in self._predictions(X)])

"""Probes of a frozen encoder: logistic regression from its vectors of texts to their classes.

The weights of the encoder do not change; scikit-learn trains the classifier.
`lab.tagging_probe` does the same for the tags of words.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from ..data.rows import LocatedRow, Rows, check_table_options, text_of
from ..data.tables import Table, read_rows, reiterable
from ..data.unlabelled import counted_unlabelled
from ..errors import DataError, SettingsError
from ..inference.settings import TextProbeSettings
from ..inference.vector_codes import vectors_of_codes
from ..loading import load
from ..settings.keywords import EmbedKeywords, ProbeKeywords
from ..tasks.classification import ClassificationSettings, ClassificationTask
from ..tasks.gold import GoldRows
from ..tasks.logistic_regression import fit_logistic_regression, import_solver
from ..tasks.scores import compute_classification_metrics
from ..text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch

    from ..inference.task_model import TaskModel
    from ..model import Model

_LABEL = "Label such rows, or remove them."


@dataclass(frozen=True)
class TextProbe:
    """A classifier on frozen vectors.

    Attributes:
        metrics: on dev, as in `ClassificationTask`; `majority` is the accuracy of always predicting
            the most common label.
        labels: the classes' names; the classifier uses their indices.
        classifier: scikit-learn's `LogisticRegression`.
        width: the length of a vector.
        speed: number of texts embedded per second of processor time.
        is_correct: bool `[rows of dev]`: whether each row is predicted correctly.
    """

    metrics: Mapping[str, float]
    labels: tuple[str, ...]
    classifier: Any
    width: int
    speed: float
    is_correct: NDArray[np.bool_]


def probe(
    model: str | Path | Model,
    *,
    train: Table,
    dev: Table,
    device: torch.device | str = "auto",
    **settings: Unpack[ProbeKeywords],
) -> TextProbe:
    """Train a logistic regression on a frozen encoder's text vectors.

    Args:
        model: a `Model`, a directory, or a name on the hub.
        train: training rows, as in `finetune` for classification: single texts.
        dev: evaluation rows.
        device: device to run on, for a model that is loaded here.
        settings: settings of `TextProbeSettings`: `pooling`, `layers`, `combine`, `normalize`,
            `inverse_regularization`, ….

    Raises:
        DataError: a table or one of its rows is not valid.
        SettingsError: a setting is unknown or impossible.
        BertworksError: scikit-learn is not installed.
    """
    probe_settings = TextProbeSettings.parse(settings)
    import_solver()
    loaded_model = load(model, device=device) if isinstance(model, str | Path) else model
    check_table_options(probe_settings.table_options(), train, dev)
    train_data = open_labelled_texts(loaded_model.tokenizer, train, probe_settings)
    dev_rows = _open_rows(dev, probe_settings)
    dev_data = _read_labelled_texts(train_data.task.for_table(dev_rows, labelled=True), dev_rows)
    texts, labels = train_data.texts, train_data.labels
    dev_texts, dev_labels = dev_data.texts, dev_data.labels
    start = time.process_time()
    vectors, dev_vectors = (
        features_of_texts(
            loaded_model, some, precision=probe_settings.precision, **probe_settings.of_vectors()
        )
        for some in (texts, dev_texts)
    )
    seconds = max(time.process_time() - start, 1e-6)  # Windows' clock has steps of 15 ms
    classifier = fit_logistic_regression(vectors, labels, **probe_settings.of_solver())
    names = train_data.task.settings.labels
    predicted = classifier.predict(dev_vectors)
    metrics = {
        "majority": float(np.bincount(dev_labels).max() / len(dev_labels)),
        **compute_classification_metrics(
            dev_labels, predicted, len(names), positive=1 if len(names) == 2 else None
        ),
    }
    return TextProbe(
        metrics,
        names,
        classifier,
        vectors.shape[1],
        (len(texts) + len(dev_texts)) / seconds,
        predicted == dev_labels,
    )


class ComparedModel(NamedTuple):
    """The result of `compare` for one model; see `TextProbe`.

    Attributes:
        difference: the accuracy minus that of the first model; None for the first.
        interval: half the width of the 95 % confidence interval of the difference, which is paired:
            both models are evaluated on the same rows.
    """

    model: str
    accuracy: float
    majority: float
    speed: float
    parameters: int
    difference: float | None
    interval: float | None

    @property
    def difference_text(self) -> str:
        """The difference for people, such as `+0.021 ± 0.015`."""
        if self.difference is None:
            return ""
        return f"{self.difference:+.3f} ± {self.interval:.3f}"


def compare(
    models: Sequence[str],
    table: Table,
    *,
    device: torch.device | str = "auto",
    **settings: Unpack[ProbeKeywords],
) -> list[ComparedModel]:
    """Probe models on one table; every fourth row is used for evaluation.

    Args:
        settings: as in `probe`; `pooling` is "mean" if omitted.

    Raises:
        DataError, SettingsError, BertworksError: as in `probe`; or there are fewer than four rows.
    """
    asked = TextProbeSettings.parse(settings)
    check_table_options(asked.table_options(), table)
    table_rows = _open_rows(table, asked)
    rows = list(table_rows)
    if len(rows) < 4:
        raise DataError(
            "every fourth row is used for evaluation, and there is none",
            where=table_rows.name,
            fix="Give at least four rows.",
        )
    train_rows = [row for number, row in enumerate(rows, 1) if number % 4]
    train, dev = (
        replace(table_rows, read=partial(iter, part)) for part in (train_rows, rows[3::4])
    )
    settings.setdefault("pooling", "mean")
    comparisons: list[ComparedModel] = []
    first: NDArray[np.bool_] | None = None
    for name in models:
        model = load(name, device=device)
        result = probe(model, train=train, dev=dev, **settings)
        difference = None if first is None else _paired_difference(result.is_correct, first)
        first = result.is_correct if first is None else first
        measured = result.metrics["accuracy"], result.metrics["majority"], result.speed
        comparisons.append(
            ComparedModel(name, *measured, model.num_parameters, *(difference or (None, None)))
        )
    return comparisons


def _paired_difference(
    is_correct: NDArray[np.bool_], first: NDArray[np.bool_]
) -> tuple[float, float]:
    """Return the difference of two accuracies on the same rows, and half its 95 % interval.

    The interval is the normal approximation for differences of paired values.
    """
    differences = is_correct.astype(np.float64) - first
    deviation = float(differences.std(ddof=1)) if len(differences) > 1 else 0.0
    return float(differences.mean()), 1.96 * deviation / math.sqrt(len(differences))


def _open_rows(table: Table, settings: TextProbeSettings) -> Rows:
    named = [name for name in (settings.text_column, settings.label_column) if name is not None]
    return read_rows(reiterable(table), columns=named, **settings.table_options())


def features_of_texts(
    model: TaskModel, texts: Sequence[str], **settings: Unpack[EmbedKeywords]
) -> Any:
    """Return vectors of texts for a classifier: an array `[texts, width]`, or a sparse matrix.

    Quantized vectors are decoded: a byte of eight bits is no number to learn from.

    Args:
        settings: as in `Model.embed`.

    Raises:
        SettingsError: the model makes a matrix for each text.
    """
    vectors: Any = model.embed(texts, **settings)
    if isinstance(vectors, list):
        raise SettingsError(
            "the model makes a matrix for each text (late interaction), not a vector",
            fix="Give a pooling, such as pooling=mean.",
        )
    return vectors_of_codes(vectors) if vectors.dtype in (np.int8, np.uint8) else vectors


class LabelledTexts(NamedTuple):
    """The rows of a table that have a gold label.

    Attributes:
        name: of the table.
        numbers: the rows' numbers in the table, from 1.
        labels: `[rows]` indices of the task's labels.
    """

    name: str
    task: ClassificationTask
    rows: list[LocatedRow]
    numbers: list[int]
    texts: list[str]
    labels: NDArray[np.int64]


def open_labelled_texts(
    tokenizer: Tokenizer, table: Table, settings: TextProbeSettings
) -> LabelledTexts:
    """Read single texts and their labels, whose names are collected.

    Raises:
        DataError: the table or one of its rows is not valid, or the rows are pairs of texts.
    """
    rows = _open_rows(table, settings)
    options = ClassificationSettings(
        text_column=settings.text_column, label_column=settings.label_column
    )
    with counted_unlabelled(rows, fix=_LABEL):
        task = ClassificationTask.from_table(tokenizer, rows, options)
    if task.settings.pair_column is not None:
        raise DataError(
            f"the rows are pairs of texts: {task.columns_text}",
            where=rows.name,
            fix="A probe takes single texts; name one with text_column=NAME.",
        )
    return _read_labelled_texts(task, rows)


def _read_labelled_texts(task: ClassificationTask, table: Rows) -> LabelledTexts:
    text_column, label_column = task.column("text"), task.column("label")
    gold = GoldRows(task, table)
    numbered_rows = list(gold.number_rows())
    numbers, rows = [number for number, _ in numbered_rows], [row for _, row in numbered_rows]
    texts = [text_of(row.values, text_column, row.where) for row in rows]
    with counted_unlabelled(table, fix=_LABEL):
        labels = [task.read_label(row.values, label_column, row.where) for row in rows]
    if not texts:
        raise DataError("there are no rows", where=table.name)
    gold.warn()
    return LabelledTexts(table.name, task, rows, numbers, texts, np.array(labels))

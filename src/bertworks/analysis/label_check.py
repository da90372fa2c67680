"""Find labels of a table that are probably wrong, by probes of a frozen encoder.

    texts ─ encoder ─► vectors ─ logistic regression on the other folds ─► probabilities of labels

Each row's probabilities come from a classifier that was not trained on the row.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from pydantic import Field

from ..data.rows import check_table_options
from ..data.tables import Table
from ..errors import DataError
from ..inference.settings import TextProbeSettings
from ..loading import load
from ..settings.keywords import CheckLabelsKeywords
from ..tasks.label_check import CheckedLabel, LabelCheck, find_suspects, group_similar_texts
from ..tasks.labels import find_misspellings
from ..tasks.logistic_regression import fit_logistic_regression, import_solver
from .probing import features_of_texts, open_labelled_texts

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from ..inference.task_model import TaskModel


class CheckLabelsSettings(TextProbeSettings):
    """Cross-validation."""

    folds: int = Field(5, ge=2, description="parts of the rows, each predicted from the others")
    seed: int = Field(0, ge=0, description="of the division into parts")


def check_labels(
    model: str | Path | TaskModel,
    data: Table,
    *,
    device: Any = "auto",
    **settings: Unpack[CheckLabelsKeywords],
) -> LabelCheck:
    """Find labels of a table that are probably wrong.

    Args:
        model: a model, a directory, or a name on the hub; only its vectors of texts are used.
        data: labelled rows, as in `finetune` for classification: single texts.
        device: device to run on, for a model that is loaded here.
        settings: settings of `CheckLabelsSettings`: `folds`, `seed`, and those of `probe`.

    Raises:
        DataError: the table or one of its rows is not valid, there are fewer rows than folds, or
            fewer than two labels with more than one row.
        SettingsError: a setting is unknown or impossible.
        BertworksError: scikit-learn is not installed.
    """
    check_settings = CheckLabelsSettings.parse(settings)
    import_solver()
    check_table_options(check_settings.table_options(), data)
    loaded_model = load(model, device=device) if isinstance(model, str | Path) else model
    table = open_labelled_texts(loaded_model.tokenizer, data, check_settings)
    texts, labels, names = table.texts, table.labels, table.task.labels
    if len(texts) < check_settings.folds:
        raise DataError(f"has fewer rows than folds={check_settings.folds}", where=table.name)
    if (np.bincount(labels) > 1).sum() < 2:  # a fold's classifier would have a single label
        raise DataError("has fewer than two labels with more than one row", where=table.name)
    vectors = features_of_texts(
        loaded_model, texts, precision=check_settings.precision, **check_settings.of_vectors()
    )
    probabilities = predict_held_out(vectors, labels, len(names), check_settings)
    is_suspect = find_suspects(labels, probabilities)
    predicted = probabilities.argmax(1)
    rows = [
        CheckedLabel(
            number=table.numbers[at],
            row=table.rows[at],
            text=texts[at],
            label=names[labels[at]],
            label_probability=float(probabilities[at, labels[at]]),
            predicted=names[predicted[at]],
            predicted_probability=float(probabilities[at, predicted[at]]),
            is_suspect=bool(is_suspect[at]),
        )
        for at in range(len(texts))
    ]
    counts = Counter(row.label for row in rows)
    return LabelCheck(
        rows=tuple(sorted(rows, key=lambda row: (counts[row.label] == 1, row.label_probability))),
        conflicts=tuple(
            tuple(rows[at] for at in group)
            for group in group_similar_texts(texts)
            if len({labels[at] for at in group}) > 1
        ),
        misspellings=tuple(
            (name, counts[name], other, counts[other]) for name, other in find_misspellings(counts)
        ),
        accuracy=float(np.mean(predicted == labels)),
        single_labels=tuple(name for name in names if counts[name] == 1),
    )


def predict_held_out(
    vectors: Float[np.ndarray, "rows width"],
    labels: Int[np.ndarray, " rows"],
    num_labels: int,
    settings: CheckLabelsSettings,
) -> Float[np.ndarray, "rows labels"]:
    """Return the probabilities of each row's labels, by a classifier of the other folds.

    Each label's rows are spread evenly over the folds.
    """
    order = np.random.default_rng(settings.seed).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    folds = np.empty(len(labels), np.int64)
    folds[order] = np.arange(len(labels)) % settings.folds
    probabilities = np.zeros((len(labels), num_labels))
    for fold in range(settings.folds):
        is_held_out = folds == fold
        classifier = fit_logistic_regression(
            vectors[~is_held_out], labels[~is_held_out], **settings.of_solver()
        )
        columns = np.ix_(is_held_out, classifier.classes_)
        probabilities[columns] = classifier.predict_proba(vectors[is_held_out].astype(np.float64))
    return probabilities

"""Scores of predictions in a file, from any system.

    answering        the data as SQuAD's JSON, and ids → texts as its official scorers read them
    tagging          CoNLL columns of which the last two are the gold and the predicted tags, or a
                     table of lists, as `predict` writes it
    classification   a table with a column of labels and a column of predicted ones
    regression       the same with numbers
    retrieval        judgements of documents and a run, in the formats of TREC

The metrics are those of `Model.evaluate`, except the loss and the metrics of probabilities, which
need a model; and `macro_f1` is the mean over the classes of the file, where `Model.evaluate` also
counts those of the model that neither occur nor are predicted. Neither a model nor torch is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Unpack, get_args

from ...data.reading import TableOptions
from ...data.schema import LABEL_NAMES, VALUE_NAMES
from ...data.tables import Table, read_rows
from ...data.unlabelled import LabelledTableOptions, counted_unlabelled, without_unlabelled
from ...errors import SettingsError, did_you_mean
from ...settings.keywords import LabelledTableKeywords
from ...settings.literals import ScoredTask
from ...tasks.evaluation import Evaluation
from .answers import score_answers
from .classes import score_classes
from .columns import find_label_columns
from .tags import read_tagged_rows, score_tags
from .values import score_values


def score(
    task: ScoredTask,
    data: Table,
    *,
    predictions: str | os.PathLike[str] | Mapping[str, str] | None = None,
    no_answer_probabilities: str | os.PathLike[str] | Mapping[str, float] | None = None,
    label_column: str | None = None,
    prediction_column: str | None = None,
    no_label: str | None = None,
    metrics: str | Sequence[str] | None = None,
    **settings: Unpack[LabelledTableKeywords],
) -> Evaluation:
    """Score predictions like the official scorers of the tasks.

    Answers are scored by the rules of SQuAD 2.0 if a question has no answer or if probabilities
    are given, else by those of 1.1. A question without a prediction scores 0, and a prediction
    for an id that is not in the data is ignored; it is said how many there are.

    Args:
        task: the task: "answering", "tagging", "classification", "regression" or "retrieval".
        data: rows with gold values and, except for answering, with predictions. For retrieval a
            file of judgements (qrels), in TREC's or BEIR's format.
        predictions: for answering: answers by question id, "" for no answer; or a JSON file. For
            retrieval a run in TREC's format.
        no_answer_probabilities: for answering: the probability of no answer by question id, for
            the best F1 at any threshold; or a JSON file. Any finite score is allowed.
        label_column: column of gold labels, values or tags, by name or number; detected if omitted.
        prediction_column: column of predictions; detected if omitted.
        no_label: for classification: the label of rows that have no gold label and are not scored;
            if omitted, `-` and the like, where it is never predicted; "" if there is none.
        metrics: for retrieval: names such as ndcg@10; see `RankingSettings`.
        settings: settings of `LabelledTableOptions`: `header`, `format`, `encoding`,
            `max_line_bytes`, and whether to `drop_unlabelled` rows, whose gold label is empty; else
            they are an error.

    Returns:
        The metrics and their breakdown.

    Raises:
        DataError: a file or a row is not valid; an id is missing, unknown or duplicate.
        SettingsError: there is no such task, or an argument does not apply to it.
        BertworksError: a package that computes the metrics is not installed.
    """
    if task not in get_args(ScoredTask):
        raise SettingsError(
            f"predictions of {task!r} cannot be scored",
            fix=did_you_mean(task, get_args(ScoredTask)),
        )
    options, _ = TableOptions.split(settings)
    drops = LabelledTableOptions.parse(settings).drop_unlabelled
    arguments: dict[str, Any] = {
        "predictions": predictions,
        "no_answer_probabilities": no_answer_probabilities,
        "label_column": label_column,
        "prediction_column": prediction_column,
        "no_label": no_label,
        "metrics": metrics,
        "drop_unlabelled": drops or None,
    }
    _check_arguments(task, arguments | options)
    if task == "retrieval":
        return _score_retrieval(data, predictions, metrics)
    if task == "answering":
        if predictions is None:
            raise SettingsError("predictions are missing", fix="Give ids and their answers.")
        return score_answers(read_rows(data, **options), predictions, no_answer_probabilities)
    column_names = [name for name in (label_column, prediction_column) if name is not None]
    if task == "tagging":
        rows = read_tagged_rows(data, column_names, options)
        return score_tags(rows, label_column, prediction_column)
    rows = read_rows(data, columns=column_names, **options)
    names = LABEL_NAMES if task == "classification" else VALUE_NAMES
    gold, predicted = find_label_columns(rows, names, label_column, prediction_column)
    if drops:
        rows = without_unlabelled(rows, [gold])
    with counted_unlabelled(rows):
        if task == "classification":
            return score_classes(rows, gold, predicted, no_label)
        return score_values(rows, gold, predicted)


_TABLES: tuple[ScoredTask, ...] = ("classification", "regression", "tagging")
_TASKS_OF_ARGUMENTS: dict[str, tuple[ScoredTask, ...]] = {
    "predictions": ("answering", "retrieval"),
    "no_answer_probabilities": ("answering",),
    "label_column": _TABLES,
    "prediction_column": _TABLES,
    "no_label": ("classification",),
    "metrics": ("retrieval",),
    "drop_unlabelled": ("classification", "regression"),
}
_FORMAT_TASKS: tuple[ScoredTask, ...] = (*_TABLES, "answering")


def _check_arguments(task: ScoredTask, arguments: Mapping[str, Any]) -> None:
    """Refuse an argument that is not None and not for the task; all others are formats'."""
    for name, value in arguments.items():
        tasks = _TASKS_OF_ARGUMENTS.get(name, _FORMAT_TASKS)
        if value is not None and task not in tasks:
            what = f"{name} is not for {task}, but for {' and '.join(tasks)}"
            raise SettingsError(what, fix="Leave it out.")


def _score_retrieval(
    data: Table, predictions: Any, metrics: str | Sequence[str] | None
) -> Evaluation:
    """Score a run by judgements."""
    from ..retrieval.evaluation import score_run
    from ..retrieval.settings import RankingSettings

    if not isinstance(data, str | os.PathLike) or not isinstance(predictions, str | os.PathLike):
        raise SettingsError(
            "retrieval is scored by two files", fix="Give judgements as data, and a run's file."
        )
    settings = RankingSettings.parse({} if metrics is None else {"metrics": metrics})
    return score_run(data, predictions, settings)

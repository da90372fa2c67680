"""Measure a model, any system's predictions, or a model's vectors: `evaluate`, `score`, `probe`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..settings import literals
from .application import verb
from .devices import DeviceOption, ModelWorkers
from .display import Display, JsonDisplay
from .models import ModelOption, TaskModel
from .options import (
    Overwrite,
    Page,
    SettingsOption,
    SettingsWords,
)
from .outputs import check_page, check_present, output
from .training_options import Dev, Train

if TYPE_CHECKING:
    from ..tasks.evaluation import Evaluation


@verb(
    "evaluate",
    "bertworks evaluate runs/tickets --data dev.tsv",
    "bertworks evaluate runs/tickets --data dev.tsv --report errors.html",
    "bertworks evaluate runs/tickets --data may.tsv --data june.tsv --workers 2",
    "bertworks evaluate runs/tiny --data prepared max_seq_length=512",
)
def evaluate(
    ctx: typer.Context,
    model: TaskModel,
    *,
    data: list[str],
    report: Page = None,
    overwrite: Overwrite = False,
    workers: ModelWorkers,
    device: DeviceOption = "auto",
    settings: SettingsOption,
    display: JsonDisplay,
) -> None:
    """Evaluate a model on labelled rows, or on held-out documents.

    A pre-trained model is evaluated on a prepared corpus, on the documents held out in training:
    documents=, sequences=, seed= and max_seq_length= are the run's if MODEL is a run; else give the
    values used in training (held_out.documents, held_out.seed or seed). 15 % of the tokens are
    predicted: 80 % of these are masked, 10 % replaced, 10 % unchanged.

    Args:
        data (FILE): Labelled rows; or the output of `prepare`, for a pre-trained model. May be
            repeated: each file is evaluated.
    """
    if len(data) > 1 and report is not None:
        ctx.fail("--report needs a single --data FILE.")
    with output(report, data, model=model, overwrite=overwrite, repeats=True):
        check_page(report)
        evaluations = model.load(device).evaluate_each(data, **workers, **settings)
        if len(data) == 1:
            _show_evaluation(display, evaluations[0], model.name, data[0], report)
            return
    for file, evaluation in zip(data, evaluations, strict=True):
        display.json({"data": file, **_values(evaluation)})
    names = list(dict.fromkeys(name for evaluation in evaluations for name in evaluation.metrics))
    display.table(
        ("file", "rows", *names),
        [
            (file, f"{evaluation.rows:,}", *(evaluation.metrics.get(name, "") for name in names))
            for file, evaluation in zip(data, evaluations, strict=True)
        ],
        right=("rows", *names),
        truncate="file",
    )
    display.notes(dict.fromkeys(note for evaluation in evaluations for note in evaluation.notes))


@verb(
    "score",
    "bertworks score answering --data dev-v2.0.json --predictions answers.json",
    "bertworks score tagging --data predicted.conll --report errors.html",
    "bertworks score classification --data predicted.tsv",
)
def score(
    task: literals.ScoredTask,
    *,
    data: str,
    predictions: Path | None = None,
    no_answer_probs: Path | None = None,
    label_column: str | None = None,
    prediction_column: str | None = None,
    no_label: str | None = None,
    settings: SettingsOption,
    report: Page = None,
    overwrite: Overwrite = False,
    display: JsonDisplay,
) -> None:
    """Score the predictions of any system.

    The metrics are those of evaluate. answering: SQuAD JSON, version 1.1 or 2.0, and a JSON file
    of answers by id, as for the official scorers. tagging: CoNLL columns, the last two with gold
    and predicted tags. classification and regression: a table with both columns.

    Args:
        task (TASK): answering, tagging, classification or regression.
        data (FILE): Labelled rows; - reads TSV from standard input.
        predictions (FILE): For answering: JSON with an answer for each id.
        no_answer_probs (FILE): For answering: JSON with the no-answer probability for each id.
        label_column (NAME): Column of gold labels; detected if omitted.
        prediction_column (NAME): Column of predicted labels; detected if omitted.
        no_label (LABEL): Label of rows without a gold label; - and the like if omitted, "" if none.
    """
    from ..analysis.scoring import score as run

    inputs = [data, predictions, no_answer_probs]
    with output(report, inputs, overwrite=overwrite, repeats=True):
        check_page(report)
        evaluation = run(
            task,
            data,
            predictions=predictions,
            no_answer_probabilities=no_answer_probs,
            label_column=label_column,
            prediction_column=prediction_column,
            no_label=no_label,
            **settings,
        )
        _show_evaluation(display, evaluation, str(predictions or data), data, report)


def _show_evaluation(
    display: Display, evaluation: Evaluation, model: str, data: str, report: Path | None
) -> None:
    """Print an evaluation, and write its report if a path is given."""
    if report is not None:
        from ..reports.report import write_evaluation_report

        write_evaluation_report(report, evaluation, model=model, data=data)
    display.json(_values(evaluation))
    display.metrics({"rows": evaluation.rows, **evaluation.metrics})
    display.notes(evaluation.notes)
    display.facts({"calibration": evaluation.breakdown.calibration, "report": report})


def _values(evaluation: Evaluation) -> dict[str, Any]:
    return {"rows": evaluation.rows, **evaluation.metrics, "notes": evaluation.notes}


@verb(
    "probe",
    "bertworks probe --model sentence-transformers/all-MiniLM-L6-v2 \\\n"
    "      --train train.tsv --dev dev.tsv pooling=cls layers=[-2]",
)
def probe(
    *,
    model: ModelOption,
    train: Train,
    dev: Dev,
    settings: SettingsWords,
    device: DeviceOption = "auto",
    display: JsonDisplay,
) -> None:
    """Classify texts by logistic regression on frozen vectors.

    Shows within seconds how well an encoder's vectors separate the classes.
    """
    from ..analysis.probing import probe as run

    check_present([train, dev])
    result = run(model, train=train, dev=dev, device=device, **settings)
    display.json({"width": result.width, **result.metrics})
    display.metrics({"width": result.width, **result.metrics})

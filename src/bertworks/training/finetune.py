"""Fine-tune a pre-trained encoder for a task, on a table of labelled rows.

Source: paper §4.1 and appendix A.3: batches of 16 or 32, learning rates of 5e-5, 3e-5 or 2e-5, 2 to
4 epochs, dropout 0.1, everything else as in pre-training.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Unpack

import torch

from ..checkpoints.locate import local_directory
from ..data.tables import Table
from ..errors import BertworksWarning, DataError, SettingsError
from ..inference.engine import outputs_of
from ..inference.evaluate import evaluate, evaluate_and_tune
from ..inference.fingerprints import fingerprint
from ..inference.settings import EngineSettings
from ..loading import load
from ..model import Model
from ..reports.report import write_report
from ..runs.run_directory import RunDirectory
from ..settings.keywords import TaskKeywords
from ..settings.pooling import NO_POOLING
from ..tasks import find_labelled_task
from ..tasks.best_metric import BestMetric
from ..tasks.breakdown import Breakdown
from ..tasks.dev_share import Dev
from ..tasks.evaluation import Evaluation, HasResults
from ..tasks.labelled import LabelledTask
from ..tasks.network import Network
from ..tasks.summary import DataSummary
from ..utils.formatting import format_metrics, html_facts
from ..utils.json_files import with_checksum, write_json
from ..utils.progress import Progress, say, usual_progress
from .cards import finetuned_card
from .checkpoint import load_weights
from .distributed import ProcessGroup, process_group
from .fit import fit
from .instability import failures, no_better_than_guessing, note_few_rows, note_few_steps
from .labelled_data import LabelledData, training_tables
from .plan import Phase, Plan
from .precision import resolve_precision
from .random_state import seed_everything
from .row_source import RowSource, TablesSource
from .settings import FinetuneSettings, FitSettings, settings_of
from .start import Start
from .state import find_plan_conflict


@dataclass(frozen=True)
class FinetuneResult(HasResults):
    """The result of a fine-tuning run.

    Attributes:
        model: the model with the best weights, as saved in `run.model`.
        run: the run directory.
        data: a summary of the tables.
        metrics: metrics of the model on dev, in the run's precision; empty without dev.
        best_step: the step of the model's weights; None without dev (then the last step).
        notes: for the user, in addition to the metrics.
        new_parameters: the newly initialised parameters, which the given model does not have.
        breakdown: details of the evaluation on dev.
    """

    model: Model
    run: RunDirectory
    data: DataSummary
    metrics: Mapping[str, float] = field(default_factory=dict)
    best_step: int | None = None
    notes: list[str] = field(default_factory=list)
    new_parameters: tuple[str, ...] = ()
    breakdown: Breakdown = field(default_factory=Breakdown)

    @property
    def history(self) -> list[dict[str, Any]]:
        """The lines of the journal: losses (`kind` "train") and evaluations ("eval"), by step."""
        return list(self.run.lines())

    def __repr__(self) -> str:
        return f"<FinetuneResult {self.run.model}: {format_metrics(self.metrics, self.notes)}>"

    def _repr_html_(self) -> str:
        facts = {**self.metrics, "model": self.run.model, "report": self.run.report}
        return html_facts("Fine-tuned", facts, self.notes)


def finetune(
    model: str | Path | Model,
    task: str | type[LabelledTask[Any]] = "classification",
    *,
    train: Table | Sequence[str | Path],
    dev: Dev | None = None,
    out: str | Path,
    device: torch.device | str = "auto",
    overwrite: bool = False,
    progress: Progress | None = None,
    **settings: Unpack[TaskKeywords],
) -> FinetuneResult:
    """Fine-tune a model for a task, on labelled rows; called again, it resumes.

    Args:
        model: the model to start from: a `Model`, a directory, or a name on the hub.
        task: "classification", "multilabel", "regression", "tagging", "answering", "choice",
            "retrieval" or "translation"; or your own task, as a class or `path/to/file.py:Class`.
        train: training rows: a path, or rows in memory, such as a pandas `DataFrame`,
            `(text, label)` pairs or a tuple `(texts, labels)` (see `data.tables.Table`); or the
            paths of several tables, as in `table_sampling`. The first determines the labels.
        dev: evaluation rows, likewise; or a number such as 0.1, the share of the training rows to
            split off (see `dev_share`; `data.json` in the run directory lists them). Without
            `dev`, the last weights are kept, not the best.
        out: the run directory.
        device: device to run on; by default CUDA if there is any, as for `load`.
        overwrite: delete an existing run, finished or not, and start again.
        progress: reports progress; in a notebook it is shown by default.
        settings: settings of `FinetuneSettings` and of the task (see `settings_of`);
            those of your own task, which type checkers do not know, as `**dictionary`.

    Raises:
        DataError, SettingsError: a table, one of its rows or a setting is not valid.
        BertworksError: a package that the task's metrics need is not installed.
        TrainingError, OutputError: as in `fit`; or the run directory is, contains or is inside an
            input, or another process uses it.
    """
    kind = find_labelled_task(task)
    run_settings = _parse_settings(kind, dev, settings)
    kind = kind.for_settings(run_settings)
    with process_group(device, run_settings.rank_timeout) as group:
        name = model if isinstance(model, str | Path) else "a model in memory"
        start_model = model if isinstance(model, Model) else load(model)
        run_settings = _inherit_settings(kind, start_model, run_settings, str(name))
        earlier_run = None if overwrite else out
        precision = resolve_precision(run_settings.precision, earlier_run, group.device)
        run_settings = run_settings.model_copy(update={"precision": precision})
        main_progress = usual_progress(progress) if group.is_main else None
        data = LabelledData.read(
            kind,
            start_model.tokenizer,
            train,
            dev,
            run_settings,
            group.device,
            run=Path(out) if group.is_main and not overwrite else None,
            progress=main_progress,
        )
        tables = {"train": _name_of(train), "dev": dev if isinstance(dev, float) else _name_of(dev)}
        description = _describe(start_model, str(name), tables, data, run_settings)
        seed_everything(run_settings.seed)  # every rank starts with the same weights
        start = Start.from_model(start_model, data.task, run_settings)
        phase, fit_settings = _phase(data, run_settings)
        plan = Plan.from_phases([phase], fit_settings)
        models = [one and local_directory(one) for one in (name, run_settings.teacher)]
        with RunDirectory.open(
            out,
            description,
            resume_checks={"epochs": lambda run: find_plan_conflict(run, plan)},
            check=data.check,
            inputs=[*training_tables(train), dev, *models],
            is_main=group.is_main,
            overwrite=overwrite,
        ) as run:
            if start_model.learning_rate is not None and "learning_rate" not in settings:
                rate = f"learning_rate={run_settings.learning_rate:g}"
                say(main_progress, f"{rate}, the rate that the model carries")
            return _finetune(
                start, data, phase, run_settings, fit_settings, run, group, main_progress
            )


def _describe(
    model: Model,
    name: str,
    tables: Mapping[str, Any],
    data: LabelledData,
    settings: FinetuneSettings,
) -> dict[str, Any]:
    """Return what a run directory records of its start: inputs and settings."""
    return {
        "task": data.task.name,
        "model": name,
        "fingerprint": fingerprint(model.encoder, model.tokenizer),
        **tables,
        **settings.model_dump(mode="json"),
        "best_metric": settings.best_metric or data.reader.best_metric,
    }


def _parse_settings(
    kind: type[LabelledTask[Any]], dev: Dev | None, settings: Mapping[str, Any]
) -> FinetuneSettings:
    """Parse the settings, and check that those about evaluation have evaluation rows."""
    run_settings = settings_of(kind).parse(settings)
    for option in ("early_stopping", "best_metric", "eval_every", "calibrate"):
        is_set = option in run_settings.model_fields_set
        if dev is None and is_set and (value := getattr(run_settings, option)):
            raise SettingsError(
                f"{option}={value}: there are no evaluation rows",
                fix="Give dev: a table, or a share of the training rows (--dev 0.1).",
            )
    if not isinstance(dev, float) and run_settings.dev_seed != FinetuneSettings().dev_seed:
        raise SettingsError(
            f"dev_seed={run_settings.dev_seed}: nothing is split off for dev", fix="Give dev=0.1."
        )
    return run_settings


def _inherit_settings(
    kind: type[LabelledTask[Any]], model: Model, settings: FinetuneSettings, name: str
) -> FinetuneSettings:
    """Return the settings, with those of the given model where the user did not set them.

    Raises:
        SettingsError: two settings exclude each other, or one has no effect without another.
    """
    options = kind.inherit_options(model.sentence)
    model_settings = {
        key: value for key, value in options.items() if key not in settings.model_fields_set
    }
    run_settings = settings.with_values(**model_settings)
    for need in run_settings.all_needs():
        if not need.is_met(run_settings):  # what is for another pooling
            model_settings = {key: model_settings[key] for key in model_settings.keys() - need.keys}
    settings.model_copy(update=model_settings).check_together()
    pooling = getattr(run_settings, "pooling", None)
    is_late = model.sentence is not None and model.sentence.late_interaction is not None
    if is_late and pooling == NO_POOLING and model.modules is not None:
        if "projection_size" not in settings.model_fields_set:
            width = model.modules.output_width(model.encoder.config.hidden_size)
            model_settings["projection_size"] = width
    elif options and model.modules is not None:
        kinds = ", ".join(one.kind for one in model.modules.settings)
        warnings.warn(
            f"{name}: the vectors that are trained are those of the pooling; the modules after "
            f"it ({kinds}) are left out",
            BertworksWarning,
            stacklevel=3,
        )
    if model.query_model is not None:
        warnings.warn(
            f"{name}: only its modules for documents are used; those for queries are left out",
            BertworksWarning,
            stacklevel=3,
        )
    if model.learning_rate is not None and "learning_rate" not in settings.model_fields_set:
        model_settings["learning_rate"] = model.learning_rate
    return settings.with_values(**model_settings) if model_settings else settings


def _name_of(table: Any) -> str | None:
    if table is None:
        return None
    tables = training_tables(table)
    if len(tables) > 1:
        return ", ".join(map(os.fspath, tables))
    return os.fspath(tables[0]) if isinstance(tables[0], str | os.PathLike) else "rows in memory"


def _phase(data: LabelledData, settings: FinetuneSettings) -> tuple[Phase, FitSettings]:
    """Return the phase of the training examples, and the settings of the loop.

    Raises:
        DataError: no row has a training example.
        SettingsError: batches of this size teach nothing.
    """
    edges = list(accumulate(data.table_sizes or [len(data.train)], initial=0))
    tables = [
        data.task.training_pieces(data.train[start:end], settings.seed)
        for start, end in pairwise(edges)
    ]
    pieces = [piece for table in tables for piece in table]
    if not pieces:
        raise DataError("no row teaches anything", where=data.summary.train.name)
    options: dict[str, Any] = {"seed": settings.seed, "batch_size": settings.batch_size}
    source: RowSource[Any]
    if len(tables) == 1:
        source = RowSource(pieces, bucket_batches=settings.bucket_batches, **options)
    elif settings.bucket_batches:
        raise SettingsError("bucket_batches is for one training table", fix="Leave it out.")
    else:
        source = TablesSource(tables, sampling=settings.table_sampling, **options)
    data.task.check_batches(pieces, source.batch_size)
    phase = Phase(source, source.steps(settings.epochs), batch_size=source.batch_size)
    return phase, settings.fit_settings(source.steps(1))


def _finetune(
    start: Start,
    data: LabelledData,
    phase: Phase,
    settings: FinetuneSettings,
    fit_settings: FitSettings,
    run: RunDirectory,
    group: ProcessGroup,
    progress: Progress | None,
) -> FinetuneResult:
    task, network = data.task, start.network
    if group.is_main:
        data.write_summary(run)
        _report_start(start, data, phase, settings, fit_settings, progress)
    metric = settings.best_metric or data.reader.best_metric
    best = BestMetric(metric, metric in task.lower_is_better, settings.early_stopping)
    engine = EngineSettings(precision=settings.precision)

    def fit_head() -> None:
        task.fit_head(network, lambda: outputs_of(network, data.task, data.train, engine))

    def compute_metrics(network: Network) -> Mapping[str, float]:
        assert data.dev is not None
        fit_head()
        evaluation = evaluate(network, data.reader, data.dev, engine, breakdown=False, group=group)
        for note in evaluation.notes or filter(None, [no_better_than_guessing(evaluation.metrics)]):
            say(progress, note)
        return evaluation.metrics

    result = fit(
        network,
        task,
        [phase],
        settings=fit_settings,
        run=run,
        evaluate=compute_metrics if data.dev is not None else None,
        best=None if data.dev is None else best,
        device=group.device,
        progress=progress,
    )
    if data.dev is not None:
        state = result.state
        assert state.best_step is not None, "it was evaluated at the end, if not before"
        load_weights(run.best_weights(state.best_step), network, state.best_sha256)
    if start.adapters is not None:
        start.adapters.merge()
    if data.dev is None:  # else the best weights have the head that was fitted to evaluate them
        fit_head()
    final, task = _evaluate_and_tune(network, data, engine, group)
    if group.is_main:
        final = _write_evaluation(final, data, network, settings, run)
    network.eval()
    final_model = Model(
        task.tokenizer,
        task,
        network,
        source=str(run.model),
        learning_rate=start.learning_rate,
    )
    if group.is_main:
        final_model.card = finetuned_card(start.card, run, data.summary, final, settings)
        final_model.save(run.model, overwrite=True, keep_others=True)
        write_report(run.path)
        run.write_outcome(
            best_metric=metric,
            lower_is_better=best.lower_is_better,
            best_step=result.state.best_step,
        )
    return FinetuneResult(
        model=final_model,
        run=run,
        data=data.summary,
        metrics=final.metrics,
        best_step=result.state.best_step,
        notes=final.notes,
        new_parameters=start.new_parameters,
        breakdown=final.breakdown,
    )


def _report_start(
    start: Start,
    data: LabelledData,
    phase: Phase,
    settings: FinetuneSettings,
    fit_settings: FitSettings,
    progress: Progress | None,
) -> None:
    """Show what is trained, on which data, and what in it may surprise."""
    for line in data.lines():
        say(progress, line)
    if start.new_parameters:
        say(progress, f"newly initialised: {', '.join(start.new_parameter_names)}")
    if phase.batch_size != settings.batch_size:
        say(
            progress,
            f"batch_size={settings.batch_size} is more than the {phase.batch_size} training "
            "examples: each step takes all of them",
        )
    batch_size = phase.batch_size or settings.batch_size
    updates = data.task.describe_updates(phase.steps, batch_size, len(data.train))
    few_steps = note_few_steps(phase.steps, settings.epochs)
    notes = [updates] if updates else [few_steps, note_few_rows(data.task, data.train)]
    for note in (*notes, fit_settings.shortfall(len(start.network.encoder.layers), phase.steps)):
        if note is not None:
            say(progress, note)


def _write_evaluation(
    evaluation: Evaluation,
    data: LabelledData,
    network: Network,
    settings: FinetuneSettings,
    run: RunDirectory,
) -> Evaluation:
    """Write the final evaluation, and return it with notes on a failed training and the data."""
    prior = data.task.baseline_losses(data.summary.train.labels)
    width = network.encoder.config.hidden_size
    failure_signs = failures(evaluation.metrics, run.lines(), prior, settings, width)
    for sign in failure_signs:
        run.log_session("failure", text=sign)
    evaluation = replace(evaluation, notes=[*failure_signs, *evaluation.notes, *data.notes])
    if data.summary.dev is not None:
        tree = json.loads(evaluation.to_json(data.summary.dev.name))
        write_json(run.evaluation, with_checksum(tree), indent=1)
    return evaluation


def _evaluate_and_tune(
    network: Network, data: LabelledData, engine: EngineSettings, group: ProcessGroup
) -> tuple[Evaluation, LabelledTask[Any]]:
    """Return the evaluation on dev, and the task with the settings that are chosen there."""
    if data.dev is None:
        return Evaluation({}, 0), data.task
    if not getattr(data.reader.settings, "calibrate", True):
        return evaluate(network, data.reader, data.dev, engine, group=group), data.task
    evaluation, values = evaluate_and_tune(network, data.reader, data.dev, engine, group)
    if not values:
        return evaluation, data.task
    # The figures are those of the saved model.
    tuned_reader = data.reader.with_settings(values)
    evaluation = evaluate(network, tuned_reader, data.dev, engine, group=group, is_tuning=True)
    return evaluation, data.task.with_settings(values)

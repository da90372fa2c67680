"""Fine-tuning: a pre-trained encoder and a table of labelled rows in, a model of a task out.

Source: paper §4.1 and appendix A.3: batches of 16 or 32, learning rates of 5e-5, 3e-5 or 2e-5, 2 to
4 epochs, dropout 0.1, everything else as in pre-training.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

import torch

from .. import files
from ..api import Model, load
from ..checkpoints.locate import local_directory
from ..errors import DataError, SettingsError
from ..inference.evaluate import Evaluation, evaluate
from ..inference.settings import EngineSettings
from ..inference.vectors import fingerprint
from ..keywords import TaskKeywords
from ..literals import Precision
from ..tasks import labelled_task
from ..tasks.breakdown import Breakdown
from ..tasks.example import LabelledExample
from ..tasks.labelled import LabelledTask
from ..tasks.rows import Table
from ..tasks.summary import DataSummary
from ..tasks.task import Network
from ..wording import measured
from .best import Best
from .checkpoint import load_weights
from .conditions import settled_precision
from .dev_share import Dev
from .distributed import Team, team
from .finetune_settings import FinetuneSettings, settings_of
from .fit import fit
from .instability import failures, no_better_than_guessing
from .journal import RunDirectory
from .labelled_data import LabelledData
from .plan import Phase, Plan
from .progress import Progress, say
from .random_state import seed_everything
from .report import write_report
from .row_source import RowSource
from .settings import FitSettings
from .start import Start
from .state import refusal

__all__ = ["FinetuneResult", "FinetuneSettings", "finetune"]


@dataclass(frozen=True)
class FinetuneResult:
    """What came of a fine-tuning run.

    Attributes:
        model: with the best weights, as saved in `run.model`.
        run: the run directory.
        data: what the tables looked like.
        metrics: of the model on dev, computed in float32; empty without dev.
        best_step: the step whose weights these are; None without dev: the last.
        remarks: what people should know beside the metrics.
        initialized: the parameters that the given model did not have, newly initialised.
        breakdown: what the metrics are made of.
    """

    model: Model
    run: RunDirectory
    data: DataSummary
    metrics: Mapping[str, float] = field(default_factory=dict)
    best_step: int | None = None
    remarks: list[str] = field(default_factory=list)
    initialized: tuple[str, ...] = ()
    breakdown: Breakdown = field(default_factory=Breakdown)

    def __repr__(self) -> str:
        return f"<FinetuneResult {self.run.model}: {measured(self.metrics, self.remarks)}>"


def finetune(
    model: str | Path | Model,
    task: str | type[LabelledTask[Any]] = "classification",
    *,
    train: Table,
    dev: Dev | None = None,
    out: str | Path,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
    **settings: Unpack[TaskKeywords],
) -> FinetuneResult:
    """Train a model for a task, from labelled rows; called again, it goes on where it stopped.

    Args:
        model: whose encoder to begin with: a `Model`, a directory, or a name on the hub.
        task: what to learn: "classification", "regression", "tagging", "answering", "choice" or
            "retrieval"; or a task of your own, as a class or `path/to/file.py:Class`.
        train: the rows to learn from: a path, or rows in memory, such as a pandas `DataFrame`,
            `(text, label)` pairs or a tuple `(texts, labels)` (see `tasks.rows.Table`).
        dev: the rows to measure on, likewise; or a number such as 0.1, the share of the training
            rows that is split off for it (see `dev_share`; `data.json` in the run directory says
            which). Without either the last weights are kept, not the best.
        out: the run directory.
        device: where to compute.
        progress: shows how it goes.
        settings: those of `FinetuneSettings`, and of the task's options (see `settings_of`);
            those of a task of your own, which type checkers do not know, as `**dictionary`.

    Raises:
        DataError: a table or a row of it is not what it should be.
        SettingsError: a setting is unknown or impossible.
        BertworksError: a package that the task's metrics need is not installed.
        TrainingError, OutputError: as `fit` does; or the run directory is, contains or lies in an
            input, or another process is at it.
    """
    kind = labelled_task(task)
    resolved = settings_of(kind).parse(settings)
    resolved.check_together()
    for option in ("early_stopping", "best_metric", "eval_every"):
        if dev is None and (value := getattr(resolved, option)) is not None:
            raise SettingsError(
                f"{option}={value}: there are no rows to measure on",
                fix="Give dev: a table, or a share of the training rows (--dev 0.1).",
            )
    if not isinstance(dev, float) and resolved.dev_seed != FinetuneSettings().dev_seed:
        raise SettingsError(
            f"dev_seed={resolved.dev_seed}: nothing is split off for dev", fix="Give dev=0.1."
        )
    with team(device) as members:
        tables = {"train": _name_of(train), "dev": dev if isinstance(dev, float) else _name_of(dev)}
        name = model if isinstance(model, str | Path) else "a model in memory"
        given = model if isinstance(model, Model) else load(model)
        own = {
            option: value
            for option, value in kind.taken_over(given.sentence).items()
            if option not in resolved.model_fields_set
        }
        resolved = resolved.with_values(**own) if own else resolved
        precision = settled_precision(resolved.precision, out, members.device)
        resolved = resolved.model_copy(update={"precision": precision})
        data = LabelledData.read(kind, given.tokenizer, train, dev, resolved, members.device)
        description = {
            "task": kind.name,
            "model": str(name),
            "fingerprint": fingerprint(given.encoder, given.tokenizer),
            **tables,
            **resolved.model_dump(mode="json"),
            "best_metric": resolved.best_metric or data.reader.best_metric,
        }
        seed_everything(resolved.seed)  # every rank begins with the same weights
        start = Start.of(given, data.task, resolved)
        phase, fit_settings = _training(data, resolved)
        plan = Plan.of([phase], fit_settings)
        inputs = [train, dev, *map(local_directory, filter(None, [str(name), resolved.teacher]))]
        with RunDirectory.open(
            out,
            description,
            refusals={"epochs": lambda run: refusal(run, plan)},
            schema=type(resolved),
            inputs=inputs,
            is_main=members.is_main,
        ) as run:
            return _finetune(start, data, phase, resolved, fit_settings, run, members, progress)


def _name_of(table: Any) -> str | None:
    if table is None:
        return None
    return os.fspath(table) if isinstance(table, str | os.PathLike) else "rows in memory"


def _training(data: LabelledData, settings: FinetuneSettings) -> tuple[Phase, FitSettings]:
    """The examples and the number of steps, and how they are learned."""
    pieces = [piece for example in data.train for piece in data.task.training_examples(example)]
    if not pieces:
        raise DataError("no row teaches anything", where=data.summary.train.name)
    size = settings.batch_size
    source = RowSource(
        pieces, seed=settings.seed, batch_size=size, bucket_batches=settings.bucket_batches
    )
    phase = Phase(source, steps=math.ceil(settings.epochs * len(pieces) / size))
    return phase, settings.fit_settings(math.ceil(len(pieces) / size))


def _finetune(
    start: Start,
    data: LabelledData,
    phase: Phase,
    settings: FinetuneSettings,
    fit_settings: FitSettings,
    run: RunDirectory,
    members: Team,
    progress: Progress | None,
) -> FinetuneResult:
    task, network = data.task, start.network
    if members.is_main:
        data.note_in(run)
        for line in data.lines():
            say(progress, line)
        if start.initialized:
            say(progress, f"newly initialised: {', '.join(start.fresh)}")

    thaw = fit_settings.shortfall(len(network.encoder.layers), phase.steps)
    if members.is_main and thaw is not None:
        say(progress, thaw)
    metric = settings.best_metric or data.reader.best_metric
    best = Best(metric, metric in task.lower_is_better, settings.early_stopping)
    measure = _Measure(data.reader, data.dev, settings.precision, progress)
    result = fit(
        network,
        task,
        [phase],
        settings=fit_settings,
        run=run,
        evaluate=measure if data.dev is not None else None,
        best=None if data.dev is None else best,
        device=members.device,
        progress=progress if members.is_main else None,
    )
    if members.is_main and data.dev is not None:
        assert result.state.best_step is not None, "it was measured at the end, if not before"
        load_weights(run.best_weights(result.state.best_step), network)
    if start.adapters is not None:
        start.adapters.merge()
    final = Evaluation({}, 0)
    if members.is_main:
        if data.dev is not None:
            engine = EngineSettings(precision=settings.precision)
            final = evaluate(network, data.reader, data.dev, engine)
            task = task.tuned(final.metrics)
        prior = task.guessing_losses(data.summary.train.labels)
        width = network.encoder.config.hidden_size
        failed = failures(final.metrics, run.lines(), prior, settings, width)
        for sign in failed:
            run.note_session("note", text=sign)
        final = replace(final, remarks=[*final.remarks, *failed])
        if data.summary.dev is not None:
            files.write(run.evaluation, final.to_json(data.summary.dev.name))
    network.eval()
    made = Model(task.tokenizer, task, network, source=str(run.model))
    if members.is_main:
        made.save(run.model, keep_others=True)
        write_report(run.path)
        run.note_outcome(
            best_metric=metric,
            lower_is_better=best.lower_is_better,
            best_step=result.state.best_step,
        )
    return FinetuneResult(
        model=made,
        run=run,
        data=data.summary,
        metrics=final.metrics,
        best_step=result.state.best_step,
        remarks=final.remarks,
        initialized=start.initialized,
        breakdown=final.breakdown,
    )


class _Measure:
    """Measures a network on dev, and says what is worth saying."""

    def __init__(
        self,
        task: LabelledTask[Any],
        examples: list[LabelledExample] | None,
        precision: Precision,
        progress: Progress | None,
    ) -> None:
        self._task, self._examples = task, examples
        self._settings = EngineSettings(precision=precision)
        self._progress = progress

    def __call__(self, network: Network) -> Mapping[str, float]:
        assert self._examples is not None
        found = evaluate(network, self._task, self._examples, self._settings, breakdown=False)
        guessing = no_better_than_guessing(found.metrics)
        for remark in found.remarks or filter(None, [guessing]):
            say(self._progress, remark)
        return found.metrics

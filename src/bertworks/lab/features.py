"""The paper's comparison of features with fine-tuning, on the user's model and data.

Paper §5.3 and table 7: the hidden states of a frozen encoder are computed once, and a BiLSTM is
trained on them for each of six choices of layers. For comparison, the encoder is fine-tuned.

out/
  settings.yaml            resolved settings; data.json: a description of the tables
  states.npy               the hidden states, removed when all probes are measured
  rows/last-seed0/         a run directory for each choice and seed; result.json when it is done
  rows/fine-tuned-seed0/   the run directory of the fine-tuned model
  table.md, results.json   the results, rewritten after each row
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, Self, Unpack

import torch
from pydantic import Field, NonNegativeInt, model_validator

from ..checkpoints.locate import local_directory
from ..data.tables import Table, reiterable
from ..inference.fingerprints import fingerprint
from ..inference.settings import EngineSettings
from ..loading import load
from ..model import Model
from ..nn.device import pick_device
from ..runs.run_directory import RunDirectory
from ..settings.keywords import AblationKeywords
from ..settings.literals import Precision
from ..tasks.tagging.task import TaggingTask
from ..tasks.tagging.windows import TaggingExample
from ..training.finetune import finetune
from ..training.labelled_data import LabelledData
from ..training.precision import resolve_precision
from ..training.settings import FinetuneSettings, settings_of
from ..utils.atomic_writes import write_file
from ..utils.formatting import markdown_table
from ..utils.json_files import write_json
from ..utils.progress import Progress, say
from .finished_runs import RESULT, finish_run
from .tagging_probe import (
    FrozenStates,
    LayerChoice,
    ProbeTask,
    TaggingProbeSettings,
    frozen_states,
    train_probe,
)

TITLE = "Features of a frozen encoder, and fine-tuning"
PAPER = "CoNLL-2003"
FINE_TUNED = "fine-tuned"


# The class is made here.
class FeatureAblationSettings(TaggingTask.user_settings()):  # type: ignore[misc]
    """Settings of the comparison; each row of the table is a mean over the seeds."""

    seeds: tuple[NonNegativeInt, ...] = Field(
        (0,), min_length=1, description="random seeds; each row is the mean over them"
    )
    precision: Precision = Field("auto", description="precision of the frozen encoder")
    probe: TaggingProbeSettings = TaggingProbeSettings()
    finetune: FinetuneSettings | None = Field(
        FinetuneSettings(), description="fine-tuning of the last row; null leaves it out"
    )

    @model_validator(mode="after")
    def _seeds_are_said_once(self) -> Self:
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds={list(self.seeds)}: one is given twice")
        if self.finetune is not None and self.finetune.seed != FinetuneSettings().seed:
            raise ValueError(f"finetune.seed={self.finetune.seed}: give seeds=[…] instead")
        return self

    def in_precision_of(self, out: str | Path | None, device: torch.device) -> Self:
        """Return a copy with `precision=auto` resolved: as in the run that `out` may contain."""
        provenance: dict[str, Any] = {"precision": resolve_precision(self.precision, out, device)}
        if (tuning := self.finetune) is not None:
            how = resolve_precision(tuning.precision, out, device, "finetune")
            provenance["finetune"] = tuning.model_copy(update={"precision": how})
        resolved: Self = self.model_copy(update=provenance)
        return resolved

    def finetuning(self, seed: int = 0) -> FinetuneSettings:
        """Return the settings of fine-tuning with a seed, including the settings of the task."""
        task = self.model_dump(include=set(TaggingTask.user_settings().model_fields))
        how = {} if self.finetune is None else self.finetune.model_dump()
        return settings_of(TaggingTask).parse({**how, **task, "seed": seed})


class Choice(NamedTuple):
    """A row of the paper's table: its name, the layers, and the paper's F1 (dev, in percent)."""

    name: str
    layers: LayerChoice
    paper: float


def choices(count: int) -> list[Choice]:
    """Return the paper's six choices for an encoder with `count` layers.

    With fewer than four layers, "the last four" are all of them. A choice that equals an earlier
    one is left out.
    """
    four = tuple(range(max(1, count - 3), count + 1))
    name = f"last {len(four)}"
    rows = [
        Choice("embeddings", LayerChoice((0,)), 91.0),
        Choice("second-to-last", LayerChoice((count - 1,)), 95.6),
        Choice("last", LayerChoice((count,)), 94.9),
        Choice(f"weighted sum, {name}", LayerChoice(four, mixed=True), 95.9),
        Choice(f"concatenated, {name}", LayerChoice(four), 96.1),
        Choice("weighted sum, all", LayerChoice(tuple(range(1, count + 1)), mixed=True), 95.5),
    ]
    if not count:  # static vectors
        return rows[:1]
    choices: dict[LayerChoice, Choice] = {}
    for row in rows:
        layers, mixed = row.layers
        choices.setdefault(LayerChoice(layers, mixed and len(layers) > 1), row)
    return list(choices.values())


def ablate_features(
    model: str | Path | Model,
    *,
    train: Table,
    dev: Table,
    out: str | Path,
    device: torch.device | str = "auto",
    overwrite: bool = False,
    progress: Progress | None = None,
    **settings: Unpack[AblationKeywords],
) -> Results:
    """Compare probes on six combinations of layers with fine-tuning; called again, it resumes.

    Args:
        model: a `Model`, a directory, or a name on the hub. Its weights are not changed.
        train: training rows: tagged words, as in `finetune` for tagging.
        dev: evaluation rows.
        out: output directory.
        device: device to run on.
        overwrite: delete an existing output, finished or not, and start again.
        progress: reports progress.
        settings: settings of `FeatureAblationSettings`.

    Raises:
        DataError: a table or one of its rows is not valid.
        SettingsError: a setting is unknown or impossible.
        TrainingError: `out` was started with another model, other data or settings.
        OutputError: `out` cannot be written, another process uses it, or it is, contains or is
            inside an input.
        BertworksError: the disk has no room for the hidden states.
    """
    ablation_settings = FeatureAblationSettings.parse(settings)
    loaded_model = model if isinstance(model, Model) else load(model, device=device)
    ablation_settings = ablation_settings.in_precision_of(
        None if overwrite else out, pick_device(device)
    )
    train, dev = reiterable(train), reiterable(dev)
    loaded_model.encoder.config.check_length(ablation_settings.max_seq_length)
    tuning = ablation_settings.finetuning()
    data = LabelledData.read(
        TaggingTask, loaded_model.tokenizer, train, dev, tuning, pick_device(device)
    )
    read: tuple[Any, Any, Any] = (data.task, data.train, data.dev)
    work = _Work(loaded_model, *read, ablation_settings, Path(out), device, progress)
    description = {
        "model": fingerprint(loaded_model.encoder, loaded_model.tokenizer),
        **ablation_settings.model_dump(mode="json"),
    }
    may_change = {"seeds"}
    if overwrite or not any(Path(out).glob(f"rows/{FINE_TUNED}-seed*/{RESULT}")):
        may_change.add("finetune")  # its errors only show after the probes are measured
    inputs = [train, dev, None if isinstance(model, Model) else local_directory(model)]
    with RunDirectory.open(
        out,
        description,
        may_change=frozenset(may_change),
        check=data.check,
        inputs=inputs,
        overwrite=overwrite,
    ) as run:
        data.write_summary(run)
        for line in data.lines():
            say(progress, line)
        results = Results(run.path, data.task.best_metric)
        for choice in choices(loaded_model.encoder.config.num_hidden_layers):
            results.add(work.row(choice.name, choice.paper, partial(work.probe, choice.layers)))
        work.states_file.unlink(missing_ok=True)
        if ablation_settings.finetune is not None:
            results.add(work.row(FINE_TUNED, 96.4, partial(work.fine_tune, train, dev)))
        return results


@dataclass(frozen=True)
class _Work:
    """Computes the table's rows, each seed only once."""

    model: Model
    task: TaggingTask
    train: list[TaggingExample]
    dev: list[TaggingExample]
    settings: FeatureAblationSettings
    out: Path
    device: torch.device | str
    progress: Progress | None

    @property
    def states_file(self) -> Path:
        return self.out / "states.npy"

    def row(self, name: str, paper: float, measure: Callable[[int, Path], Outcome]) -> ResultRow:
        """Return a row of the table; measure only the seeds that no earlier run has measured."""
        outcomes = {}
        for seed in self.settings.seeds:

            def make(run: Path, seed: int = seed) -> Outcome:
                say(self.progress, f"{name}, seed {seed}")
                return measure(seed, run)

            run = self.out / "rows" / f"{re.sub(r'[ ,]+', '-', name)}-seed{seed}"
            outcomes[seed] = finish_run(run, make)
        return ResultRow(name, paper, outcomes)

    def probe(self, layers: LayerChoice, seed: int, out: Path) -> Outcome:
        """Train and evaluate a BiLSTM on some layers."""
        task = ProbeTask(self.task, self.states, layers, self.settings.probe)
        where = {"out": out, "device": self.device, "progress": self.progress}
        how: dict[str, Any] = {**where, "settings": self.settings.probe, "seed": seed}
        config = self.model.encoder.config
        result = train_probe(task, config, self.train, self.dev, **how)
        shares = dict(zip(map(str, layers.layers), result.shares, strict=False))
        return {"layers": layers.layers, "metrics": dict(result.metrics), "shares": shares}

    def fine_tune(self, train: Table, dev: Table, seed: int, out: Path) -> Outcome:
        """Fine-tune and evaluate the encoder."""
        how: dict[str, Any] = {"out": out, "device": self.device, "progress": self.progress}
        settings = self.settings.finetuning(seed).model_dump()
        result = finetune(self.model, self.task.name, train=train, dev=dev, **how, **settings)
        return {"metrics": dict(result.metrics)}

    @cached_property
    def states(self) -> FrozenStates:
        """The frozen encoder's hidden states, computed when the first probe needs them."""
        return frozen_states(
            self.states_file,
            self.model.network,
            self.task,
            [*self.train, *self.dev],
            EngineSettings(precision=self.settings.precision),
            partial(say, self.progress),
        )


Outcome = dict[str, Any]
"""The results with one seed: `metrics` by name; for a probe also its layers and their weights."""


@dataclass(frozen=True)
class ResultRow:
    """A row of the table.

    Attributes:
        name: the choice of layers, or fine-tuning.
        paper: the paper's score, in percent.
        outcomes: the results, by seed.
    """

    name: str
    paper: float
    outcomes: Mapping[int, Outcome]

    def scores(self, metric: str) -> list[float]:
        """Return the metric with each seed, in percent."""
        return [100 * outcome["metrics"][metric] for outcome in self.outcomes.values()]


@dataclass
class Results:
    """The rows so far, and their files.

    Attributes:
        path: the directory of `table.md` and `results.json`.
        metric: the metric in the table.
        rows: in order.
    """

    path: Path
    metric: str
    rows: list[ResultRow] = field(default_factory=list)

    @property
    def table_file(self) -> Path:
        return self.path / "table.md"

    @property
    def json_file(self) -> Path:
        return self.path / "results.json"

    def add(self, row: ResultRow) -> None:
        """Add a row, and rewrite the files."""
        self.rows.append(row)
        write_file(self.table_file, self.markdown())
        write_json(self.json_file, self.to_dict(), indent=1)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return the headings and cells as text; with several seeds also the standard deviation."""
        seeds = max((len(row.outcomes) for row in self.rows), default=1)
        headings = ["", f"paper, {PAPER}", f"dev {self.metric}"]
        cells = []
        for row in self.rows:
            scores = row.scores(self.metric)
            cells.append([row.name, f"{row.paper:.1f}", f"{statistics.fmean(scores):.1f}"])
            if seeds > 1:
                cells[-1].append(f"{statistics.stdev(scores):.1f}")
        return headings + [f"± ({seeds} seeds)"] * (seeds > 1), cells

    def markdown(self) -> str:
        """Return the table as Markdown."""
        headings, cells = self.table()
        lines = markdown_table(headings, cells, numbers=len(headings) - 1)
        return "\n".join([f"# {TITLE}", "", *lines, ""])

    def to_dict(self) -> dict[str, Any]:
        """Return all results as JSON values; scores are between 0 and 1."""
        rows = [
            {
                "name": row.name,
                "paper": row.paper / 100,
                self.metric: statistics.fmean(row.scores(self.metric)) / 100,
                "seeds": {str(seed): outcome for seed, outcome in row.outcomes.items()},
            }
            for row in self.rows
        ]
        return {"title": TITLE, "metric": self.metric, "rows": rows}

"""Many fine-tuning runs: the paper's grid, any other grid, or a search; each with several seeds.

    out/
      settings.yaml      the settings that all runs share
      journal.jsonl      the points that a search proposed, and the result of each run
      <point>,seed=0/    an ordinary fine-tuning run, for each point and seed
      grid.json, grid.md the points with mean and spread, best first
      model              the model of the best run: `load(out)` loads it

Source: paper, appendix A.3: "we ran an exhaustive search over the parameters and chose the model
that performs best on the development set".
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import torch

from ..checkpoints.locate import local_directory
from ..data.tables import Table, read_rows, reiterable
from ..errors import DataError, SettingsError, import_optional
from ..inference.fingerprints import fingerprint
from ..loading import load
from ..model import Model
from ..nn.device import pick_device
from ..runs.run_directory import MAY_CHANGE, RunDirectory
from ..settings.keywords import TaskKeywords
from ..tasks import find_labelled_task
from ..tasks.dev_share import Dev, check_share
from ..tasks.labelled import LabelledTask
from ..training.finetune import finetune
from ..training.precision import resolve_precision
from ..training.settings import settings_of
from ..utils.progress import Progress
from ..utils.regular_files import sha256_of
from .loop import GridLoop, Slot, slots
from .results import GridResult, GridRun, PointResult
from .space import Grid, Space

__all__ = [
    "Grid",
    "GridResult",
    "GridRun",
    "PointResult",
    "describe_model",
    "finetune_grid",
    "seed_list",
]


_MAX_SEEDS = 10_000


def finetune_grid(
    model: str | Path | Model,
    task: str | type[LabelledTask[Any]] = "classification",
    *,
    train: Table,
    dev: Dev,
    out: str | Path,
    grid: Grid = (),
    seeds: int | Sequence[int] = 1,
    jobs: int | None = None,
    device: torch.device | str = "auto",
    overwrite: bool = False,
    progress: Progress | None = None,
    **settings: Unpack[TaskKeywords],
) -> GridResult:
    """Fine-tune once for each point of a grid and each seed; called again, it resumes.

    Finished runs are not repeated, so a grid can get more values or seeds later. A run that fails
    (its loss is not finite, it is out of memory, its settings do not fit the model) is reported,
    and the others continue.

    Args:
        model, task, train, dev, device: as in `finetune` (a share for dev selects the same rows in
            all runs). The same metric on dev selects the best weights and the best run.
        out: the grid's directory.
        grid: "paper" (batches of 16, 32; learning rates of 5e-5, 3e-5, 2e-5; 2, 3, 4 epochs), the
            values of each setting, or words as on the command line (see `grid.space`), where
            "optuna:20" searches with 20 trials. If omitted: one point, for the seeds.
        seeds: number of seeds (0, 1, …), or a list of them.
        jobs: parallel runs, each in its own process; if omitted, one per GPU, or one without GPUs.
            Threads are divided among them. A search reads its results each time that many runs
            are done.
        overwrite: delete an existing grid with its runs, and start again.
        progress: reports progress.
        settings: settings that all runs share, as in `finetune`.

    Raises:
        SettingsError: a setting, the grid or the seeds are unknown or impossible; or the runs are
            evaluated by different metrics.
        TrainingError: the directory contains something else, or a grid of another model, other
            settings or other tables; or every run failed.
        OutputError: the directory cannot be written, another process uses it, or it is, contains
            or is inside an input.
        RunInterrupted: SIGTERM or Ctrl-C was received; finished work is saved, and the same call
            resumes.
        DataError, BertworksError: as in `finetune`.
    """
    kind = find_labelled_task(task)
    space = Space.parse(grid, settings_of(kind), settings)
    if jobs is not None and (not isinstance(jobs, int) or jobs < 1):
        raise SettingsError(f"jobs={jobs} is not a number of runs", fix="Give 1 or more.")
    seed_numbers, computes_on = seed_list(seeds), pick_device(device)
    places = slots(computes_on, jobs)
    _check_arguments(model, dev, space, settings, places)
    train, dev = reiterable(train), dev if isinstance(dev, float) else reiterable(dev)
    description = _describe(model, kind, train, dev, settings, space)
    folder = Path(out)
    is_resumed = not overwrite and folder.is_dir()
    is_begun = is_resumed and any(child.is_dir() for child in folder.iterdir())
    # A resumed grid keeps the precision of its first run.
    runs = sorted(file.parent for file in folder.glob("*/settings.yaml")) if is_resumed else []
    precision = resolve_precision("auto", runs[0] if runs else None, computes_on)
    settings = {"precision": precision, **settings}
    with RunDirectory.open(
        out,
        description,
        # Until the first run has started, all settings may still be corrected.
        may_change=MAY_CHANGE if is_begun else frozenset(description),
        inputs=[train, dev, None if isinstance(model, Model) else local_directory(model)],
        overwrite=overwrite,
    ) as run:
        if not is_begun:
            run.truncate_journal(0)
        # With several GPUs, each process sees only its own.
        place = computes_on if len(places) == 1 else computes_on.type
        do = partial(finetune, model, task, train=train, dev=dev, device=place, **settings)
        options = kind.user_settings().model_fields
        result = GridLoop(run, do, space, seed_numbers, options, places, progress).all()
        result.save()
        return result


def _describe(
    model: str | Path | Model,
    kind: type[LabelledTask[Any]],
    train: Table,
    dev: Dev,
    settings: Mapping[str, Any],
    space: Space,
) -> dict[str, Any]:
    """What all runs share, which a resumed grid may not change; arguments as in `finetune_grid`."""
    compared_settings = set(settings) - MAY_CHANGE
    parsed_settings = settings_of(kind).parse(settings)
    return {
        "task": kind.name,
        "model": describe_model(model),
        "train": _describe_table(train),
        "dev": {"share": dev} if isinstance(dev, float) else _describe_table(dev),
        "settings": parsed_settings.model_dump(mode="json", include=compared_settings),
        "search": space.describe() if space.trials is not None else None,
    }


def _check_arguments(
    model: str | Path | Model,
    dev: Dev,
    space: Space,
    settings: Mapping[str, Any],
    places: Sequence[Slot],
) -> None:
    """Check what a grid cannot have, unlike a single run; arguments as in `finetune_grid`."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise SettingsError(
            "a grid starts its own processes, but torchrun has already started some",
            fix="Start it without torchrun, with jobs for as many runs at a time.",
        )
    check_share(dev)
    if isinstance(dev, str) and dev == "-":
        raise DataError(
            "evaluation rows of a grid cannot be read from standard input: each run reads them",
            fix="Give a file.",
        )
    if space.trials is not None:
        import_optional("optuna", "optuna", "A search")
    if "seed" in settings:
        raise SettingsError("a grid has seeds, not a seed", fix="Give seeds instead.")
    if len(places) > 1 and isinstance(model, Model):
        raise SettingsError(
            f"jobs={len(places)}: a model in memory cannot be shared among processes",
            fix="Save it, and give its directory.",
        )


def describe_model(model: str | Path | Model) -> dict[str, str]:
    """Return a model's name, and a digest of its encoder and tokenizer that identifies it."""
    loaded_model = model if isinstance(model, Model) else load(model)
    return {
        "name": "a model in memory" if isinstance(model, Model) else str(model),
        "fingerprint": fingerprint(loaded_model.encoder, loaded_model.tokenizer),
    }


def seed_list(seeds: int | Sequence[int]) -> list[int]:
    """Return the seeds 0, 1, … for a number of seeds; a given list unchanged.

    Raises:
        SettingsError: there are none or too many, one is given twice, or one is below 0.
    """
    if isinstance(seeds, int) and seeds > _MAX_SEEDS:
        raise SettingsError(f"seeds={seeds}: at most {_MAX_SEEDS:,} runs")
    numbers = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if not numbers or len(set(numbers)) < len(numbers) or min(numbers) < 0:
        raise SettingsError(
            f"seeds={seeds}: one seed at least is needed, none twice, and none below 0"
        )
    return numbers


def _describe_table(table: Table) -> dict[str, str]:
    """Return a table's name, and a digest of its content that identifies it."""
    if not isinstance(table, str | os.PathLike):
        digest = hashlib.sha256()
        for _, row in read_rows(table):
            digest.update(json.dumps(row, default=str, sort_keys=True).encode())
        return {"table": "rows in memory", "sha256": digest.hexdigest()}
    if not Path(table).is_file():  # a data set of the hub; for a missing file, reading raises
        return {"table": os.fspath(table)}
    return {"table": os.fspath(table), "sha256": sha256_of(Path(table))}

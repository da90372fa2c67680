"""Train a model: `pretrain`, `finetune`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..errors import DataError
from ..utils.progress import Progress
from .application import verb
from .devices import DeviceOption, is_main_process
from .display import TextDisplay
from .models import ModelOption
from .options import Overwrite, Recipe, SettingsWords
from .outputs import check_present
from .training_options import GridOptions, Run


@verb(
    "pretrain",
    "bertworks pretrain tiny data=prepared --out runs/tiny",
    "bertworks pretrain mini data=prepared steps=500 seed=1 --out runs/mini",
    "bertworks pretrain tiny model.family=electra objective=replaced_tokens \\\n"
    "      instances.format=full-sentences data=prepared --out runs/electra",
    "bertworks pretrain adapt init_checkpoint=runs/tiny data=prepared \\\n"
    "      steps=500 batch_size=32 --out runs/adapted",
)
def pretrain(
    ctx: typer.Context,
    recipe: Recipe,
    settings: list[str] | None = None,
    *,
    out: Run,
    overwrite: Overwrite = False,
    device: DeviceOption = "auto",
    display: TextDisplay,
) -> None:
    """Pre-train an encoder: masked words and next sentences.

    If interrupted at any moment, the same command resumes and ends with the same weights.
    init_checkpoint= continues training a model on other text, prepared with its tokenizer (after
    add-tokens, with the new model's). The recipe adapt has the published 12,500 steps of 256
    sequences, which take days for BERT-base on a CPU; a few hundred smaller steps show whether it
    helps (bertworks lab compare MODEL ADAPTED --data TABLE), and bertworks estimate says how long a
    run takes.

    Args:
        settings ([KEY=VALUE]…): Settings that override the recipe's.
    """
    from ..training.pretrain import pretrain as run

    result = run(
        recipe,
        [*(settings or ()), *ctx.meta["settings"]],
        out=out,
        device=device,
        overwrite=overwrite,
        progress=Progress(),
    )
    if is_main_process():
        display.metrics(result.metrics)
        display.facts({"model": result.run.model, "report": result.run.report})


@verb(
    "finetune",
    "bertworks finetune classification --model runs/tiny \\\n"
    "      --train train.tsv --dev dev.tsv --out runs/tickets",
    "bertworks finetune classification --model bert-base-uncased \\\n"
    "      --train few.tsv --dev dev.tsv --out runs/few \\\n"
    "      epochs=20 early_stopping=3 reinitialize_layers=1",
    "bertworks finetune classification --model bert-base-uncased \\\n"
    "      --train train.tsv --dev dev.tsv --out runs/lora \\\n"
    "      lora_rank=8 learning_rate=3e-4",
    "bertworks finetune retrieval \\\n"
    "      --model sentence-transformers/all-MiniLM-L6-v2 \\\n"
    "      --train questions.jsonl --dev dev.jsonl --out runs/questions",
    "bertworks finetune translation --model MODEL --train pairs.tsv \\\n"
    "      --dev dev.tsv --out runs/german reinitialize=true learning_rate=2e-3",
    "bertworks finetune classification --model runs/tiny --train train.tsv \\\n"
    "      --dev dev.tsv --out runs/grid --grid paper --seeds 3 --jobs 2",
)
def finetune(
    task: str,
    *,
    model: ModelOption,
    train: Annotated[list[str], typer.Option(metavar="FILE")],
    out: Run,
    dev: str | None = None,
    overwrite: Overwrite = False,
    settings: SettingsWords,
    grid: GridOptions,
    device: DeviceOption = "auto",
    display: TextDisplay,
) -> None:
    """Fine-tune a model for a task, on labelled rows.

    Rows come from TSV, CSV, JSON Lines, Parquet or hf:NAME. Columns that are not named
    (text_column=, pair_column=, label_column=) are detected and reported. The default settings are
    the paper's.

    --grid and --seeds train repeatedly and keep the best model; the same command again runs what is
    missing. Each --grid takes one of: paper (batch_size 16, 32; learning_rate 5e-5, 3e-5, 2e-5;
    epochs 2, 3, 4); learning_rate=1e-5,3e-5 (these values); optuna:20 (a search of 20 trials), with
    learning_rate=1e-5..1e-4 (any value between).

    Args:
        task (TASK): Task: classification, multilabel, regression, tagging, answering, choice,
            retrieval or translation.
        train (FILE): Training rows; several tables if repeated, of which each batch has one's.
        dev (FILE|SHARE): Evaluation rows, or a share of the training rows such as 0.1; selects the
            best weights.
    """
    dev_rows = None if dev is None else _table_or_share(dev)
    check_present([*train, dev_rows if isinstance(dev_rows, str) else None])
    arguments: dict[str, Any] = {
        "train": train[0] if len(train) == 1 else train,
        "dev": dev_rows,
        "out": out,
        "device": device,
        "overwrite": overwrite,
        "progress": Progress(),
        **settings,
    }
    if grid:
        if len(train) > 1:
            raise DataError("a grid takes one training table", fix="Leave out --grid and --seeds.")
        if dev_rows is None:
            raise DataError(
                "a grid needs --dev to select the best run",
                fix="Give --dev FILE, or a share of the training rows: --dev 0.1.",
            )
        from ..tuning.grid import finetune_grid

        result = finetune_grid(model, task, **arguments, **grid)
        display.table(result.columns, result.rows(), right=result.columns)
        display.notes(result.best.notes)
        display.notes(f"failed: {run.directory}: {run.error}" for run in result.failed_runs)
        display.facts({"best": result.best.directory, "model": result.run.model})
        return
    from ..training.finetune import finetune as run

    one_result = run(model, task, **arguments)
    if is_main_process():
        directory, calibration = one_result.run, one_result.breakdown.calibration_facts
        display.metrics(one_result.metrics)
        display.notes(one_result.notes)
        display.facts({"model": directory.model, **calibration, "report": directory.report})


def _table_or_share(text: str) -> str | float:
    """Parse a number as a share of the training rows; any other word is a table's path."""
    try:
        return float(text)
    except ValueError:
        return text

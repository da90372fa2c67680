"""Train: `demo`, `pretrain`, `finetune`, `glue`; use frozen encoders: `probe`, `ablate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ..errors import DataError
from . import display
from .app import verb
from .devices import DeviceOption, Threads, is_main_process, set_threads
from .options import (
    AsJson,
    LabelledTable,
    Overwrite,
    Recipe,
    SettingsFile,
    Table,
    read_settings,
)
from .outputs import check_present
from .training_options import Dev, GridOptions, KeyValues, Model, Run, Train, table_or_share


@verb("demo", "bertworks demo", "bertworks demo --quick", "bertworks demo --out /tmp/demo --seed 2")
def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Output directory.")] = Path(
        "bertworks-demo"
    ),
    seed: Annotated[
        int,
        typer.Option(
            min=0,
            max=2**32 - 1,
            metavar="N",
            help="Random seed of the split, weights and data order.",
        ),
    ] = 1,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Train only for seconds, to check that everything works."),
    ] = False,
    overwrite: Overwrite = False,
    threads: Threads = None,
) -> None:
    """Run the whole cycle in minutes, on Python's documentation.

    It begins with predictions of mini. No network is needed: the text ships with Python, as the
    language reference and the docstrings and comments of the standard library.

    The exit status is 1 if the pre-trained network does not beat both baselines (not with --quick).
    """
    set_threads(threads)
    from ..lab.demo import run_demo

    if not (run_demo(out, seed=seed, quick=quick, overwrite=overwrite).beats_both or quick):
        raise typer.Exit(1)


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
    out: Run,
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]…", help="Settings that override the recipe's."),
    ] = None,
    overwrite: Overwrite = False,
    device: DeviceOption = "auto",
) -> None:
    """Pre-train an encoder: masked words and next sentences.

    If interrupted at any moment, the same command resumes and ends with the same weights.
    init_checkpoint= continues training a model on other text, prepared with its tokenizer (after
    add-tokens, with the new model's). The recipe adapt has the published 12,500 steps of 256
    sequences, which take days for BERT-base on a CPU; a few hundred smaller steps show whether it
    helps (bertworks lab compare MODEL ADAPTED --data TABLE), and bertworks estimate says how long a
    run takes.
    """
    from ..training.pretrain import pretrain as run
    from ..training.progress import Progress

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
    ctx: typer.Context,
    *,
    task: Annotated[
        str,
        typer.Argument(
            metavar="TASK",
            help="Task: classification, regression, tagging, answering, choice, retrieval or "
            "translation.",
        ),
    ],
    model: Model,
    train: Train,
    out: Run,
    dev: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|SHARE",
            help="Evaluation rows, or a share of the training rows such as 0.1; selects the "
            "best weights.",
        ),
    ] = None,
    overwrite: Overwrite = False,
    settings: KeyValues = None,
    settings_file: SettingsFile = None,
    table: LabelledTable,
    grid_options: GridOptions,
    device: DeviceOption = "auto",
) -> None:
    """Fine-tune a model for a task, on labelled rows.

    Rows come from TSV, CSV, JSON Lines, Parquet or hf:NAME. Columns that are not named
    (text_column=, pair_column=, label_column=) are detected and reported. The default settings are
    the paper's.

    --grid and --seeds train repeatedly and keep the best model; the same command again runs what is
    missing. Each --grid takes one of: paper (batch_size 16, 32; learning_rate 5e-5, 3e-5, 2e-5;
    epochs 2, 3, 4); learning_rate=1e-5,3e-5 (these values); optuna:20 (a search of 20 trials), with
    learning_rate=1e-5..1e-4 (any value between).
    """
    from ..training.progress import Progress

    task_settings = read_settings(ctx, settings_file, settings or (), task, **table)
    check_present([train])
    dev_rows = None if dev is None else table_or_share(dev)
    if isinstance(dev_rows, str):
        check_present([dev_rows])
    if grid_options:
        if dev_rows is None:
            raise DataError(
                "a grid needs --dev to select the best run",
                fix="Give --dev FILE, or a share of the training rows: --dev 0.1.",
            )
        from ..tuning.grid import finetune_grid

        grid_result = finetune_grid(
            model,
            task,
            train=train,
            dev=dev_rows,
            out=out,
            device=device,
            overwrite=overwrite,
            progress=Progress(),
            **grid_options,
            **task_settings,
        )
        display.table(grid_result.columns, grid_result.rows(), right=" ".join(grid_result.columns))
        display.notes(grid_result.best.notes)
        display.notes(
            f"failed: {failed.directory}: {failed.error}" for failed in grid_result.failed_runs
        )
        display.facts({"best": grid_result.best.directory, "model": grid_result.run.model})
        return
    from ..training.finetune import finetune as run

    result = run(
        model,
        task,
        train=train,
        dev=dev_rows,
        out=out,
        device=device,
        overwrite=overwrite,
        progress=Progress(),
        **task_settings,
    )
    if is_main_process():
        display.metrics(result.metrics)
        display.notes(result.notes)
        display.facts(
            {
                "model": result.run.model,
                **display.evaluation_facts(result.breakdown, result.run.report),
            }
        )


@verb(
    "glue",
    "bertworks glue --model bert-base-uncased --data glue_data --out runs/glue \\\n"
    "      --grid paper",
    "bertworks glue --model runs/tiny --data glue_data --out runs/some \\\n"
    "      --tasks mrpc,rte --seeds 3 epochs=3 learning_rate=3e-4",
)
def glue(
    ctx: typer.Context,
    *,
    model: Model,
    data: Annotated[
        Path, typer.Option(metavar="DIR", help="Official GLUE files: one folder per task.")
    ],
    out: Run,
    tasks: Annotated[
        str | None,
        typer.Option(metavar="A,B…", help="Tasks to run; all available ones if omitted."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]…", help="Settings for all tasks.")
    ] = None,
    overwrite: Overwrite = False,
    settings_file: SettingsFile = None,
    grid_options: GridOptions,
    device: DeviceOption = "auto",
) -> None:
    """Fine-tune and evaluate on GLUE, and predict its test sets.

    Each of the nine tasks is trained as by `finetune`, with its grid and seeds. The best model is
    evaluated on dev and, if there are test files, writes predictions for the GLUE server. The same
    command again runs what is missing.
    """
    from ..lab.glue import NOTE
    from ..lab.glue import glue as run
    from ..training.progress import Progress

    result = run(
        model,
        data,
        out=out,
        tasks=None if tasks is None else tasks.split(","),
        device=device,
        overwrite=overwrite,
        progress=Progress(),
        **grid_options,
        **read_settings(ctx, settings_file, settings or ()),
    )
    display.table(result.columns, result.rows(), right="dev mean Base Large")
    typer.echo(NOTE)
    for name, why in result.missing.items():
        typer.echo(f"  missing: {name} ({why})")
    display.facts({"table": result.out / "glue.md"})
    if result.answers:
        display.facts(
            {"for the server": f"{result.answers[0].parent} ({len(result.answers)} files)"}
        )


@verb(
    "probe",
    "bertworks probe --model sentence-transformers/all-MiniLM-L6-v2 \\\n"
    "      --train train.tsv --dev dev.tsv pooling=cls layers=[-2]",
)
def probe(
    ctx: typer.Context,
    *,
    model: Model,
    train: Train,
    dev: Dev,
    settings: KeyValues = None,
    settings_file: SettingsFile = None,
    table: Table,
    json: AsJson = False,
    device: DeviceOption = "auto",
) -> None:
    """Classify texts by logistic regression on frozen vectors.

    Shows within seconds how well an encoder's vectors separate the classes.
    """
    from ..analysis.probing import probe as run

    probe_settings = read_settings(ctx, settings_file, settings or (), **table)
    check_present([train, dev])
    result = run(model, train=train, dev=dev, device=device, **probe_settings)
    if json:
        display.as_json({"width": result.width, **result.metrics})
    else:
        display.metrics({"width": result.width, **result.metrics})


@verb(
    "ablate",
    "bertworks ablate features --model runs/tiny --train train.conll \\\n"
    "      --dev dev.conll --out runs/features finetune.learning_rate=2e-4",
)
def ablate(
    ctx: typer.Context,
    *,
    what: Annotated[
        Literal["features"],
        typer.Argument(
            metavar="WHAT",
            help="features: six combinations of a frozen encoder's layers, and fine-tuning.",
            show_default=False,
        ),
    ],
    model: Model,
    train: Train,
    dev: Dev,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Output directory; an existing one is resumed.")
    ],
    overwrite: Overwrite = False,
    settings: KeyValues = None,
    settings_file: SettingsFile = None,
    table: Table,
    device: DeviceOption = "auto",
) -> None:
    """Repeat an ablation of the paper on your data.

    features (paper, table 7): a two-layer BiLSTM tags words from a frozen encoder's hidden states,
    which are computed once; for comparison, the encoder is fine-tuned (finetune=null skips this).
    Finished rows are not repeated.
    """
    assert what == "features"
    from ..lab.features import ablate_features
    from ..training.progress import Progress

    results = ablate_features(
        model,
        train=train,
        dev=dev,
        out=out,
        device=device,
        overwrite=overwrite,
        progress=Progress(),
        **read_settings(ctx, settings_file, settings or (), **table),
    )
    headings, cells = results.table()
    display.table(headings, cells, right=headings[1:])
    display.facts({"table": results.table_file, "results": results.json_file})

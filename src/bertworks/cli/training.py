"""Training: `demo`, `pretrain`, `finetune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import show
from .app import (
    Device,
    DeviceName,
    Threads,
    check_new_directory,
    is_main_process,
    set_threads,
    verb,
)

Run = Annotated[
    Path, typer.Option(metavar="DIR", help="The run directory; one that exists is gone on with.")
]


@verb("demo", "bertworks demo", "bertworks demo --out /tmp/demo --seed 2")
def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where everything is written.")] = Path(
        "bertworks-demo"
    ),
    seed: Annotated[
        int, typer.Option(metavar="N", help="Of the split of the rows, weights and data order.")
    ] = 1,
    threads: Threads = None,
) -> None:
    """Run the whole cycle in minutes, on Python's own text.

    No network is needed: the text is the language reference and the docstrings and comments of the
    standard library.

    Ends with status 1 if the pre-trained network does not beat both baselines.
    """
    check_new_directory(out)
    set_threads(threads)
    from ..demo import run_demo

    if not run_demo(out, seed=seed).beats_both:
        raise typer.Exit(1)


@verb(
    "pretrain",
    "bertworks pretrain tiny data=prepared --out runs/tiny",
    "bertworks pretrain mini data=prepared steps=500 seed=1 --out runs/mini",
    "bertworks pretrain tiny model.family=electra replaced_tokens={} \\\n"
    "      instances.format=full-sentences data=prepared --out runs/electra",
    "bertworks pretrain adapt init_checkpoint=runs/tiny data=prepared \\\n      --out runs/adapted",
)
def pretrain(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="A YAML file of settings, or a recipe's name.",
            show_default=False,
        ),
    ],
    out: Run,
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]…", help="Settings that replace the recipe's."),
    ] = None,
    device: Device = DeviceName.AUTO,
    threads: Threads = None,
) -> None:
    """Pre-train an encoder: masked words and next sentences.

    Stopped, or killed at any moment, the same command goes on to the same weights. With
    init_checkpoint= a trained model goes on with other text, prepared with its own tokenizer
    (after add-tokens, with the new model's).
    """
    set_threads(threads)
    from ..training.pretrain import pretrain as run
    from ..training.progress import Progress

    result = run(recipe, settings or [], out=out, device=device.value, progress=Progress())
    if is_main_process():
        show.metrics(result.metrics)
        show.facts({"model": result.run.model, "report": result.run.report})


@verb(
    "finetune",
    "bertworks finetune classification --model runs/tiny \\\n"
    "      --train train.tsv --dev dev.tsv --out runs/tickets learning_rate=3e-4",
    "bertworks finetune classification --model bert-base-uncased \\\n"
    "      --train few.tsv --dev dev.tsv --out runs/few \\\n"
    "      epochs=20 early_stopping=3 reinitialize_layers=1",
    "bertworks finetune classification --model bert-base-uncased \\\n"
    "      --train train.tsv --dev dev.tsv --out runs/lora \\\n"
    "      lora_rank=8 learning_rate=3e-4",
    "bertworks finetune retrieval --model all-MiniLM-L6-v2 \\\n"
    "      --train questions.jsonl --dev dev.jsonl --out runs/questions",
)
def finetune(
    task: Annotated[
        str,
        typer.Argument(
            metavar="TASK",
            help="What to learn: classification, regression, tagging, answering, choice or "
            "retrieval.",
        ),
    ],
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="A model's directory, or its name on the hub.")
    ],
    train: Annotated[str, typer.Option(metavar="FILE", help="The rows to learn from.")],
    out: Run,
    dev: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The rows to measure on; they choose the best weights."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]…", help="Settings.")
    ] = None,
    device: Device = DeviceName.AUTO,
    threads: Threads = None,
) -> None:
    """Train a model for a task, from labelled rows.

    Rows come from TSV, CSV, JSON Lines, Parquet or hf:NAME. Columns are guessed where they are not
    named (text_column=, pair_column=, label_column=), and reported. The settings' defaults are the
    paper's.
    """
    set_threads(threads)
    from ..tasks import labelled_task
    from ..training.finetune import finetune as run
    from ..training.finetune_settings import settings_of
    from ..training.progress import Progress

    result = run(
        model,
        task,
        train=train,
        dev=dev,
        out=out,
        device=device.value,
        progress=Progress(),
        **settings_of(labelled_task(task)).resolve(overrides=settings or []).model_dump(),
    )
    if is_main_process():
        show.metrics(result.metrics)
        for remark in result.remarks:
            typer.echo(f"  {remark}")
        show.facts(
            {"model": result.run.model, **show.evaluated(result.breakdown, result.run.report)}
        )

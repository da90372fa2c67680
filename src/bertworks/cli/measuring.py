"""What an encoder knows before it is fine-tuned: `probe`, `ablate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from . import show
from .app import (
    AsJson,
    Device,
    Encoding,
    Header,
    MaxLineBytes,
    SettingsFile,
    TableFormat,
    Threads,
    given_settings,
    set_threads,
    table_options,
    verb,
)

Model = Annotated[
    str, typer.Option(metavar="MODEL", help="A model's directory, or its name on the hub.")
]
Train = Annotated[str, typer.Option(metavar="FILE", help="The rows to learn from.")]
Dev = Annotated[str, typer.Option(metavar="FILE", help="The rows to measure on.")]
KeyValues = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]…", help="Settings.")]


@verb(
    "probe",
    "bertworks probe --model sentence-transformers/all-MiniLM-L6-v2 \\\n"
    "      --train train.tsv --dev dev.tsv pooling=cls layers=[-2]",
)
def probe(
    ctx: typer.Context,
    model: Model,
    train: Train,
    dev: Dev,
    settings: KeyValues = None,
    settings_file: SettingsFile = None,
    header: Header = None,
    format: TableFormat = "auto",
    encoding: Encoding = "utf-8",
    max_line_bytes: MaxLineBytes = None,
    json: AsJson = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Classify texts by a frozen encoder's vectors: logistic regression.

    Shows in seconds what the vectors know of the classes.
    """
    set_threads(threads)
    from ..probing import probe as run

    options = table_options(header, format, encoding, max_line_bytes)
    given = given_settings(ctx, settings_file, settings or (), **options)
    found = run(model, train=train, dev=dev, device=device, **given)
    if json:
        show.as_json({"width": found.width, **found.metrics})
    else:
        show.metrics({"width": found.width, **found.metrics})


@verb(
    "ablate",
    "bertworks ablate features --model runs/tiny --train train.conll \\\n"
    "      --dev dev.conll --out runs/features finetune.learning_rate=2e-4",
)
def ablate(
    ctx: typer.Context,
    what: Annotated[
        Literal["features"],
        typer.Argument(
            metavar="WHAT",
            help="features: six choices of a frozen encoder's layers, beside fine-tuning.",
            show_default=False,
        ),
    ],
    model: Model,
    train: Train,
    dev: Dev,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="For everything; one that exists is resumed.")
    ],
    settings: KeyValues = None,
    settings_file: SettingsFile = None,
    header: Header = None,
    format: TableFormat = "auto",
    encoding: Encoding = "utf-8",
    max_line_bytes: MaxLineBytes = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Show a claim of the paper again, on your data.

    features (paper, table 7): a two-layer BiLSTM tags words by a frozen encoder's hidden states,
    which are computed once; beside it the encoder is fine-tuned (finetune=null leaves that out).
    Rows that are finished are not done again.
    """
    assert what == "features"
    set_threads(threads)
    from ..ablations.features import ablate_features
    from ..training.progress import Progress

    options = table_options(header, format, encoding, max_line_bytes)
    results = ablate_features(
        model,
        train=train,
        dev=dev,
        out=out,
        device=device,
        progress=Progress(),
        **given_settings(ctx, settings_file, settings or (), **options),
    )
    headings, cells = results.table()
    show.table(headings, cells, right=headings[1:])
    show.facts({"table": results.table_file, "results": results.json_file})

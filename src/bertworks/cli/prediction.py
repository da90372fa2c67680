"""Predict, and show why: `predict`, `explain`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ..utils.atomic_writes import write_file
from . import display
from .app import verb
from .devices import DeviceOption, WorkerOptions, load_model
from .options import LoadOptions, ModelPath, Overwrite, Part, SettingsOption, Table
from .outputs import PAGE_SUFFIXES, check_page, output
from .texts import Pair, Texts, check_source, lines_of, require_text


@verb(
    "predict",
    'bertworks predict runs/tickets "The door is stuck." "Where is it?"',
    "bertworks predict runs/tickets --data new.tsv --out answers.jsonl",
    "bertworks predict runs/tickets --data new.tsv --out answers-2.tsv --part 2/8",
    "cat texts.txt | bertworks predict runs/tickets -",
)
def predict(
    ctx: typer.Context,
    *,
    model: ModelPath,
    texts: Texts = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Read a table instead; - reads TSV from standard input."),
    ] = None,
    table: Table,
    pair: Pair = None,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Output file: .tsv, .csv or .jsonl. If omitted, a table is printed on a "
            "terminal, and TSV elsewhere.",
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Write JSON Lines, whatever the file name.")
    ] = False,
    overwrite: Overwrite = False,
    part: Part = None,
    worker_options: WorkerOptions,
    device: DeviceOption = "auto",
    load_options: LoadOptions,
    settings: SettingsOption,
) -> None:
    """Predict labels for texts, or for the rows of a table.

    Rows are written unchanged and in order, with added columns for the predictions. They are
    streamed, so there is no limit on their number.
    """
    check_source(ctx, texts, data, header=table.get("header"), format=table.get("format"))
    if data is not None and pair is not None:
        ctx.fail("--pair is only for texts; in a table, use a column.")
    if (part is not None or worker_options) and (data is None or out is None):
        ctx.fail("--part, --workers and --on need --data FILE --out FILE.")
    from ..inference.prediction_files import write_predictions

    settings = settings | table
    base = load_options.get("base")
    with output(out, [data], model=model, base=base, overwrite=overwrite):
        loaded_model = load_model(model, device, **load_options)
        if data is not None and out is not None:
            count = loaded_model.predict_to(
                out, data, json=json, part=part, overwrite=overwrite, **worker_options, **settings
            )
        else:
            lines = lines_of(texts or [], **table)
            inputs = lines if pair is None else ((text, pair) for text in lines)
            rows = loaded_model.stream(None if data is not None else inputs, data=data, **settings)
            if out is None and not json and sys.stdout.isatty():
                assert loaded_model.task is not None, "it has predicted"
                display.predictions(rows, loaded_model.task.display_values)
                return
            count = write_predictions(
                out or "-", rows, format="jsonl" if json else "auto", overwrite=overwrite
            )
    if out is not None:
        typer.echo(f"{count:,} rows written to {Path(out)}", err=True)


@verb(
    "explain",
    'bertworks explain runs/tiny "They flow into the [MASK]." --out sea.html',
    'bertworks explain runs/squad "Who left?" --pair "Ada left." --out who.html',
)
def explain(
    *,
    model: ModelPath,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A text.", show_default=False)],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Output file, ending in .html.")],
    pair: Pair = None,
    overwrite: Overwrite = False,
    device: DeviceOption = "auto",
    load_options: LoadOptions,
) -> None:
    """Write an HTML page that shows what a model does with a text.

    It has the pieces, every head's attention, the layers step by step, each word masked in turn,
    and what the prediction depends on, in one file without server or network. The text may have up
    to 128 tokens.
    """
    for part in (text, pair):
        if part is not None:
            require_text(part)
    check_page(out, suffixes=PAGE_SUFFIXES)
    with output(out, model=model, base=load_options.get("base"), overwrite=overwrite):
        loaded_model = load_model(model, device, **load_options)
        from ..explorer import explain as compute_explanation
        from ..explorer.page import page

        html = page(compute_explanation(loaded_model, text, pair))
        write_file(out, html)
    display.facts({"page": out, "size": f"{len(html.encode()) / 1e6:.1f} MB"})

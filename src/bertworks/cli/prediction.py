"""Predict, and show why: `predict`, `explain`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..utils.atomic_writes import write_file
from ..utils.formatting import format_count
from ..utils.json_files import to_json
from .application import verb
from .devices import DeviceOption, EngineOption, ModelWorkers
from .display import Display, TextDisplay
from .models import TaskModel
from .options import Overwrite, Part, SettingsOption
from .outputs import PAGE_SUFFIXES, check_page, output
from .texts import Pair, Texts, check_source, lines_of, require_text

if TYPE_CHECKING:
    from ..tasks.task import DisplayValue


@verb(
    "predict",
    'bertworks predict runs/tickets "The door is stuck." "Where is it?"',
    "bertworks predict runs/tickets --data new.tsv --out answers.jsonl",
    "bertworks predict runs/tickets --data new.tsv --out answers-2.tsv --part 2/8",
    "cat texts.txt | bertworks predict runs/tickets -",
    'bertworks predict runs/nli "I was charged twice." labels=bills,parcels',
)
def predict(
    ctx: typer.Context,
    model: TaskModel,
    texts: Texts = None,
    *,
    data: str | None = None,
    pair: Pair = None,
    out: str | None = None,
    json: bool = False,
    overwrite: Overwrite = False,
    part: Part = None,
    workers: ModelWorkers,
    engine: EngineOption,
    settings: SettingsOption,
    display: TextDisplay,
) -> None:
    """Predict labels for texts, or for the rows of a table.

    Rows are written unchanged and in order, with added columns for the predictions. They are
    streamed, so there is no limit on their number. If a table's file is interrupted, the same
    command resumes it.

    Args:
        data (FILE): Read a table instead; - reads TSV from standard input.
        out (FILE): Output file: .tsv, .csv or .jsonl. If omitted, a table is printed on a terminal,
            and TSV elsewhere.
        json: Write JSON Lines, whatever the file name.
    """
    check_source(ctx, texts, data)
    if data is not None and pair is not None:
        ctx.fail("--pair is only for texts; in a table, use a column.")
    if (part is not None or workers) and (data is None or out is None):
        ctx.fail("--part, --workers and --on need --data FILE --out FILE.")
    from ..inference.prediction_files import OutputFormat, write_predictions

    lines = lines_of(texts or (), settings)

    def write(loaded_model: Any) -> int | None:
        if data is not None and out is not None:
            was_finished = Path(out).is_file() and not overwrite
            options = {"json": json, "part": part, "overwrite": overwrite, **workers, **settings}
            count: int = loaded_model.predict_to(out, data, **options)
            if was_finished:
                display.facts({"time": "nothing to do: already finished", "written to": out})
            return None if was_finished else count
        inputs: Iterable[Any] | None = None
        if data is None:
            inputs = lines if pair is None else ((text, pair) for text in lines)
        rows = loaded_model.stream(inputs, data=data, **settings)
        if out is None and not json and sys.stdout.isatty():
            show = _show_chosen if "labels" in settings else loaded_model.task.display_values
            _show_predictions(display, rows, show)
            return None
        format: OutputFormat = "jsonl" if json else "auto"
        return write_predictions(out or "-", rows, format=format, overwrite=overwrite)

    resumes = data is not None and out not in (None, "-")
    with output(out, [data], model=model, overwrite=None if resumes else overwrite):
        count = model.use(write, engine)
    if out is not None and count is not None:
        display.status(f"{format_count(count, 'row')} written to {Path(out)}")


def _show_chosen(prediction: Mapping[str, Any]) -> list[DisplayValue]:
    """Return the label that was chosen from others, and its probability or similarity."""
    label = prediction["label"]
    scores = prediction.get("probabilities") or prediction["similarities"]
    return [(label, scores[label])]


def _show_predictions(
    display: Display,
    rows: Iterable[tuple[Mapping[str, Any], dict[str, Any]]],
    display_values: Callable[[dict[str, Any]], list[DisplayValue] | None],
) -> None:
    """Print predictions, each with its probability and text, in tables of 1,000 rows.

    Those of a task that names no values to display are printed as JSON.
    """
    rows = iter(rows)
    while chunk := list(islice(rows, 1000)):
        lines: list[tuple[Any, Any, str]] = []
        for row, prediction in chunk:
            text = " | ".join(" ".join(str(part).split()) for part in row.values())
            answers = display_values(prediction)
            if answers is None:
                display.text(to_json({**row, **prediction}))
            for what, probability in answers or ([("none", None)] if answers == [] else []):
                lines.append((what, "" if probability is None else probability, text))
        if lines:
            columns = ("prediction", "probability", "text")
            display.table(columns, lines, right="probability", truncate="text")


@verb(
    "explain",
    'bertworks explain runs/tiny "They flow into the [MASK]." --out sea.html',
    'bertworks explain runs/squad "Who left?" --pair "Ada left." --out who.html',
)
def explain(
    model: TaskModel,
    text: str,
    *,
    out: Path,
    pair: Pair = None,
    overwrite: Overwrite = False,
    device: DeviceOption = "auto",
    display: TextDisplay,
) -> None:
    """Write an HTML page that shows what a model does with a text.

    It has the pieces, every head's attention, the layers step by step, each word masked in turn,
    and what the prediction depends on, in one file without server or network. The text may have up
    to 128 tokens.

    Args:
        text (TEXT): A text.
        out (FILE): Output file, ending in .html.
    """
    for part in (text, pair):
        if part is not None:
            require_text(part)
    check_page(out, suffixes=PAGE_SUFFIXES)
    with output(out, model=model, overwrite=overwrite):
        loaded_model = model.load(device)
        from ..explorer import explain as compute_explanation
        from ..explorer.page import page

        html = page(compute_explanation(loaded_model, text, pair))
        write_file(out, html)
    display.facts({"page": out, "size": f"{len(html.encode()) / 1e6:.1f} MB"})

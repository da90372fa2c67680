"""Use a model: `evaluate`, `score`, `predict`, `fill-mask`, `next-sentence`, `generate`,
`explain`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import DataError
from ..settings import literals
from ..utils.atomic_writes import write_file
from . import display
from .app import (
    AsJson,
    DeviceOption,
    DropUnlabelled,
    Header,
    LabelledTable,
    ModelPath,
    Overwrite,
    Part,
    SettingsOption,
    Table,
    TaskFile,
    Texts,
    WorkerOptions,
    lines_of,
    load_model,
    output,
    verb,
)

if TYPE_CHECKING:
    from ..tasks.evaluation import Evaluation

_PAGE = (".html", ".htm")
Report = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Write an HTML report: confusions, calibration, worst mistakes."
    ),
]


@verb(
    "evaluate",
    "bertworks evaluate runs/tickets --data dev.tsv",
    "bertworks evaluate runs/tickets --data dev.tsv --report errors.html",
    "bertworks evaluate runs/tickets --data may.tsv --data june.tsv --workers 2",
    "bertworks evaluate runs/tiny --data prepared max_seq_length=512",
)
def evaluate(
    ctx: typer.Context,
    *,
    model: ModelPath,
    data: Annotated[
        list[str],
        typer.Option(
            metavar="FILE",
            help="Labelled rows; or the output of `prepare`, for a pre-trained model. May be "
            "repeated: each file is evaluated.",
        ),
    ],
    table: LabelledTable,
    report: Report = None,
    overwrite: Overwrite = False,
    json: AsJson = False,
    worker_options: WorkerOptions,
    device: DeviceOption = "auto",
    task: TaskFile = None,
    settings: SettingsOption,
) -> None:
    """Evaluate a model on labelled rows, or on held-out documents.

    A pre-trained model is evaluated on a prepared corpus, on the documents held out in training:
    documents=, sequences=, seed= and max_seq_length= are the run's if MODEL is a run; else give the
    values used in training (held_out.documents, held_out.seed or seed). 15 % of the tokens are
    predicted: 80 % of these are masked, 10 % replaced, 10 % unchanged.
    """
    if len(data) > 1 and report is not None:
        ctx.fail("--report needs a single --data FILE.")
    with output(report, data, model=model, overwrite=overwrite, repeats=True):
        check_page(report)
        measured = load_model(model, device, task)
        evaluations = measured.evaluate_each(data, **worker_options, **(settings | table))
        if len(data) == 1:
            _show_evaluation(evaluations[0], model, data[0], report, json=json)
            return
    if json:
        for file, evaluation in zip(data, evaluations, strict=True):
            display.as_json({"data": file, **_facts(evaluation)})
        return
    names = list(dict.fromkeys(name for evaluation in evaluations for name in evaluation.metrics))
    display.table(
        ("file", "rows", *names),
        [
            (file, f"{evaluation.rows:,}", *(evaluation.metrics.get(name, "") for name in names))
            for file, evaluation in zip(data, evaluations, strict=True)
        ],
        right=("rows", *names),
        truncate="file",
    )
    display.remarks(
        dict.fromkeys(remark for evaluation in evaluations for remark in evaluation.remarks)
    )


@verb(
    "score",
    "bertworks score answering --data dev-v2.0.json --predictions answers.json",
    "bertworks score tagging --data predicted.conll --report errors.html",
    "bertworks score classification --data predicted.tsv",
)
def score(
    task: Annotated[
        literals.ScoredTask,
        typer.Argument(
            metavar="TASK",
            help="answering, tagging, classification or regression.",
            show_default=False,
        ),
    ],
    data: Annotated[
        str, typer.Option(metavar="FILE", help="Labelled rows; - reads TSV from standard input.")
    ],
    predictions: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="For answering: JSON with an answer for each id."),
    ] = None,
    no_answer_probs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="For answering: JSON with the no-answer probability for each id."
        ),
    ] = None,
    label_column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Column of gold labels; detected if omitted."),
    ] = None,
    prediction_column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Column of predicted labels; detected if omitted."),
    ] = None,
    no_label: Annotated[
        str | None,
        typer.Option(
            metavar="LABEL",
            help='Label of rows without a gold label; - and the like if omitted, "" if none.',
        ),
    ] = None,
    header: Header = None,
    drop_unlabelled: DropUnlabelled = False,
    report: Report = None,
    overwrite: Overwrite = False,
    json: AsJson = False,
) -> None:
    """Score the predictions of any system.

    The metrics are those of evaluate. answering: SQuAD JSON, version 1.1 or 2.0, and a JSON file
    of answers by id, as for the official scorers. tagging: CoNLL columns, the last two with gold
    and predicted tags. classification and regression: a table with both columns.
    """
    from ..analysis.scoring import score as run

    inputs = [data, predictions, no_answer_probs]
    with output(report, inputs, overwrite=overwrite, repeats=True):
        check_page(report)
        evaluation = run(
            task,
            data,
            predictions=predictions,
            no_answer_probabilities=no_answer_probs,
            label_column=label_column,
            prediction_column=prediction_column,
            no_label=no_label,
            header=header,
            drop_unlabelled=drop_unlabelled,
        )
        _show_evaluation(evaluation, str(predictions or data), data, report, json=json)


def check_page(report: Path | None, *, endings: Sequence[str] = ("", *_PAGE)) -> None:
    """Check the suffix of a report's name, before the evaluation.

    Raises:
        DataError: it is not one of `endings`.
    """
    if report is not None and report.suffix.lower() not in endings:
        raise DataError("a report is an HTML page", where=str(report), fix="Name it .html.")


def _show_evaluation(
    evaluation: Evaluation, model: str, data: str, report: Path | None, *, json: bool
) -> None:
    """Print an evaluation, and write its report if a path is given."""
    if report is not None:
        from ..reports.report import write_evaluation_report

        write_evaluation_report(report, evaluation, model=model, data=data)
    if json:
        display.as_json(_facts(evaluation))
        return
    display.metrics({"rows": evaluation.rows, **evaluation.metrics})
    display.remarks(evaluation.remarks)
    display.facts(display.evaluation_facts(evaluation.breakdown, report))


def _facts(evaluation: Evaluation) -> dict[str, Any]:
    return {"rows": evaluation.rows, **evaluation.metrics, "remarks": evaluation.remarks}


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
    pair: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Second text, for tasks on pairs.")
    ] = None,
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
    task: TaskFile = None,
    settings: SettingsOption,
) -> None:
    """Predict labels for texts, or for the rows of a table.

    Rows are written unchanged and in order, with added columns for the predictions. They are
    streamed, so there is no limit on their number.
    """
    if bool(texts) == (data is not None):
        ctx.fail("Give either texts or --data FILE.")
    if data is not None and pair is not None:
        ctx.fail("--pair is only for texts; in a table, use a column.")
    if data is None and table.keys() & {"header", "format"}:
        ctx.fail("--header and --format need --data FILE.")
    if (part is not None or worker_options) and (data is None or out is None):
        ctx.fail("--part, --workers and --on need --data FILE --out FILE.")
    for text in texts or ():
        display.require_text(text)
    from ..inference.prediction_files import write_predictions

    settings = settings | table
    with output(out, [data], model=model, overwrite=overwrite):
        loaded_model = load_model(model, device, task)
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


@verb("fill-mask", 'bertworks fill-mask runs/tiny "the capital of [MASK] is paris ."')
def fill_mask(
    *,
    model: ModelPath,
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="A text with [MASK] for each word to predict.")
    ],
    top_k: Annotated[
        int, typer.Option(min=1, max=1_000_000, metavar="N", help="Predictions for each mask.")
    ] = 5,
    json: AsJson = False,
    device: DeviceOption = "auto",
    settings: SettingsOption,
) -> None:
    """Predict the masked words of a text."""
    display.require_text(text)
    masks = load_model(model, device).fill_mask(text, top_k=top_k, **settings)
    if json:
        display.as_json(masks)
        return
    for number, guesses in enumerate(masks, 1):
        name = f"[MASK] {number}" if len(masks) > 1 else "[MASK]"
        display.table(
            (name, "probability"),
            [(guess["token"], guess["probability"]) for guess in guesses],
            right="probability",
        )


@verb(
    "next-sentence",
    'bertworks next-sentence runs/tiny "He opened the door." "The room was dark."',
)
def next_sentence(
    *,
    model: ModelPath,
    first: Annotated[str, typer.Argument(metavar="A", help="A text.", show_default=False)],
    second: Annotated[str, typer.Argument(metavar="B", help="Another.", show_default=False)],
    json: AsJson = False,
    device: DeviceOption = "auto",
    settings: SettingsOption,
) -> None:
    """Print the probability that B follows A."""
    display.require_text(first)
    display.require_text(second)
    chance = load_model(model, device).next_sentence(first, second, **settings)
    if json:
        display.as_json({"next_sentence_probability": chance})
    else:
        typer.echo(f"B follows A with probability {chance:.4f}")


@verb(
    "generate",
    'bertworks generate openai-gpt "once upon a time"',
    'bertworks generate openai-gpt "the door" temperature=0.8 top_p=0.9',
)
def generate(
    *,
    model: ModelPath,
    texts: Annotated[
        list[str],
        typer.Argument(
            metavar="TEXT…", help="Prompts; - reads lines from standard input.", show_default=False
        ),
    ],
    json: AsJson = False,
    device: DeviceOption = "auto",
    settings: SettingsOption,
) -> None:
    """Continue texts, token by token; the model must be causal.

    The same seed samples the same tokens, whatever other texts are given; repeated texts get
    different continuations.
    """
    prompts = list(lines_of(texts))
    for text in prompts:
        display.require_text(text)
    continuations = load_model(model, device).generate(prompts, **settings)
    for text, continuation in zip(prompts, continuations, strict=True):
        if json:
            display.as_json({"text": text, "generated_text": continuation})
        else:
            typer.echo(f"{text} …\n  … {continuation.strip()}")


@verb(
    "explain",
    'bertworks explain runs/tiny "They flow into the [MASK]." --out sea.html',
    'bertworks explain runs/squad "Who left?" --pair "Ada left." --out who.html',
)
def explain(
    model: ModelPath,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A text.", show_default=False)],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Output file, ending in .html.")],
    pair: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Second text, for tasks on pairs.")
    ] = None,
    overwrite: Overwrite = False,
    device: DeviceOption = "auto",
    task: TaskFile = None,
) -> None:
    """Write an HTML page that shows what a model does with a text.

    It has the pieces, every head's attention, the layers step by step, each word masked in turn,
    and what the prediction depends on, in one file without server or network. The text may have up
    to 128 tokens.
    """
    for part in (text, pair):
        if part is not None:
            display.require_text(part)
    check_page(out, endings=_PAGE)
    with output(out, model=model, overwrite=overwrite):
        loaded_model = load_model(model, device, task)
        from ..explorer import explain as compute_explanation
        from ..explorer.page import page

        html = page(compute_explanation(loaded_model, text, pair))
        write_file(out, html)
    display.facts({"page": out, "size": f"{len(html.encode()) / 1e6:.1f} MB"})

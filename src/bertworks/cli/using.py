"""Using a model: `evaluate`, `score`, `predict`, `fill-mask`, `next-sentence`, `generate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .. import literals
from ..errors import DataError
from . import show
from .app import (
    AsJson,
    Device,
    Encoding,
    Header,
    MaxLineBytes,
    ModelPath,
    SettingsFile,
    TableFormat,
    TaskFile,
    Threads,
    given_settings,
    line_options,
    lines_of,
    load_model,
    output,
    table_options,
    verb,
)

if TYPE_CHECKING:
    from ..tasks.evaluation import Evaluation

Report = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write a page: confusions, calibration, the worst mistakes."),
]


@verb(
    "evaluate",
    "bertworks evaluate runs/tickets --data dev.tsv",
    "bertworks evaluate runs/tickets --data dev.tsv --report errors.html",
    "bertworks evaluate runs/tiny --data prepared max_seq_length=512",
)
def evaluate(
    ctx: typer.Context,
    model: ModelPath,
    data: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Rows whose answers are known; or what `prepare` made, for a pre-trained model.",
        ),
    ],
    header: Header = None,
    format: TableFormat = "auto",
    encoding: Encoding = "utf-8",
    max_line_bytes: MaxLineBytes = None,
    report: Report = None,
    json: AsJson = False,
    device: Device = "auto",
    threads: Threads = None,
    task: TaskFile = None,
    settings_file: SettingsFile = None,
) -> None:
    """Measure a fine-tuned model on labelled rows, or a pre-trained one on held-out documents.

    Of a prepared corpus the documents are measured that training held out; give documents= and
    seed= as they were then (held_out.documents, held_out.seed). 15 % of the tokens are predicted,
    80 % of them masked, 10 % replaced, 10 % left.
    """
    given = given_settings(ctx, settings_file)
    with output(report, [data], model=model):
        _check_page(report)
        found = load_model(model, device, threads, task).evaluate(
            data,
            **given,
            **table_options(header, format, encoding, max_line_bytes),
        )
        _show_evaluation(found, model, data, report, json=json)


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
        str, typer.Option(metavar="FILE", help="Rows whose answers are known; - reads TSV.")
    ],
    predictions: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="For answering: JSON, an answer for each id."),
    ] = None,
    no_answer_probs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="For answering: JSON, for each id the probability of no answer."
        ),
    ] = None,
    label_column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The column of gold labels; guessed if left out."),
    ] = None,
    prediction_column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The column of predicted labels; guessed if left out."),
    ] = None,
    header: Header = None,
    report: Report = None,
    json: AsJson = False,
) -> None:
    """Score predictions of any system, as evaluate scores a model's.

    answering: the data as SQuAD's JSON, version 1.1 or 2.0, and ids with their answers, as the
    official scorers read them. tagging: CoNLL columns, the last two of them the true and the
    predicted tags. classification and regression: a table with both.
    """
    from ..scoring import score as run

    with output(report, [data, predictions, no_answer_probs]):
        _check_page(report)
        found = run(
            task,
            data,
            predictions=predictions,
            no_answer_probabilities=no_answer_probs,
            label_column=label_column,
            prediction_column=prediction_column,
            header=header,
        )
        _show_evaluation(found, str(predictions or data), data, report, json=json)


def _check_page(report: Path | None) -> None:
    """See that a page has the name of one, before anything is measured.

    Raises:
        DataError: its name ends otherwise.
    """
    if report is not None and report.suffix.lower() not in ("", ".html", ".htm"):
        raise DataError("a report is a page", where=str(report), fix="Name it .html.")


def _show_evaluation(
    found: Evaluation, measured: str, data: str, report: Path | None, *, json: bool
) -> None:
    """Print an evaluation, and write its page if there is to be one."""
    if report is not None:
        from ..training.report import write_evaluation_report

        write_evaluation_report(report, found, model=measured, data=data)
    if json:
        show.as_json({"rows": found.rows, **found.metrics, "remarks": found.remarks})
        return
    show.metrics({"rows": found.rows, **found.metrics})
    show.remarks(found.remarks)
    show.facts(show.evaluated(found.breakdown, report))


@verb(
    "predict",
    'bertworks predict runs/tickets "The door is stuck." "Where is it?"',
    "bertworks predict runs/tickets --data new.tsv --out answers.jsonl",
    "cat texts.txt | bertworks predict runs/tickets -",
)
def predict(
    ctx: typer.Context,
    model: ModelPath,
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]…", help="Texts; - reads lines.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A table instead; - reads TSV from standard input."),
    ] = None,
    header: Header = None,
    format: TableFormat = "auto",
    encoding: Encoding = "utf-8",
    max_line_bytes: MaxLineBytes = None,
    pair: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The second text, where a row is a pair.")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Where to: .tsv, .csv or .jsonl; TSV, if left out."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="JSON Lines, whatever the name.")] = False,
    device: Device = "auto",
    threads: Threads = None,
    task: TaskFile = None,
    settings_file: SettingsFile = None,
) -> None:
    """Label texts, or the rows of a table.

    Rows come out as they went in and in their order, with the predictions beside them, while more
    are read: any number of them will do.
    """
    if bool(texts) == (data is not None):
        ctx.fail("Give either texts or --data FILE.")
    if data is not None and pair is not None:
        ctx.fail("--pair is for texts; a table has a column of them.")
    if data is None and (header is not None or format != "auto"):
        ctx.fail("--header and --format are for --data FILE.")
    for text in texts or ():
        show.must_hold_text(text)
    from ..inference.writers import write_predictions

    given = given_settings(ctx, settings_file)
    with output(out, [data], model=model):
        loaded = load_model(model, device, threads, task)
        lines = lines_of(texts or [], **line_options(encoding, max_line_bytes))
        asked = lines if pair is None else ((text, pair) for text in lines)
        rows = loaded.stream(
            None if data is not None else asked,
            data=data,
            **given,
            **table_options(header, format, encoding, max_line_bytes),
        )
        if out is None and data is None and not json and sys.stdout.isatty():
            assert loaded.task is not None, "it has predicted"
            show.predictions(rows, loaded.task.shown)
            return
        count = write_predictions(out or "-", rows, format="jsonl" if json else "auto")
    if out is not None:
        typer.echo(f"{count:,} rows written to {Path(out)}", err=True)


@verb("fill-mask", 'bertworks fill-mask runs/tiny "the capital of [MASK] is paris ."')
def fill_mask(
    model: ModelPath,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="With [MASK] where a word is.")],
    top_k: Annotated[int, typer.Option(min=1, metavar="N", help="How many for each.")] = 5,
    json: AsJson = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Guess the masked words of a text."""
    show.must_hold_text(text)
    masks = load_model(model, device, threads).fill_mask(text, top_k=top_k)
    if json:
        show.as_json(masks)
        return
    for number, guesses in enumerate(masks, 1):
        name = f"[MASK] {number}" if len(masks) > 1 else "[MASK]"
        show.table(
            (name, "probability"),
            [(guess["token"], guess["probability"]) for guess in guesses],
            right="probability",
        )


@verb(
    "next-sentence",
    'bertworks next-sentence runs/tiny "He opened the door." "The room was dark."',
)
def next_sentence(
    model: ModelPath,
    first: Annotated[str, typer.Argument(metavar="A", help="A text.", show_default=False)],
    second: Annotated[str, typer.Argument(metavar="B", help="Another.", show_default=False)],
    json: AsJson = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Tell how likely it is that B follows A."""
    show.must_hold_text(first)
    show.must_hold_text(second)
    chance = load_model(model, device, threads).next_sentence(first, second)
    if json:
        show.as_json({"next_sentence_probability": chance})
    else:
        typer.echo(f"B follows A with probability {chance:.4f}")


@verb(
    "generate",
    'bertworks generate openai-gpt "once upon a time"',
    'bertworks generate openai-gpt "the door" temperature=0.8 top_p=0.9',
)
def generate(
    ctx: typer.Context,
    model: ModelPath,
    texts: Annotated[
        list[str],
        typer.Argument(metavar="TEXT…", help="Beginnings; - reads lines.", show_default=False),
    ],
    json: AsJson = False,
    device: Device = "auto",
    threads: Threads = None,
    settings_file: SettingsFile = None,
) -> None:
    """Go on with texts, token by token; the model must be causal.

    The same seed draws the same tokens, whatever other texts are given; a text that is given
    several times is continued in several ways.
    """
    given = given_settings(ctx, settings_file)
    prompts = list(lines_of(texts))
    for text in prompts:
        show.must_hold_text(text)
    made = load_model(model, device, threads).generate(
        prompts,
        **given,
    )
    for text, new in zip(prompts, made, strict=True):
        if json:
            show.as_json({"text": text, "generated": new})
        else:
            typer.echo(f"{text} …\n  … {new.strip()}")

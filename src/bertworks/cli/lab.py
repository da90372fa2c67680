"""Experiments made of ordinary runs: `demo`, `glue`, `ablate`, `lab`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..errors import SettingsError
from ..settings import literals
from ..utils.formatting import format_count, format_duration
from ..utils.progress import Progress
from .application import verb
from .devices import DeviceOption, Threads, set_threads
from .display import Display, JsonDisplay, TextDisplay
from .models import ModelOption, ModelSource
from .options import Overwrite, SettingsOption, SettingsWords
from .outputs import check_present, output
from .training_options import Dev, GridOptions, Run, Seeds, Train, seed_numbers

if TYPE_CHECKING:
    from ..lab.bench import Lab
    from ..lab.claims import Claim


_UNUSED_OPTIONS = {
    "compare": ("out", "overwrite", "model", "budget", "minutes", "seeds"),
    "run": ("budget", "minutes"),
    "all": ("minutes",),
    "lineage": ("budget",),
}
"""The options of `lab` that have no effect with a word."""


@verb("demo", "bertworks demo", "bertworks demo --quick", "bertworks demo --out /tmp/demo --seed 2")
def demo(
    *,
    out: Path = Path("bertworks-demo"),
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1)] = 1,
    quick: bool = False,
    overwrite: Overwrite = False,
    threads: Threads = None,
) -> None:
    """Run the whole cycle in minutes, on Python's documentation.

    It begins with predictions of mini. No network is needed: the text ships with Python, as the
    language reference and the docstrings and comments of the standard library.

    The exit status is 1 if the pre-trained network does not beat both baselines (not with --quick).

    Args:
        out (DIR): Output directory.
        seed (N): Random seed of the split, weights and data order.
        quick: Train only for seconds, to check that everything works.
    """
    set_threads(threads)
    from ..lab.demo import run_demo

    if not (run_demo(out, seed=seed, quick=quick, overwrite=overwrite).beats_both or quick):
        raise typer.Exit(1)


@verb(
    "glue",
    "bertworks glue --model bert-base-uncased --data glue_data --out runs/glue \\\n"
    "      --grid paper",
    "bertworks glue --model runs/tiny --data glue_data --out runs/some \\\n"
    "      --tasks mrpc,rte --seeds 3 epochs=3 learning_rate=3e-4",
)
def glue(
    *,
    model: ModelOption,
    data: Path,
    out: Run,
    tasks: str | None = None,
    settings: SettingsWords,
    overwrite: Overwrite = False,
    grid: GridOptions,
    device: DeviceOption = "auto",
    display: TextDisplay,
) -> None:
    """Fine-tune and evaluate on GLUE, and predict its test sets.

    Each of the nine tasks is trained as by `finetune`, with its grid and seeds. The best model is
    evaluated on dev and, if there are test files, writes predictions for the GLUE server. The same
    command again runs what is missing.

    Args:
        data (DIR): Official GLUE files: one folder per task.
        tasks (A,B…): Tasks to run; all available ones if omitted.
    """
    from ..lab.glue import NOTE
    from ..lab.glue import glue as run

    result = run(
        model,
        data,
        out=out,
        tasks=None if tasks is None else tasks.split(","),
        device=device,
        overwrite=overwrite,
        progress=Progress(),
        **grid,
        **settings,
    )
    display.table(result.columns, result.rows(), right="dev mean Base Large")
    display.text(NOTE, *(f"  missing: {name} ({why})" for name, why in result.missing.items()))
    display.facts({"table": result.out / "glue.md"})
    if answers := result.answers:
        num_files = format_count(len(answers), "file")
        display.facts({"for the server": f"{answers[0].parent} ({num_files})"})


@verb(
    "ablate",
    "bertworks ablate features --model runs/tiny --train train.conll \\\n"
    "      --dev dev.conll --out runs/features finetune.learning_rate=2e-4",
)
def ablate(
    what: Literal["features"],
    *,
    model: ModelOption,
    train: Train,
    dev: Dev,
    out: Path,
    overwrite: Overwrite = False,
    settings: SettingsWords,
    device: DeviceOption = "auto",
    display: TextDisplay,
) -> None:
    """Repeat an ablation of the paper on your data.

    features (paper, table 7): a two-layer BiLSTM tags words from a frozen encoder's hidden states,
    which are computed once; for comparison, the encoder is fine-tuned (finetune=null skips this).
    Finished rows are not repeated.

    Args:
        what (WHAT): features: six combinations of a frozen encoder's layers, and fine-tuning.
        out (DIR): Output directory; an existing one is resumed.
    """
    assert what == "features"
    from ..lab.features import ablate_features

    results = ablate_features(
        model,
        train=train,
        dev=dev,
        out=out,
        device=device,
        overwrite=overwrite,
        progress=Progress(),
        **settings,
    )
    headings, cells = results.table()
    display.table(headings, cells, right=headings[1:])
    display.facts({"table": results.table_file, "results": results.json_file})


@verb(
    "lab",
    "bertworks lab list",
    "bertworks lab run order senses --out runs/lab",
    "bertworks lab all --budget 60 --seeds 3 --out runs/lab",
    "bertworks lab lineage --data data --minutes 10 --seeds 3 --out runs/lab",
    "bertworks lab lineage BERT OpenAI --data data --minutes 7,20 --out runs/lab",
    "bertworks lab compare mini MODEL --data reviews.tsv label_column=stars",
)
def lab(
    ctx: typer.Context,
    what: Literal["list", "run", "all", "lineage", "compare"],
    claims: list[str] | None = None,
    *,
    out: Path = Path("runs/lab"),
    overwrite: Overwrite = False,
    model: str = "mini",
    data: Path | None = None,
    budget: Annotated[float | None, typer.Option(min=0)] = None,
    minutes: str = "10",
    seeds: Seeds = None,
    settings: SettingsOption,
    device: DeviceOption = "auto",
    display: JsonDisplay,
) -> None:
    """Test published claims about BERT.

    Each claim has a quotation, an experiment and a verdict, which compares the effect with its
    spread over seeds: shown, not shown at this size, or contradicted. Experiments are ordinary
    runs, kept under --out, along with a report with pictures (lab.md) and results.json.

    lineage trains BERT and its predecessors on the same text for the same time, and evaluates them
    on the same tasks, frozen and fine-tuned (lineage.md).

    compare evaluates models on labelled texts: logistic regression on frozen vectors, texts per
    second of processor time, parameters, and the difference from the first model with its 95 %
    confidence interval. Every fourth row is used for evaluation. Only compare takes settings.

    Args:
        what (WHAT): list: list all claims; run: test the named claims; all: test all, cheapest
            first; lineage: BERT and its ancestors; compare: compare models on your table.
        claims ([CLAIM|MODEL|SYSTEM]…): Claims (run), models (compare) or systems (lineage; all if
            omitted), each with settings that differ, as in "BERT masking.mlm_probability=0.15".
        out (DIR): Output directory; finished runs in it are reused.
        model (MODEL): Pre-trained model to examine.
        data (DIR|TABLE): Directory with wiki/ (a corpus) and glue/sst2/; Python docstrings if
            omitted. lineage: with further probes. compare: a table of texts and labels.
        budget (MINUTES): all: skip claims that would exceed this time.
        minutes (M): lineage: processor time per pre-training run; several as in 7,20,60.
    """
    for name in _UNUSED_OPTIONS.get(what, ()):
        source = ctx.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            ctx.fail(f"--{name} does nothing with lab {what}.")
    if what == "compare":
        _compare(claims or (), data, device, settings, display)
        return
    if settings:
        raise SettingsError(f"{next(iter(settings))} is for lab compare", fix="Leave it out.")
    if what != "lineage" and bool(claims) != (what == "run"):
        fix = "bertworks lab list shows the names." if what == "run" else "Use run for some claims."
        raise SettingsError(f"lab run needs names of claims, lab {what} takes none", fix=fix)
    if what == "list":
        _list_claims(display)
        return
    from ..lab.claims import find_claims

    budgets = _parse_budgets(minutes)
    selection = find_claims(() if what == "lineage" else claims or ())
    from ..lab.bench import Lab
    from ..tuning.grid import seed_list

    seed_values = seed_list(seed_numbers(seeds))
    with output(
        out,
        [data],
        model=ModelSource(model),
        kind="directory",
        overwrite=overwrite,
        marks=("lab.json", "claims"),
    ):
        bench = Lab(out, data=data, model=model, device=device, progress=Progress())
        if what == "lineage":
            _trace_lineage(bench, claims, budgets, seed_values, display)
        else:
            _test_claims(bench, selection, seed_values, budget if what == "all" else None, display)


def _list_claims(display: Display) -> None:
    from ..lab.claims import find_claims

    claims = find_claims()
    names = ("name", "minutes", "says")
    display.json([{name: getattr(claim, name) for name in names} for claim in claims])
    rows = [(claim.name, f"{claim.minutes:g}", claim.says) for claim in claims]
    display.table(("claim", "minutes", "it says"), rows, right="minutes", truncate="it says")


def _test_claims(
    bench: Lab,
    claims: Sequence[Claim],
    seeds: Sequence[int],
    budget: float | None,
    display: Display,
) -> None:
    from ..lab.report import measure_all, write_page

    records, skipped_names = measure_all(bench, claims, seeds, budget)
    page = write_page(bench)
    display.json([record.to_dict() for record in records])
    rows = [(one.claim.name, one.verdict, format_duration(one.seconds)) for one in records]
    display.table(("claim", "verdict", "took"), rows, right="took")
    if skipped_names:
        display.notes([f"no time left for {', '.join(skipped_names)}"])
    display.facts({"page": page, "results": page.with_name("results.json")})


def _parse_budgets(text: str) -> list[float]:
    """Parse one number of minutes or several, as in `7,20,60`."""
    parts = text.split(",")
    numbers = [float(part) for part in parts if re.fullmatch(r"\d+(\.\d+)?", part)]
    if len(set(numbers)) < len(parts):
        what = f"--minutes {text}: not different numbers"
        raise SettingsError(what, fix="For example: 10, or 7,20,60.")
    return numbers


def _trace_lineage(
    bench: Lab,
    systems: Sequence[str] | None,
    budgets: Sequence[float],
    seeds: Sequence[int],
    display: Display,
) -> None:
    from ..lab.lineage import SYSTEMS, lineage, table

    results = lineage(bench, budgets, seeds, systems or tuple(SYSTEMS))
    display.json(results)
    for minutes, of_budget in results["budgets"].items():
        headings, rows = table(of_budget)
        display.table([f"{minutes} min", *headings[1:]], rows, right=headings[1:])
    if results["skipped"]:
        display.notes([f"no data for {', '.join(results['skipped'])}"])
    display.facts({"page": bench.out / "lineage.md"})


def _compare(
    models: Sequence[str],
    table: Path | None,
    device: literals.Device,
    settings: dict[str, Any],
    display: Display,
) -> None:
    if not models or table is None:
        fix = "For example: bertworks lab compare mini --data reviews.tsv."
        raise SettingsError("lab compare needs models and --data TABLE", fix=fix)
    check_present([table])
    from ..analysis.probing import compare

    comparisons = compare(models, table, device=device, **settings)
    columns: tuple[str, ...] = ("model", "accuracy", "majority", "texts/s", "parameters")
    named = (*columns, "difference", "interval")
    display.json([dict(zip(named, row, strict=True)) for row in comparisons])
    rows: list[tuple[object, ...]] = [
        (*one[:3], f"{one.speed:,.0f}", f"{one.parameters:,}") for one in comparisons
    ]
    if len(comparisons) > 1:
        columns = (*columns, "than first")
        rows = [(*row, one.difference_text) for row, one in zip(rows, comparisons, strict=True)]
    display.table(columns, rows, right=columns[1:], truncate="model")
    if len(comparisons) > 1:
        display.notes(["± is half of the 95 % confidence interval, over the evaluated rows"])

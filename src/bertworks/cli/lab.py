"""Experiments made of ordinary runs: `demo`, `glue`, `ablate`, `lab`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..errors import SettingsError
from ..utils.formatting import format_duration
from . import display
from .app import verb
from .devices import DeviceOption, Threads, set_threads
from .options import AsJson, Overwrite, SettingsFile, SettingsOption, Table, read_settings
from .outputs import check_present, output
from .training_options import Dev, GridOptions, KeyValues, Model, Run, Seeds, Train, seed_numbers

if TYPE_CHECKING:
    from ..lab.bench import Lab
    from ..lab.claims import Claim


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
    from ..utils.progress import Progress

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
    from ..utils.progress import Progress

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


LabCommand = Annotated[
    Literal["list", "run", "all", "lineage", "compare"],
    typer.Argument(
        metavar="WHAT",
        help="list: list all claims; run: test the named claims; all: test all, cheapest "
        "first; lineage: BERT and its ancestors; compare: compare models on your "
        "table.",
        show_default=False,
    ),
]
LabNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="[CLAIM|MODEL]…", help="Claims (run) or models (compare)."),
]
LabOutput = Annotated[
    Path, typer.Option(metavar="DIR", help="Output directory; finished runs in it are reused.")
]
LabModel = Annotated[str, typer.Option(metavar="MODEL", help="Pre-trained model to examine.")]
LabData = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR|TABLE",
        help="Directory with wiki/ (a corpus) and glue/sst2/; Python docstrings if "
        "omitted. lineage: with further probes. compare: a table of texts and labels.",
    ),
]
Budget = Annotated[
    float | None,
    typer.Option(min=0, metavar="MINUTES", help="all: skip claims that would exceed this time."),
]
RunMinutes = Annotated[
    float, typer.Option(min=0, metavar="M", help="lineage: processor time per pre-training run.")
]


@verb(
    "lab",
    "bertworks lab list",
    "bertworks lab run order senses --out runs/lab",
    "bertworks lab all --budget 60 --seeds 3 --out runs/lab",
    "bertworks lab lineage --data data --minutes 10 --seeds 3 --out runs/lab",
    "bertworks lab compare mini MODEL --data reviews.tsv label_column=stars",
)
def lab(
    *,
    what: LabCommand,
    claims: LabNames = None,
    out: LabOutput = Path("runs/lab"),
    overwrite: Overwrite = False,
    model: LabModel = "mini",
    data: LabData = None,
    budget: Budget = None,
    minutes: RunMinutes = 10.0,
    seeds: Seeds = None,
    settings: SettingsOption,
    table: Table,
    json: AsJson = False,
    device: DeviceOption = "auto",
) -> None:
    """Test published claims about BERT.

    Each claim has a quotation, an experiment and a verdict, which compares the effect with its
    spread over seeds: shown, not shown at this size, or contradicted. Experiments are ordinary
    runs, kept under --out, along with a report with pictures (lab.md) and results.json.

    lineage trains BERT and its predecessors on the same text for the same time, and evaluates them
    on the same tasks, frozen and fine-tuned (lineage.md).

    compare evaluates models on labelled texts: logistic regression on frozen vectors, texts per
    second of processor time, parameters, and the difference from the first model with its 95 %
    confidence interval. Every fourth row is used for evaluation. Only compare takes settings,
    --header, --format, --encoding and --max-line-bytes.
    """
    settings |= table
    if what == "compare":
        _compare(claims or (), data, device, json, settings)
        return
    if settings:
        raise SettingsError(f"{next(iter(settings))} is for lab compare", fix="Leave it out.")
    from ..lab.claims import find_claims

    if bool(claims) != (what == "run"):
        fix = "bertworks lab list shows the names." if what == "run" else "Use run for some claims."
        raise SettingsError("lab run needs names of claims; the other commands take none", fix=fix)
    selection = find_claims(claims or ())
    if what == "list":
        rows = [(one.name, f"{one.minutes:g}", one.says) for one in selection]
        display.table(("claim", "minutes", "it says"), rows, right="minutes", truncate="it says")
        return
    from ..lab.bench import Lab
    from ..tuning.grid import seed_list
    from ..utils.progress import Progress

    seed_values = seed_list(seed_numbers(seeds))
    marks = ("lab.json", "claims")
    with output(out, [data], model=model, kind="directory", overwrite=overwrite, marks=marks):
        bench = Lab(out, data=data, model=model, device=device, progress=Progress())
        if what == "lineage":
            _lineage(bench, minutes, seed_values, json)
            return
        _test_claims(bench, selection, seed_values, budget if what == "all" else None, json)


def _test_claims(
    bench: Lab, claims: Sequence[Claim], seeds: Sequence[int], budget: float | None, json: bool
) -> None:
    from ..lab.report import measure_all, write_page

    records, skipped_names = measure_all(bench, claims, seeds, budget)
    page = write_page(bench)
    if json:
        display.as_json([record.to_dict() for record in records])
        return
    display.table(
        ("claim", "verdict", "took"),
        [(one.claim.name, one.verdict, format_duration(one.seconds)) for one in records],
        right="took",
    )
    if skipped_names:
        display.notes([f"no time left for {', '.join(skipped_names)}"])
    display.facts({"page": page, "results": page.with_name("results.json")})


def _lineage(bench: Lab, minutes: float, seeds: Sequence[int], json: bool) -> None:
    from ..lab.lineage import lineage, table

    results = lineage(bench, minutes, seeds)
    if json:
        display.as_json(results)
        return
    headings, rows = table(results)
    display.table(headings, rows, right=headings[1:])
    if results["skipped"]:
        display.notes([f"no data for {', '.join(results['skipped'])}"])
    display.facts({"page": bench.out / "lineage.md"})


def _compare(
    models: Sequence[str], table: Path | None, device: str, json: bool, settings: dict[str, Any]
) -> None:
    if not models or table is None:
        fix = "For example: bertworks lab compare mini --data reviews.tsv."
        raise SettingsError("lab compare needs models and --data TABLE", fix=fix)
    check_present([table])
    from ..analysis.probing import compare

    comparisons = compare(models, table, device=device, **settings)
    columns = ("model", "accuracy", "majority", "texts/s", "parameters")
    if json:
        named = (*columns, "difference", "interval")
        display.as_json([dict(zip(named, row, strict=True)) for row in comparisons])
        return
    cells = [(*one[:3], f"{one.speed:,.0f}", f"{one.parameters:,}") for one in comparisons]
    if len(comparisons) == 1:
        display.table(columns, cells, right=columns[1:], truncate="model")
        return
    headings = (*columns, "than first")
    rows = [(*row, one.difference_text) for row, one in zip(cells, comparisons, strict=True)]
    display.table(headings, rows, right=headings[1:], truncate="model")
    display.notes(["± is half of the 95 % confidence interval, over the evaluated rows"])

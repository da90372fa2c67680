"""Test claims about BERT: `lab`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..errors import SettingsError
from ..utils.formatting import format_duration
from . import display
from .app import verb
from .devices import DeviceOption
from .options import AsJson, Overwrite, SettingsOption, Table
from .outputs import check_present, output
from .training_options import Seeds, seed_numbers

if TYPE_CHECKING:
    from ..lab.bench import Lab


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
    what: Annotated[
        Literal["list", "run", "all", "lineage", "compare"],
        typer.Argument(
            metavar="WHAT",
            help="list: list all claims; run: test the named claims; all: test all, cheapest "
            "first; lineage: BERT and its ancestors; compare: compare models on your "
            "table.",
            show_default=False,
        ),
    ],
    claims: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CLAIM|MODEL]…", help="Claims (run) or models (compare)."),
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Output directory; finished runs in it are reused.")
    ] = Path("runs/lab"),
    overwrite: Overwrite = False,
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="Pre-trained model to examine.")
    ] = "mini",
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR|TABLE",
            help="Directory with wiki/ (a corpus) and glue/sst2/; Python docstrings if "
            "omitted. lineage: with further probes. compare: a table of texts and labels.",
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="MINUTES", help="all: skip claims that would exceed this time."
        ),
    ] = None,
    minutes: Annotated[
        float,
        typer.Option(min=0, metavar="M", help="lineage: processor time per pre-training run."),
    ] = 10.0,
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
    from ..lab.report import measure_all, write_page
    from ..training.progress import Progress
    from ..tuning.grid import seed_list

    seed_values = seed_list(seed_numbers(seeds))
    marks = ("lab.json", "claims")
    with output(out, [data], model=model, kind="directory", overwrite=overwrite, marks=marks):
        bench = Lab(out, data=data, model=model, device=device, progress=Progress())
        if what == "lineage":
            _lineage(bench, minutes, seed_values, json)
            return
        records, skipped_names = measure_all(
            bench, selection, seed_values, budget if what == "all" else None
        )
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

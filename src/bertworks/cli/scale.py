"""Plan a run, and merge the results of several machines: `settings`, `estimate`, `merge`."""

from __future__ import annotations

from typing import Annotated

import typer

from ..utils.directories import output_exists
from ..utils.formatting import format_clock, format_number
from . import display
from .app import AsJson, Device, Overwrite, Recipe, verb
from .corpus import corpus_facts
from .schemas import VERBS, schema_of


@verb(
    "merge",
    "bertworks merge parts/* --out prepared",
    "bertworks merge vectors-*.parquet --out vectors.parquet",
    "bertworks merge answers-*.tsv --out answers.tsv",
)
def merge(
    parts: Annotated[
        list[str],
        typer.Argument(
            metavar="PART…",
            help="Outputs of prepare, embed, features or predict with --part I/N.",
            show_default=False,
        ),
    ],
    out: Annotated[
        str,
        typer.Option(metavar="PATH", help="Output: a directory for a corpus, else a file."),
    ],
    overwrite: Overwrite = False,
) -> None:
    """Merge all parts of a corpus, of vectors or of predictions.

    The result equals that of a single machine, byte for byte, for any number of parts. Missing,
    damaged or duplicate parts, and parts with other inputs or settings, are an error.
    """
    from ..data.manifest import Manifest
    from ..inference.merging import merge as run

    was_there = not overwrite and output_exists(out)
    found = run(parts, out, overwrite=overwrite)
    if isinstance(found, Manifest):
        display.facts(corpus_facts(found))
    elif isinstance(found, int):
        display.facts({"rows": f"{found:,}"})
    else:
        display.facts({"texts": f"{found.rows:,}", "width": f"{found.width:,}"})
    if was_there:
        display.facts({"time": "nothing to do: already finished"})
    display.facts({"written to": out})


@verb(
    "estimate",
    "bertworks estimate base --machine h100x8",
    "bertworks estimate tiny data=prepared steps=20000",
)
def estimate(
    recipe: Recipe,
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]…", help="Settings of pretrain; data= is optional."),
    ] = None,
    machine: Annotated[
        str,
        typer.Option(metavar="NAME", help="h100, h200, a100, l4 (h100x8: eight), cpu2, or here."),
    ] = "here",
    share: Annotated[
        float | None,
        typer.Option(metavar="X", help="Share of the machine's peak that training reaches."),
    ] = None,
    device: Device = "auto",
    json: AsJson = False,
) -> None:
    """Estimate pretrain's parameters, memory, operations and time.

    On this machine, a few steps are measured. For other machines, the estimate is the
    manufacturer's peak times a share that is assumed, not measured.
    """
    from dataclasses import asdict

    from ..analysis.estimate import PAPER_CHIPS, PAPER_DAYS, paper_flops
    from ..analysis.estimate import estimate as run

    found = run(recipe, settings or (), machine=machine, share=share, device=device)
    if json:
        rates = {"seconds": found.seconds, "tokens_per_second": found.tokens_per_second}
        display.as_json({**asdict(found), **rates})
        return
    each, total = found.machine, sum(found.memory.values())
    room = f" of {each.memory / 1e9:.0f}" if each.memory else ""
    within = f"give or take {found.tolerance:.0%}"
    how = "measured here" if machine == "here" else f"{found.share:.0%} of the peak, assumed"
    display.facts(
        {
            "parameters": f"{found.parameters:,}, {found.num_trained:,} of them trained",
            "memory": f"{total / 1e9:.2f} GB{room} on a device, {within}",
            **{f"  {part}": f"{size / 1e9:.2f} GB" for part, size in found.memory.items()},
            "batch": f"{found.batch:,} tokens at once on a device",
            "tokens": f"{format_number(found.tokens)}, "
            f"{format_number(found.flops / found.tokens)} FLOPs each",
            "speed": f"{found.tokens_per_second:,.0f} tokens/s ({how})",
            "time": f"{format_clock(found.seconds)} for {found.flops:.2e} FLOPs",
        }
    )
    if 0 < each.memory < total:
        display.remarks(
            ["This does not fit: lower micro_batch_tokens, or set gradient_checkpointing=true."]
        )
    for size, chips in PAPER_CHIPS.items():
        flops = paper_flops(size)
        reached = flops / (chips * PAPER_DAYS * 86400) / 1e12
        display.remarks(
            [
                f"BERT-{size.title()} as published: {flops:.2e} FLOPs, {PAPER_DAYS} days on "
                f"{chips} TPU chips ({reached:.1f} TFLOP/s each); "
                f"{format_clock(flops / found.flops_per_second)} at this speed."
            ]
        )


@verb(
    "settings",
    "bertworks settings pretrain",
    "bertworks settings finetune tagging --yaml > tagging.yaml\n"
    "  bertworks finetune tagging --settings tagging.yaml …",
)
def settings(
    of: Annotated[
        str, typer.Argument(metavar="VERB", help=f"One of {', '.join(VERBS)}.", show_default=False)
    ],
    task: Annotated[
        str | None,
        typer.Argument(metavar="[TASK]", help="With finetune: adds the settings of a task."),
    ] = None,
    yaml: Annotated[
        bool, typer.Option("--yaml", help="Print YAML, for --settings or as a recipe.")
    ] = False,
) -> None:
    """List a verb's settings.

    Each has its default, type, allowed values and meaning. In the YAML file, all settings are
    commented out; uncomment those you change.
    """
    from ..analysis.settings_help import commented_yaml, describe, help_text

    schema = schema_of(of, task)
    typer.echo(commented_yaml(schema).rstrip() if yaml else help_text(describe(schema)))

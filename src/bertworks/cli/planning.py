"""Plan a run: `settings`, `estimate`."""

from __future__ import annotations

from typing import Annotated

import typer

from ..utils.formatting import format_clock, format_number
from . import display
from .app import verb
from .devices import Device
from .options import AsJson, Recipe
from .verb_names import SETTINGS_VERBS
from .verb_settings import schema_of


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

    result = run(recipe, settings or (), machine=machine, share=share, device=device)
    if json:
        rates = {"seconds": result.seconds, "tokens_per_second": result.tokens_per_second}
        display.as_json({**asdict(result), **rates})
        return
    each, total = result.machine, sum(result.memory.values())
    room = f" of {each.memory / 1e9:.0f}" if each.memory else ""
    tolerance = f"give or take {result.tolerance:.0%}"
    source = "measured here" if machine == "here" else f"{result.share:.0%} of the peak, assumed"
    display.facts(
        {
            "parameters": f"{result.parameters:,}, {result.num_trained:,} of them trained",
            "memory": f"{total / 1e9:.2f} GB{room} on a device, {tolerance}",
            **{f"  {part}": f"{size / 1e9:.2f} GB" for part, size in result.memory.items()},
            "batch": f"{result.batch:,} tokens at once on a device",
            "tokens": f"{format_number(result.tokens)}, "
            f"{format_number(result.flops / result.tokens)} FLOPs each",
            "speed": f"{result.tokens_per_second:,.0f} tokens/s ({source})",
            "time": f"{format_clock(result.seconds)} for {result.flops:.2e} FLOPs",
        }
    )
    if 0 < each.memory < total:
        display.notes(
            ["This does not fit: lower micro_batch_tokens, or set gradient_checkpointing=true."]
        )
    for size, chips in PAPER_CHIPS.items():
        flops = paper_flops(size)
        teraflops = flops / (chips * PAPER_DAYS * 86400) / 1e12
        display.notes(
            [
                f"BERT-{size.title()} as published: {flops:.2e} FLOPs, {PAPER_DAYS} days on "
                f"{chips} TPU chips ({teraflops:.1f} TFLOP/s each); "
                f"{format_clock(flops / result.flops_per_second)} at this speed."
            ]
        )


@verb(
    "settings",
    "bertworks settings pretrain",
    "bertworks settings finetune tagging --yaml > tagging.yaml\n"
    "  bertworks finetune tagging --settings tagging.yaml …",
)
def settings(
    verb_name: Annotated[
        str,
        typer.Argument(
            metavar="VERB", help=f"One of {', '.join(SETTINGS_VERBS)}.", show_default=False
        ),
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

    schema = schema_of(verb_name, task)
    typer.echo(commented_yaml(schema).rstrip() if yaml else help_text(describe(schema)))

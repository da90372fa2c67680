"""Plan a run: `settings`, `estimate`; and `report-environment`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ..settings.verbs import VERB_SETTINGS
from ..utils.formatting import format_clock, format_number, wrap_text
from .application import verb
from .devices import Device
from .display import JsonDisplay, TextDisplay
from .options import Recipe

if TYPE_CHECKING:
    from ..analysis.estimate import Estimate

SettingsVerb = Annotated[
    str, typer.Argument(metavar="VERB", help=f"One of {', '.join(VERB_SETTINGS)}.")
]


@verb(
    "estimate",
    "bertworks estimate base --machine h100x8",
    "bertworks estimate tiny data=prepared steps=20000",
)
def estimate(
    ctx: typer.Context,
    recipe: Recipe,
    settings: list[str] | None = None,
    *,
    machine: str = "here",
    share: float | None = None,
    device: Device = "auto",
    display: JsonDisplay,
) -> None:
    """Estimate pretrain's parameters, memory, operations and time.

    On this machine, a few steps are measured. For other machines, the estimate is the
    manufacturer's peak times a share that is assumed, not measured.

    Args:
        settings ([KEY=VALUE]…): Settings of pretrain; data= is optional.
        machine (NAME): h100, h200, a100, l4 (h100x8: eight), cpu2, or here.
        share (X): Share of the machine's peak that training reaches.
    """
    from ..analysis.estimate import PAPER_CHIPS, PAPER_DAYS, PAPER_FLOPS
    from ..analysis.estimate import estimate as run

    result = run(
        recipe,
        [*(settings or ()), *ctx.meta["settings"]],
        machine=machine,
        share=share,
        device=device,
    )
    rates = {"seconds": result.seconds, "tokens_per_second": result.tokens_per_second}
    display.json({**asdict(result), **rates})
    display.facts(_estimate_facts(result, "measured here" if machine == "here" else None))
    if 0 < result.machine.memory < sum(result.memory.values()):
        display.notes(
            ["This does not fit: lower micro_batch_tokens, or set gradient_checkpointing=true."]
        )
    display.notes(result.caveats)
    for size, chips in PAPER_CHIPS.items():
        flops = PAPER_FLOPS[size]
        teraflops = flops / (chips * PAPER_DAYS * 86400) / 1e12
        display.notes(
            [
                f"BERT-{size.title()} as published: {flops:.2e} FLOPs, {PAPER_DAYS} days on "
                f"{chips} TPU chips ({teraflops:.1f} TFLOP/s each); "
                f"{format_clock(flops / result.flops_per_second)} at this speed."
            ]
        )


def _estimate_facts(result: Estimate, source: str | None) -> dict[str, str]:
    room = f" of {result.machine.memory / 1e9:.0f}" if result.machine.memory else ""
    total, tolerance = sum(result.memory.values()), f"give or take {result.tolerance:.0%}"
    source = source or f"{result.share:.0%} of the peak, assumed"
    return {
        "parameters": f"{result.parameters:,}, {result.num_trained:,} of them trained",
        "memory": f"{total / 1e9:.2f} GB{room} on a device, {tolerance}",
        **{f"  {part}": f"{size / 1e9:.2f} GB" for part, size in result.memory.items()},
        "batch": f"{result.batch:,} tokens at once on a device",
        "tokens": f"{format_number(result.tokens)}, "
        f"{format_number(result.flops / result.tokens)} FLOPs each",
        "speed": f"{result.tokens_per_second:,.0f} tokens/s ({source})",
        "time": f"{format_clock(result.seconds)} for {result.flops:.2e} FLOPs",
    }


@verb(
    "settings",
    "bertworks settings pretrain",
    "bertworks settings finetune tagging --yaml > tagging.yaml\n"
    "  bertworks finetune tagging --settings tagging.yaml …",
)
def settings(
    verb_name: SettingsVerb,
    task: str | None = None,
    *,
    yaml: bool = False,
    display: TextDisplay,
) -> None:
    """List a verb's settings.

    Each has its default, type, allowed values and meaning. In the YAML file, all settings are
    commented out; uncomment those you change.

    Args:
        task ([TASK]): With finetune: adds the settings of a task.
        yaml: Print YAML, for --settings or as a recipe.
    """
    from ..analysis.settings_help import commented_yaml, describe, help_text, settings_class

    schema = settings_class(verb_name, task)
    display.text(commented_yaml(schema).rstrip() if yaml else help_text(describe(schema)))


@verb("report-environment", "bertworks report-environment")
def report_environment(*, display: JsonDisplay) -> None:
    """Print what a report of a fault needs: versions, processor, kernels, graphics card.

    Nothing private is printed: of environment variables only the names.
    """
    from ..analysis.environment import report_environment as run

    facts = run()
    display.json(facts)
    display.text(*(wrap_text(f"  {name}: {value}") for name, value in facts.items()))

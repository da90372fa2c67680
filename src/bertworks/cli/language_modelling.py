"""Use what pre-training learned: `fill-mask`, `next-sentence`, `generate`."""

from __future__ import annotations

from typing import Annotated

import typer

from . import display
from .app import verb
from .devices import DeviceOption, load_model
from .options import Adapters, AsJson, ModelPath, SettingsOption
from .texts import lines_of, require_text


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
    adapters: Adapters,
    settings: SettingsOption,
) -> None:
    """Predict the masked words of a text."""
    require_text(text)
    masks = load_model(model, device, **adapters).fill_mask(text, top_k=top_k, **settings)
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
    adapters: Adapters,
    settings: SettingsOption,
) -> None:
    """Print the probability that B follows A."""
    require_text(first)
    require_text(second)
    chance = load_model(model, device, **adapters).next_sentence(first, second, **settings)
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
    adapters: Adapters,
    settings: SettingsOption,
) -> None:
    """Continue texts, token by token; the model must be causal.

    The same seed samples the same tokens, whatever other texts are given; repeated texts get
    different continuations.
    """
    prompts = list(lines_of(texts))
    for text in prompts:
        require_text(text)
    continuations = load_model(model, device, **adapters).generate(prompts, **settings)
    for text, continuation in zip(prompts, continuations, strict=True):
        if json:
            display.as_json({"text": text, "generated_text": continuation})
        else:
            typer.echo(f"{text} …\n  … {continuation.strip()}")

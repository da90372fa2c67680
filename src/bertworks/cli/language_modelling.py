"""Use what pre-training learned: `fill-mask`, `next-sentence`, `generate`."""

from __future__ import annotations

from .application import verb
from .devices import DeviceOption, EngineOption
from .display import JsonDisplay
from .models import AdaptedModel
from .options import SettingsOption, TopK
from .texts import RequiredTexts, all_texts, require_text


@verb(
    "fill-mask",
    'bertworks fill-mask runs/tiny "the capital of [MASK] is paris ."',
    'bertworks fill-mask mini "She sat by the [MASK]." --candidates river,money',
)
def fill_mask(
    model: AdaptedModel,
    text: str,
    *,
    top_k: TopK = 5,
    candidates: str | None = None,
    engine: EngineOption,
    settings: SettingsOption,
    display: JsonDisplay,
) -> None:
    """Predict the masked words of a text.

    Args:
        text (TEXT): A text with [MASK] for each word to predict.
        top_k: Predictions for each mask.
        candidates (WORDS): Show the probabilities of these words instead, separated by commas.
    """
    require_text(text)
    words = None if candidates is None else candidates.split(",")
    options = {"top_k": top_k, "candidates": words, **settings}
    masks = model.use(lambda loaded: loaded.fill_mask(text, **options), engine)
    key = "token" if words is None else "candidate"
    display.json(masks)
    for number, guesses in enumerate(masks, 1):
        display.table(
            (f"[MASK] {number}" if len(masks) > 1 else "[MASK]", "probability"),
            [(guess[key], guess["probability"]) for guess in guesses],
            right="probability",
        )


@verb(
    "next-sentence",
    'bertworks next-sentence runs/tiny "He opened the door." "The room was dark."',
)
def next_sentence(
    model: AdaptedModel,
    first: str,
    second: str,
    *,
    engine: EngineOption,
    settings: SettingsOption,
    display: JsonDisplay,
) -> None:
    """Print the probability that B follows A.

    Args:
        first (A): A text.
        second (B): Another.
    """
    require_text(first)
    require_text(second)
    probability = model.use(lambda loaded: loaded.next_sentence(first, second, **settings), engine)
    display.json({"next_sentence_probability": probability})
    display.text(f"B follows A with probability {probability:.4f}")


@verb(
    "generate",
    'bertworks generate openai-gpt "once upon a time"',
    'bertworks generate openai-gpt "the door" temperature=0.8 top_p=0.9',
)
def generate(
    model: AdaptedModel,
    texts: RequiredTexts,
    *,
    device: DeviceOption = "auto",
    settings: SettingsOption,
    display: JsonDisplay,
) -> None:
    """Continue texts, token by token; the model must be causal.

    The same seed samples the same tokens, whatever other texts are given; repeated texts get
    different continuations.

    Args:
        texts (TEXT…): Prompts; - reads lines from standard input.
    """
    prompts = all_texts(texts)
    continuations = model.load(device).generate(prompts, **settings)
    for text, continuation in zip(prompts, continuations, strict=True):
        display.json({"text": text, "generated_text": continuation})
        display.text(f"{text} …\n  … {continuation.strip()}")

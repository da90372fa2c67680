"""Names of model types that this package does not open, for its errors.

A user who opens such a model should read its name, not the nearest name that is supported.
"""

from __future__ import annotations

from collections.abc import Iterable

TITLES = {
    # encoders
    "canine": "CANINE",
    "convbert": "ConvBERT",
    "esmc": "ESM Cambrian",
    "flaubert": "FlauBERT",
    "fnet": "FNet",
    "funnel": "Funnel Transformer",
    "ibert": "I-BERT",
    "layoutlm": "LayoutLM",
    "layoutlmv2": "LayoutLMv2",
    "layoutlmv3": "LayoutLMv3",
    "lilt": "LiLT",
    "luke": "LUKE",
    "markuplm": "MarkupLM",
    "modernvbert": "ModernVBERT",
    "mra": "MRA",
    "neomme": "NeoMME",
    "nystromformer": "Nyströmformer",
    "perceiver": "Perceiver",
    "reformer": "Reformer",
    "roc_bert": "RoCBert",
    "tapas": "TAPAS",
    "ultrabert": "UltraBERT",
    "ultravbert": "UltraVBERT",
    "xlm": "XLM",
    "xmod": "X-MOD",
    "yoso": "YOSO",
    # models with a decoder
    "bart": "BART",
    "bert-generation": "BertGeneration",
    "bloom": "BLOOM",
    "ctrl": "CTRL",
    "encoder-decoder": "an encoder with a decoder",
    "gemma": "Gemma",
    "gemma2": "Gemma 2",
    "gemma3": "Gemma 3",
    "gemma3_text": "Gemma 3",
    "gpt2": "GPT-2",
    "gpt_neo": "GPT-Neo",
    "gpt_neox": "GPT-NeoX",
    "llama": "Llama",
    "mbart": "mBART",
    "mistral": "Mistral",
    "modernbert-decoder": "the decoder of ModernBERT",
    "mt5": "mT5",
    "mvp": "MVP",
    "opt": "OPT",
    "pegasus": "PEGASUS",
    "phi3": "Phi-3",
    "prophetnet": "ProphetNet",
    "qwen2": "Qwen 2",
    "qwen3": "Qwen 3",
    "t5": "T5",
    "umt5": "umT5",
    # of images or sounds too
    "blip": "BLIP",
    "clip": "CLIP",
    "siglip": "SigLIP",
    "visual_bert": "VisualBERT",
    "vit": "ViT",
    "wav2vec2": "Wav2Vec2",
    "whisper": "Whisper",
}
"""The title of each model type, by its `model_type` in `config.json`."""


def correct_spelling(name: str, valid: Iterable[str]) -> str | None:
    """Return the valid name that `name` misspells; None if there is none.

    It differs by one edit, or two if it has eight characters or more. An edit inserts, deletes or
    replaces a character (Levenshtein 1966); case does not count.
    """
    max_edits = 1 if len(name) < 8 else 2
    valid = [other for other in valid if abs(len(name) - len(other)) <= max_edits]
    edits = {other: _num_edits(name.casefold(), other.casefold()) for other in valid}
    closest = min(edits, key=edits.__getitem__, default=None)
    return None if closest is None or edits[closest] > max_edits else closest


def _num_edits(one: str, other: str) -> int:
    """Return the smallest number of edits that change a name to another."""
    row = list(range(len(other) + 1))
    for number, letter in enumerate(one, 1):
        last_row, row = row, [number]
        for column, target in enumerate(other, 1):
            replacement = last_row[column - 1] + (letter != target)
            row.append(min(replacement, last_row[column] + 1, row[-1] + 1))
    return row[-1]

"""Claims about learning from labels: fine-tuning and probes of the pre-trained model."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Unpack

from ..settings.keywords import ProbeKeywords, TaskKeywords
from .bench import Lab
from .claims import compare_arms

Number = Callable[[Lab, int], float]


def after_finetuning(rows: int = 1000, **settings: Unpack[TaskKeywords]) -> Number:
    """Return a function for the accuracy of the model, fine-tuned on `rows` labelled texts."""
    return lambda lab, seed: lab.finetuned_model(lab.name, seed, settings, rows=rows)


def accuracy_of_frozen(pooling: str, *layers: int) -> Number:
    """Return a function for the accuracy of logistic regression on frozen vectors of 1,000 texts.

    Layers that the model does not have are left out.
    """

    def measure(lab: Lab, seed: int) -> float:
        count = lab.model.encoder.config.num_hidden_layers
        model_layers = [n for n in layers if -n <= count] or [0]
        settings: ProbeKeywords = {"pooling": pooling}
        if layers:
            settings["layers"] = model_layers
        return lab.probe_accuracy(lab.name, seed, **settings)

    return measure


def _part_frozen(parts: int) -> Number:
    """Fine-tune with the lowest `parts` quarters of layers and the embeddings frozen; 0: none."""
    return lambda lab, seed: after_finetuning(
        freeze_layers=lab.model.encoder.config.num_hidden_layers * parts // 4
    )(lab, seed)


def _over_rates(rows: int) -> Number:
    """Return a function for the standard deviation of accuracy over three learning rates."""
    rates = [after_finetuning(rows, learning_rate=rate) for rate in (5e-4, 1e-3, 2e-3)]
    return lambda lab, seed: statistics.stdev(number(lab, seed) for number in rates)


compare_arms(
    "saves-labels",
    {
        f"{name}, {rows} rows": after_finetuning(rows, reinitialize=fresh)
        for rows in (100, 300, 1000)
        for name, fresh in (("pre-trained", False), ("random", True))
    },
)
compare_arms(
    "large-data-settings", {f"over rates, {rows} rows": _over_rates(rows) for rows in (100, 1000)}
)
compare_arms(
    "cls-enough",
    {
        "frozen, [CLS]": accuracy_of_frozen("cls"),
        "frozen, mean": accuracy_of_frozen("mean"),
        "fine-tuned, [CLS]": after_finetuning(classifier_pooling="cls"),
        "fine-tuned, mean": after_finetuning(),
    },
)
compare_arms(
    "last-four",
    {
        "last four": accuracy_of_frozen("mean", -1, -2, -3, -4),
        "last": accuracy_of_frozen("mean", -1),
        "second-to-last": accuracy_of_frozen("mean", -2),
        "embeddings": accuracy_of_frozen("mean", 0),
    },
)
compare_arms(
    "features-near-fine-tuning",
    {
        "frozen vectors": accuracy_of_frozen("mean", -1, -2, -3, -4),
        "fine-tuned": after_finetuning(),
    },
)
compare_arms(
    "none-frozen",
    {f"{name} frozen": _part_frozen(n) for name, n in (("none", 0), ("half", 2), ("all", 4))},
)
compare_arms(
    "ulmfit-process",
    {
        "ULMFiT's process": after_finetuning(
            300, layer_decay=0.385, schedule="slanted-triangular", unfreeze_epochs=0.5
        ),
        "one rate for all": after_finetuning(300),
    },
)

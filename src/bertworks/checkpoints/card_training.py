"""What a model card says of a training: data, metrics, settings, the model that it started from."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..settings.yaml_values import dump_yaml
from .locate import BUNDLED_MODELS
from .model_card import ModelCard


@dataclass(frozen=True)
class DataFact:
    """Data of a training, without its place on the machine.

    Attributes:
        use: what it is for, such as "train".
        size: in words.
    """

    use: str
    name: str
    size: str


@dataclass(frozen=True)
class Results:
    """Metrics of the trained model, and what they were computed on.

    Attributes:
        task: the hub's name of it, such as "text-classification".
        data: the evaluated data's name.
        details: further facts on the data and the run, such as the number of rows and the seed.
    """

    task: str
    data: str
    metrics: Mapping[str, float]
    details: Mapping[str, Any]

    @property
    def finite_metrics(self) -> dict[str, float]:
        return {name: value for name, value in self.metrics.items() if math.isfinite(value)}

    def to_model_index(self, name: str) -> list[dict[str, Any]]:
        """Return the entry `model-index`, in which the hub looks for metrics."""
        metrics = [
            {"type": metric, "value": round(value, 6)}
            for metric, value in self.finite_metrics.items()
        ]
        data = {"name": self.data, "type": self.data, "args": dict(self.details)}
        return [
            {
                "name": name,
                "results": [{"task": {"type": self.task}, "dataset": data, "metrics": metrics}],
            }
        ]


def describe_training(
    base: ModelCard | None,
    name: str | None,
    first_sentence: str,
    settings: Mapping[str, Any],
    data: Sequence[DataFact] = (),
    results: Results | None = None,
) -> ModelCard:
    """Return the card of a trained model.

    Args:
        base: the card of the model that it started from; its language and licence are taken over.
        name: of the model, as its title; None: the name of the directory that it is saved in.
        first_sentence: how it was made.
        settings: those that were set or matter most; of paths, the last part is written.
    """
    card = ModelCard() if base is None else base.derive(is_same_model=False)
    parts = ["## Training", f"{first_sentence} with bertworks {version('bertworks')}."]
    if "license" in card.metadata:
        parts.append("The licence is that of the model that it started from.")
    if data:
        rows = (f"| {one.use} | {_cell(one.name)} | {one.size} |\n" for one in data)
        parts.append(f"| data | name | size |\n|---|---|---|\n{''.join(rows)}".rstrip())
    entries: dict[str, Any] = {}
    if results is not None and results.finite_metrics:
        entries["model-index"] = results.to_model_index(name or "model")
        rows = (f"| {key} | {value:.4f} |\n" for key, value in results.finite_metrics.items())
        head = f"| metric on {_cell(results.data)} | value |\n|---|---:|\n"
        parts.append(f"{head}{''.join(rows)}".rstrip())
    parts.append(f"Settings:\n\n```yaml\n{dump_yaml(without_folders(settings)).rstrip()}\n```")
    text = "\n\n".join(parts) + "\n"
    card = card.update(entries, {"training": text})
    return card if name is None else card.with_title(name)


def _cell(text: str) -> str:
    """Return a text as the content of a table's cell in Markdown."""
    return " ".join(text.split()).replace("|", r"\|")


def public_name(path: str | os.PathLike[str]) -> str:
    """Return the name of a model or a file without the folders of this machine.

    A name on the hub has a folder, too, which stays.
    """
    text = os.fspath(path)
    if text in BUNDLED_MODELS or (
        re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", text) and not os.path.exists(text)
    ):
        return text
    return Path(text).resolve().name or text


_PATHS = frozenset(
    {
        *("model", "teacher", "data", "train", "dev", "query_texts", "passage_texts"),
        *("init_checkpoint", "init_generator"),
    }
)
"""The settings that may name files or directories."""


def without_folders(value: Any, name: str | None = None) -> Any:
    """Return settings in which paths are names without the folders of this machine.

    Args:
        name: of the setting that has the value.
    """
    if isinstance(value, Mapping):
        return {key: without_folders(item, key) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(item, name) for item in value]
    is_path = name in _PATHS and isinstance(value, str) and "/" in value
    return public_name(value) if is_path else value

"""Where the classes of settings are: all that the tests know of the implementation.

What is moved or renamed in `src/` is followed here alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bertworks.inference.settings import TextProbeSettings
from bertworks.lab.features import FeatureAblationSettings
from bertworks.settings import Settings
from bertworks.tasks import LABELLED, labelled_task
from bertworks.training.recipe import PretrainSettings, read_recipe
from bertworks.training.settings import settings_of

_LATER = {"translation"}  # tasks that there were not yet
_TASKS = (task for task in LABELLED if task not in _LATER)
VERBS = ("pretrain", *(f"finetune {task}" for task in _TASKS), "glue", "probe", "ablate")
"""The verbs that take `key=value` words; of `finetune`, one for each task."""

NEEDED: dict[str, tuple[str, ...]] = {"pretrain": ("data=prepared", "steps=100")}
"""The words that a verb cannot do without."""

RENAMED: dict[str, str] = {
    f"pretrain {old}": new
    for old, new in PretrainSettings.former.items()
    if old != "optimizer.decay_share"  # which has no word
}
"""The present key of each setting that had another, by the verb and its former key.

For example `{"pretrain optimizer.lr": "learning_rate"}`.
"""


REFUSED_ALONE: dict[str, tuple[str, ...]] = {
    "pretrain model.attention=causal": ("instances.format=full-sentences",)
}
"""Words that made no sense with the usual values of other settings, and now need these too.

The first tokens of causal encoders were trained to predict next sentences, and saw no text.
"""


def schema_of(verb: str) -> type[Settings]:
    """The class of a verb's settings."""
    name, _, task = verb.partition(" ")
    if name == "finetune":
        return settings_of(labelled_task(task))
    if name == "glue":
        return settings_of(labelled_task("classification"))
    return {
        "pretrain": PretrainSettings,
        "probe": TextProbeSettings,
        "ablate": FeatureAblationSettings,
    }[name]


def recipe(name: str, words: Sequence[str]) -> Settings:
    """A recipe as resolved; `name` may be a file."""
    return read_recipe(name, words)


def value_of(resolved: Settings, key: str) -> Any:
    """The value of a dotted key, as JSON can hold it."""
    value: Any = resolved.model_dump(mode="json")
    for part in key.split("."):
        value = value[part]
    return value

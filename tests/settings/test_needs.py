"""Settings without effect are refused: generated over all classes of settings and their fields."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic.fields import FieldInfo

import bertworks
from bertworks.errors import SettingsError
from bertworks.nn.encoder_settings import EncoderSettings
from bertworks.settings.base import Need, Settings, group_in
from bertworks.tasks import LABELLED_TASKS, find_labelled_task
from bertworks.training.settings import settings_of

# Where a condition is met: by the class that declares it, and the first of its settings.
CONTEXTS: dict[tuple[str, str], dict[str, Any]] = {
    ("OptimizerSettings", "decay_share"): {"schedule": "warmup-stable-decay"},
    ("AdapterSettings", "lora_alpha"): {"lora_rank": 4},
    ("FinetuneSettings", "temperature"): {"teacher": "model"},
    ("TextSettings", "window_pooling"): {"truncation": "windows"},
    ("TextClassifierSettings", "lm_weight"): {},
    ("ClassificationSettings", "pairs_per_row"): {"few_shot": True},
    ("ClassificationSettings", "dropout"): {},
    ("ClassificationSettings", "label_smoothing"): {},
    ("TaggingSettings", "document_column"): {"document_context": True},
    ("TaggingSettings", "decoding"): {"labels": ("O", "B-X", "I-X"), "spans": True},
    ("RetrievalSettings", "loss"): {},
    ("RetrievalSettings", "scale"): {"loss": "in-batch"},
    ("RetrievalSettings", "query_regularization"): {"pooling": "splade-max"},
    ("RetrievalSettings", "passage_regularization"): {"pooling": "splade-max"},
    ("RetrievalSettings", "regularization_warmup"): {"pooling": "splade-max"},
    ("RetrievalSettings", "query_length"): {"pooling": "none"},
    ("RetrievalSettings", "projection_size"): {"pooling": "none"},
    ("RetrievalSettings", "symmetric"): {"loss": "in-batch"},
    ("RetrievalSettings", "margin"): {"loss": "triplet"},
    ("RetrievalSettings", "score_range"): {"loss": "cosine"},
    ("LayerSettings", "layer_weights"): {"combine": "mean", "layers": (-1, -2)},
    ("LayerSettings", "combine"): {"layers": (-1, -2)},
    ("TokenSettings", "pieces"): {"unit": "words"},
    ("GenerationSettings", "top_k"): {"temperature": 1.0},
    ("PrepareSettings", "language"): {"sentences": "split"},
    ("PredictSettings", "hypothesis_template"): {"labels": ("a", "b")},
    ("PredictSettings", "coverage"): {},
}
# And where it is not met, if that is not the default.
OTHER_CONTEXTS: dict[tuple[str, str], dict[str, Any]] = {
    ("TextClassifierSettings", "lm_weight"): {"teacher": "model"},
    ("ClassificationSettings", "label_smoothing"): {"teacher": "model"},
    ("ClassificationSettings", "dropout"): {"few_shot": True},
    ("TaggingSettings", "decoding"): {"labels": ("DET", "NOUN")},
    ("RetrievalSettings", "loss"): {"teacher": "model"},
    ("RetrievalSettings", "scale"): {"loss": "triplet"},
    ("RetrievalSettings", "symmetric"): {"loss": "triplet"},
    ("RetrievalSettings", "score_range"): {"loss": "in-batch"},
    ("PrepareSettings", "language"): {"sentences": "lines"},
    ("PredictSettings", "coverage"): {"labels": ("a", "b")},
}
VALUES: dict[str, Any] = {
    "layer_weights": (1.0, 2.0),
    "score_range": (1.0, 5.0),
    "dimensions": (8, 4),
    "lora_targets": ("attention.output",),
    "negative_columns": ("3",),
    "language": "de",
    "label_smoothing": 0.1,
    "dropout": 0.1,
    "lora_dropout": 0.1,
    "coverage": 0.9,
    "skipped_words": ("x",),
}


def classes() -> Iterator[type[Settings]]:
    """All classes of settings that the package declares."""
    package = Path(bertworks.__file__).parent
    for file in sorted(package.rglob("*.py")):
        if re.search(r"^class \w+\(.*(Settings|Options)\b", file.read_text(), re.MULTILINE):
            name = ".".join(file.relative_to(package.parent).with_suffix("").parts)
            importlib.import_module(name.removesuffix(".__init__"))
    pending: list[type[Settings]] = [Settings]
    visited_classes: set[type[Settings]] = set()
    while pending:
        for each in pending.pop().__subclasses__():
            if each not in visited_classes and each.__module__.startswith("bertworks."):
                visited_classes.add(each)
                pending.append(each)
    yield from sorted(visited_classes, key=lambda each: (each.__module__, each.__qualname__))


def declared_conditions() -> list[tuple[type[Settings], Need, str]]:
    """Each setting with a condition, and the class that declares it."""
    every = {
        (each.__name__, key): (each, need, key)
        for each in classes()
        for need in vars(each).get("needs", ())
        for key in need.keys
        if each.__name__ != "PretrainSettings"  # tests/training/test_pretrain.py
    }
    return list(every.values())


def full_class(owner: type[Settings], key: str) -> type[Settings]:
    """A class that has all settings that a condition reads: a task's also those of its training."""
    for task in LABELLED_TASKS:
        kind = find_labelled_task(task)
        if issubclass(kind.settings_class, owner):
            return settings_of(kind)
    assert owner.field(key), key
    return owner


def other_value(key: str, field: FieldInfo) -> Any:
    """A value that is not the default."""
    if key in VALUES:
        return VALUES[key]
    for kind in (field.annotation, *get_args(field.annotation)):
        if get_origin(kind) is Literal:
            return next(value for value in get_args(kind) if value != field.default)
        if kind is bool:
            return not field.default
        if kind in (int, float):
            return kind(field.default * 0.5 if field.default else 1) or 0.5
        if kind is str:
            return "a"
    raise AssertionError(f"give a value for {key} in VALUES")


def error_of(schema: type[Settings], values: dict[str, Any]) -> str | None:
    """The error of settings; None if they are accepted."""
    try:
        schema.parse(values).check_together()
    except SettingsError as error:
        return str(error)
    return None


@pytest.mark.long
def test_settings_without_effect_are_refused() -> None:
    """Each declared condition, from both sides."""
    for owner, need, key in declared_conditions():
        name = (owner.__name__, need.keys[0])
        context, other_context = CONTEXTS[name], OTHER_CONTEXTS.get(name, {})
        # Labels are found in the rows, and no settings of users.
        schema = owner if {"labels"} & (context | other_context).keys() else full_class(owner, key)
        field = schema.field(key)
        assert field is not None, f"{owner.__name__} has no {key}"
        value = other_value(key, field)
        error = error_of(schema, {**other_context, key: value})
        says = rf"{key}=\S.* does nothing .*; leave it out"
        assert error is not None, f"{owner.__name__}: {key} is not refused"
        assert re.fullmatch(says, error), error
        if (owner.__name__, key) not in EXCEPTIONS:
            assert error_of(schema, {**context, key: value}) is None, (owner, key)


EXCEPTIONS = {("RetrievalSettings", "temperature")}  # it is of a teacher of classifiers

# A description that says for which values of another setting it is, without a condition: why.
WITHOUT_CONDITION = {
    "batch_size": "excludes batch_tokens, by a check of its own",
    "batch_tokens": "the same",
    "unfreeze_epochs": "excludes unfreeze_every, by a check of its own",
}


@pytest.mark.long
def test_a_setting_for_a_value_of_another_has_a_condition() -> None:
    """What a description names as `for key=value` or `needs key=value` is declared as well."""
    missing_keys = []
    for schema in classes():
        if issubclass(schema, EncoderSettings):
            continue  # each of its checks has a case in tests/nn/test_config.py
        keys = {key.rpartition(".")[2] for need in schema.all_needs() for key in need.keys}
        for key, field in schema.model_fields.items():
            names = re.findall(r"(?:for|needs|with) (\w+)=", field.description or "")
            if group_in(field.annotation) is None and set(names) & set(schema.model_fields):
                missing_keys += [f"{schema.__name__}.{key}"] * (
                    key not in keys | WITHOUT_CONDITION.keys()
                )
    assert not missing_keys

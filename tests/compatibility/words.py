"""A `key=value` word for each setting of each verb, as accepted at the fixtures' commit.

The values are made from the types of the fields, other than the defaults; what a field's type does
not say is in `BY_HAND`.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal

from bertworks.errors import SettingsError
from bertworks.settings import Settings

from .schemas import NEEDED, VERBS, schema_of, value_of

BY_HAND: dict[str, list[str]] = {
    "phases": ["[{max_seq_length: 16, share: 0.25}, {max_seq_length: 24, share: 0.75}]"],
    "model.hidden_size": ["24"],
    "model.num_attention_heads": ["6"],
    "model.family": ["roberta", "electra"],
    "model.num_hidden_groups": ["1"],
    "model.local_attention": ["8"],
    "model.size": ["mini"],
    "held_out.documents": ["3", "0.02"],
    "distillation": ["{teacher: models/small}", "null"],
    "distillation.teacher": ["models/small"],
    "distillation.initialize": ["false"],
    "replaced_tokens": ["null"],
    "optimizer.betas": ["[0.8, 0.98]"],
    "lora_targets": ["[attention.output]"],
    "finetune.lora_targets": ["[attention.output]"],
    "layers": ["[-2]", "-2,-1", "[0, 1]"],
    "score_range": ["[0, 5]"],
    "seeds": ["[1, 2]"],
    "finetune": ["null"],
    "probe": ["{epochs: 2}"],
}
NOT_SET = {"instances.max_seq_length", "finetune.seed"}  # another setting says it
TOGETHER: dict[str, list[str]] = {
    "masking.span_lengths": ["masking.unit=span"],
    "masking.max_span_words": ["masking.unit=span"],
    "masking.span_geometric_p": ["masking.unit=span"],
    "masking.dupe_factor": ["masking.static=true"],
    "init_generator": [
        "init_checkpoint=m",
        "replaced_tokens={}",
        "instances.format=full-sentences",
    ],
    "replaced_tokens": ["instances.format=full-sentences"],
    "document_column": ["document_context=true"],
    "window_pooling": ["truncation=windows"],
    "label_separator": ["multi_label=true"],
    "lora_alpha": ["lora_rank=2"],
    "lora_dropout": ["lora_rank=2"],
    "temperature": ["teacher=m"],
}
"""What a setting is for: without it the word would do nothing, or not be accepted."""


def every_setting() -> dict[str, list[list[Any]]]:
    """For each verb, `[words before it, the word, its key, the value that it resolves to]`."""
    found: dict[str, list[list[Any]]] = {}
    for verb in VERBS:
        found[verb] = []
        schema = schema_of(verb)
        for key, field in _leaves(schema):
            if key in NOT_SET:
                continue
            before = [*NEEDED.get(verb, ()), *_before(key)]
            taken = 0
            for text in BY_HAND.get(key) or _texts(field.annotation, field.default):
                word = f"{key}={text}"
                try:
                    resolved = schema.resolve(overrides=[*before, word])
                except SettingsError as error:
                    problem = error
                    continue
                taken += 1
                found[verb].append([before, word, key, value_of(resolved, key)])
                if key not in BY_HAND and taken == 2:
                    break
            assert taken, f"{verb}: no word for {key}: {problem}"
    plain: dict[str, list[list[Any]]] = json.loads(json.dumps(found))
    return plain


def _before(key: str) -> list[str]:
    parents = {"distillation": "distillation.teacher=m", "replaced_tokens": "replaced_tokens={}"}
    group, _, leaf = key.partition(".")
    found = list(TOGETHER.get(key, ()))
    if leaf and group in parents and leaf != "teacher":
        found.append(parents[group])
    if leaf and group == "replaced_tokens":
        found.append("instances.format=full-sentences")
    return found


def _leaves(schema: type[Settings], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The keys that can be set, with dots between a group's name and its settings'."""
    for name, field in schema.model_fields.items():
        key = f"{prefix}{name}"
        groups = [kind for kind in _alternatives(field.annotation) if _is_group(kind)]
        if not groups or key in BY_HAND:
            yield key, field
        for group in groups:
            yield from _leaves(group, f"{key}.")


def _is_group(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Settings)


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return tuple(part for one in typing.get_args(annotation) for part in _alternatives(one))
    if origin is typing.Annotated:
        return _alternatives(typing.get_args(annotation)[0])
    return (annotation,)


def _texts(annotation: Any, default: Any) -> Iterator[str]:
    """Values to try, other than the default."""
    for kind in _alternatives(annotation):
        if kind is bool:
            yield "false" if default is True else "true"
        elif kind is int:
            start = default if isinstance(default, int) else 1
            yield from map(str, (start + 1, start + 7, start + 64, 1, 2))
        elif kind is float:
            yield from ("0.25", "2e-5", "3", "0.75")
        elif kind is str:
            yield from ("name", "7", "#1 String")
        elif typing.get_origin(kind) is Literal:
            yield from (str(value) for value in typing.get_args(kind) if value != default)
    if default is None:
        yield "null"

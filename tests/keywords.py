"""Writes `bertworks/settings/keywords.py` from the settings' fields: `python -m tests.keywords`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from unittest.mock import Mock

from pydantic import BaseModel
from pydantic.fields import FieldInfo

if __name__ == "__main__":  # the module may lack what others import from it until it is written
    sys.modules["bertworks.settings.keywords"] = Mock()

import bertworks
from bertworks.analysis.label_check import CheckLabelsSettings
from bertworks.analysis.retrieval.settings import MineSettings, RetrievalEvaluationSettings
from bertworks.convert.static_settings import StaticSettings, StaticTrainingSettings
from bertworks.data.reading import CorpusOptions, TableOptions
from bertworks.data.settings import PrepareSettings
from bertworks.data.unlabelled import LabelledTableOptions
from bertworks.inference import settings as inference
from bertworks.lab.features import FeatureAblationSettings
from bertworks.nn.config import EncoderConfig
from bertworks.tasks import LABELLED_TASKS, find_labelled_task
from bertworks.training.recipe import PretrainSettings
from bertworks.training.settings import FinetuneSettings, TrainingSettings

FILE = Path(bertworks.__file__).parent / "settings/keywords.py"
HEAD = '''"""The settings of public functions as keywords, for editors and type checkers.

Written by `python -m tests.keywords` from the settings' fields; a test checks that it is current.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict
'''
TASKS = [find_labelled_task(task).user_settings() for task in LABELLED_TASKS]
KEYWORDS: dict[str, tuple[str, tuple[str, ...], Iterable[type[BaseModel]]]] = {
    "TableKeywords": ("Format of a table.", (), [TableOptions]),
    "EngineKeywords": ("Inference.", (), [inference.EngineSettings]),
    "RowKeywords": ("Format of a table, and inference.", ("TableKeywords", "EngineKeywords"), []),
    "PredictKeywords": (
        "Settings of `predict` and `stream`.",
        ("RowKeywords",),
        [inference.PredictSettings],
    ),
    "LabelledTableKeywords": (
        "Format of a table of labelled rows.",
        ("TableKeywords",),
        [LabelledTableOptions],
    ),
    "MineKeywords": ("Settings of `mine`.", ("RowKeywords",), [MineSettings]),
    "RetrievalEvaluationKeywords": (
        "Settings of `evaluate_retrieval`.",
        ("EngineKeywords",),
        [RetrievalEvaluationSettings],
    ),
    "EvaluateKeywords": (
        "Settings of `evaluate`.",
        ("LabelledTableKeywords", "EngineKeywords"),
        [inference.HeldOutEvaluationSettings],
    ),
    "LayerKeywords": ("Hidden states to use.", (), [inference.LayerSettings]),
    "VectorKeywords": ("Text vectors.", ("LayerKeywords",), [inference.EmbedSettings]),
    "EmbedKeywords": ("Settings of `embed`.", ("RowKeywords", "VectorKeywords"), []),
    "FeatureKeywords": (
        "Settings of `features_to`.",
        ("RowKeywords", "LayerKeywords"),
        [inference.FeatureSettings],
    ),
    "StaticKeywords": ("Settings of `distil_static`.", (), [StaticSettings]),
    "StaticTrainingKeywords": ("Settings of `train_static`.", (), [StaticTrainingSettings]),
    "GenerateKeywords": (
        "Settings of `generate`.",
        ("EngineKeywords",),
        [inference.GenerateSettings],
    ),
    "ProbeKeywords": (
        "Settings of `probe`.",
        ("TableKeywords", "VectorKeywords"),
        [inference.TextProbeSettings],
    ),
    "CheckLabelsKeywords": (
        "Settings of `check_labels`.",
        ("ProbeKeywords",),
        [CheckLabelsSettings],
    ),
    "CorpusKeywords": ("Reading of a corpus.", (), [CorpusOptions]),
    "PrepareKeywords": ("Settings of `prepare`.", ("CorpusKeywords",), [PrepareSettings]),
    "EncoderKeywords": ("Geometry of an encoder.", (), [EncoderConfig]),
    "TrainingKeywords": ("Settings of all training.", (), [TrainingSettings]),
    "PretrainKeywords": ("Settings of `pretrain`.", ("TrainingKeywords",), [PretrainSettings]),
    "FinetuneKeywords": (
        "Settings of `finetune`, for any task.",
        ("TrainingKeywords",),
        [FinetuneSettings],
    ),
    "TaskKeywords": (
        "Settings of the package's tasks.",
        ("FinetuneKeywords", "TableKeywords"),
        TASKS,
    ),
    "AblationKeywords": (
        "Settings of `ablate_features`.",
        ("TableKeywords",),
        [FeatureAblationSettings],
    ),
}
"""Each dictionary: its docstring, its bases, and the settings that it has beside theirs."""


def module_text() -> str:
    """The text of the module."""
    kinds_by_class: dict[str, dict[str, str]] = {}
    parts = [HEAD]
    for name, (title, bases, classes) in KEYWORDS.items():
        parts += _declare(name, title, bases, _fields(classes), kinds_by_class)
    return "\n\n".join(parts)


def _declare(
    name: str,
    title: str,
    bases: tuple[str, ...],
    fields: list[tuple[str, FieldInfo]],
    kinds_by_class: dict[str, dict[str, str]],
) -> Iterator[str]:
    """The class of a dictionary, after those that its values are of."""
    inherited_kinds = {key: kind for base in bases for key, kind in kinds_by_class[base].items()}
    kinds: dict[str, list[str]] = {}
    for key, info in fields:
        for inner in _groups(info.annotation):
            if (group := _name(inner)) not in kinds_by_class:
                inner_fields = list(inner.model_fields.items())
                bases_of = ("EncoderKeywords",) if issubclass(inner, EncoderConfig) else ()
                title_of = f"Settings of the group `{key}`."
                yield from _declare(group, title_of, bases_of, inner_fields, kinds_by_class)
        if key not in inherited_kinds:
            kinds.setdefault(key, []).append(_kind(info.annotation))
    own = {key: _join(each) for key, each in kinds.items()}
    kinds_by_class[name] = inherited_kinds | own
    lines = [
        f"class {name}({', '.join(bases or ('TypedDict',))}, total=False):",
        f'    """{title}"""',
    ]
    lines += ["", *(_line(key, kind) for key, kind in own.items())] if own else []
    yield "\n".join(lines) + "\n"


def _line(key: str, kind: str) -> str:
    """A field, in more lines where it is long."""
    line = f"    {key}: {kind}"
    if len(line) <= 100:
        return line
    first, *others = kind.split(" | ")
    if any("Literal[" in one for one in others):
        return f"    {key}: (\n        " + "\n        | ".join([first, *others]) + "\n    )"
    words, bracket, rest = kind.removeprefix("Literal[").partition("]")
    if len(words) > 100 - 8:
        words = words.replace(", ", ",\n        ") + ","
    return f"    {key}: Literal[\n        {words}\n    {bracket}{rest}"


def _fields(classes: Iterable[type[BaseModel]]) -> list[tuple[str, FieldInfo]]:
    return [item for each in classes for item in each.model_fields.items()]


def _join(kinds: list[str]) -> str:
    """The types of a setting that several classes have: either."""
    parts = dict.fromkeys(part for kind in kinds for part in kind.split(" | "))
    literals = [part[8:-1] for part in parts if part.startswith("Literal[")]
    words = dict.fromkeys(word for text in literals for word in text.split(", "))
    others = [part for part in parts if not part.startswith("Literal[")]
    return " | ".join([*([f"Literal[{', '.join(words)}]"] if words else []), *others])


def _name(group: type[BaseModel]) -> str:
    name = group.__name__.removesuffix("Settings").removesuffix("Options")
    return f"{name}Keywords"


def _groups(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) is not Literal:
        for part in get_args(annotation):
            yield from _groups(part)


def _kind(annotation: Any) -> str:
    """A type as a caller may give it: a sequence where a tuple is kept."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(inner[0])
    if origin is Literal:
        words = (f'"{word}"' if isinstance(word, str) else repr(word) for word in inner)
        return f"Literal[{', '.join(words)}]"
    if origin in (Union, UnionType):
        return " | ".join(map(_kind, inner))
    if origin is tuple:
        return f"Sequence[{_kind(inner[0])}]"
    if annotation is NoneType:
        return "None"
    groups = list(_groups(annotation))
    return _name(groups[0]) if groups else str(annotation.__name__)


if __name__ == "__main__":
    FILE.write_text(module_text(), encoding="utf-8")

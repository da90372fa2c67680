"""Which task another tool's checkpoint was trained for, as its heads and `config.json` tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..checkpoints.family import Family
from ..model.config import EncoderConfig
from ..text.tokenizer import Tokenizer
from .answering.settings import AnsweringSettings
from .answering.task import AnsweringTask
from .choice.settings import ChoiceSettings
from .choice.task import ChoiceTask
from .classification.settings import ClassificationSettings
from .classification.task import ClassificationTask
from .columns import Columns
from .pretraining.pairs import Format, InstanceSettings
from .pretraining.replaced_tokens import ReplacedTokensTask
from .pretraining.task import PretrainingTask
from .regression import RegressionTask
from .tagging.columns import WordColumns
from .tagging.settings import TaggingSettings
from .tagging.tags import mark_spans
from .tagging.task import TaggingTask
from .task import Task
from .texts import TextSettings

_SQUAD_LENGTH = 384  # tokens of a window: what published models were trained with


@dataclass(frozen=True)
class Published:
    """A checkpoint of another tool.

    Attributes:
        raw: its `config.json`.
        config: the geometry.
        family: how it is laid out.
        tensors: under the family's names.
        tokenizer: the model's.
        takes_pairs: whether a classifier of it is one of pairs of texts.
    """

    raw: Mapping[str, Any]
    config: EncoderConfig
    family: Family
    tensors: Mapping[str, Tensor]
    tokenizer: Tokenizer
    takes_pairs: bool = False

    def task(self) -> Task[Any] | None:
        """The task that its heads tell of; None of a bare encoder."""
        for kind, (tensor, build) in _HEADS.items():
            if self._has(kind, tensor):
                return build(self)
        return None

    def _has(self, kind: str, tensor: str) -> bool:
        """Whether there is a head of a kind.

        Heads of tagging and of multiple choice have the names of a classifier's: what the
        checkpoint calls itself then decides, and one that says nothing is a classifier.
        """
        named = self.raw.get("architectures") or []
        if named and self.family.classes.get(kind) not in named:
            return False
        if not self.family.has(tensor, self.tensors):
            return False
        usual = self.family.keys.theirs(_HEADS["classification"][0])
        return bool(named) or kind == "classification" or self.family.keys.theirs(tensor) != usual

    def labels(self, tensor: str) -> tuple[str, ...]:
        """The names of an output layer's rows."""
        (weight,) = self.family.keys.theirs(tensor)
        usual = {number: f"LABEL_{number}" for number in range(len(self.tensors[weight]))}
        found = {int(number): name for number, name in (self.raw.get("id2label") or usual).items()}
        return tuple(found[number] for number in sorted(found))

    def head_dropout(self, kind: str) -> float | None:
        """The dropout of a head of a kind, where it is not the encoder's usual."""
        key = self.family.dropouts.get(kind)
        if key is None or key in self.family.settings.values():  # then the geometry has it
            return None
        found: float | None = self.raw.get(key)
        return found

    def pretraining(self) -> Task[Any] | None:
        """The pre-training of a checkpoint with a head of such; None without one."""
        config, family, named = self.config, self.family, self.raw.get("architectures") or []
        # A head without a layer and a bias has no tensor of its own.
        bare = not config.mlm_bias and (not named or family.classes.get("masked-lm") in named)
        if not family.has("mlm_head.bias", self.tensors) and not bare:
            if family.has("rtd_head.dense.weight", self.tensors):
                return ReplacedTokensTask(self.tokenizer, max_length=config.max_seqlen)
            return None
        pairs: Format = "sentence-order" if config.family == "albert" else "segment-pair"
        has_pairs = family.has("nsp_head.weight", self.tensors)
        return PretrainingTask(
            self.tokenizer,
            InstanceSettings(format=pairs if has_pairs else "full-sentences"),
            causal=config.attention == "causal",
            max_length=config.max_seqlen,
        )


def _answering(of: Published) -> Task[Any]:
    length = min(_SQUAD_LENGTH, of.config.max_seqlen)
    stride = min(128, length // 4)
    dropout = of.head_dropout("answering")
    settings = AnsweringSettings(max_seq_length=length, stride=stride, dropout=dropout)
    return AnsweringTask(of.tokenizer, settings)


def _tagging(of: Published) -> Task[Any]:
    labels = of.labels("tag_head.linear.weight")
    spans = mark_spans(labels)
    return TaggingTask(
        of.tokenizer,
        TaggingSettings(
            labels=labels,
            spans=spans,
            columns=WordColumns(word="words", tag="tags"),
            max_seq_length=of.config.max_seqlen,
            dropout=of.head_dropout("tagging"),
            # Published taggers are not all of one scheme, and may lack tags that it has.
            decoding="free",
        ),
    )


def _choice(of: Published) -> Task[Any]:
    dropout = of.head_dropout("choice")
    settings = ChoiceSettings(max_seq_length=of.config.max_seqlen, dropout=dropout)
    return ChoiceTask(of.tokenizer, settings)


def _classification(of: Published) -> Task[Any]:
    labels = of.labels("head.linear.weight")
    pair = "pair" if of.takes_pairs else None
    shared = {
        "columns": Columns(text="text", pair=pair, label="label"),
        "takes_either": not of.takes_pairs,
        "max_seq_length": of.config.max_seqlen,
        "dropout": of.head_dropout("classification"),
    }
    problem = of.raw.get("problem_type")
    if len(labels) == 1 and problem != "multi_label_classification":
        return RegressionTask(of.tokenizer, TextSettings(**shared))
    multi_label = problem == "multi_label_classification"
    settings = ClassificationSettings(labels=labels, multi_label=multi_label, **shared)
    return ClassificationTask(of.tokenizer, settings)


_HEADS: dict[str, tuple[str, Callable[[Published], Task[Any]]]] = {
    "answering": ("span_head.linear.weight", _answering),
    "tagging": ("tag_head.linear.weight", _tagging),
    "choice": ("choice_head.linear.weight", _choice),
    "classification": ("head.linear.weight", _classification),
}

"""The heads, which map an encoder's vectors to outputs; a user's task may declare more.

A head is an attribute of a task's network. Loading, saving, the families' layouts, inspection and
the command line use these declarations. A family's file has the names of heads that differ there.
`PublishedCheckpoint` describes a checkpoint of another tool, and tells which heads it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import CheckpointError

if TYPE_CHECKING:
    from ..nn.config import EncoderConfig
    from ..text.tokenizer import Tokenizer
    from .family import Family
    from .store import HasShape


@dataclass(frozen=True)
class Head:
    """A head of a task's network.

    Attributes:
        name: the network's attribute; the names of its tensors begin with it.
        title: what it predicts, for messages.
        model_class: a key of `Family.classes`: other tools' class of a model with this head.
        suffix: the end of that class's name in nearly all families; None where it differs by
            family.
        tensors: the published names of its parts that nearly all families share.
        of_task: whether it is newly initialised where a checkpoint's head has another shape.
            Pre-training heads are not: their shapes depend on the encoder.
    """

    name: str
    title: str
    model_class: str = "encoder"
    suffix: str | None = None
    tensors: Mapping[str, str] = field(default_factory=dict)
    of_task: bool = True


POOLER = Head("encoder.pooler", "pooler", suffix="Model", of_task=False)
CONTACTS = Head("encoder.contact_head", "contacts", of_task=False)
MLM = Head("mlm_head", "masked language model", "masked-lm", "ForMaskedLM", of_task=False)
NSP = Head("nsp_head", "next sentence", "pretraining", of_task=False)
RTD = Head("rtd_head", "replaced tokens", "replaced-tokens", of_task=False)
CLASSIFIER = Head("head", "classifier", "classification", "ForSequenceClassification")
TAGS = Head("tag_head", "tags", "tagging", "ForTokenClassification", {"linear": "classifier"})
SPANS = Head("span_head", "spans", "answering", "ForQuestionAnswering", {"linear": "qa_outputs"})
CHOICES = Head("choice_head", "choices", "choice", "ForMultipleChoice", {"linear": "classifier"})

HEADS = (POOLER, CONTACTS, MLM, NSP, RTD, CLASSIFIER, TAGS, SPANS, CHOICES)
"""The heads with published names. Any other head is saved under its attribute's name."""


def is_published(tensor: str) -> bool:
    """Whether a tensor belongs to the encoder, or to a head with published names."""
    return tensor.startswith(("encoder.", *(f"{head.name}." for head in HEADS)))


def may_be_new(tensor: str) -> bool:
    """Whether a tensor that a checkpoint lacks is newly initialised: any head's, the pooler's."""
    return not tensor.startswith("encoder.") or tensor.startswith(f"{POOLER.name}.")


def may_differ(tensor: str) -> bool:
    """Whether a tensor is newly initialised where the checkpoint's has another shape."""
    fixed = (f"{head.name}." for head in HEADS if not head.of_task)
    return not tensor.startswith(("encoder.", *fixed))


def model_classes(name: str, exclude: Sequence[Head] = ()) -> dict[str, str]:
    """A family's class names for the models that nearly every family has."""
    heads = [head for head in HEADS if head.suffix is not None and head not in exclude]
    return {head.model_class: f"{name}{head.suffix}" for head in heads}


def task_tensors() -> dict[str, str]:
    """The published names of output layers that nearly every family shares, by our names."""
    return {
        f"{head.name}.{part}": theirs for head in HEADS for part, theirs in head.tensors.items()
    }


@dataclass(frozen=True)
class PublishedCheckpoint:
    """A checkpoint of another tool."""

    raw: Mapping[str, Any]  # its `config.json`
    config: EncoderConfig
    family: Family
    tensors: Mapping[str, HasShape]  # under the family's names
    tokenizer: Tokenizer
    max_length: int  # the maximum number of tokens of a text
    takes_pairs: bool = False  # whether its classifier classifies pairs of texts
    activation: str | None = None  # the class that sentence-transformers applies to its outputs

    @property
    def architectures(self) -> list[str]:
        """The class names in the checkpoint's `config.json`; empty if it has none."""
        return list(self.raw.get("architectures") or [])

    @property
    def has_no_head(self) -> bool:
        """Whether it is the encoder alone, by its class and by the names of its tensors."""
        rules = [rule for rule in self.family.keys.rules if not rule.ours.startswith("encoder.")]
        return self.architectures == [self.family.classes.get(POOLER.model_class)] and not any(
            rule.theirs_pattern.fullmatch(name) for rule in rules for name in self.tensors
        )

    def has_head(self, head: Head) -> bool:
        """Whether the checkpoint has a head.

        The tensors of tagging and multiple-choice heads have the same names as a classifier's:
        `architectures` then decides, and a checkpoint without it is a classifier.

        Raises:
            CheckpointError: the checkpoint lacks the class that the family needs for its heads.
        """
        class_names = self.architectures
        if class_names and self.family.classes.get(head.model_class) not in class_names:
            return False
        if not self.family.has(_output(head), self.tensors):
            return False
        if not class_names and head.of_task and self.family.decided_by_class:
            raise CheckpointError(
                f"config.json has no `architectures`, which decide {self.family.decided_by_class}",
                fix="Name the class of the checkpoint, for example "
                f'"architectures": ["{self.family.classes[CLASSIFIER.model_class]}"].',
            )
        theirs = self.family.keys.theirs
        return bool(class_names) or head is CLASSIFIER or theirs(_output(head)) != theirs(_OUTPUT)

    def labels(self, head: Head) -> tuple[str, ...]:
        """The names of a head's outputs.

        Raises:
            CheckpointError: the outputs in `config.json` are not those of the head.
        """
        (weight,) = self.family.keys.theirs(_output(head))
        outputs = range(self.tensors[weight].shape[0])
        usual = {number: f"LABEL_{number}" for number in outputs}
        labels = self.raw.get("id2label") or usual
        names = {int(number): str(name) for number, name in labels.items()}
        if names.keys() != set(outputs):
            numbers = ", ".join(map(str, sorted(names)))
            raise CheckpointError(
                f"id2label in config.json names the outputs {numbers}; the head has "
                f"{len(outputs)}, counted from 0"
            )
        return tuple(names[number] for number in outputs)

    def dropout(self, head: Head) -> float | None:
        """A head's dropout in `config.json`; None where it is the encoder's."""
        key = self.family.dropouts.get(head.model_class)
        if key is None or key in self.family.settings.values():  # then `config` has it
            return None
        value: float | None = self.raw.get(key)
        return value


def _output(head: Head) -> str:
    """The name of the weight of a head's output layer."""
    return f"{head.name}.linear.weight"


_OUTPUT = _output(CLASSIFIER)

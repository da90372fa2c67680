"""The heads: what maps an encoder's vectors to outputs, each declared here or by a user's task.

A head is an attribute of a task's network. Loading, saving, the families' layouts, inspection and
the command line read what is said of it here. Where a family gives a head other names, its file
says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Head:
    """A head of a task's network.

    Attributes:
        name: the network's attribute, which its tensors' names begin with.
        title: what it predicts, for people.
        model_class: what opens a model with it in other tools: a key of `Family.classes`.
        suffix: what the name of that class ends with in nearly all families; None where each
            family has its own.
        tensors: the published names of its parts that nearly all families share.
        of_task: whether it is made anew where a checkpoint's has another shape. Heads of
            pre-training are not: their shapes are those of the encoder.
    """

    name: str
    title: str
    model_class: str = "encoder"
    suffix: str | None = None
    tensors: Mapping[str, str] = field(default_factory=dict)
    of_task: bool = True


POOLER = Head("encoder.pooler", "pooler", of_task=False)
MLM = Head("mlm_head", "masked language model", "masked-lm", of_task=False)
NSP = Head("nsp_head", "next sentence", "pretraining", of_task=False)
RTD = Head("rtd_head", "replaced tokens", "replaced-tokens", of_task=False)
CLASSIFIER = Head("head", "classifier", "classification", "ForSequenceClassification")
TAGS = Head("tag_head", "tags", "tagging", "ForTokenClassification", {"linear": "classifier"})
SPANS = Head("span_head", "spans", "answering", "ForQuestionAnswering", {"linear": "qa_outputs"})
CHOICES = Head("choice_head", "choices", "choice", "ForMultipleChoice", {"linear": "classifier"})

HEADS = (POOLER, MLM, NSP, RTD, CLASSIFIER, TAGS, SPANS, CHOICES)
"""Those with published names. Any other head is saved under its own name."""


def is_published(tensor: str) -> bool:
    """Whether a network's tensor is the encoder's, or a head's with published names."""
    return tensor.startswith(("encoder.", *(f"{head.name}." for head in HEADS)))


def may_be_new(tensor: str) -> bool:
    """Whether a network's tensor is initialised where a checkpoint has none: any head's."""
    return not tensor.startswith("encoder.") or tensor.startswith(f"{POOLER.name}.")


def may_differ(tensor: str) -> bool:
    """Whether a network's tensor is initialised where a checkpoint's has another shape."""
    fixed = (f"{head.name}." for head in HEADS if not head.of_task)
    return not tensor.startswith(("encoder.", *fixed))


def task_classes(name: str) -> dict[str, str]:
    """The classes of a family that open the tasks which nearly every family has."""
    return {head.model_class: f"{name}{head.suffix}" for head in HEADS if head.suffix is not None}


def task_tensors() -> dict[str, str]:
    """The published names of the tasks' output layers that nearly every family shares, by ours."""
    return {
        f"{head.name}.{part}": theirs for head in HEADS for part, theirs in head.tensors.items()
    }

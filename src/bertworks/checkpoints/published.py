"""A checkpoint that another tool wrote: which heads it has, as its tensors and settings say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..model.config import EncoderConfig
from ..text.tokenizer import Tokenizer
from .family import Family
from .heads import CLASSIFIER, Head


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

    @property
    def architectures(self) -> list[str]:
        """The classes that the checkpoint says it is of; empty if it does not say."""
        return list(self.raw.get("architectures") or [])

    def has_head(self, head: Head) -> bool:
        """Whether there is a head of a task.

        Heads of tagging and of multiple choice have the names of a classifier's: what the
        checkpoint calls itself then decides, and one that says nothing is a classifier.
        """
        named = self.architectures
        if named and self.family.classes.get(head.model_class) not in named:
            return False
        if not self.family.has(_output(head), self.tensors):
            return False
        theirs = self.family.keys.theirs
        return bool(named) or head is CLASSIFIER or theirs(_output(head)) != theirs(_OUTPUT)

    def labels(self, head: Head) -> tuple[str, ...]:
        """The names of a head's outputs."""
        (weight,) = self.family.keys.theirs(_output(head))
        usual = {number: f"LABEL_{number}" for number in range(len(self.tensors[weight]))}
        found = {int(number): name for number, name in (self.raw.get("id2label") or usual).items()}
        return tuple(found[number] for number in sorted(found))

    def dropout(self, head: Head) -> float | None:
        """A head's dropout, where it is not the encoder's usual."""
        key = self.family.dropouts.get(head.model_class)
        if key is None or key in self.family.settings.values():  # then the geometry has it
            return None
        found: float | None = self.raw.get(key)
        return found


def _output(head: Head) -> str:
    """The weights of a head's output layer."""
    return f"{head.name}.linear.weight"


_OUTPUT = _output(CLASSIFIER)

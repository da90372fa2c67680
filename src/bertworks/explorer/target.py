"""The prediction of a model for a text, and the one probability in it that a view examines.

A kind of prediction is a subclass of `Target` (`target_kinds.py`), which says which models and
which texts have it, where in the sequence it is, and what its outcomes are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import DataError
from ..inference.activations import activations
from ..model import Model
from .inputs import EncodedInput, Heads, Ids, ablated_heads_mask

_MAX_BATCH_TOKENS = 1024  # tokens per forward pass


class Target(ABC):
    """A prediction for a text, and the one outcome (label, piece, …) of it that is examined.

    Args:
        inputs: the text.
        choice: the fields of the kind (see docs/serving.md); the defaults are the first position
            and the most probable outcome.

    Attributes:
        kind: its name in requests and answers.
        task: the class of tasks whose models predict it.
        has_distribution: whether outcomes have probabilities.
        positions: of the tokens whose states yield the prediction.
        base: the probabilities of all outcomes.
        index: the outcome that is examined.

    Raises:
        DataError: the text has no such prediction.
    """

    kind: ClassVar[str]
    task: ClassVar[type]
    has_distribution: ClassVar[bool] = True

    def __init__(self, inputs: EncodedInput, choice: Mapping[str, Any]) -> None:
        self.inputs, self._choice = inputs, dict(choice)
        self._task: Any = inputs.model.task
        self.positions: list[int] = []
        self._fields: dict[str, Any] = {}
        self.index: int | None = None
        self._locate()
        self.base: Float[Tensor, " names"] = self.compute_probabilities([inputs.input_ids])[0]
        if self.index is None:
            self.index = int(self.base.argmax())

    @classmethod
    def is_predicted_by(cls, model: Model) -> bool:
        """Whether a model makes such predictions."""
        return isinstance(model.task, cls.task)

    @classmethod
    def occurs_in(cls, inputs: EncodedInput) -> bool:  # noqa: ARG003  some kinds need a mask or a pair
        """Whether there is something of the kind in a text to predict."""
        return True

    @abstractmethod
    def _locate(self) -> None:
        """Set the positions, the fields, and the outcome that is examined if it is chosen."""

    @property
    def activation(self) -> Literal["softmax", "sigmoid"]:
        """The function that computes probabilities from logits."""
        return "softmax"

    @property
    def is_calibrated(self) -> bool:
        """Whether logits are scaled by the task's calibration."""
        return False

    @abstractmethod
    def _logits(self, outputs: Mapping[str, Tensor]) -> Tensor:
        """The logits, `[rows, names]`; for an answer, `[rows, tokens, 2]`."""

    def _to_probabilities(self, logits: Tensor) -> Float[Tensor, "rows names"]:
        """The probabilities of logits."""
        return torch.softmax(logits, 1)

    @property
    def kept_positions(self) -> list[int]:
        """The positions that a view must not change if it hides words."""
        return []

    def find_in(
        self,
        inputs: EncodedInput,
        places: Mapping[int, int],  # noqa: ARG002  kinds with a position look it up here
    ) -> Self | None:
        """Return the corresponding target in another text; None if there is none.

        Args:
            inputs: the other text.
            places: the positions in it of the pieces of this text that it has.
        """
        return type(self)(inputs, self.description)

    @property
    def labels(self) -> Sequence[str]:
        """The names of the outcomes; not for pieces and answers."""
        return self.inputs.model.labels

    @property
    def _num_outcomes(self) -> int:
        """How many outcomes are shown."""
        return len(self.labels) or 1

    def _name(self, index: int) -> str:
        """The name of an outcome."""
        return self.labels[index]

    def _outcome_fields(self) -> dict[str, Any]:
        """The fields of a choice that name the outcome."""
        return {}

    def compute_probabilities(
        self, rows: Sequence[Ids] | None = None, ablated_heads: Sequence[Heads] = ((),)
    ) -> Float[Tensor, "rows names"]:
        """The probabilities of all outcomes, for each of several sequences.

        Args:
            rows: variants of the text's sequence with other ids; the text's if omitted.
            ablated_heads: the heads that are switched off, for each sequence or one entry for all.
        """
        count = max(len(rows or ()), len(ablated_heads))
        variants = [self.inputs.input_ids] * count if rows is None else rows
        ablated_heads = (
            list(ablated_heads) if len(ablated_heads) == count else [ablated_heads[0]] * count
        )
        model, fold = self.inputs.model, max(1, _MAX_BATCH_TOKENS // len(self.inputs))
        probabilities = []
        for start in range(0, count, fold):
            part = variants[start : start + fold]
            mask = ablated_heads_mask(model, ablated_heads[start : start + fold])
            layer, hidden = 0, None
            if rows is None and mask is not None:
                # Below the first layer with a head off, states are those of the text: reuse them.
                layer = int(mask.flatten(1).any(1).nonzero()[0])
                hidden = self._states[layer][0].repeat(len(part), 1)
            outputs = activations(
                model.network,
                self.inputs.pack(part),
                self._targets(len(part)),
                ablated_heads=mask,
                layer=layer,
                hidden=hidden,
            ).outputs
            probabilities.append(self._to_probabilities(self._logits(outputs)).cpu().double())
        return torch.cat(probabilities)

    @cached_property
    def _states(self) -> list[Tensor]:
        """The states of the unchanged text."""
        return self.inputs.activations().states

    def probability(self, probabilities: Float[Tensor, "*rows names"]) -> Float[Tensor, "*rows"]:
        """The probability of the outcome that is examined."""
        assert self.index is not None
        return probabilities[..., self.index]

    def prediction(self, probabilities: Float[Tensor, " names"] | None = None) -> dict[str, Any]:
        """The prediction, as JSON; that for the unchanged text if `probabilities` is omitted."""
        probabilities = self.base if probabilities is None else probabilities
        top = probabilities.topk(min(self._num_outcomes, len(probabilities)))
        return {
            "target": self.description,
            "probability": float(self.probability(probabilities)),
            "distribution": [
                {"name": self._name(at), "probability": probability}
                for probability, at in zip(top.values.tolist(), top.indices.tolist(), strict=True)
            ]
            if self.has_distribution
            else [],
        }

    def head(self) -> dict[str, Any]:
        """The logits and the probabilities of the prediction for the text, as JSON."""
        logits = self._logits(self._outputs())
        return {
            "shape": list(logits.shape),
            "is_calibrated": self.is_calibrated,
            "activation": self.activation,
            "logits": [
                {"name": name, "logit": float(logit)} for name, logit in self._top_logits(logits)
            ],
            "probabilities": self.prediction()["distribution"],
        }

    def _top_logits(self, logits: Tensor) -> list[tuple[str, Tensor]]:
        """The logits that are shown, with their names."""
        order = logits[0].topk(min(self._num_outcomes, logits.shape[1]))
        return [(self._name(at), logits[0, at]) for at in order.indices.tolist()]

    @property
    def description(self) -> dict[str, Any]:
        """The target with the defaults filled in, as JSON."""
        assert self.index is not None
        name = {"name": self._name(self.index)}
        return {"kind": self.kind, **self._fields, **self._outcome_fields(), **name}

    def _number(self, name: str, most: int, default: int = 0) -> int:
        """A number in the request, which must be below `most`."""
        number = self._choice.get(name)
        number = default if number is None else number
        if not 0 <= number < most:
            raise DataError(
                f"must be below {most}" if most else "there is none in the text",
                where=f"target.{name}",
            )
        return int(number)

    def _outputs(self) -> dict[str, Tensor]:
        """The outputs for the unchanged text, at `positions`."""
        return self.inputs.activations(targets=self._targets(1)).outputs

    def _targets(self, count: int) -> dict[str, Any]:
        """The places of `positions` in a pack of `count` sequences, by the names of all networks.

        Those of pre-training read `masked_positions`, a tagger's reads `positions`; others none.
        """
        size = len(self.inputs)
        places = (np.arange(count)[:, None] * size + np.array(self.positions, np.int64)).ravel()
        return dict.fromkeys(("masked_positions", "positions"), places)

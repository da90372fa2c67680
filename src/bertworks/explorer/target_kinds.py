"""The kinds of predictions that views examine, one class each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import DataError, did_you_mean, truncate_repr
from ..model import Model
from ..tasks.answering.task import AnsweringTask
from ..tasks.classification import MultiLabelTask, TextClassifierTask
from ..tasks.pretraining.replaced_tokens import ReplacedTokensTask
from ..tasks.pretraining.task import PretrainingTask
from ..tasks.regression import RegressionTask
from ..tasks.tagging.task import TaggingTask
from .inputs import EncodedInput
from .requirements import (
    NEXT_SENTENCES,
    PREDICTION,
    is_causal_lm,
    is_masked_lm,
    predicts_next_sentence,
)
from .target import Target

_MAX_PIECES = 10  # that are shown


class PieceTarget(Target):
    """A piece of the vocabulary."""

    task = PretrainingTask

    def _choose_piece(self) -> None:
        token = self._choice.get("token")
        if token is not None:
            self.index = self.inputs.model.tokenizer.token_to_id(token)
            if self.index is None:
                raise DataError(
                    f"{truncate_repr(token)} is not a piece of the vocabulary",
                    where="target.token",
                    fix="Take one that /explore/fill shows.",
                )

    @property
    def _num_outcomes(self) -> int:
        return _MAX_PIECES

    def _name(self, index: int) -> str:
        return self.inputs.model.tokenizer.id_to_token(index)

    def _outcome_fields(self) -> dict[str, Any]:
        assert self.index is not None
        return {"token": self._name(self.index), "id": self.index}

    def _logits(self, outputs: Mapping[str, Tensor]) -> Tensor:
        # Embeddings may have more rows than the vocabulary.
        return outputs["mlm_logits"].float()[:, : self.inputs.model.tokenizer.vocab_size]


class BlankTarget(PieceTarget):
    """The piece at a mask."""

    kind = "blank"

    @classmethod
    def is_predicted_by(cls, model: Model) -> bool:
        return is_masked_lm(model)

    @classmethod
    def occurs_in(cls, inputs: EncodedInput) -> bool:
        return bool(inputs.blanks)

    @property
    def kept_positions(self) -> list[int]:
        return self.positions

    def find_in(self, inputs: EncodedInput, places: Mapping[int, int]) -> Self | None:
        has_blank = self._fields["blank"] < len(inputs.blanks)
        return super().find_in(inputs, places) if has_blank else None

    def _locate(self) -> None:
        blanks = self.inputs.blanks
        if not blanks:
            mask = self.inputs.model.tokenizer.mask_id
            piece = self.inputs.model.tokenizer.id_to_token(mask)
            raise DataError(
                f"there is no {piece} in the text",
                where="text",
                fix=f"Put {piece} in place of a word.",
            )
        number = self._number("blank", len(blanks))
        self.positions = [blanks[number]]
        self._fields = {"blank": number, "position": blanks[number]}
        self._choose_piece()


class NextTarget(PieceTarget):
    """The piece that follows the text."""

    kind = "next"

    @classmethod
    def is_predicted_by(cls, model: Model) -> bool:
        return is_causal_lm(model)

    def _locate(self) -> None:
        self.positions = [len(self.inputs) - 1]
        self._fields = {"position": len(self.inputs) - 1}
        self._choose_piece()


class PairTarget(Target):
    """A prediction for two texts."""

    @classmethod
    def occurs_in(cls, inputs: EncodedInput) -> bool:
        return inputs.is_pair


class NextSentenceTarget(PairTarget):
    """Whether the second text follows the first."""

    kind = "next-sentence"
    task = PretrainingTask

    @classmethod
    def is_predicted_by(cls, model: Model) -> bool:
        return predicts_next_sentence(model)

    def _locate(self) -> None:
        if not self.inputs.is_pair:
            raise DataError("a next sentence needs two texts", where="pair", fix="Give it.")
        self.index = 0

    @property
    def labels(self) -> Sequence[str]:
        return ("next", "random")

    def _logits(self, outputs: Mapping[str, Tensor]) -> Tensor:
        return outputs["nsp_logits"].float()


class LabelTarget(Target):
    """The label of a text."""

    kind = "label"
    task: ClassVar[type] = TextClassifierTask

    def _locate(self) -> None:
        self._choose_label()

    def _choose_label(self) -> None:
        label = self._choice.get(self.kind)
        if label is not None:
            if label not in self.labels:
                raise DataError(
                    f"the model has no {self.kind} {truncate_repr(label)}",
                    where=f"target.{self.kind}",
                    fix=f"{did_you_mean(label, self.labels)}.",
                )
            self.index = self.labels.index(label)

    def _outcome_fields(self) -> dict[str, Any]:
        assert self.index is not None
        return {self.kind: self._name(self.index)}

    @property
    def activation(self) -> Literal["softmax", "sigmoid"]:
        return "sigmoid" if isinstance(self._task, MultiLabelTask) else "softmax"

    @property
    def is_calibrated(self) -> bool:
        return isinstance(self._task, TextClassifierTask) and self._task.logit_scaling is not None

    def _logits(self, outputs: Mapping[str, Tensor]) -> Tensor:
        logits = outputs["logits"].float()
        if self.is_calibrated:
            logits = torch.from_numpy(self._task.scale_logits(logits.cpu().numpy()))
        return logits

    def _to_probabilities(self, logits: Tensor) -> Float[Tensor, "rows names"]:
        if self.activation == "sigmoid":
            return torch.sigmoid(logits)
        return super()._to_probabilities(logits)


class TokenTarget(Target):
    """A prediction for some tokens, which may be at other positions in another text."""

    def find_in(self, inputs: EncodedInput, places: Mapping[int, int]) -> Self | None:
        if not set(self.positions) <= places.keys():
            return None
        first, last = places[self.positions[0]], places[self.positions[-1]]
        word = inputs.tokens[first]["word"]
        moved = {"start": first, "end": last, "position": first, "word": word}
        return type(self)(inputs, self.description | moved)


class TagTarget(TokenTarget, LabelTarget):
    """The tag of a word."""

    kind = "tag"
    task = TaggingTask

    @classmethod
    def occurs_in(cls, inputs: EncodedInput) -> bool:
        return bool(inputs.words)

    def _locate(self) -> None:
        words = self.inputs.words
        which = self._task.settings.labelled_piece
        word = self._choice.get("word")
        if word is None:  # the first word with a tag other than O
            piece = -1 if which == "last" else 0
            self.positions = [word["tokens"][piece] for word in words]
            each = self._outputs()["logits"].argmax(-1).tolist()
            outside = self.labels.index("O") if "O" in self.labels else -1
            self._choice["word"] = next((at for at, tag in enumerate(each) if tag != outside), 0)
        number = self._number("word", len(words))
        tokens = words[number]["tokens"]
        self.positions = {"first": tokens[:1], "last": tokens[-1:], "all": tokens}[which]
        self._fields = {"word": number}
        self._choose_label()

    def _logits(self, outputs: Mapping[str, Tensor]) -> Tensor:
        logits = super()._logits(outputs)
        return logits.view(-1, len(self.positions), logits.shape[-1]).mean(1)

    def _to_probabilities(self, logits: Tensor) -> Float[Tensor, "rows names"]:
        return torch.softmax(logits, 1)


class ValueTarget(Target):
    """The value of a text."""

    kind = "value"
    task = RegressionTask
    has_distribution = False

    def _locate(self) -> None:
        self.index = 0

    @property
    def labels(self) -> Sequence[str]:
        return ("value",)

    def _logits(self, outputs: Mapping[str, Tensor]) -> Tensor:
        return outputs["values"].float()[:, None]

    def _to_probabilities(self, logits: Tensor) -> Float[Tensor, "rows names"]:
        return logits.cpu().double().apply_(self._task.output_to_value)


class AnswerTarget(TokenTarget, PairTarget):
    """The answer to a question: its first and its last token."""

    kind = "answer"
    task = AnsweringTask

    def _locate(self) -> None:
        passage = [at for at, token in enumerate(self.inputs.tokens) if token["field"] == "pair"]
        if not passage:
            raise DataError("an answer needs a passage", where="pair", fix="Give it.")
        if self._choice.get("start") is None:
            start, end = self._outputs()["logits"][passage].float().unbind(-1)
            scores = (start[:, None] + end[None, :]).cpu()
            near = torch.ones_like(scores).triu().tril(self._task.settings.max_answer_tokens - 1)
            best = int(scores.masked_fill(near == 0, -torch.inf).argmax())
            first, last = (passage[at] for at in divmod(best, len(passage)))
        else:
            first = self._number("start", len(self.inputs))
            last = self._number("end", len(self.inputs), first)
            if not (first in passage and last in passage and first <= last):
                raise DataError("no tokens of the passage", where="target.start")
        self.positions = [first, last]
        tokens = self.inputs.tokens
        text = self.inputs.texts[1][tokens[first]["start"] : tokens[last]["end"]]
        self._fields = {"start": first, "end": last, "text": text}
        self.index = 0

    @property
    def labels(self) -> Sequence[str]:
        return ()

    def _name(self, index: int) -> str:
        names: list[str] = [self._fields["text"]]
        return names[index]

    def _top_logits(self, logits: Tensor) -> list[tuple[str, Tensor]]:
        first, last = self.positions
        return [("start", logits[0, first, 0]), ("end", logits[0, last, 1])]

    def _logits(self, outputs: Mapping[str, Tensor]) -> Tensor:
        return outputs["logits"].float().view(-1, len(self.inputs), 2)

    def _to_probabilities(self, logits: Tensor) -> Float[Tensor, "rows names"]:
        shares = torch.softmax(logits, 1)
        first, last = self.positions
        return (shares[:, first, 0] * shares[:, last, 1])[:, None]


class ReplacedTarget(TokenTarget):
    """Whether a token was replaced."""

    kind = "replaced"
    task = ReplacedTokensTask

    def _locate(self) -> None:
        places = [at for at, token in enumerate(self.inputs.tokens) if not token["special"]]
        probabilities = self._outputs()["rtd_logits"].float().cpu()
        default = places[int(probabilities[places].argmax())] if places else 0
        position = self._number("position", len(self.inputs), default)
        self.positions, self._fields, self.index = [position], {"position": position}, 0

    @property
    def labels(self) -> Sequence[str]:
        return ("replaced", "original")

    def _logits(self, outputs: Mapping[str, Tensor]) -> Tensor:
        logits = outputs["rtd_logits"].view(-1, len(self.inputs))[:, self.positions[0]].float()
        return torch.stack([logits, -logits], -1)

    def _to_probabilities(self, logits: Tensor) -> Float[Tensor, "rows names"]:
        return torch.sigmoid(logits)


TARGETS: tuple[type[Target], ...] = (
    *(BlankTarget, NextTarget, NextSentenceTarget, LabelTarget, ValueTarget, TagTarget),
    *(AnswerTarget, ReplacedTarget),
)
"""All kinds; of those that a text has, the first is the default."""


def targets_of(model: Model) -> list[type[Target]]:
    """The kinds of a model's predictions; empty for a model of vectors alone."""
    return [target for target in TARGETS if target.is_predicted_by(model)]


def make_target(inputs: EncodedInput, choice: Mapping[str, Any] | None = None) -> Target:
    """Return the target that a request chooses.

    Args:
        inputs: the text.
        choice: `kind`, and the fields of the kind (see docs/serving.md). The default is the first
            kind that occurs in the text, and the most probable outcome.

    Raises:
        DataError: the text or the model has no prediction of this kind.
        WrongModelError: the model predicts nothing, or no next sentences and these are chosen.
    """
    choice = choice or {}
    PREDICTION.check(inputs.model)
    targets = {target.kind: target for target in targets_of(inputs.model)}
    kind = choice.get("kind")
    if kind is None:
        first = next(iter(targets.values()))  # raises the error of a text without it
        return (_find_default(inputs) or first)(inputs, choice)
    if kind == NextSentenceTarget.kind:
        NEXT_SENTENCES.check(inputs.model)
    if kind not in targets:
        raise DataError(
            f"the model predicts no {truncate_repr(kind)}",
            where="target.kind",
            fix=f"It predicts: {', '.join(targets)}.",
        )
    return targets[kind](inputs, choice)


def find_target(inputs: EncodedInput, choice: Mapping[str, Any] | None = None) -> Target | None:
    """Return the chosen target, or else the default one; None if the model predicts nothing.

    Raises:
        WrongModelError, DataError: as in `make_target`, of a choice.
    """
    has_target = choice is not None or _find_default(inputs) is not None
    return make_target(inputs, choice) if has_target else None


def _find_default(inputs: EncodedInput) -> type[Target] | None:
    return next((kind for kind in targets_of(inputs.model) if kind.occurs_in(inputs)), None)

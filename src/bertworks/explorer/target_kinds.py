"""The kinds of predictions that views examine, one class each; the model's task determines them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import DataError, did_you_mean, truncate_repr
from ..tasks.multilabel import MultiLabelTask
from .inputs import EncodedInput
from .requirements import check, kinds_of
from .target import Target

_MAX_PIECES = 10  # that are shown


class PieceTarget(Target):
    """A piece of the vocabulary."""

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

    def _locate(self) -> None:
        self.positions = [len(self.inputs) - 1]
        self._fields = {"position": len(self.inputs) - 1}
        self._choose_piece()


class NextSentenceTarget(Target):
    """Whether the second text follows the first."""

    kind = "next-sentence"

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

    def _logits(self, outputs: Mapping[str, Tensor]) -> Tensor:
        return outputs["logits"].float()

    def _to_probabilities(self, logits: Tensor) -> Float[Tensor, "rows names"]:
        if isinstance(self._task, MultiLabelTask):
            return torch.sigmoid(logits)
        return super()._to_probabilities(logits)


class TagTarget(LabelTarget):
    """The tag of a word."""

    kind = "tag"

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
    has_distribution = False

    def _locate(self) -> None:
        self.index = 0

    @property
    def labels(self) -> Sequence[str]:
        return ("value",)

    def _logits(self, outputs: Mapping[str, Tensor]) -> Tensor:
        return outputs["values"].float()[:, None]

    def _to_probabilities(self, logits: Tensor) -> Float[Tensor, "rows names"]:
        return logits.double().cpu().apply_(self._task.output_to_value)


class AnswerTarget(Target):
    """The answer to a question: its first and its last token."""

    kind = "answer"

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


class ReplacedTarget(Target):
    """Whether a token was replaced."""

    kind = "replaced"

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


_CLASSES: Mapping[str, type[Target]] = {
    kind.kind: kind
    for kind in (
        *(BlankTarget, NextTarget, NextSentenceTarget, LabelTarget, TagTarget, ValueTarget),
        *(AnswerTarget, ReplacedTarget),
    )
}


def make_target(inputs: EncodedInput, choice: Mapping[str, Any] | None = None) -> Target:
    """Return the target that a request chooses.

    Args:
        inputs: the text.
        choice: `kind`, and the fields of the kind; see `Target`.

    Raises:
        DataError: the text or the model has no prediction of this kind.
        NoHeadError: the model predicts nothing.
    """
    choice = choice or {}
    return _CLASSES[_find_kind(inputs, choice.get("kind"))](inputs, choice)


def make_default_target(inputs: EncodedInput) -> Target | None:
    """Return the default target of a model for a text; None if it predicts nothing for it."""
    has = {
        "blank": bool(inputs.blanks),
        "tag": bool(inputs.words),
        **dict.fromkeys(("next-sentence", "answer"), inputs.is_pair),
    }
    kinds = [kind for kind in kinds_of(inputs.model) if has.get(kind, True)]
    return make_target(inputs, {"kind": kinds[0]}) if kinds else None


def _find_kind(inputs: EncodedInput, kind: str | None) -> str:
    """Return the kind of a request, or the text's default."""
    model = inputs.model
    check(model, "predict")
    kinds = kinds_of(model)
    if kind is None and "next-sentence" in kinds and inputs.is_pair:
        return kinds[0] if inputs.blanks else kinds[1]
    if kind not in (None, *kinds):
        if kind == "next-sentence":
            check(model, kind)
        raise DataError(
            f"the model predicts no {truncate_repr(kind)}",
            where="target.kind",
            fix=f"It predicts: {', '.join(kinds)}.",
        )
    return kind or kinds[0]

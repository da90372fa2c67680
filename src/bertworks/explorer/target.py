"""The prediction of a model for a text, and the one probability in it that a view examines.

The model's task determines the kind: a blank, the next piece, a label, a tag, an answer, a next
sentence, a replaced token or a value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import DataError, did_you_mean, truncate_repr
from ..inference.activations import activations
from .inputs import EncodedInput, Heads, Ids, ablated_heads_mask
from .requirements import check, kinds_of

_MAX_OUTCOMES = 10
_MAX_BATCH_TOKENS = 1024  # tokens per forward pass


class Target:
    """A prediction for a text, and the one outcome (label, piece, …) of it that is examined.

    Args:
        inputs: the text.
        choice: `kind`, and the fields of the kind (see docs/serving.md); the defaults are the
            first position and the most probable outcome.

    Attributes:
        kind: blank, next, next-sentence, label, value, tag, answer or replaced.
        positions: of the tokens whose states yield the prediction.
        base: the probabilities of all outcomes.
        index: the outcome that is examined.

    Raises:
        DataError: the text or the model has no prediction of this kind.
        NoHeadError: the model predicts nothing.
    """

    def __init__(self, inputs: EncodedInput, choice: Mapping[str, Any] | None = None) -> None:
        self.inputs, self._choice = inputs, dict(choice or {})
        self._task: Any = inputs.model.task
        self.kind = self._kind()
        self.positions: list[int] = []
        self._fields: dict[str, Any] = {}
        self.index: int | None = None
        getattr(self, f"_place_{self.kind.replace('-', '_')}", lambda: None)()
        self.base: Float[Tensor, " names"] = self.compute_probabilities([inputs.input_ids])[0]
        if self.index is None:
            self.index = int(self.base.argmax())

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
            probabilities.append(
                self._to_probabilities(self._logits(outputs, len(part))).double().cpu()
            )
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
            "distribution": []
            if self.kind == "value"
            else [
                {"name": self._name(at), "probability": probability}
                for probability, at in zip(top.values.tolist(), top.indices.tolist(), strict=True)
            ],
        }

    def head(self) -> dict[str, Any]:
        """The logits and the probabilities of the prediction for the text, as JSON."""
        logits = self._logits(self._outputs(), 1)
        likely = self.prediction()
        if self.kind == "answer":
            shown = dict(zip(("start", "end"), self.positions, strict=True))
            each = [(name, logits[0, at, row]) for row, (name, at) in enumerate(shown.items())]
        else:
            order = logits[0].topk(min(self._num_outcomes, logits.shape[1]))
            each = [(self._name(at), logits[0, at]) for at in order.indices.tolist()]
        return {
            "shape": list(logits.shape),
            "logits": [{"name": name, "logit": float(logit)} for name, logit in each],
            "probabilities": likely["distribution"],
        }

    @property
    def _num_outcomes(self) -> int:
        """How many outcomes are shown."""
        return _MAX_OUTCOMES if self.kind in ("blank", "next") else len(self.labels) or 1

    @property
    def description(self) -> dict[str, Any]:
        """The target with the defaults filled in, as JSON."""
        assert self.index is not None
        more: dict[str, Any] = {}
        if self.kind in ("blank", "next"):
            more = {"token": self._name(self.index), "id": self.index}
        elif self.kind in ("label", "tag"):
            more = {self.kind: self._name(self.index)}
        return {"kind": self.kind, **self._fields, **more, "name": self._name(self.index)}

    @property
    def labels(self) -> Sequence[str]:
        """The names of the outcomes; not for pieces and answers."""
        return {
            "next-sentence": ("next", "random"),
            "replaced": ("replaced", "original"),
            "answer": (),
            "value": ("value",),
        }.get(self.kind, self.inputs.model.labels)

    def _name(self, index: int) -> str:
        if self.kind in ("blank", "next"):
            return self.inputs.model.tokenizer.id_to_token(index)
        return self._fields["text"] if self.kind == "answer" else self.labels[index]

    def _kind(self) -> str:
        model, kind = self.inputs.model, self._choice.get("kind")
        check(model, "predict")
        kinds = kinds_of(model)
        if kind is None and "next-sentence" in kinds and self.inputs.is_pair:
            return kinds[0] if self.inputs.blanks else kinds[1]
        if kind not in (None, *kinds):
            if kind == "next-sentence":
                check(model, kind)
            raise DataError(
                f"the model predicts no {truncate_repr(kind)}",
                where="target.kind",
                fix=f"It predicts: {', '.join(kinds)}.",
            )
        return kind or kinds[0]

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

    # For each kind: set the positions, and the outcome that is examined.

    def _place_blank(self) -> None:
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

    def _place_next(self) -> None:
        self.positions = [len(self.inputs) - 1]
        self._fields = {"position": len(self.inputs) - 1}
        self._choose_piece()

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

    def _place_next_sentence(self) -> None:
        if not self.inputs.is_pair:
            raise DataError("a next sentence needs two texts", where="pair", fix="Give it.")
        self.index = 0

    def _place_label(self) -> None:
        self._choose_label("label")

    def _place_value(self) -> None:
        self.index = 0

    def _place_tag(self) -> None:
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
        self._choose_label("tag")

    def _choose_label(self, name: str) -> None:
        label = self._choice.get(name)
        if label is not None:
            if label not in self.labels:
                raise DataError(
                    f"the model has no {name} {truncate_repr(label)}",
                    where=f"target.{name}",
                    fix=f"{did_you_mean(label, self.labels)}.",
                )
            self.index = self.labels.index(label)

    def _place_answer(self) -> None:
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

    def _place_replaced(self) -> None:
        places = [at for at, token in enumerate(self.inputs.tokens) if not token["special"]]
        probabilities = self._outputs()["rtd_logits"].float().cpu()
        default = places[int(probabilities[places].argmax())] if places else 0
        position = self._number("position", len(self.inputs), default)
        self.positions, self._fields, self.index = [position], {"position": position}, 0

    # The network's outputs and their probabilities.

    def _outputs(self) -> dict[str, Tensor]:
        """The outputs for the unchanged text, at `positions`."""
        return self.inputs.activations(targets=self._targets(1)).outputs

    def _targets(self, count: int) -> dict[str, Any]:
        size = len(self.inputs)
        places = (np.arange(count)[:, None] * size + np.array(self.positions, np.int64)).ravel()
        return {"masked_positions": places.astype(np.int64), "positions": places.astype(np.int64)}

    def _logits(self, outputs: Mapping[str, Tensor], count: int) -> Tensor:
        """The logits, `[rows, names]`; for an answer, `[rows, tokens, 2]`."""
        if self.kind in ("blank", "next"):  # embeddings may have more rows than the vocabulary
            return outputs["mlm_logits"].float()[:, : self.inputs.model.tokenizer.vocab_size]
        if self.kind == "next-sentence":
            return outputs["nsp_logits"].float()
        if self.kind == "value":
            return outputs["values"].float()[:, None]
        if self.kind == "replaced":
            logits = outputs["rtd_logits"].view(count, -1)[:, self.positions[0]].float()
            return torch.stack([logits, -logits], -1)
        logits = outputs["logits"].float()
        if self.kind == "tag":
            return logits.view(count, len(self.positions), -1).mean(1)
        return logits.view(count, -1, 2) if self.kind == "answer" else logits

    def _to_probabilities(self, logits: Tensor) -> Float[Tensor, "rows names"]:
        """The probabilities of logits."""
        if self.kind == "value":
            return logits.double().cpu().apply_(self._task.output_to_value)
        if self.kind == "replaced" or (self.kind == "label" and self._task.settings.multi_label):
            return torch.sigmoid(logits)
        shares = torch.softmax(logits, 1)
        if self.kind == "answer":
            first, last = self.positions
            return (shares[:, first, 0] * shares[:, last, 1])[:, None]
        return shares


def target_of(inputs: EncodedInput) -> Target | None:
    """The default target of a model for a text; None if it predicts nothing for this text."""
    has = {
        "blank": bool(inputs.blanks),
        "tag": bool(inputs.words),
        **dict.fromkeys(("next-sentence", "answer"), inputs.is_pair),
    }
    kinds = [kind for kind in kinds_of(inputs.model) if has.get(kind, True)]
    return Target(inputs, {"kind": kinds[0]}) if kinds else None

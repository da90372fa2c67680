"""A text as a model's input: its tokens, its words, and variants of the sequence."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, LengthError
from ..packed import Packed
from ..tasks.tagging.task import TaggingTask
from ..text.encoding import Segment, with_marks
from ..text.tokenizer import Tokenizer
from .limits import MAX_TOKENS
from .requirements import (
    ATTENTION_HEADS,
    MASKED_WORDS,
    can_take_pairs,
    is_causal_lm,
    is_masked_lm,
)

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    from ..inference.activations import Activations
    from ..model import Model

Ids = NDArray[np.int64]
Heads = Sequence[Sequence[int]]
"""Heads, each by its layer and its number in the layer."""


@dataclass(frozen=True, eq=False)
class EncodedInput:
    """A text, or a pair of texts, as tokens.

    Attributes:
        model: the model whose tokenizer was used.
        texts: one or two.
        input_ids, token_type_ids: `[tokens]`.
        tokens, words: as JSON; a word has the positions of its tokens.
        hidden_ids: by position, the original ids of pieces masked on request (`words`).
    """

    model: Model
    texts: Sequence[str]
    input_ids: Ids
    token_type_ids: Ids
    tokens: list[dict[str, Any]]
    words: list[dict[str, Any]]
    hidden_ids: dict[int, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def pieces(self) -> dict[str, Any]:
        """The tokens and words, as JSON."""
        return {"tokens": self.tokens, "words": self.words}

    @property
    def is_pair(self) -> bool:
        """Whether there are two texts."""
        return len(self.texts) == 2

    @property
    def blanks(self) -> list[int]:
        """The positions of mask tokens."""
        if not is_masked_lm(self.model):
            return []
        return np.flatnonzero(self.input_ids == self.model.tokenizer.mask_id).tolist()

    def pack(self, rows: Sequence[Ids] | None = None) -> Packed:
        """The sequence, or variants of it with other ids, as one pack."""
        rows = [self.input_ids] if rows is None else rows
        return Packed.from_arrays(rows, [self.token_type_ids] * len(rows))

    def activations(
        self,
        ablated_heads: Heads = (),
        *,
        attention: bool = False,
        targets: dict[str, Any] | None = None,
    ) -> Activations:
        """The network's activations for the sequence, with `ablated_heads` switched off."""
        from ..inference.activations import activations

        mask = ablated_heads_mask(self.model, [ablated_heads])
        return activations(
            self.model.network, self.pack(), targets, attention=attention, ablated_heads=mask
        )

    def attention(self, ablated_heads: Heads = ()) -> NDArray[np.float32]:
        """The attention weights `[layers, heads, queries, keys]`.

        Raises:
            WrongModelError: the model has no attention heads.
        """
        ATTENTION_HEADS.check(self.model)
        return stack_layers(self.activations(ablated_heads, attention=True).attention).numpy()


def pieces(model: Model, text: str, pair: str | None = None) -> dict[str, Any]:
    """The tokens and words of a text, or of a pair: a view that needs no network.

    Raises:
        DataError: a text cannot be tokenised, or is too long for the model.
    """
    return {"pieces": encode_input(model, text, pair, max_tokens=None).pieces}


def encode_input(
    model: Model,
    text: str,
    pair: str | None = None,
    *,
    words: Sequence[int] = (),
    max_tokens: int | None = MAX_TOKENS,
    where: str = "text",
) -> EncodedInput:
    """Tokenise a text, or a pair, as the model's task does.

    Args:
        model: its tokenizer and task are used.
        text, pair: the texts. If the model predicts masked pieces, "[MASK]" in a text is a mask.
        words: numbers of words to mask, with all of their pieces.
        max_tokens: the maximum number of tokens; None: the model's.
        where: the name of the text in errors.

    Raises:
        LengthError: there are more tokens.
        DataError: a text cannot be tokenised, or there is no such word.
        WrongModelError: `words` is given, and the model does not predict masked pieces.
    """
    tokenizer = model.tokenizer
    texts = (text,) if pair is None else (text, pair)
    segments = _segments(model, texts, where)
    if is_causal_lm(model):  # as in `generate`: no special tokens around the text
        ids, types = segments[0].input_ids, np.zeros(len(segments[0]), np.int8)
        special = np.zeros(len(ids), np.bool_)
    else:
        framed = tokenizer.frame(*segments)
        ids, types, special = framed.input_ids, framed.token_type_ids, framed.special_tokens_mask
    limit = model.config.max_seqlen
    task_limit = getattr(getattr(model.task, "settings", None), "max_seq_length", None)
    limit = min(limit, task_limit or limit, max_tokens or limit)
    if len(ids) > limit:
        raise LengthError(
            f"{len(ids)} tokens, but at most {limit} are shown", where=where, fix="Shorten it."
        )
    if not len(ids):
        raise DataError("the text has no tokens", where=where, fix="Give a word.")
    tokens, all_words = _describe(tokenizer, ids, types, special, segments, texts)
    input_ids: Ids = ids.astype(np.int64)
    hidden: dict[int, int] = {}
    if len(words):
        MASKED_WORDS.check(model)
        for number in words:
            if not 0 <= number < len(all_words):
                raise DataError(f"there is no word {number}", where="words", fix="Count from 0.")
            for position in all_words[number]["tokens"]:
                hidden[position], input_ids[position] = int(input_ids[position]), tokenizer.mask_id
                mask = {"token": tokenizer.id_to_token(tokenizer.mask_id), "id": tokenizer.mask_id}
                tokens[position] = {**tokens[position], **mask, "unknown": False}
    return EncodedInput(model, texts, input_ids, types.astype(np.int64), tokens, all_words, hidden)


def _segments(model: Model, texts: Sequence[str], where: str) -> list[Segment]:
    tokenizer = model.tokenizer
    if len(texts) > 1 and not can_take_pairs(model):
        raise DataError("the model takes single texts", where="pair", fix="Leave it out.")
    if isinstance(model.task, TaggingTask):
        (words,) = model.task.spellings.read(texts, where=[where])
        return [words.segment]
    names = [where, "pair"][: len(texts)]
    return tokenizer.segments(texts, typed_mask=is_masked_lm(model), where=names)


def _describe(
    tokenizer: Tokenizer,
    ids: NDArray[Any],
    types: NDArray[Any],
    special: NDArray[np.bool_],
    segments: Sequence[Segment],
    texts: Sequence[str],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Tokens and words, as JSON."""
    unknown_id = tokenizer.id_of("unk")
    tokens: list[dict[str, Any]] = [
        {
            "token": tokenizer.id_to_token(number),
            "id": number,
            "segment": segment,
            "position": place,
            "field": None,
            "start": 0,
            "end": 0,
            "special": is_special,
            "unknown": number == unknown_id,
            "word": None,
        }
        for place, (number, segment, is_special) in enumerate(
            zip(ids.tolist(), types.tolist(), special.tolist(), strict=True)
        )
    ]
    words: list[dict[str, Any]] = []
    places = iter(np.flatnonzero(~special).tolist())
    for name, segment, text in zip(("text", "pair"), segments, texts, strict=False):
        last = None
        past = with_marks(segment.offsets, text)[:, 1].tolist()
        for number, (start, end), word_end in zip(
            segment.word_ids.tolist(), segment.offsets.tolist(), past, strict=True
        ):
            if number != last:
                words.append({"number": len(words), "field": name, "start": start, "tokens": []})
            last, place, word = number, next(places), words[-1]
            word["tokens"].append(place)
            word["end"] = word_end
            word["text"] = text[word["start"] : word_end]
            tokens[place] |= {"field": name, "start": start, "end": end, "word": word["number"]}
    return tokens, words


def ablated_heads_mask(
    model: Model, rows: Sequence[Heads]
) -> Bool[Tensor, "layers sequences heads"] | None:
    """A mask of the heads that are off for each sequence; None if all are on.

    Raises:
        DataError: there is no such head.
    """
    import torch

    config = model.config
    if not any(rows):
        return None
    count = config.num_attention_heads if config.has_heads else 0
    mask = torch.zeros(config.num_hidden_layers, len(rows), count, dtype=torch.bool)
    for row, heads in enumerate(rows):
        for layer, head in heads:
            if not (0 <= layer < mask.shape[0] and 0 <= head < mask.shape[2]):
                raise DataError(
                    f"there is no head {head} in a layer {layer}",
                    where="ablated_heads",
                    fix=f"There are {mask.shape[0]} layers of {mask.shape[2]} heads, from 0.",
                )
            mask[layer, row, head] = True
    return mask


def round_values(values: Any) -> Any:
    """Nested numbers as lists of floats, rounded to five significant digits."""
    if hasattr(values, "detach"):
        values = values.float().cpu().numpy()
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if isinstance(values, list):
        return [round_values(value) for value in values]
    return float(f"{values:.5g}")


def stack_layers(parts: Sequence[Tensor]) -> Float[Tensor, "layers ..."]:
    """The layers' parts of `Activations` of one sequence, as one float32 tensor on the CPU."""
    import torch

    return torch.stack(list(parts))[:, 0].float().cpu()


def as_floats(values: Tensor) -> dict[str, Any]:
    """Numbers as float32 in base64, little-endian."""
    return _to_base64(values.float().cpu().numpy().astype("<f4"))


def as_shorts(values: Tensor) -> dict[str, Any]:
    """Numbers as int16 in base64, little-endian, with a scale for each row.

    The error is at most 1 / 65,534 of the largest number of the row.
    """
    rows = values.float().cpu().numpy()
    scales = np.maximum(np.abs(rows).max(-1), 1e-30).astype(np.float64) / 32767
    numbers = np.rint(rows / scales[..., None]).astype("<i2")
    return _to_base64(numbers) | {"scales": scales.ravel().tolist()}


def as_bytes(shares: NDArray[np.float32]) -> dict[str, Any]:
    """Numbers from 0 to 1 as bytes in base64."""
    return _to_base64(np.rint(shares * 255).astype(np.uint8)) | {"scale": 255}


def _to_base64(array: NDArray[Any]) -> dict[str, Any]:
    content = base64.b64encode(array.tobytes()).decode()
    return {"shape": list(array.shape), "dtype": array.dtype.name, "base64": content}

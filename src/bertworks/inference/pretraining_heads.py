"""What the heads of pre-training predict for texts: their masked words, and what follows them.

    text ─ list_variants ─► it, and variants for candidates of several pieces ─ mask_examples
         ─► predict_masks ─► predictions of each variant ─ join_predictions ─► masks and candidates

A candidate is a given word whose probability at a mask is computed. If it has several pieces, it is
predicted with one mask for each in place of the mask that it fills, and its probability is the
product of theirs.

`Model` does this with one text; the server's queue, with those of many requests.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import BertworksError, DataError, LengthError, SettingsError, truncate_repr
from ..packed import Array, Batch, to_array
from ..tasks.pretraining.source import PretrainingExample
from ..tasks.pretraining.task import PretrainingTask
from ..tasks.probabilities import softmax
from ..tasks.task import Prediction
from ..text.tokenizer import Tokenizer
from .engine import AnyNetwork, outputs_of
from .native_network import NativeNetwork
from .settings import EngineSettings

if TYPE_CHECKING:
    from jaxtyping import Float

Pieces: TypeAlias = Mapping[str, Sequence[int]]
"""The piece ids of each candidate."""

_PLACE = "rows in memory, row 1"


class Candidate(NamedTuple):
    """A word, whose pieces are scored at a mask and the following ones."""

    mask: int  # its number in the text
    word: str
    ids: Sequence[int]


class MaskedText(NamedTuple):
    """A text with masks, or a pair of texts.

    Attributes:
        where: its name in errors.
        text, pair: the texts.
        top_k: number of pieces to return for each mask.
    """

    where: str
    text: str
    pair: str | None = None
    top_k: int = 1
    candidates: Sequence[Candidate] = ()


class Variant(NamedTuple):
    """A text with masks, or a variant of it, in which one mask is repeated for several pieces.

    There may be thousands of a text, so `fill` writes each only when it is tokenised.

    Attributes:
        where, text, top_k: of the text, as in `MaskedText`.
        masks: the numbers of the masks that the candidates fill.
        start: the first character of the mask that is repeated.
        length: the pieces of each candidate, and how often the mask is there.
        pieces: the candidates.
    """

    where: str
    text: str
    top_k: int
    masks: range
    start: int
    length: int
    pieces: Pieces

    @property
    def candidates(self) -> Iterator[Candidate]:
        """The candidates at each mask."""
        return (
            Candidate(number, word, ids)
            for number in self.masks
            for word, ids in self.pieces.items()
        )

    def fill(self, mask: str) -> MaskedText:
        """Write the text."""
        more = mask * (self.length - 1)
        text = f"{self.text[: self.start]}{more}{self.text[self.start :]}"
        return MaskedText(self.where, text, None, self.top_k, [*self.candidates])


class MaskedExample(NamedTuple):
    """A tokenised `MaskedText`."""

    example: PretrainingExample
    text: MaskedText

    @property
    def num_tokens(self) -> int:
        return self.example.num_tokens


def get_mask(task: PretrainingTask) -> str:
    """Return the mask as it is written in texts."""
    return task.tokenizer.id_to_token(task.tokenizer.mask_id)


def encode_candidates(tokenizer: Tokenizer, candidates: Sequence[str]) -> dict[str, list[int]]:
    """Return the piece ids of each candidate.

    Raises:
        DataError: there are none, or one has no pieces in the vocabulary.
    """
    if not candidates:
        raise DataError("there are no candidates", where="candidates")
    locations = [f"candidates[{number}]" for number in range(len(candidates))]
    rows = tokenizer.piece_ids(candidates, where=locations)
    for location, word, ids in zip(locations, candidates, rows, strict=True):
        if not len(ids) or (tokenizer.has("unk") and tokenizer.unk_id in ids):
            raise DataError(
                f"the vocabulary has no pieces for {truncate_repr(word)}", where=location
            )
    return {word: ids.tolist() for word, ids in zip(candidates, rows, strict=True)}


def count_variants(task: PretrainingTask, text: str, pieces: Pieces, *, where: str) -> int:
    """Return how many variants `list_variants` makes of a text, itself included.

    Raises:
        LengthError: its masks alone, or with those of a candidate, are more than the tokens that
            fit. Without this check, a short request could ask for gigabytes of variants.
    """
    num_masks = text.count(get_mask(task))
    longest = max(map(len, pieces.values()), default=1)
    if num_masks and num_masks - 1 + longest > task.max_length:
        what = f"{num_masks:,} masks"
        if longest > 1:
            what += f", and a candidate of {longest:,} pieces at one"
        raise LengthError(
            f"{what}, but at most {task.max_length:,} tokens fit",
            where=where,
            fix="Shorten the text.",
        )
    return 1 + num_masks * len(_long_lengths(pieces))


def list_variants(
    task: PretrainingTask, text: str, pieces: Pieces, *, where: str, top_k: int
) -> list[Variant]:
    """Return a text with masks, and its variants, in which a mask is repeated for each piece.

    Raises:
        LengthError: see `count_variants`.
    """
    count_variants(task, text, pieces, where=where)
    starts = [match.start() for match in re.finditer(re.escape(get_mask(task)), text)]
    pieces_by_length = {
        length: {word: ids for word, ids in pieces.items() if len(ids) == length}
        for length in (1, *_long_lengths(pieces))
    }
    singles = pieces_by_length.pop(1)
    return [Variant(where, text, top_k, range(len(starts)), 0, 1, singles)] + [
        # The pieces that are likely at its masks are not part of the answer.
        Variant(where, text, 1, range(number, number + 1), start, length, long)
        for number, start in enumerate(starts)
        for length, long in pieces_by_length.items()
    ]


def _long_lengths(pieces: Pieces) -> list[int]:
    """Return the different numbers of pieces of candidates that have several."""
    return sorted({len(ids) for ids in pieces.values()} - {1})


def mask_examples(
    task: PretrainingTask, texts: Sequence[MaskedText], first_index: int = 0
) -> list[MaskedExample]:
    """Tokenise texts.

    Raises:
        DataError: a text is not valid, or too long.
    """
    rows = [task.text_row(each.text, each.pair) for each in texts]
    places = [each.where for each in texts]
    examples = task.examples(rows, first_index, where=places, labelled=False)
    return [MaskedExample(*pair) for pair in zip(examples, texts, strict=True)]


def predict_masks(
    network: AnyNetwork,
    task: PretrainingTask,
    examples: Sequence[MaskedExample],
    settings: EngineSettings,
) -> list[Prediction]:
    """Return `PretrainingTask.decode` of each text, and the probabilities of its `candidates`.

    Raises:
        CheckpointError: the network's output for a text is not finite.
    """
    task = copy.copy(task)
    task.top_k = max(each.text.top_k for each in examples)
    texts = {each.example.index: each.text for each in examples}
    predictions: dict[int | None, Prediction] = {}
    place = [each.text.where for each in examples].__getitem__
    tokenised = [each.example for each in examples]
    for outputs, batch in outputs_of(network, task, tokenised, settings, place):
        for row, answer in task.decode(outputs, batch).items():
            masks = [pieces[: texts[row].top_k] for pieces in answer.get("masks", ())]
            predictions[row] = {**answer, "masks": masks, "candidates": []}
        if any(text.candidates for text in texts.values()):
            for row, pieces in probabilities_at_masks(outputs["mlm_logits"], batch):
                predictions[row]["candidates"] = score(pieces, texts[row].candidates)
    return [predictions[row] for row in texts]


def probabilities_at_masks(
    logits: Array, batch: Batch
) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """Yield each row's number, and the probabilities of all pieces at its masks."""
    probabilities = softmax(to_array(logits))
    positions = to_array(batch.targets["masked_positions"])
    edges = np.searchsorted(positions, to_array(batch.packed.cu_seqlens)).tolist()
    for number, row in enumerate(batch.packed.on_host.sequence_row.tolist()):
        yield row, probabilities[edges[number] : edges[number + 1]]


def score(
    probabilities: Float[np.ndarray, "masks vocab_size"], candidates: Sequence[Candidate]
) -> list[float]:
    """Return the probability of each candidate: the product of its pieces' probabilities."""
    return [
        float(np.prod([float(probabilities[mask + at, piece]) for at, piece in enumerate(ids)]))
        for mask, _, ids in candidates
    ]


def join_predictions(variants: Sequence[Variant], predictions: Iterable[Prediction]) -> Prediction:
    """Return the `masks` of a text, and the `candidates` of each, the most likely first.

    Args:
        variants: the text and its variants, in order.
        predictions: theirs; those of other texts may follow.
    """
    answers = [prediction for _, prediction in zip(variants, predictions, strict=False)]
    rankings: list[list[dict[str, Any]]] = [[] for _ in answers[0]["masks"]]
    for variant, answer in zip(variants, answers, strict=True):
        for (mask, word, _), value in zip(variant.candidates, answer["candidates"], strict=True):
            rankings[mask].append({"candidate": word, "probability": value})
    for ranking in rankings:
        ranking.sort(key=lambda entry: -entry["probability"])
    return {"masks": answers[0]["masks"], "candidates": rankings}


def fill_mask(
    network: AnyNetwork,
    task: PretrainingTask,
    text: str,
    top_k: int,
    candidates: Sequence[str] | None,
    settings: EngineSettings,
) -> list[list[dict[str, Any]]]:
    """Return the most likely pieces, or the candidates, for each `[MASK]`; see `Model.fill_mask`.

    Raises:
        DataError: the text is too long, there are no candidates, or one has no pieces.
        SettingsError: `top_k` is less than 1.
        BertworksError: the network was not trained with masks, or there is no `[MASK]` in the text.
    """
    if top_k < 1:
        raise SettingsError(f"top_k={top_k}: must be at least 1")
    if not task.has_masked_lm:
        raise BertworksError(
            "the model has no head for masked words", fix="Use next-sentence or embed."
        )
    if task.causal:
        raise BertworksError(
            "the model was not pre-trained with masks: it predicts what comes next",
            fix=f"Use {'generate' if _can_generate(network) else 'embed'}.",
        )
    _check_text(text)
    pieces = {} if candidates is None else encode_candidates(task.tokenizer, candidates)
    variants = list_variants(task, text, pieces, where=_PLACE, top_k=top_k)
    texts = [variant.fill(get_mask(task)) for variant in variants]
    predictions = predict_masks(network, task, mask_examples(task, texts), settings)
    prediction = join_predictions(variants, predictions)
    if not prediction["masks"]:
        mask = get_mask(task)
        raise BertworksError(
            f"there is no {mask} in the text", fix=f"Put {mask} in place of a word."
        )
    masks: list[list[dict[str, Any]]] = prediction["masks" if candidates is None else "candidates"]
    return masks


def _can_generate(network: AnyNetwork) -> bool:
    return not isinstance(network, NativeNetwork) and network.encoder.config.can_generate


def next_sentence(
    network: AnyNetwork, task: PretrainingTask, first: str, second: str, settings: EngineSettings
) -> float:
    """Return the probability that the second text follows the first.

    Raises:
        BertworksError: the network was not trained on pairs of texts.
    """
    for text in (first, second):
        _check_text(text)
    examples = mask_examples(task, [MaskedText(_PLACE, first, second)])
    (prediction,) = predict_masks(network, task, examples, settings)
    if "next_sentence_probability" not in prediction:
        raise BertworksError("the model has no next-sentence head")
    probability: float = prediction["next_sentence_probability"]
    return probability


def _check_text(text: object) -> None:
    if not isinstance(text, str):
        raise DataError(f"expected a text, got {type(text).__name__}")

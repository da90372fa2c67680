"""What the heads of pre-training predict for texts: their masked words, and what follows them.

    text ─ fill_texts ─► it, and variants for candidates of several pieces ─ mask_examples
         ─► predict_masks ─► predictions of each variant ─ join_predictions ─► masks and candidates

`Model` does this with one text; the server's queue, with those of many requests.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ..errors import BertworksError, DataError, SettingsError
from ..tasks.pretraining.candidates import (
    Pieces,
    ScoredPieces,
    encode_candidates,
    make_variants,
    probabilities_at_masks,
    rank,
    score,
)
from ..tasks.pretraining.source import PretrainingExample
from ..tasks.pretraining.task import PretrainingTask
from ..tasks.task import Prediction
from .engine import AnyNetwork, outputs_of
from .native_network import NativeNetwork
from .settings import EngineSettings

_PLACE = "rows in memory, row 1"


class MaskedText(NamedTuple):
    """A text with masks, or a pair of texts.

    Attributes:
        where: its name in errors.
        text, pair: the texts.
        top_k: number of pieces to return for each mask.
        candidates: see `ScoredPieces`.
    """

    where: str
    text: str
    pair: str | None = None
    top_k: int = 1
    candidates: ScoredPieces = ()


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


def fill_texts(
    task: PretrainingTask, text: str, pieces: Pieces, *, where: str, top_k: int
) -> list[MaskedText]:
    """Return a text with masks, and its variants for candidates of several pieces."""
    variants = make_variants(text, get_mask(task), pieces)
    return [MaskedText(where, each.text, None, top_k, each.scored_pieces) for each in variants]


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


def join_predictions(
    task: PretrainingTask, text: str, pieces: Pieces, predictions: Iterator[Prediction]
) -> Prediction:
    """Return the `masks` of a text, and its ranked `candidates`, from those of its variants.

    Args:
        predictions: of the variants, in order; those of other texts may follow.
    """
    first = next(predictions)

    def scores() -> Iterator[list[float]]:
        yield first["candidates"]
        for prediction in predictions:
            yield prediction["candidates"]

    return {
        "masks": first["masks"],
        "candidates": rank(text.count(get_mask(task)), pieces, scores()),
    }


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
    texts = fill_texts(task, text, pieces, where=_PLACE, top_k=top_k)
    predictions = predict_masks(network, task, mask_examples(task, texts), settings)
    prediction = join_predictions(task, text, pieces, iter(predictions))
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

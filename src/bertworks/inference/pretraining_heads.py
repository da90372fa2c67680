"""What the heads of pre-training predict for one text: its masked words, and what follows it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from ..data.tables import read_rows
from ..errors import BertworksError, DataError, SettingsError
from ..tasks.pretraining.candidates import (
    encode_candidates,
    make_variants,
    probabilities_at_masks,
    rank,
    score,
)
from ..tasks.pretraining.task import PretrainingTask
from ..tasks.task import Network, Prediction
from . import engine
from .settings import EngineSettings


def fill_mask(
    network: Network, task: PretrainingTask, text: str, top_k: int, settings: EngineSettings
) -> list[list[dict[str, Any]]]:
    """Return the most likely pieces for each `[MASK]`; see `Model.fill_mask`.

    Raises:
        DataError: the text is too long.
        SettingsError: `top_k` is less than 1.
        BertworksError: the network was not trained with masks, or there is no `[MASK]` in the text.
    """
    if top_k < 1:
        raise SettingsError(f"top_k={top_k}: must be at least 1")
    _check_masked_lm(task)
    if task.causal:
        raise BertworksError(
            "the model was not pre-trained with masks: it predicts what comes next",
            fix=f"Use {'generate' if network.encoder.config.can_generate else 'embed'}.",
        )
    pieces: list[list[dict[str, Any]]]
    pieces = _predict(network, task, text, None, top_k, settings)["masks"]
    if not pieces:
        mask = _mask_of(task)
        raise BertworksError(
            f"there is no {mask} in the text", fix=f"Put {mask} in place of a word."
        )
    return pieces


def score_candidates(
    network: Network,
    task: PretrainingTask,
    text: str,
    candidates: Sequence[str],
    settings: EngineSettings,
) -> list[list[dict[str, Any]]]:
    """Return the candidates for each mask with their probabilities, the most likely first.

    Raises:
        DataError: there are no candidates, or one has no pieces in the vocabulary.
        BertworksError: the network was not trained with masks.
    """
    _check_masked_lm(task)
    mask = _mask_of(task)
    pieces = encode_candidates(task.tokenizer, candidates)
    variants = make_variants(text, mask, pieces)
    rows = [task.text_row(variant.text) for variant in variants]
    examples = task.examples(rows, 0, labelled=False)
    scores: dict[int, list[float]] = {}
    for outputs, batch in engine.outputs_of(network, task, examples, settings):
        for row, probabilities in probabilities_at_masks(outputs["mlm_logits"], batch):
            scores[row] = score(probabilities, variants[row].scored_pieces)
    in_order = (scores[number] for number in range(len(variants)))
    return rank(text.count(mask), pieces, in_order)


def next_sentence(
    network: Network, task: PretrainingTask, first: str, second: str, settings: EngineSettings
) -> float:
    """Return the probability that the second text follows the first.

    Raises:
        BertworksError: the network was not trained on pairs of texts.
    """
    answer = _predict(network, task, first, second, 1, settings)
    if "next_sentence_probability" not in answer:
        raise BertworksError("the model has no next-sentence head")
    probability: float = answer["next_sentence_probability"]
    return probability


def _check_masked_lm(task: PretrainingTask) -> None:
    if not task.has_masked_lm:
        raise BertworksError(
            "the model has no head for masked words", fix="Use next-sentence or embed."
        )


def _mask_of(task: PretrainingTask) -> str:
    return task.tokenizer.id_to_token(task.tokenizer.mask_id)


def _predict(
    network: Network,
    task: PretrainingTask,
    text: str,
    pair: str | None,
    top_k: int,
    settings: EngineSettings,
) -> Prediction:
    for value in (text, *([] if pair is None else [pair])):
        if not isinstance(value, str):
            raise DataError(f"expected a text, got {type(value).__name__}")
    top_k_task = copy.copy(task)
    top_k_task.top_k = top_k
    rows = read_rows([task.text_row(text, pair)])
    ((_, answer),) = engine.predict(network, top_k_task, rows, settings)
    return answer

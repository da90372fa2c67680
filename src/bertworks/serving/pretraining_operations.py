"""What requests to a pre-trained model compute: masks, next sentences and generation."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from ..errors import DataError
from ..inference.pretraining_heads import (
    MaskedText,
    Pieces,
    count_variants,
    encode_candidates,
    get_mask,
    join_predictions,
    list_variants,
)
from ..inference.settings import GenerationSettings
from ..tasks.task import Prediction
from .job import Job, estimate_max_tokens
from .request_error import invalid_field_error
from .runners import MaskedRunner, Text

_MAX_CANDIDATES = 1000
_MAX_PROBABILITIES = 1 << 18
"""The most probabilities of pieces, or of candidates, in an answer: 2,048 masks have 128 each."""


async def fill_mask(
    job: Job, texts: Sequence[Text], *, top_k: int, candidates: Sequence[str] | None
) -> list[Prediction]:
    """Predict pieces at the masks of texts, and rank candidates, as `Model.fill_mask`."""
    task = job.loaded_model.get_task_runner(MaskedRunner).task
    mask = get_mask(task)
    for location, text in texts:
        if mask not in text:
            raise invalid_field_error(location, f"there is no {mask} in the text")
    pieces: Pieces = {}
    if candidates is not None:
        pieces = await asyncio.to_thread(_encode_candidates, job, candidates)
    counts = [count_variants(task, text, pieces, where=location) for location, text in texts]
    job.check_count("inputs", sum(counts))
    num_masks = sum(text.count(mask) for _, text in texts)
    _check_probabilities("top_k", num_masks * top_k)
    _check_probabilities("candidates", num_masks * len(pieces))
    variants = [
        list_variants(task, text, pieces, where=location, top_k=top_k) for location, text in texts
    ]
    items = [*chain.from_iterable(variants)]
    sizes = [estimate_max_tokens(item.text) + len(mask) * (item.length - 1) for item in items]
    predictions = iter(
        await job.compute(
            job.loaded_model.get_task_runner(MaskedRunner),
            items,
            limit=task.max_length,
            sizes=sizes,
        )
    )
    return [join_predictions(own, predictions) for own in variants]


def _check_probabilities(field: str, count: int) -> None:
    """Refuse a request whose answer would be too large."""
    if count > _MAX_PROBABILITIES:
        what = f"{count:,} probabilities at all masks, but at most {_MAX_PROBABILITIES:,}"
        raise invalid_field_error(field, what, 413)


def _encode_candidates(job: Job, candidates: Sequence[str]) -> dict[str, list[int]]:
    """Return the piece ids of each candidate; refuse those without, and too many."""
    if not 1 <= len(candidates) <= _MAX_CANDIDATES:
        raise invalid_field_error("candidates", f"from 1 to {_MAX_CANDIDATES} words")
    try:
        return encode_candidates(job.model.tokenizer, candidates)
    except DataError as error:
        raise invalid_field_error(error.where or "candidates", error.what) from None


async def next_sentence(job: Job, pairs: Sequence[Text]) -> list[float]:
    """Compute the probability that the second text of each pair follows the first."""
    items = [MaskedText(location, *pair) for location, pair in pairs]
    runner = job.loaded_model.get_task_runner(MaskedRunner)
    texts = [f"{item.text} {item.pair}" for item in items]
    predictions = await job.compute(runner, items, texts, limit=runner.task.max_length)
    return [prediction["next_sentence_probability"] for prediction in predictions]


async def generate(
    job: Job, prompts: Sequence[Text], settings: GenerationSettings, copies: Mapping[str, int]
) -> list[str]:
    """Continue prompts; `copies` as in `GenerateRequest`."""
    if settings.max_new_tokens > job.limits.max_new_tokens:
        raise invalid_field_error("max_new_tokens", f"at most {job.limits.max_new_tokens}")
    runner = job.loaded_model.get_generation_runner(job.limits.batch_tokens)
    counts: Counter[Any] = Counter()
    return await job.compute(
        runner,
        prompts,
        limit=job.model.config.max_seqlen,
        prepare=partial(runner.prepare, settings=settings, counts=counts, copies=copies),
    )

"""What requests to a pre-trained model compute: masks, next sentences and generation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from ..errors import DataError
from ..inference.pretraining_heads import (
    MaskedText,
    encode_candidates,
    fill_texts,
    get_mask,
    join_predictions,
)
from ..inference.settings import GenerationSettings
from ..tasks.task import Prediction
from .job import Job
from .request_error import invalid_field_error
from .runners import MaskedRunner, Text

_MAX_CANDIDATES = 1000


async def fill_mask(
    job: Job, texts: Sequence[Text], *, top_k: int, candidates: Sequence[str] | None
) -> list[Prediction]:
    """Predict pieces at the masks of texts, and rank candidates, as `Model.fill_mask`."""
    task = job.loaded_model.get_task_runner(MaskedRunner).task
    mask = get_mask(task)
    for location, text in texts:
        if mask not in text:
            raise invalid_field_error(location, f"there is no {mask} in the text")
    pieces = {} if candidates is None else _encode_candidates(job, candidates)
    variants = [
        fill_texts(task, text, pieces, where=location, top_k=top_k) for location, text in texts
    ]
    items = [*chain.from_iterable(variants)]
    job.check_count("inputs", len(items))
    predictions = iter(await _compute_masked(job, items))
    return [join_predictions(own, predictions) for own in variants]


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
    return [
        prediction["next_sentence_probability"] for prediction in await _compute_masked(job, items)
    ]


async def _compute_masked(job: Job, items: Sequence[MaskedText]) -> list[Prediction]:
    runner = job.loaded_model.get_task_runner(MaskedRunner)
    texts = [item.text if item.pair is None else f"{item.text} {item.pair}" for item in items]
    return await job.compute(runner, items, texts, limit=runner.task.max_length)


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

"""Routes of BERT's tasks: masks, labels, tags, answers, next sentences, generation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from ..inference.settings import GenerationSettings
from ..tasks.answering.task import AnsweringTask
from ..text.tokenizer import Tokenizer
from .failures import invalid
from .job import job_of, placed, reply, text_of_row
from .runners import AnswerRunner, Masked, MaskedRunner, TaskRunner
from .schemas import (
    AnswerRequest,
    ClassifyRequest,
    FilledMasks,
    FillMaskRequest,
    Generated,
    GenerateRequest,
    NextSentence,
    NextSentenceRequest,
    RowsRequest,
    TagRequest,
)
from .scores import score_texts
from .tei_routes import text_rows

_MOST_CANDIDATES = 1000


router = APIRouter(tags=["BERT"])


@router.post("/fill-mask", responses={200: {"model": list[FilledMasks]}})
async def fill_mask(body: FillMaskRequest, request: Request) -> Response:
    job = await job_of(request, body.model)
    runner = job.served.runner("fill-mask", MaskedRunner)
    texts = job.texts("inputs", body.inputs)
    tokenizer = job.served.model.tokenizer
    mask = tokenizer.id_to_token(tokenizer.mask_id)
    for place, text in texts:
        if mask not in text:
            raise invalid(place, f"there is no {mask} in the text")
    candidates = body.candidates
    pieces = {} if candidates is None else _pieces(tokenizer, candidates)
    items = [
        item for place, text in texts for item in _variants(place, text, mask, body.top_k, pieces)
    ]
    job.service.check_count("inputs", len(items))
    answers = iter(await job.compute(runner, items, limit=runner.task.max_length))
    filled = []
    for _, text in texts:
        answer = next(answers)
        chances = _chances(text.count(mask), pieces, answer["candidates"], answers)
        more = {} if candidates is None else {"candidates": chances}
        filled.append({"masks": answer["masks"], **more})
    return reply(request, filled)


@router.post("/next-sentence", responses={200: {"model": list[NextSentence]}})
async def next_sentence(body: NextSentenceRequest, request: Request) -> Response:
    job = await job_of(request, body.model)
    runner = job.served.runner("next-sentence", MaskedRunner)
    rows = text_rows(job.service, body.inputs)
    for place, row in rows:
        if len(row) != 2:
            raise invalid(place, "two texts, of which the second may follow the first", 422)
    answers = await job.compute(
        runner,
        [Masked(place, *row) for place, row in rows],
        [" ".join(row) for _, row in rows],
        limit=runner.task.max_length,
    )
    name = "next_sentence_probability"
    return reply(request, [{name: answer[name]} for answer in answers])


@router.post("/classify", responses={200: {"model": list[dict[str, Any]]}})
async def classify(body: ClassifyRequest, request: Request) -> Response:
    job = await job_of(request, body.model, "predict")
    given: Any = body.inputs
    if given and isinstance(given, list) and isinstance(given[0], str):
        given = [[text] for text in given]  # here a list of strings is a batch, not a pair
    rows = text_rows(job.service, given)
    found = await score_texts(job, "classify", rows, truncate=body.truncate, windows=body.windows)
    return reply(request, [scored.prediction for scored in found])


@router.post("/tag", responses={200: {"model": list[dict[str, Any]]}})
async def tag(body: TagRequest, request: Request) -> Response:
    job = await job_of(request, body.model, "predict")
    runner = job.served.runner("tag", TaskRunner)
    texts = job.texts("inputs", body.inputs)
    return reply(request, await job.predictions(runner, texts))


@router.post("/answer", responses={200: {"model": list[dict[str, Any]]}})
async def answer(body: AnswerRequest, request: Request) -> Response:
    job = await job_of(request, body.model, "predict")
    runner = job.served.runner("answer", AnswerRunner)
    asked = body.inputs if isinstance(body.inputs, list) else [body.inputs]
    job.service.check_count("inputs", len(asked))
    for at, one in enumerate(asked):
        job.service.check_text(f"inputs[{at}].question", one.question)
        job.service.check_text(f"inputs[{at}].context", one.context)
    task = runner.task
    pairs = placed("inputs", [[one.question, one.context] for one in asked])
    found = await job.predictions(runner, pairs)
    if body.null_threshold is not None:
        changed = task.settings.with_values(null_threshold=body.null_threshold, unanswerable=True)
        task = AnsweringTask(task.tokenizer, changed)
    predictions = [task.answer(*spans) for spans in found]
    for prediction in predictions:
        prediction["alternatives"] = prediction["alternatives"][: body.n_best]
    return reply(request, predictions)


@router.post("/generate", responses={200: {"model": list[Generated]}})
async def generate(body: GenerateRequest, request: Request) -> Response:
    job = await job_of(request, body.model)
    job.served.check("generate")
    limits = job.service.settings
    if body.max_new_tokens > limits.max_new_tokens:
        raise invalid("max_new_tokens", f"at most {limits.max_new_tokens}")
    values = body.model_dump(exclude={"model", "inputs", "copies"})
    settings = GenerationSettings.parse({**values, "stop_ids": tuple(body.stop_ids)})
    runner = job.served.generate(limits.batch_tokens)
    found = await job.compute(
        runner,
        job.texts("inputs", body.inputs),
        limit=job.served.model.encoder.config.max_seqlen,
        prepare=partial(runner.prepare, settings=settings, seen=Counter(), copies=body.copies),
    )
    return reply(request, [{"generated": text} for text in found])


@router.post("/predict-rows", responses={200: {"model": list[dict[str, Any]]}})
async def predict_rows(body: RowsRequest, request: Request) -> Response:
    job = await job_of(request, body.model, "predict")
    runner = job.served.runner("predict-rows", TaskRunner)
    job.service.check_count("rows", len(body.rows))
    rows = placed("rows", body.rows)
    for place, row in rows:
        if isinstance(row, list) and not 1 <= len(row) <= 2:
            raise invalid(place, f"one text or two, not {len(row)}", 422)
        if text := text_of_row(row if isinstance(row, dict) else {"text": row}):
            job.service.check_text(place, text)
    found = await job.predictions(runner, rows)
    return reply(request, [getattr(answer, "prediction", answer) for answer in found])


def _pieces(tokenizer: Tokenizer, candidates: Sequence[str]) -> dict[str, list[int]]:
    """Return the piece ids of each candidate.

    Raises:
        RequestError: there are no candidates or too many, or one has no pieces in the vocabulary.
    """
    if not 1 <= len(candidates) <= _MOST_CANDIDATES:
        raise invalid("candidates", f"from 1 to {_MOST_CANDIDATES} words")
    found = {}
    places = [f"candidates[{at}]" for at in range(len(candidates))]
    rows = tokenizer.piece_ids(candidates, where=places)
    for at, (word, ids) in enumerate(zip(candidates, rows, strict=True)):
        if not len(ids) or (tokenizer.has("unk") and tokenizer.unk_id in ids):
            raise invalid(places[at], "the vocabulary has no pieces for it")
        found[word] = ids.tolist()
    return found


def _variants(
    place: str, text: str, mask: str, top_k: int, pieces: dict[str, list[int]]
) -> list[Masked]:
    """Return the text, and its variants for candidates of several pieces.

    A candidate of n pieces needs a variant with n masks in the place of the mask that it fills.
    The text comes first, then for each mask a variant per length of candidates, shortest first.
    """
    count = text.count(mask)
    singles = [ids for ids in pieces.values() if len(ids) == 1]
    scored = [(at, ids) for at in range(count) for ids in singles]
    found = [Masked(place, text, None, top_k, scored)]
    parts = text.split(mask)
    for at in range(count):
        for length in _lengths(pieces):
            masks = [mask] * count
            masks[at] = mask * length
            joined = "".join(part + more for part, more in zip(parts, [*masks, ""], strict=True))
            scored = [(at, ids) for ids in pieces.values() if len(ids) == length]
            found.append(Masked(place, joined, None, 1, scored))
    return found


def _lengths(pieces: dict[str, list[int]]) -> list[int]:
    """Return the numbers of pieces that candidates have, without 1, in ascending order."""
    return sorted({len(ids) for ids in pieces.values()} - {1})


def _chances(
    masks: int, pieces: dict[str, list[int]], singles: Sequence[float], answers: Any
) -> list[list[dict[str, Any]]]:
    """Return each mask's candidates with their probabilities, most likely first."""
    words = [word for word, ids in pieces.items() if len(ids) == 1]
    found = []
    for at in range(masks):
        scores = dict(zip(words, singles[at * len(words) : (at + 1) * len(words)], strict=True))
        for length in _lengths(pieces):
            long = [word for word, ids in pieces.items() if len(ids) == length]
            scores |= dict(zip(long, next(answers)["candidates"], strict=True))
        ordered = sorted(scores.items(), key=lambda one: -one[1])
        found.append([{"candidate": word, "probability": chance} for word, chance in ordered])
    return found

"""Routes of BERT's tasks: masks, labels, tags, answers, next sentences, generation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Annotated, Any

from fastapi import Request, Response
from pydantic import BaseModel, Field

from ...errors import DataError
from ...inference.settings import GenerationSettings
from ...tasks.answering.task import AnsweringTask
from ...tasks.pretraining.candidates import encode_candidates, make_variants, rank
from ...text.tokenizer import Tokenizer
from ..job import join_texts, locate_texts, open_job, read_rows
from ..request_error import invalid_field_error
from ..responses import reply
from ..runners import AnswerRunner, MaskedRunner, MaskedText, TaskRunner
from ..scores import score_texts
from .base import Ids, ProtocolRouter, StrictRequest, TopK, Truncate


class FillMaskRequest(StrictRequest):
    """The most likely pieces for each mask of texts, and the probabilities of any candidates."""

    inputs: str | list[str]
    top_k: TopK = 5
    candidates: list[str] | None = Field(
        None, description="Words to score; a word of n pieces takes n masks."
    )


class Piece(BaseModel):
    token: str
    id: int
    probability: float


class CandidateProbability(BaseModel):
    candidate: str
    probability: float


class FilledMasks(BaseModel):
    masks: list[list[Piece]]
    candidates: list[list[CandidateProbability]] | None = None


class ClassifyRequest(StrictRequest):
    """The label and probabilities, or the regression value, of each text or pair of texts."""

    inputs: str | list[str] | list[list[str]] = Field(
        description="A text, texts, or pairs of texts."
    )
    truncate: bool | None = Truncate
    windows: bool = Field(False, description="Read long texts in windows, and pool their logits.")


class TagRequest(StrictRequest):
    """The tags of the words of texts, and the entities that they mark."""

    inputs: str | list[str]


class Question(StrictRequest):
    model: None = Field(None, exclude=True)
    question: str
    context: str


class AnswerRequest(StrictRequest):
    """The spans of passages that answer questions."""

    inputs: Question | list[Question]
    n_best: Annotated[int, Field(ge=1, le=100)] = 5
    null_threshold: float | None = Field(
        None,
        description="No answer is predicted if it scores better by more than this.",
    )


class NextSentenceRequest(StrictRequest):
    """The probability that the second text of each pair follows the first."""

    inputs: list[str] | list[list[str]] = Field(description="A pair of texts, or pairs.")


class NextSentence(BaseModel):
    next_sentence_probability: float


class GenerateRequest(StrictRequest):
    """Continuations of prompts by a causal model."""

    inputs: str | list[str]
    max_new_tokens: Annotated[int, Field(ge=1)] = 40
    temperature: Annotated[float, Field(ge=0)] = 0.0
    top_k: TopK | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    stop_ids: Ids = Field([], max_length=64)
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
    copies: dict[str, Annotated[int, Field(ge=0, le=2**31 - 1)]] = Field(
        {},
        description="How often a prompt was in earlier requests for the same seed; "
        "each copy has different random draws.",
    )


class GeneratedText(BaseModel):
    generated_text: str


class RowsRequest(StrictRequest):
    """Predictions for rows of any task, including tasks that users define."""

    rows: list[str | list[str] | dict[str, Any]] = Field(
        description="A row's columns are those of the task; or a text, or a pair of texts."
    )


_MAX_CANDIDATES = 1000

router = ProtocolRouter("BERT", errors="tei")


@router.post("/fill-mask", responses={200: {"model": list[FilledMasks]}})
async def fill_mask(body: FillMaskRequest, request: Request) -> Response:
    job = await open_job(request, body.model)
    runner = job.loaded_model.get_task_runner("fill-mask", MaskedRunner)
    texts = job.read_texts("inputs", body.inputs)
    tokenizer = job.loaded_model.model.tokenizer
    mask = tokenizer.id_to_token(tokenizer.mask_id)
    for location, text in texts:
        if mask not in text:
            raise invalid_field_error(location, f"there is no {mask} in the text")
    candidates = body.candidates
    pieces = {} if candidates is None else _tokenize_candidates(tokenizer, candidates)
    items = [
        MaskedText(location, variant.text, None, body.top_k, variant.scored_pieces)
        for location, text in texts
        for variant in make_variants(text, mask, pieces)
    ]
    job.service.check_count("inputs", len(items))
    answers = iter(await job.compute(runner, items, limit=runner.task.max_length))
    results = []
    for _, text in texts:
        answer = next(answers)
        scores = chain([answer["candidates"]], (other["candidates"] for other in answers))
        ranked = rank(text.count(mask), pieces, scores)
        more = {} if candidates is None else {"candidates": ranked}
        results.append({"masks": answer["masks"], **more})
    return reply(request, results)


@router.post("/next-sentence", responses={200: {"model": list[NextSentence]}})
async def next_sentence(body: NextSentenceRequest, request: Request) -> Response:
    job = await open_job(request, body.model)
    runner = job.loaded_model.get_task_runner("next-sentence", MaskedRunner)
    rows = read_rows(job.service, body.inputs)
    for location, row in rows:
        if len(row) != 2:
            raise invalid_field_error(
                location, "two texts, of which the second may follow the first", 422
            )
    answers = await job.compute(
        runner,
        [MaskedText(location, *row) for location, row in rows],
        [" ".join(row) for _, row in rows],
        limit=runner.task.max_length,
    )
    name = "next_sentence_probability"
    return reply(request, [{name: answer[name]} for answer in answers])


@router.post("/classify", responses={200: {"model": list[dict[str, Any]]}})
async def classify(body: ClassifyRequest, request: Request) -> Response:
    job = await open_job(request, body.model, "predict")
    inputs: Any = body.inputs
    if inputs and isinstance(inputs, list) and isinstance(inputs[0], str):
        inputs = [[text] for text in inputs]  # here a list of strings is a batch, not a pair
    rows = read_rows(job.service, inputs)
    predictions = await score_texts(
        job, "classify", rows, truncate=body.truncate, windows=body.windows
    )
    return reply(request, [prediction.prediction for prediction in predictions])


@router.post("/tag", responses={200: {"model": list[dict[str, Any]]}})
async def tag(body: TagRequest, request: Request) -> Response:
    job = await open_job(request, body.model, "predict")
    runner = job.loaded_model.get_task_runner("tag", TaskRunner)
    texts = job.read_texts("inputs", body.inputs)
    return reply(request, await job.predict(runner, texts))


@router.post("/answer", responses={200: {"model": list[dict[str, Any]]}})
async def answer(body: AnswerRequest, request: Request) -> Response:
    job = await open_job(request, body.model, "predict")
    runner = job.loaded_model.get_task_runner("answer", AnswerRunner)
    questions = body.inputs if isinstance(body.inputs, list) else [body.inputs]
    job.service.check_count("inputs", len(questions))
    for index, item in enumerate(questions):
        job.service.check_text(f"inputs[{index}].question", item.question)
        job.service.check_text(f"inputs[{index}].context", item.context)
    task = runner.task
    pairs = locate_texts("inputs", [[item.question, item.context] for item in questions])
    spans_of_rows = await job.predict(runner, pairs)
    if body.null_threshold is not None:
        settings = task.settings.with_values(null_threshold=body.null_threshold, unanswerable=True)
        task = AnsweringTask(task.tokenizer, settings)
    predictions = [task.answer(*spans) for spans in spans_of_rows]
    for prediction in predictions:
        prediction["alternatives"] = prediction["alternatives"][: body.n_best]
    return reply(request, predictions)


@router.post("/generate", responses={200: {"model": list[GeneratedText]}})
async def generate(body: GenerateRequest, request: Request) -> Response:
    job = await open_job(request, body.model)
    job.loaded_model.check_capability("generate")
    limits = job.service.settings
    if body.max_new_tokens > limits.max_new_tokens:
        raise invalid_field_error("max_new_tokens", f"at most {limits.max_new_tokens}")
    values = body.model_dump(exclude={"model", "inputs", "copies"})
    settings = GenerationSettings.parse({**values, "stop_ids": tuple(body.stop_ids)})
    runner = job.loaded_model.get_generation_runner(limits.batch_tokens)
    continuations = await job.compute(
        runner,
        job.read_texts("inputs", body.inputs),
        limit=job.loaded_model.model.encoder.config.max_seqlen,
        prepare=partial(runner.prepare, settings=settings, counts=Counter(), copies=body.copies),
    )
    return reply(request, [{"generated_text": text} for text in continuations])


@router.post("/predict-rows", responses={200: {"model": list[dict[str, Any]]}})
async def predict_rows(body: RowsRequest, request: Request) -> Response:
    job = await open_job(request, body.model, "predict")
    runner = job.loaded_model.get_task_runner("predict-rows", TaskRunner)
    job.service.check_count("rows", len(body.rows))
    rows = locate_texts("rows", body.rows)
    for location, row in rows:
        if isinstance(row, list) and not 1 <= len(row) <= 2:
            raise invalid_field_error(location, f"one text or two, not {len(row)}", 422)
        if text := join_texts(row if isinstance(row, dict) else {"text": row}):
            job.service.check_text(location, text)
    predictions = await job.predict(runner, rows)
    return reply(request, [getattr(each, "prediction", each) for each in predictions])


def _tokenize_candidates(tokenizer: Tokenizer, candidates: Sequence[str]) -> dict[str, list[int]]:
    """Return the piece ids of each candidate.

    Raises:
        RequestError: there are no candidates or too many, or one has no pieces in the vocabulary.
    """
    if not 1 <= len(candidates) <= _MAX_CANDIDATES:
        raise invalid_field_error("candidates", f"from 1 to {_MAX_CANDIDATES} words")
    try:
        return encode_candidates(tokenizer, candidates)
    except DataError as error:
        raise invalid_field_error(error.where or "candidates", error.what) from None

"""Routes of BERT's tasks: masks, labels, tags, answers, next sentences, generation."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, Field

from ...inference.settings import GenerationSettings
from ..job import Job, check_row, join_texts, locate_texts
from ..pretraining_operations import fill_mask, generate, next_sentence
from ..request_error import invalid_field_error
from ..task_operations import answer, answer_from_corpus, predict, score
from .base import Dialect, Fields, Ids, Request, TopK, Truncate

_ROWS = list[dict[str, Any]]


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


class NextSentence(BaseModel):
    next_sentence_probability: float


class GeneratedText(BaseModel):
    generated_text: str


dialect = Dialect("BERT", errors="tei")


@dialect.request(
    "/fill-mask",
    answer=list[FilledMasks],
    example={"inputs": "The door was {mask}.", "top_k": 3},
)
class FillMaskRequest(Request):
    """The most likely pieces for each mask of texts, and the probabilities of any candidates."""

    capability: ClassVar = "fill-mask"

    inputs: str | list[str]
    top_k: TopK = 5
    candidates: list[str] | None = Field(
        None, description="Words to score; a word of n pieces takes n masks."
    )

    def decode(self, job: Job) -> Awaitable[Any]:
        texts = job.read_texts("inputs", self.inputs)
        return fill_mask(job, texts, top_k=self.top_k, candidates=self.candidates)

    async def encode(self, results: Any, job: Job) -> Any:  # noqa: ARG002
        has_candidates = self.candidates is not None
        return results if has_candidates else [{"masks": each["masks"]} for each in results]


@dialect.request(
    "/next-sentence",
    answer=list[NextSentence],
    example={"inputs": [["She opened the door.", "It was cold outside."]]},
)
class NextSentenceRequest(Request):
    """The probability that the second text of each pair follows the first."""

    capability: ClassVar = "next-sentence"

    inputs: list[str] | list[list[str]] = Field(description="A pair of texts, or pairs.")

    def decode(self, job: Job) -> Awaitable[Any]:
        rows = job.read_rows(self.inputs)
        for location, row in rows:
            if len(row) != 2:
                raise invalid_field_error(
                    location, "two texts, of which the second may follow the first", 422
                )
        return next_sentence(job, rows)

    async def encode(self, results: Any, job: Job) -> Any:  # noqa: ARG002
        return [{"next_sentence_probability": probability} for probability in results]


@dialect.request("/classify", answer=_ROWS, example={"inputs": ["A fine film.", "A dull one."]})
class ClassifyRequest(Request):
    """The label and probabilities, or the regression value, of each text or pair of texts."""

    operation: ClassVar = "predict"
    capability: ClassVar = "classify"

    inputs: str | list[str] | list[list[str]] = Field(
        description="A text, texts, or pairs of texts."
    )
    truncate: bool | None = Truncate
    windows: bool = Field(False, description="Read long texts in windows, and pool their logits.")
    coverage: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Also return a set of labels, which has the right one with this probability.",
    )

    def decode(self, job: Job) -> Awaitable[Any]:
        inputs: Any = self.inputs
        if inputs and isinstance(inputs, list) and isinstance(inputs[0], str):
            inputs = [[text] for text in inputs]  # here a list of strings is a batch, not a pair
        rows = job.read_rows(inputs)
        return score(
            job, rows, truncate=self.truncate, windows=self.windows, coverage=self.coverage
        )

    async def encode(self, results: Any, job: Job) -> Any:  # noqa: ARG002
        return [prediction.prediction for prediction in results]


@dialect.request("/tag", answer=_ROWS, example={"inputs": ["Ada Lovelace was born in London."]})
class TagRequest(Request):
    """The tags of the words of texts, and the entities that they mark."""

    operation: ClassVar = "predict"
    capability: ClassVar = "tag"

    inputs: str | list[str]

    def decode(self, job: Job) -> Awaitable[Any]:
        return predict(job, job.read_texts("inputs", self.inputs))


class Question(Fields):
    question: str
    context: str | None = Field(None, description="The passage; the server's corpus if omitted.")


@dialect.request(
    "/answer",
    answer=_ROWS,
    example={
        "inputs": {
            "question": "Where was she born?",
            "context": "Ada Lovelace was born in London.",
        }
    },
)
class AnswerRequest(Request):
    """The spans of passages, or of the server's corpus, that answer questions."""

    operation: ClassVar = "predict"
    capability: ClassVar = "answer"

    inputs: Question | list[Question]
    n_best: Annotated[int, Field(ge=1, le=100)] = Field(
        5,
        description="The most answers of a question; a model has at most its own n_best (20) for "
        "a passage.",
    )
    null_threshold: float | None = Field(
        None,
        description="No answer is predicted if it scores better by more than this.",
    )
    passages: Annotated[int, Field(ge=1, le=100)] | None = Field(
        None, description="Passages of the corpus that are read for a question; 5 if omitted."
    )

    @property
    def questions(self) -> list[Question]:
        return self.inputs if isinstance(self.inputs, list) else [self.inputs]

    @property
    def is_from_corpus(self) -> bool:
        """Whether the questions have no passages."""
        return self.questions[0].context is None

    def decode(self, job: Job) -> Awaitable[Any]:
        questions = self.questions
        job.check_count("inputs", len(questions))
        for index, item in enumerate(questions):
            job.check_text(f"inputs[{index}].question", item.question)
            if (item.context is None) != self.is_from_corpus:
                raise invalid_field_error(
                    f"inputs[{index}].context", "give it for each question, or for none", 422
                )
            if item.context is not None:
                job.check_text(f"inputs[{index}].context", item.context)
        if self.is_from_corpus:
            if self.null_threshold is not None:
                raise invalid_field_error("null_threshold", "is for questions with a context", 422)
            texts = locate_texts("inputs", [item.question for item in questions])
            return answer_from_corpus(job, texts, passages=self.passages or 5, top_k=self.n_best)
        if self.passages is not None:
            raise invalid_field_error("passages", "is for questions without a context", 422)
        pairs = locate_texts("inputs", [[item.question, item.context] for item in questions])
        return answer(job, pairs, null_threshold=self.null_threshold)

    async def encode(self, results: Any, job: Job) -> Any:  # noqa: ARG002
        if self.is_from_corpus:
            answers_of_questions = [[one._asdict() for one in answers] for answers in results]
            return [
                {**(answers[0] if answers else {"answer": ""}), "alternatives": answers}
                for answers in answers_of_questions
            ]
        return [
            {**prediction, "alternatives": prediction["alternatives"][: self.n_best]}
            for prediction in results
        ]


@dialect.request(
    "/generate",
    answer=list[GeneratedText],
    example={"inputs": "once upon a time", "max_new_tokens": 8},
)
class GenerateRequest(Request):
    """Continuations of prompts by a causal model."""

    capability: ClassVar = "generate"

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

    def decode(self, job: Job) -> Awaitable[Any]:
        values = self.model_dump(include=set(GenerationSettings.model_fields))
        settings = GenerationSettings.parse({**values, "stop_ids": tuple(self.stop_ids)})
        return generate(job, job.read_texts("inputs", self.inputs), settings, self.copies)

    async def encode(self, results: Any, job: Job) -> Any:  # noqa: ARG002
        return [{"generated_text": text} for text in results]


@dialect.request("/predict-rows", answer=_ROWS, example={"rows": [{"text": "A fine film."}]})
class RowsRequest(Request):
    """Predictions for rows of any task, including tasks that users define."""

    operation: ClassVar = "predict"
    capability: ClassVar = "predict-rows"

    rows: list[str | list[str] | dict[str, Any]] = Field(
        description="A row's columns are those of the task; or a text, or a pair of texts."
    )

    def decode(self, job: Job) -> Awaitable[Any]:
        job.check_count("rows", len(self.rows))
        rows = locate_texts("rows", self.rows)
        for location, row in rows:
            if isinstance(row, list):
                check_row(location, row)
            if text := join_texts(row if isinstance(row, dict) else {"text": row}):
                job.check_text(location, text)
        return predict(job, rows)

    async def encode(self, results: Any, job: Job) -> Any:  # noqa: ARG002
        return [getattr(each, "prediction", each) for each in results]

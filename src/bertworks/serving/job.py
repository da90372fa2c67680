"""A request to a model: the verbs of `Model`, computed in the queue; the response.

a dialect's request ─ decode ─► Job.embed, predict, … ─ queue ─► results ─ encode ─► response
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Literal

import numpy as np
import orjson
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from ..data.rows import Row
from ..errors import DataError
from ..inference.late_interaction import LateInteractionEmbedder
from ..inference.pretraining_heads import MaskedText, fill_texts, get_mask, join_predictions
from ..inference.settings import GenerationSettings
from ..inference.similarity import max_similarities, of_unit_length, similarities
from ..inference.sparse import SparseEmbedder
from ..inference.text_embedding import TextEmbedder
from ..tasks.answering.task import AnsweringTask
from ..tasks.inputs import open_inputs
from ..tasks.pretraining.candidates import encode_candidates
from ..tasks.task import Prediction, Task
from ..tasks.texts import TextTask
from .metrics import RequestContext, get_context
from .models import LoadedModel, VectorForm, WrongModelError
from .queue import DeadlineError, Runner
from .request_error import invalid_field_error
from .runners import (
    AnswerRunner,
    EmbedRunner,
    MaskedRunner,
    ScoredPrediction,
    TaskRow,
    TaskRunner,
    Text,
    TokenStatesRunner,
)
from .service import Service

_TOKEN_IDS_REFUSED = (
    "token ids are refused, because most clients use another model's tokenizer (in LangChain, "
    "check_embedding_ctx_length=False sends texts); start the server with token_ids=true"
)
_MAX_CANDIDATES = 1000


class Job:
    """A request to a model: the service, the request's context, and the model.

    Its verbs raise `BertworksError` as those of `Model` do, and if the queue is full or the
    deadline passed; and `RequestError` if a field of the request is not valid.
    """

    def __init__(
        self, service: Service, context: RequestContext, loaded_model: LoadedModel
    ) -> None:
        self.service, self.context, self.loaded_model = service, context, loaded_model
        self.model, self.limits = loaded_model.model, service.settings

    # --- inputs

    def check_count(self, field: str, count: int) -> None:
        """Refuse a count of zero, or one that is too large."""
        limit = self.limits.max_texts
        if not count:
            raise invalid_field_error(field, "give at least one text", kind="Empty")
        if count > limit:
            raise invalid_field_error(field, f"{count:,} texts, but at most {limit:,}", 413)

    def check_text(self, field: str, text: Sequence[object]) -> None:
        """Refuse a text, or its token ids, that is empty or too long."""
        limit = self.limits.max_characters
        if not text:
            raise invalid_field_error(field, "must not be empty", kind="Empty")
        if len(text) > limit:
            raise invalid_field_error(
                field, f"{len(text):,} characters, but at most {limit:,}", 413
            )

    def check_texts(self, field: str, texts: Sequence[Sequence[object]]) -> None:
        """Refuse an empty list, too many texts, and texts that are empty or too long."""
        self.check_count(field, len(texts))
        for index, text in enumerate(texts):
            self.check_text(f"{field}[{index}]", text)

    def read_texts(
        self, field: str, inputs: str | list[str] | list[int] | list[list[int]]
    ) -> list[Text]:
        """Check texts (or token ids, if the server accepts them); return them with their fields.

        Raises:
            RequestError: there are no texts or too many, one is empty or too long, or token ids are
                not accepted.
        """
        is_single = isinstance(inputs, str) or (bool(inputs) and isinstance(inputs[0], int))
        values: Sequence[Any] = [inputs] if is_single else inputs
        if values and isinstance(values[0], list) and not self.limits.token_ids:
            raise invalid_field_error(field, _TOKEN_IDS_REFUSED)
        if is_single:
            self.check_text(field, values[0])
            return [Text(field, values[0])]
        self.check_texts(field, values)
        return locate_texts(field, values)

    def read_rows(self, inputs: str | list[str] | list[list[str]]) -> list[Text]:
        """Check rows of one or two texts; return them with their fields (`inputs` for one row)."""
        is_single = isinstance(inputs, str) or (bool(inputs) and isinstance(inputs[0], str))
        if is_single and len(inputs) == 1 and isinstance(inputs, list):
            raise invalid_field_error(
                "inputs", "a list of strings is a pair; a batch is a list of lists", 422
            )
        if is_single:
            rows = [Text("inputs", [inputs] if isinstance(inputs, str) else inputs)]
        else:
            rows = locate_texts("inputs", inputs)
        for location, row in rows:
            check_row(location, row)
            self.check_texts(location, row)
        self.check_count("inputs", len(rows))
        return rows

    # --- the queue

    async def compute(
        self,
        runner: Runner,
        items: Sequence[Any],
        texts: Sequence[str | Sequence[Any]] | None = None,
        *,
        limit: int | None,
        prepare: Callable[[Sequence[Any]], Sequence[Any]] | None = None,
    ) -> list[Any]:
        """Compute rows in the queue; return their results in order.

        Args:
            items: the rows, in the runner's format.
            texts: the part of each row that is tokenised: a text, words, or token ids; the item's
                `text` if omitted.
            limit: maximum tokens of a row; None if rows are split into any number of windows.
            prepare: tokenises the rows; `runner.prepare` if omitted.

        Raises:
            BertworksError: a row cannot be computed (the first such row's error), the queue is
                full, or the deadline passed.
        """
        context = self.context
        if texts is None:
            texts = [item.text for item in items]
        context.rows += len(items)
        context.characters += sum(map(len, texts))
        start_time = time.monotonic()
        ticket = self.service.queue.submit(
            runner,
            items,
            [_estimate_max_tokens(text) for text in texts],
            limit=limit,
            client=context.client,
            prepare=prepare,
            deadline=context.deadline,
        )
        timeout = None if context.deadline is None else context.deadline - time.monotonic()
        try:
            results = await asyncio.wait_for(asyncio.wrap_future(ticket.future), timeout)
            await self.service.response_turns.wait_turn()
            return results
        except TimeoutError:
            raise DeadlineError("the deadline passed before the request was computed") from None
        finally:
            context.tokens += ticket.tokens
            context.tokenising_seconds += ticket.preparing_seconds
            context.computing_seconds += ticket.running_seconds
            working_seconds = ticket.preparing_seconds + ticket.running_seconds
            waiting_seconds = time.monotonic() - start_time - working_seconds
            context.queueing_seconds += max(0.0, waiting_seconds)

    # --- vectors

    async def embed(
        self,
        items: Sequence[Text],
        *,
        form: VectorForm = "vectors",
        normalize: bool | None = None,
        truncate: bool | None = None,
        side: Literal["left", "right"] = "right",
        dimensions: int | None = None,
        prompt_name: str | None = None,
        is_query: bool = False,
        **settings: Any,
    ) -> list[Any]:
        """Compute the vectors of texts; shorten and then normalize them if requested.

        Args:
            items: texts, token ids, or lists of words.
            form: a vector, a sparse one (a CSR matrix of one row), or the matrix of late
                interaction for each text; or a vector for each token.
            normalize: scale vectors to length 1; as in the model's files if omitted; ignored for
                vectors of tokens.
            truncate: truncate texts that are too long; otherwise they are an error.
            side: the side at which texts are truncated: "left" or "right".
            dimensions: the length to which vectors are shortened; only for vectors of texts.
            prompt_name: name of the prompt to put before texts; if omitted, the one that `Model`
                puts there.
            is_query: whether texts are queries; see `EmbedSettings`.
            settings: others of `LoadedModel.get_embed_runner`.

        Raises:
            RequestError: vectors may not be shortened so, or the model has no such prompt.
            WrongModelError: the model makes vectors of another form.
        """
        loaded_model = self.loaded_model
        if is_query or loaded_model.is_for_queries(prompt_name):
            settings["is_query"] = True
        kind = TokenStatesRunner if form == "tokens" else EmbedRunner
        normalize = loaded_model.normalizes if normalize is None else normalize
        embedder = loaded_model.get_embed_runner(kind, **settings).embedder
        self._check_form(form, embedder)
        self._check_dimensions(embedder.width, dimensions)
        is_shortened = dimensions not in (None, embedder.width)
        runner = loaded_model.get_embed_runner(
            kind, normalize=normalize and not is_shortened, **settings
        )
        if prompt_name is not None:
            prompt = self.get_prompt(prompt_name)
        elif self.limits.default_prompt or is_query:
            prompt = embedder.prompt
        else:
            prompt = ""
        texts = [prompt + item.text for item in items if isinstance(item.text, str)]
        vectors = await self.compute(
            runner,
            items,
            texts or None,
            limit=embedder.limit,
            prepare=partial(
                runner.prepare,
                truncation=self.context.truncation,
                side=side if truncate else None,
                prompt=prompt,
            ),
        )
        if is_shortened:
            matrix = np.ascontiguousarray(np.stack(vectors)[:, :dimensions])
            vectors = list(of_unit_length(matrix) if normalize else matrix)
        return vectors

    def get_prompt(self, name: str) -> str:
        """Return a prompt to put before texts; refuse a name that the model does not have."""
        prompts = self.loaded_model.prompts.texts
        if name not in prompts:
            known = ", ".join(prompts) or "none"
            raise invalid_field_error(
                "prompt_name", f"the model has no such prompt; it has: {known}"
            )
        return prompts[name]

    def _check_form(self, form: str, embedder: TextEmbedder) -> None:
        """Refuse vectors of a form that the model does not make."""
        name = self.loaded_model.name
        is_sparse = isinstance(embedder, SparseEmbedder)
        if form == "vectors" and is_sparse:
            raise WrongModelError(
                f"the model {name!r} makes sparse vectors", fix="Use /embed_sparse."
            )
        if form == "vectors" and isinstance(embedder, LateInteractionEmbedder):
            raise WrongModelError(
                f"the model {name!r} makes a matrix for each text", fix="Use /rerank."
            )
        if form == "sparse" and not is_sparse:
            raise WrongModelError(
                f"the model {name!r} makes no sparse vectors (it has no SPLADE pooling)",
                fix="Use /embed.",
            )

    def _check_dimensions(self, width: int, dimensions: int | None) -> None:
        """Refuse a length to which vectors may not be shortened."""
        if dimensions is None:
            return
        if not 1 <= dimensions <= width:
            raise invalid_field_error("dimensions", f"must be from 1 to {width}")
        prompts = self.loaded_model.prompts
        is_any = self.limits.any_dimensions or prompts.any_dimensions
        if dimensions != width and not is_any and dimensions not in prompts.dimensions:
            which = ", ".join(map(str, sorted(prompts.dimensions)))
            raise invalid_field_error(
                "dimensions",
                f"the model's vectors may be shortened to {which}"
                if which
                else "the model was not trained for shorter vectors (Matryoshka); "
                "the server's --any-dimensions allows them",
            )

    async def similarity(
        self, text: Text, others: Sequence[Text], **options: Any
    ) -> NDArray[np.float32]:
        """Compute the similarity of a text with each of the others: float32 `[1, others]`.

        Args:
            options: of `embed`. With `prompt_name`, all texts have this prompt; otherwise the first
                is a query, as in `Model.similarity`.
        """
        model, form = self.model, self.loaded_model.form
        if model.compares_queries and options.get("prompt_name") is None:
            queries = await self.embed([text], form=form, is_query=True, **options)
            vectors = queries + await self.embed(others, form=form, **options)
        else:
            vectors = await self.embed([text, *others], form=form, **options)
        if form == "matrices":
            return max_similarities(vectors[:1], vectors[1:])
        matrix = self.loaded_model.get_embed_runner().embedder.concatenate(
            [vector.reshape(1, -1) for vector in vectors]
        )
        return similarities(matrix[:1], matrix[1:], model.similarity_function)

    # --- tasks

    async def predict(
        self,
        inputs: Sequence[Text],
        *,
        kind: type[TaskRunner] = TaskRunner,
        adapt: Callable[[Task[Any]], Task[Any]] | None = None,
        limit: int | None = None,
    ) -> list[Any]:
        """Compute the task's predictions, from the rows that `Model.predict` reads too.

        Args:
            inputs: at least one; the text of each is a text, a list of one or two, or a row.
            adapt: returns the task with other settings for this request.
            limit: as in `compute`.
        """
        runner = self.loaded_model.get_task_runner(kind)
        name = inputs[0].where.partition("[")[0]
        task, rows = open_inputs(
            runner.task,
            [item.text for item in inputs],
            name=name,
            place=lambda index: inputs[index].where,
        )
        if isinstance(task, TextTask):
            columns = (task.settings.text_column, task.settings.pair_column)
            self.context.columns = [name for name in columns if name]
        if adapt is not None:
            task = adapt(task)
        texts, items = [], []
        for row, values in task.add_context(rows):
            texts.append(join_texts(row.values))
            items.append(TaskRow(row.where, values))
        prepare = partial(runner.prepare, task=task, truncation=self.context.truncation)
        return await self.compute(runner, items, texts, limit=limit, prepare=prepare)

    async def score(
        self, rows: Sequence[Text], *, truncate: bool | None, windows: bool = False
    ) -> list[ScoredPrediction]:
        """Predict rows of one or two texts with a task on texts.

        Long rows are truncated with `truncate`, split into windows with `windows` (or if the task
        does so), and otherwise an error.
        """
        task = self.loaded_model.task
        assert isinstance(task, TextTask)
        settings = task.settings
        truncation = "windows" if windows or settings.truncation == "windows" else "error"
        if truncate and not windows:
            is_of_one = settings.truncation in ("first", "second")
            truncation = settings.truncation if is_of_one else "longest_first"
        if truncation == "windows" and settings.both_orders:
            raise invalid_field_error(
                "windows", "the model reads pairs in both orders, which windows exclude"
            )
        stride = settings.stride if truncation == "windows" else None

        def truncate_rows(task: Task[Any]) -> Task[Any]:
            assert isinstance(task, TextTask)
            pooling = settings.window_pooling if truncation == "windows" else "mean"
            values = task.settings.with_values(
                truncation=truncation, stride=stride, window_pooling=pooling
            )
            return type(task)(task.tokenizer, values)

        limit = None if truncation == "windows" else settings.max_seq_length
        return await self.predict(rows, adapt=truncate_rows, limit=limit)

    async def rerank(
        self, query: str, texts: Sequence[str], *, field: str, truncate: bool | None, raw: bool
    ) -> list[tuple[int, float]]:
        """Return each text's index and score for a query, best first: see `output_scores`.

        In late interaction, a long query is cut to its fixed length, as in training.
        """
        self.check_texts(field, texts)
        self.check_text("query", query)
        documents = locate_texts(field, texts)
        if self.loaded_model.form == "matrices":
            late: dict[str, Any] = {"form": "matrices"}
            queries = await self.embed([Text("query", query)], is_query=True, truncate=True, **late)
            matrices = await self.embed(documents, truncate=truncate, **late)
            scores = max_similarities(queries, matrices)[0]
            order = np.argsort(-scores, kind="stable").tolist()
            return [(index, float(scores[index])) for index in order]
        self.loaded_model.check_capability("rerank")
        rows = [row._replace(text=(query, row.text)) for row in documents]
        predictions = await self.score(rows, truncate=truncate)
        order = np.argsort([-each.logits[0] for each in predictions], kind="stable").tolist()
        return [(index, output_scores(predictions[index], raw=raw)[0]) for index in order]

    async def answer(
        self, pairs: Sequence[Text], *, null_threshold: float | None
    ) -> list[Prediction]:
        """Answer questions from passages; `null_threshold` as in `AnswerRequest`."""
        spans_of_rows = await self.predict(pairs, kind=AnswerRunner)
        task = self.loaded_model.task
        assert isinstance(task, AnsweringTask)
        if null_threshold is not None:
            settings = task.settings.with_values(null_threshold=null_threshold, unanswerable=True)
            task = AnsweringTask(task.tokenizer, settings)
        return [task.answer(*spans) for spans in spans_of_rows]

    # --- pre-training

    async def fill_mask(
        self, texts: Sequence[Text], *, top_k: int, candidates: Sequence[str] | None
    ) -> list[Prediction]:
        """Predict pieces at the masks of texts, and rank candidates, as `Model.fill_mask`."""
        task = self.loaded_model.get_task_runner(MaskedRunner).task
        mask = get_mask(task)
        for location, text in texts:
            if mask not in text:
                raise invalid_field_error(location, f"there is no {mask} in the text")
        pieces = {} if candidates is None else self._encode_candidates(candidates)
        items = [
            each
            for location, text in texts
            for each in fill_texts(task, text, pieces, where=location, top_k=top_k)
        ]
        self.check_count("inputs", len(items))
        predictions = iter(await self._compute_masked(items))
        return [join_predictions(task, text, pieces, predictions) for _, text in texts]

    def _encode_candidates(self, candidates: Sequence[str]) -> dict[str, list[int]]:
        """Return the piece ids of each candidate; refuse those without, and too many."""
        if not 1 <= len(candidates) <= _MAX_CANDIDATES:
            raise invalid_field_error("candidates", f"from 1 to {_MAX_CANDIDATES} words")
        try:
            return encode_candidates(self.model.tokenizer, candidates)
        except DataError as error:
            raise invalid_field_error(error.where or "candidates", error.what) from None

    async def next_sentence(self, pairs: Sequence[Text]) -> list[float]:
        """Compute the probability that the second text of each pair follows the first."""
        items = [MaskedText(location, *pair) for location, pair in pairs]
        return [
            prediction["next_sentence_probability"]
            for prediction in await self._compute_masked(items)
        ]

    async def _compute_masked(self, items: Sequence[MaskedText]) -> list[Prediction]:
        runner = self.loaded_model.get_task_runner(MaskedRunner)
        texts = [item.text if item.pair is None else f"{item.text} {item.pair}" for item in items]
        return await self.compute(runner, items, texts, limit=runner.task.max_length)

    async def generate(
        self, prompts: Sequence[Text], settings: GenerationSettings, copies: Mapping[str, int]
    ) -> list[str]:
        """Continue prompts; `copies` as in `GenerateRequest`."""
        if settings.max_new_tokens > self.limits.max_new_tokens:
            raise invalid_field_error("max_new_tokens", f"at most {self.limits.max_new_tokens}")
        runner = self.loaded_model.get_generation_runner(self.limits.batch_tokens)
        counts: Counter[Any] = Counter()
        return await self.compute(
            runner,
            prompts,
            limit=self.model.encoder.config.max_seqlen,
            prepare=partial(runner.prepare, settings=settings, counts=counts, copies=copies),
        )

    def reply(self, value: Any) -> Response:
        """Return a value, which may contain arrays, as JSON; see `reply`."""
        return reply(self.context, value)


def get_service(request: Request) -> Service:
    """Return the server's models, queue and limits."""
    service: Service = request.app.state.service
    return service


async def open_job(request: Request, model: str | None, verb: str | None = None) -> Job:
    """Return the job of a request to the model that it names; load the model if necessary.

    Args:
        model: name of a served model; the default model if None.
        verb: the request's name in the metrics.
    """
    service, context = get_service(request), get_context(request)
    loaded_model = service.models.get_loaded(model)
    if loaded_model is None:
        loaded_model = await asyncio.to_thread(service.models.get, model)
    context.model, context.device, context.verb = loaded_model.name, loaded_model.device, verb
    return Job(service, context, loaded_model)


def reply(context: RequestContext, value: Any) -> Response:
    """Return a value, which may contain arrays, as JSON, with headers of times and counts."""
    headers = context.make_headers(time.monotonic())
    body = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, 200, headers, "application/json")


def output_scores(prediction: ScoredPrediction, *, raw: bool) -> list[float]:
    """Return the score of each output: its logit, or what `Model.predict` gives.

    That is its probability, or the value after the activation that the model's files name.
    """
    answer = prediction.prediction
    if raw:
        return [float(logit) for logit in prediction.logits]
    if "probabilities" in answer:
        return list(answer["probabilities"].values())
    return [answer["value"]]


def join_texts(row: Row) -> str:
    """Return all texts and words of a row, joined, to be counted before they are tokenised."""
    parts = (value if isinstance(value, list | tuple) else [value] for value in row.values())
    return " ".join(part for part in chain.from_iterable(parts) if isinstance(part, str))


def check_row(location: str, texts: Sequence[object]) -> None:
    """Refuse a row that is neither a text nor a pair."""
    if not 1 <= len(texts) <= 2:
        raise invalid_field_error(location, f"one text or two, not {len(texts)}", 422)


def locate_texts(field: str, values: Sequence[Any]) -> list[Text]:
    """Return the texts of a list, each with its location, such as `inputs[3]`."""
    return [Text(f"{field}[{index}]", value) for index, value in enumerate(values)]


def _estimate_max_tokens(text: str | Sequence[Any]) -> int:
    """Estimate the most tokens of a text: one per character, three if not ASCII; plus two."""
    if isinstance(text, str):
        return (len(text) if text.isascii() else 3 * len(text)) + 2
    return 2 + sum(_estimate_max_tokens(part) if isinstance(part, str) else 1 for part in text)

"""A request to a model: checks of its texts, computation in the queue, the response."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request

from ..data.rows import Row
from ..inference.late_interaction import LateInteractionEmbedder
from ..inference.similarity import of_unit_length
from ..inference.sparse import SparseEmbedder
from ..tasks.inputs import open_inputs
from ..tasks.task import Task
from ..tasks.texts import TextTask
from .metrics import RequestContext, get_context
from .models import LoadedModel, WrongModelError
from .queue import DeadlineError, Runner
from .request_error import invalid_field_error
from .runners import EmbedRunner, TaskRow, TaskRunner, Text
from .service import Service, get_service

_TOKEN_IDS_REFUSED = (
    "token ids are refused, because most clients use another model's tokenizer (in LangChain, "
    "check_embedding_ctx_length=False sends texts); start the server with token_ids=true"
)


class Job:
    """A request to a model: the service, the request's context, and the model."""

    def __init__(
        self, service: Service, context: RequestContext, loaded_model: LoadedModel
    ) -> None:
        self.service, self.context, self.loaded_model = service, context, loaded_model

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
        if values and isinstance(values[0], list) and not self.service.settings.token_ids:
            raise invalid_field_error(field, _TOKEN_IDS_REFUSED)
        if is_single:
            self.service.check_text(field, values[0])
            return [Text(field, values[0])]
        self.service.check_texts(field, values)
        return locate_texts(field, values)

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

    async def predict(
        self,
        runner: TaskRunner,
        inputs: Sequence[Text],
        *,
        adapt: Callable[[Task[Any]], Task[Any]] | None = None,
        limit: int | None = None,
    ) -> list[Any]:
        """Compute a task's predictions in the queue, from the rows that `Model.predict` reads too.

        Args:
            inputs: at least one; the text of each is a text, a list of one or two, or a row.
            adapt: returns the task with other settings for this request.
            limit: as in `compute`.

        Raises:
            BertworksError: as `compute`.
        """
        name = inputs[0].where.partition("[")[0]
        task, rows = open_inputs(
            runner.task,
            [item.text for item in inputs],
            name=name,
            place=lambda index: inputs[index].where,
        )
        if isinstance(task, TextTask):
            columns = task.settings.columns
            self.context.columns = [name for name in (columns.text, columns.pair) if name]
        if adapt is not None:
            task = adapt(task)
        texts, items = [], []
        for row, values in task.add_context(rows):
            texts.append(join_texts(row.values))
            items.append(TaskRow(row.where, values))
        prepare = partial(runner.prepare, task=task, truncation=self.context.truncation)
        return await self.compute(runner, items, texts, limit=limit, prepare=prepare)

    async def embed(
        self,
        items: Sequence[Text],
        *,
        kind: type[EmbedRunner] = EmbedRunner,
        normalize: bool,
        truncate: bool | None,
        side: str = "right",
        dimensions: int | None = None,
        prompt_name: str | None = None,
        **settings: Any,
    ) -> list[NDArray[np.float32]]:
        """Compute the vectors of texts; shorten and then normalize them if requested.

        Args:
            items: texts, token ids, or lists of words.
            kind: the runner: for vectors of texts, or of tokens.
            normalize: scale vectors to length 1; ignored for vectors of tokens.
            truncate: truncate texts that are too long; otherwise they are an error.
            side: the side at which texts are truncated: "left" or "right", in any letter case.
            dimensions: the length to which vectors are shortened; ignored for vectors of tokens.
            prompt_name: name of the prompt to put before texts; the model's default if omitted.
            settings: those of `LoadedModel.get_embed_runner`.

        Raises:
            RequestError: vectors may not be shortened so, or the model has no such prompt.
            BertworksError: as `compute`.
        """
        if self.loaded_model.is_for_queries(prompt_name):
            settings["is_query"] = True
        embedder = self.loaded_model.get_embed_runner(kind, **settings).embedder
        if kind is EmbedRunner and isinstance(embedder, SparseEmbedder):
            raise WrongModelError(
                f"the model {self.loaded_model.name!r} makes sparse vectors",
                fix="Use /embed_sparse.",
            )
        if kind is EmbedRunner and isinstance(embedder, LateInteractionEmbedder):
            raise WrongModelError(
                f"the model {self.loaded_model.name!r} makes a matrix for each text",
                fix="Use /rerank.",
            )
        width = embedder.width
        self._check_dimensions(width, dimensions)
        is_shortened = dimensions not in (None, width)
        runner = self.loaded_model.get_embed_runner(
            kind, normalize=normalize and not is_shortened, **settings
        )
        if truncate:
            self.context.truncation.side = "left" if side.lower() == "left" else "right"
        if prompt := self.get_prompt(prompt_name):
            items = [
                item._replace(text=prompt + item.text) if isinstance(item.text, str) else item
                for item in items
            ]
        vectors = await self.compute(
            runner,
            items,
            limit=runner.embedder.limit,
            prepare=partial(runner.prepare, truncation=self.context.truncation, prompt=prompt),
        )
        if is_shortened:
            matrix = np.ascontiguousarray(np.stack(vectors)[:, :dimensions])
            vectors = list(of_unit_length(matrix) if normalize else matrix)
        return vectors

    def get_prompt(self, name: str | None) -> str:
        """Return the prompt to put before texts; refuse a name that the model does not have."""
        prompts = self.loaded_model.prompts
        if name is None:
            default = prompts.default if self.service.settings.default_prompt else None
            return prompts.texts.get(default or "", "")
        if name not in prompts.texts:
            known = ", ".join(prompts.texts) or "none"
            raise invalid_field_error(
                "prompt_name", f"the model has no such prompt; it has: {known}"
            )
        return prompts.texts[name]

    def _check_dimensions(self, width: int, dimensions: int | None) -> None:
        """Refuse a length to which vectors may not be shortened."""
        if dimensions is None:
            return
        if not 1 <= dimensions <= width:
            raise invalid_field_error("dimensions", f"must be from 1 to {width}")
        prompts = self.loaded_model.prompts
        is_any = self.service.settings.any_dimensions or prompts.any_dimensions
        if dimensions != width and not is_any and dimensions not in prompts.dimensions:
            which = ", ".join(map(str, sorted(prompts.dimensions)))
            raise invalid_field_error(
                "dimensions",
                f"the model's vectors may be shortened to {which}"
                if which
                else "the model was not trained for shorter vectors (Matryoshka); "
                "the server's --any-dimensions allows them",
            )


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


def join_texts(row: Row) -> str:
    """Return all texts and words of a row, joined, to be counted before they are tokenised."""
    parts = (value if isinstance(value, list | tuple) else [value] for value in row.values())
    return " ".join(part for part in chain.from_iterable(parts) if isinstance(part, str))


def read_rows(service: Service, inputs: str | list[str] | list[list[str]]) -> list[Text]:
    """Check rows of one or two texts; return them with their locations (`inputs` for one row)."""
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
        if not 1 <= len(row) <= 2:
            raise invalid_field_error(location, f"one text or two, not {len(row)}", 422)
        service.check_texts(location, row)
    service.check_count("inputs", len(rows))
    return rows


def locate_texts(field: str, values: Sequence[Any]) -> list[Text]:
    """Return the texts of a list, each with its location, such as `inputs[3]`."""
    return [Text(f"{field}[{index}]", value) for index, value in enumerate(values)]


def _estimate_max_tokens(text: str | Sequence[Any]) -> int:
    """Estimate the most tokens of a text: one per character, three if not ASCII; plus two."""
    if isinstance(text, str):
        return (len(text) if text.isascii() else 3 * len(text)) + 2
    return 2 + sum(_estimate_max_tokens(part) if isinstance(part, str) else 1 for part in text)

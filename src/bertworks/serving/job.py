"""A request to a model: its texts, within limits; its computation in the queue; its response.

a dialect's request ─ decode ─► an operation ─ Job.compute ─► results ─ encode ─► response
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from ..data.rows import Row
from .loaded_model import LoadedModel
from .metrics import RequestContext, get_context
from .request_error import invalid_field_error
from .runners import Text
from .schedule import DeadlineError, Runner
from .service import Service

_TOKEN_IDS_REFUSED = (
    "token ids are refused, because most clients use another model's tokenizer (in LangChain, "
    "check_embedding_ctx_length=False sends texts); start the server with token_ids=true"
)


class Job:
    """A request to a model: the service, the request's context, and the model.

    Operations (`…_operations.py`) raise `BertworksError` as methods of `Model` do, and if the queue
    is full or the deadline passed; and `RequestError` if a field of the request is not valid.
    """

    def __init__(
        self, service: Service, context: RequestContext, loaded_model: LoadedModel
    ) -> None:
        self.service, self.context, self.loaded_model = service, context, loaded_model
        self.model, self.limits = loaded_model.model, service.settings

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

    async def compute(
        self,
        runner: Runner,
        items: Sequence[Any],
        texts: Sequence[str | Sequence[Any]] | None = None,
        *,
        limit: int | None,
        sizes: Sequence[int] | None = None,
        prepare: Callable[[Sequence[Any]], Sequence[Any]] | None = None,
    ) -> list[Any]:
        """Compute rows in the queue; return their results in order.

        Args:
            items: the rows, in the runner's format.
            texts: the part of each row that is tokenised: a text, words, or token ids; the item's
                `text` if omitted.
            limit: maximum tokens of a row; None if rows are split into any number of windows.
            sizes: an estimate of the most tokens of each row, if more are read than its text.
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
            [estimate_max_tokens(text) for text in texts] if sizes is None else sizes,
            limit=limit,
            client=context.client,
            prepare=prepare,
            deadline=context.deadline,
        )
        timeout = None if context.deadline is None else context.deadline - time.monotonic()
        try:
            results = await asyncio.wait_for(asyncio.wrap_future(ticket.future), timeout)
            async with self.service.response_turns:
                await asyncio.sleep(0)
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


def get_service(request: Request) -> Service:
    """Return the server's models, queue and limits."""
    service: Service = request.app.state.service
    return service


async def open_job(request: Request, model: str | None, operation: str | None = None) -> Job:
    """Return the job of a request to the model that it names; load the model if necessary.

    Args:
        model: name of a served model; the default model if None.
        operation: see `RequestContext`.
    """
    service, context = get_service(request), get_context(request)
    loaded_model = service.models.get_loaded(model)
    if loaded_model is None:
        name = service.models.resolve_name(model)
        loaded_model = await service.load(name, partial(service.models.get, name))
    context.model, context.device = loaded_model.name, loaded_model.device
    context.operation = operation
    return Job(service, context, loaded_model)


def reply(context: RequestContext, value: Any) -> Response:
    """Return a value, which may contain arrays, as JSON, with headers of times and counts."""
    headers = context.make_headers(time.monotonic())
    body = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, 200, headers, "application/json")


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


def estimate_max_tokens(text: str | Sequence[Any]) -> int:
    """Estimate the most tokens of a text: one per character, three if not ASCII; plus two."""
    if isinstance(text, str):
        return (len(text) if text.isascii() else 3 * len(text)) + 2
    return 2 + sum(estimate_max_tokens(part) if isinstance(part, str) else 1 for part in text)

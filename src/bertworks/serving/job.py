"""A request for a model: its texts checked, computed in the queue, and answered."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from ..api import of_unit_length
from .failures import invalid
from .gate import RequestContext
from .models import Served
from .queue import LateError, Runner
from .runners import EmbedRunner, Text
from .service import Service

_IDS = (
    "token ids are refused, because most clients use another model's tokenizer (in LangChain, "
    "check_embedding_ctx_length=False sends texts); start the server with token_ids=true"
)


class Job:
    """What a request asks of a model: the service, the request's context, and the model."""

    def __init__(self, service: Service, context: RequestContext, served: Served) -> None:
        self.service, self.context, self.served = service, context, served

    def texts(self, field: str, given: str | list[str] | list[int] | list[list[int]]) -> list[Text]:
        """Texts, or token ids where the server takes them, with the fields that they came in.

        Raises:
            RequestError: there are none, too many, one is empty or too long, or ids are not taken.
        """
        single = isinstance(given, str) or (bool(given) and isinstance(given[0], int))
        values: Sequence[Any] = [given] if single else given
        if values and isinstance(values[0], list) and not self.service.settings.token_ids:
            raise invalid(field, _IDS)
        if single:
            self.service.check_text(field, values[0])
            return [Text(field, values[0])]
        self.service.check_texts(field, values)
        return placed(field, values)

    async def compute(
        self,
        runner: Runner,
        items: Sequence[Any],
        texts: Sequence[str | Sequence[Any]] | None = None,
        *,
        limit: int | None,
        prepare: Callable[[Sequence[Any]], Sequence[Any]] | None = None,
    ) -> list[Any]:
        """Compute rows in the queue; their answers, in order.

        Args:
            items: the rows, as the runner takes them.
            texts: what of each is tokenised: a text, words, or token ids; its `text` if left out.
            limit: the most tokens that a row has; None where it has as many windows as it takes.
            prepare: what tokenises the rows, if it is not `runner.prepare`.

        Raises:
            BertworksError: the first row's that cannot be computed; or the queue is full.
        """
        context = self.context
        if texts is None:
            texts = [item.text for item in items]
        context.rows += len(items)
        context.characters += sum(map(len, texts))
        started = time.monotonic()
        ticket = self.service.queue.submit(
            runner,
            items,
            [_most_tokens(text) for text in texts],
            limit=limit,
            client=context.client,
            prepare=prepare,
            deadline=context.deadline,
        )
        left = None if context.deadline is None else context.deadline - time.monotonic()
        try:
            found = await asyncio.wait_for(asyncio.wrap_future(ticket.future), left)
            await self.service.answering.passed()
            return found
        except TimeoutError:
            raise LateError("the deadline passed before the request was computed") from None
        finally:
            context.tokens += ticket.tokens
            context.tokenising += ticket.preparing
            context.computing += ticket.running
            waited = time.monotonic() - started - ticket.preparing - ticket.running
            context.queueing += max(0.0, waited)

    async def vectors(
        self,
        runner: EmbedRunner,
        items: Sequence[Text],
        *,
        normalize: bool,
        truncate: bool | None,
        side: str = "right",
        dimensions: int | None = None,
        prompt_name: str | None = None,
    ) -> list[NDArray[np.float32]]:
        """The vectors of texts, cut and then brought to length 1 where that is asked.

        Args:
            items: texts, token ids, or lists of words.
            normalize: whether vectors, of texts rather than tokens, have length 1.
            truncate: whether texts that are too long are truncated; else they are an error.
            side: where they are, "left" or "right", in any case.
            dimensions: to which vectors are cut.
            prompt_name: of what is put before texts; the model's default, if left out.

        Raises:
            RequestError: vectors may not be cut so, or the model has no prompt of that name.
            BertworksError: as `compute`.
        """
        self._check_dimensions(runner.embedder.width, dimensions)
        if truncate:
            self.context.truncation.side = "left" if side.lower() == "left" else "right"
        if prompt := self.prompt(prompt_name):
            items = [
                item._replace(text=prompt + item.text) if isinstance(item.text, str) else item
                for item in items
            ]
        found = await self.compute(
            runner,
            items,
            limit=runner.embedder.limit,
            prepare=partial(runner.prepare, truncation=self.context.truncation),
        )
        if found[0].ndim == 1:
            found = list(_finished(np.stack(found), normalize=normalize, dimensions=dimensions))
        return found

    def prompt(self, name: str | None) -> str:
        """What is put before texts; a name that the model has no prompt of is refused."""
        prompts = self.served.prompts
        if name is None:
            default = prompts.default if self.service.settings.default_prompt else None
            return prompts.texts.get(default or "", "")
        if name not in prompts.texts:
            known = ", ".join(prompts.texts) or "none"
            raise invalid("prompt_name", f"the model has no such prompt; it has: {known}")
        return prompts.texts[name]

    def _check_dimensions(self, width: int, dimensions: int | None) -> None:
        """Refuse a width to which vectors may not be cut."""
        if dimensions is None:
            return
        if not 1 <= dimensions <= width:
            raise invalid("dimensions", f"must be from 1 to {width}")
        prompts = self.served.prompts
        is_any = self.service.settings.any_dimensions or prompts.any_dimensions
        if dimensions != width and not is_any and dimensions not in prompts.dimensions:
            which = ", ".join(map(str, sorted(prompts.dimensions)))
            raise invalid(
                "dimensions",
                f"the model's vectors may be cut to {which}"
                if which
                else "the model was not trained for shorter vectors (Matryoshka); "
                "the server's --any-dimensions allows them",
            )


async def job_of(request: Request, model: str | None, verb: str | None = None) -> Job:
    """What a request asks of the model that it names, which is loaded for it.

    Args:
        verb: what the metrics call it.
    """
    service, context = service_of(request), context_of(request)
    served = service.models.loaded(model)
    if served is None:
        served = await asyncio.to_thread(service.models.get, model)
    context.model, context.device, context.verb = served.name, served.device, verb
    return Job(service, context, served)


def service_of(request: Request) -> Service:
    """The server's models, queue and limits."""
    service: Service = request.app.state.service
    return service


def context_of(request: Request) -> RequestContext:
    """A request's id, client, deadline and figures."""
    context: RequestContext = request.state.context
    return context


def placed(field: str, values: Sequence[Any]) -> list[Text]:
    """The texts of a list, with the places that they have in it."""
    return [Text(f"{field}[{at}]", value) for at, value in enumerate(values)]


def _finished(
    vectors: NDArray[np.float32], *, normalize: bool, dimensions: int | None
) -> NDArray[np.float32]:
    """Vectors cut, then brought to length 1; a zero vector stays one."""
    vectors = np.ascontiguousarray(vectors[:, :dimensions])
    return of_unit_length(vectors) if normalize else vectors


async def encoded(vectors: Sequence[NDArray[np.float32]], form: str = "float") -> list[Any]:
    """Vectors as an answer has them: numbers, or their little-endian float32 in base64.

    Others are answered between some and the next: writing thousands takes a while.
    """
    found: list[Any] = []
    for at, vector in enumerate(vectors):
        if form == "float":
            found.append(orjson.Fragment(orjson.dumps(vector, option=orjson.OPT_SERIALIZE_NUMPY)))
        else:
            found.append(base64.b64encode(vector.astype("<f4", copy=False).tobytes()).decode())
        if at % 64 == 63:
            await asyncio.sleep(0)
    return found


def reply(request: Request, value: Any) -> Response:
    """A value as JSON, arrays included, with the headers that say what it took."""
    headers = context_of(request).headers(time.monotonic())
    body = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, 200, headers, "application/json")


def _most_tokens(text: str | Sequence[Any]) -> int:
    """The most tokens that a text may become: its bytes, and two for its ends."""
    if isinstance(text, str):
        return (len(text) if text.isascii() else 3 * len(text)) + 2
    return 2 + sum(_most_tokens(part) if isinstance(part, str) else 1 for part in text)

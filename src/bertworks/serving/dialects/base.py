"""What all protocols share: a dialect's routes, the base classes of requests, types of fields.

body ─► Request ─ decode ─► an operation ─► results ─ encode ─► answer
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar

import numpy as np
import orjson
from fastapi import APIRouter, Response
from fastapi import Request as HTTPRequest
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from ...errors import did_you_mean
from ...inference.vector_codes import quantize_vectors
from ...settings.literals import Quantization
from ..job import Job, open_job, reply
from ..request_error import ErrorFormat

RequestT = TypeVar("RequestT", bound="Request")

Ids = list[Annotated[int, Field(ge=0, le=2**31 - 1)]]
Side = Literal["Left", "Right", "left", "right"]
TopK = Annotated[int, Field(ge=1, le=1000)]
Prompt = Field(None, description="The name of a prompt of the model, put before each text.")
Truncate = Field(None, description="Truncate texts that are too long; else they are an error.")


_NOT_OF_TYPES = ("title", "description", "default")
"""What the schema of a field says besides its types."""


class Fields(BaseModel):
    """Fields of a request; one that is null has its default, as if it was omitted.

    An unknown field is an error: the server would compute another answer than the client asks for.

    Attributes:
        ignored_fields: fields of the format that change no answer.
    """

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="forbid")

    ignored_fields: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _null_is_omitted(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        required = {name for name, field in cls.model_fields.items() if field.is_required()}
        known_values = {}
        for name, value in values.items():
            if (value is None and name not in required) or name in cls.ignored_fields:
                continue
            if name not in cls.model_fields:
                fix = did_you_mean(name, cls.model_fields)
                raise PydanticCustomError(
                    "unknown_field", "no such field. {fix}", {"fix": fix, "field": name}
                )
            known_values[name] = value
        return known_values

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Describe that a field with a default may be null."""
        schema = handler(core_schema)
        fields = handler.resolve_ref_schema(schema)
        for name, field in fields["properties"].items():
            types = field.get("anyOf", [field])
            if name not in fields.get("required", ()) and {"type": "null"} not in types:
                fields["properties"][name] = {"anyOf": [*types, {"type": "null"}]} | {
                    key: value for key, value in field.items() if key in _NOT_OF_TYPES
                }
        return schema


class Request(Fields):
    """A request: it decodes itself to an operation, and encodes the results as the answer.

    Attributes:
        operation: that which the metrics name: "embed", "predict" or none.
        capability: what the model must be capable of; None if `decode` checks it.
    """

    operation: ClassVar[str | None] = None
    capability: ClassVar[str | None] = None

    model: str | None = Field(None, description="A served model's name; the first if omitted.")

    def decode(self, job: Job) -> Awaitable[Any]:
        """Return the call of the operation that the request asks for.

        Raises:
            RequestError: a field is not valid.
        """
        raise NotImplementedError

    async def encode(self, results: Any, job: Job) -> Any:  # noqa: ARG002
        """Return the answer: a value that may contain arrays."""
        return results


class Usage(BaseModel):
    prompt_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, job: Job) -> dict[str, int]:
        """Return the tokens of a request."""
        return {"prompt_tokens": job.context.tokens, "total_tokens": job.context.tokens}


class Dialect(APIRouter):
    """The routes of a protocol.

    Args:
        title: the protocol's name, for the description.
        errors: the format of the routes' errors.

    Attributes:
        examples: for each route with a body, the capability of the model that can answer the
            example in the description, and the example.
    """

    def __init__(self, title: str, *, errors: ErrorFormat) -> None:
        super().__init__(tags=[title])
        self.error_format = errors
        self.examples: dict[str, tuple[str, Mapping[str, Any]]] = {}

    def request(
        self, *paths: str, example: Mapping[str, Any], answer: Any = None, needs: str = "embed"
    ) -> Callable[[type[RequestT]], type[RequestT]]:
        """Register a class of requests, which are sent by POST.

        Args:
            example: a request for the description; `{mask}` stands for the model's mask token.
            answer: the type of the answer, for the description.
            needs: capability of a model that can answer the example, if the class names none.
        """

        def register(kind: type[RequestT]) -> type[RequestT]:
            async def endpoint(body: Any, request: HTTPRequest) -> Response:
                return await respond(body, request)

            endpoint.__annotations__["body"] = kind
            endpoint.__doc__ = (kind.__doc__ or "").partition("\n")[0]
            for path in paths:
                self.examples[path] = (kind.capability or needs, example)
                name = path.rpartition("/")[2].replace("-", "_")
                responses: dict[int | str, dict[str, Any]] = {}
                if answer is not None:
                    responses[200] = {"model": answer}
                self.add_api_route(path, endpoint, methods=["POST"], name=name, responses=responses)
            return kind

        return register


async def respond(body: Request, request: HTTPRequest) -> Response:
    """Compute the response to a request."""
    job = await open_job(request, body.model, body.operation)
    if body.capability is not None:
        job.loaded_model.check_capability(body.capability)
    return reply(job.context, await body.encode(await body.decode(job), job))


EncodingFormat: TypeAlias = Literal["float", "base64", "int8", "binary", "ubinary"]
QUANTIZATIONS: Mapping[EncodingFormat, Quantization] = {
    "int8": "int8",
    "binary": "binary",
    "ubinary": "binary",
}
"""The formats of codes."""


async def encode_vectors(
    vectors: Sequence[NDArray[np.float32]], form: EncodingFormat = "float"
) -> list[Any]:
    """Encode vectors for a response: as numbers, or as base64 of little-endian float32.

    "int8" and "ubinary" are the codes of `vector_codes.py`; "binary" are those of "ubinary" less
    128, as in sentence-transformers and Cohere's API.

    Encoding thousands takes long, so other requests may run after every 64 vectors.
    """
    encodings: list[Any] = []
    for number, vector in enumerate(vectors):
        if form in QUANTIZATIONS:
            (code,) = quantize_vectors(vector[None], QUANTIZATIONS[form]).astype(np.int64)
            encodings.append((code - 128 if form == "binary" else code).tolist())
        elif form == "float":
            encodings.append(
                orjson.Fragment(orjson.dumps(vector, option=orjson.OPT_SERIALIZE_NUMPY))
            )
        else:
            encodings.append(base64.b64encode(vector.astype("<f4", copy=False).tobytes()).decode())
        if number % 64 == 63:
            await asyncio.sleep(0)
    return encodings

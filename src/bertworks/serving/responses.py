"""Responses in JSON, with headers of times and counts."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from .metrics import get_context


async def encode_vectors(vectors: Sequence[NDArray[np.float32]], form: str = "float") -> list[Any]:
    """Encode vectors for a response: as numbers, or as base64 of little-endian float32.

    Encoding thousands takes long, so other requests may run after every 64 vectors.
    """
    encodings: list[Any] = []
    for number, vector in enumerate(vectors):
        if form == "float":
            encodings.append(
                orjson.Fragment(orjson.dumps(vector, option=orjson.OPT_SERIALIZE_NUMPY))
            )
        else:
            encodings.append(base64.b64encode(vector.astype("<f4", copy=False).tobytes()).decode())
        if number % 64 == 63:
            await asyncio.sleep(0)
    return encodings


def reply(request: Request, value: Any) -> Response:
    """Return a value, which may contain arrays, as JSON, with headers of times and counts."""
    headers = get_context(request).make_headers(time.monotonic())
    body = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, 200, headers, "application/json")

"""Settings of the server."""

from __future__ import annotations

from pydantic import Field

from ..literals import Precision
from ..settings import Settings


class ServeSettings(Settings):
    """Limits and behaviour of the server."""

    precision: Precision = Field("auto", description="precision of the encoder")
    deterministic: bool = Field(
        False,
        description="bitwise equal results whatever a text is batched with, also in bf16 on "
        "CPUs with AMX, where it is slower; other CPUs always give these",
    )
    lazy: bool = Field(False, description="load each model at its first request")
    max_memory: int | None = Field(
        None,
        ge=1,
        description="maximum MB of weights in memory; above it, the least recently "
        "used model is unloaded",
    )
    max_texts: int = Field(2048, ge=1, description="maximum texts per request")
    max_characters: int = Field(200_000, ge=1, description="maximum characters per text")
    max_body_bytes: int = Field(8 << 20, ge=1, description="maximum bytes of a request body")
    max_concurrent_requests: int = Field(1024, ge=1, description="maximum concurrent requests")
    max_queue_tokens: int = Field(1 << 20, ge=1, description="maximum tokens waiting in the queue")
    batch_tokens: int = Field(2048, ge=1, description="maximum tokens per batch")
    body_seconds: float = Field(
        30.0, gt=0, description="seconds in which a request body must arrive"
    )
    drain_delay: float = Field(
        0.0,
        ge=0,
        description="seconds after SIGTERM during which requests are still accepted "
        "and /ready returns 503",
    )
    max_new_tokens: int = Field(512, ge=1, description="maximum number of new tokens per prompt")
    any_dimensions: bool = Field(
        False, description="allow shorter vectors of any model, not only of Matryoshka models"
    )
    token_ids: bool = Field(
        False, description="accept texts as token ids of the model's vocabulary"
    )
    default_prompt: bool = Field(
        True, description="put the model's default prompt before texts that name no prompt"
    )

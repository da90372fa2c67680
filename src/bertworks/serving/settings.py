"""Settings of the server."""

from __future__ import annotations

import re
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from ..inference.settings import EngineSettings
from ..settings.base import Settings, with_default
from ..settings.literals import InferencePrecision


class ServeSettings(Settings):
    """Limits and behaviour of the server."""

    precision: InferencePrecision = Field("auto", description="precision of the encoder")
    deterministic: bool = with_default(EngineSettings, "deterministic", False)
    lazy: bool = Field(
        False, description="load each model at its first request; at the start check its files"
    )
    require_all: bool = Field(
        False,
        description="do not start if a model cannot be loaded; by default the others are served",
    )
    max_memory: int | None = Field(
        None,
        ge=1,
        description="maximum MB of the process in memory (of weights, on a GPU); above it, the "
        "least recently used model is unloaded",
    )
    max_texts: int = Field(2048, ge=1, description="maximum texts per request")
    max_characters: int = Field(200_000, ge=1, description="maximum characters per text")
    max_body_bytes: int = Field(8 << 20, ge=1, description="maximum bytes of a request body")
    max_header_bytes: int = Field(
        1 << 16, ge=1024, description="maximum bytes of a request's headers and URL"
    )
    max_connections: int = Field(
        2048,
        ge=1,
        le=1 << 20,
        description="maximum connections; beyond it, the one that has waited longest for a "
        "request is closed. Fewer if the system allows fewer open files (ulimit -n)",
    )
    max_concurrent_requests: int = Field(1024, ge=1, description="maximum concurrent requests")
    max_queue_tokens: int = Field(1 << 20, ge=1, description="maximum tokens waiting in the queue")
    batch_tokens: int = Field(2048, ge=1, description="maximum tokens per batch")
    header_seconds: float = Field(
        10.0,
        gt=0,
        le=86_400,
        description="seconds in which a request's headers must arrive, from the connection's "
        "start or the first byte",
    )
    keep_alive_seconds: float = Field(
        30.0,
        gt=0,
        le=86_400,
        description="seconds that a connection stays open without another request, or without "
        "the client taking more of a response",
    )
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

    traces: bool = Field(
        False,
        description="send a span of each request by OpenTelemetry, to the address in "
        "OTEL_EXPORTER_OTLP_ENDPOINT; needs the extra [otel]",
    )
    cors_origins: tuple[str, ...] = Field(
        (),
        description="web pages of these origins, such as https://example.org, comma-separated, may "
        "send requests; * allows all. By default none may",
    )

    @field_validator("cors_origins", mode="before")
    @classmethod
    def _split_origins(cls, origins: Any) -> Any:
        """Split a text at its commas; check that origins have no path."""
        if isinstance(origins, str):
            origins = tuple(origin.strip() for origin in origins.split(","))
        for origin in origins if isinstance(origins, list | tuple) else ():
            if origin != "*" and not re.fullmatch(r"https?://[^/\s]+", str(origin)):
                raise ValueError(f"{origin!r} must be like https://example.org, without a path")
        return origins

    @model_validator(mode="after")
    def _models_are_loaded_if_required(self) -> Self:
        if self.lazy and self.require_all:
            raise ValueError(
                "require_all=true needs lazy=false, which loads all models at the start"
            )
        return self

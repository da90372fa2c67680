"""What a server allows, and how it runs."""

from __future__ import annotations

from pydantic import Field

from ..literals import Precision
from ..settings import Settings


class ServeSettings(Settings):
    """Limits and conduct of a server."""

    precision: Precision = Field("auto", description="what the encoder computes in")
    deterministic: bool = Field(
        False,
        description="answers have the same bits whatever they are batched with, also in bf16 on "
        "processors with AMX, where that takes longer; on other CPUs they have anyway",
    )
    lazy: bool = Field(False, description="a model is loaded when it is first asked for")
    max_memory: int | None = Field(
        None, ge=1, description="MB of weights; beyond, the least recently used model is unloaded"
    )
    max_texts: int = Field(2048, ge=1, description="texts of a request")
    max_characters: int = Field(200_000, ge=1, description="characters of a text")
    max_body_bytes: int = Field(8 << 20, ge=1, description="bytes of a request's body")
    max_concurrent_requests: int = Field(1024, ge=1, description="requests at a time")
    max_queue_tokens: int = Field(1 << 20, ge=1, description="tokens that wait at a time")
    batch_tokens: int = Field(2048, ge=1, description="tokens that are computed at once")
    body_seconds: float = Field(30.0, gt=0, description="in which a body has to be there")
    drain_delay: float = Field(
        0.0, ge=0, description="seconds that requests are taken after SIGTERM, /ready being 503"
    )
    max_new_tokens: int = Field(512, ge=1, description="tokens that a prompt may be given")
    any_dimensions: bool = Field(
        False, description="vectors of any model may be cut, not only those of Matryoshka models"
    )
    token_ids: bool = Field(
        False, description="texts may be given as token ids of the model's vocabulary"
    )
    default_prompt: bool = Field(
        True, description="the model's default prompt is put before texts that name none"
    )

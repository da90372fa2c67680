"""Batches of similar length, windows of rows, and names of rows in errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from ..errors import CheckpointError

NOT_FINITE = "Try precision=fp32, or train the model again with a lower learning rate."


class Sized(Protocol):
    """Anything with a length in tokens."""

    @property
    def num_tokens(self) -> int: ...


SizedT = TypeVar("SizedT", bound=Sized)


def row_name(index: int) -> str:
    """The default name of a row in errors."""
    return f"row {index + 1}"


def not_finite_error(where: str) -> CheckpointError:
    """Return the error for a row whose outputs are not finite."""
    return CheckpointError(
        "the model's output is not finite",
        where=where,
        fix=NOT_FINITE,
    )


def max_tokens_of(batch_tokens: int | None, device_type: str = "cpu") -> int:
    """Return the maximum number of tokens of a batch: as set, or what suits a type of device."""
    return batch_tokens or (32_768 if device_type == "cuda" else 8192)


def by_tokens(examples: Sequence[SizedT], batch_tokens: int) -> Iterator[list[SizedT]]:
    """Yield batches, longest examples first, of at most `batch_tokens` tokens or one example."""
    part: list[SizedT] = []
    tokens = 0
    for example in sorted(examples, key=lambda example: -example.num_tokens):
        if part and tokens + example.num_tokens > batch_tokens:
            yield part
            part, tokens = [], 0
        part.append(example)
        tokens += example.num_tokens
    if part:
        yield part

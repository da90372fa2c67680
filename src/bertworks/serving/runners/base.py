"""What runners share: their protocol, the rows of requests, limits and errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from ...data.rows import Row
from ...errors import LengthError
from ...utils.memory import is_memory_short


class Sized(Protocol):
    """A tokenised row."""

    @property
    def num_tokens(self) -> int: ...


class Runner(Protocol):
    """Computes results; rows of equal runners may share a batch."""

    def __hash__(self) -> int: ...

    def prepare(self, items: Sequence[Any]) -> Sequence[Sized]:
        """Tokenise items. After a `BertworksError`, parts of them are tried to find its cause."""
        ...

    def run(self, examples: Sequence[Any]) -> Sequence[Any]:
        """Return for each example its result, or the remaining work as `RemainingWork`.

        Errors are handled as in `prepare`; a `MemoryError` halves the limit of tokens.
        """
        ...


class RemainingWork(NamedTuple):
    """The remaining work of a row that needs several batches; other rows run in between."""

    example: Sized


WHOLE = 1 << 40
"""The engine's limit of tokens: never reached, because the queue has made the batch."""


class Text(NamedTuple):
    """A text of a request.

    Attributes:
        where: its field, for errors.
        text: the text; or token ids or words, where they are accepted.
    """

    where: str
    text: Any


class TaskRow(NamedTuple):
    """A row of a task, and its field, for errors."""

    where: str
    row: Row


@dataclass
class Truncation:
    """How a request's texts are truncated that are too long.

    Attributes:
        side: the side at which they are truncated; None: they are an error.
        max_tokens: maximum tokens of all texts together.
        truncated, tokens: number of truncated texts and of tokens of all texts, so far.
    """

    side: Literal["left", "right"] | None = None
    max_tokens: int | None = None
    truncated: int = 0
    tokens: int = 0

    def count(self, tokens: int) -> None:
        """Add the tokens of a text; raise `LengthError` if the total is too large."""
        self.tokens += tokens
        if self.max_tokens is not None and self.tokens > self.max_tokens:
            raise LengthError(f"the texts have more than {self.max_tokens:,} tokens")


def text_too_long_error(tokens: int, limit: int, where: str) -> LengthError:
    """Return the error for a text that is too long."""
    return LengthError(
        f"{tokens} tokens, but at most {limit} fit",
        where=where,
        fix="Shorten the text, or ask for truncate.",
    )


@contextmanager
def memory_errors() -> Iterator[None]:
    """Convert the errors that libraries raise when memory runs out to `MemoryError`."""
    try:
        yield
    except RuntimeError as error:
        if is_memory_short(error):
            raise MemoryError(str(error)) from error
        raise

"""The runner that continues prompts with a causal model, a few tokens at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from weakref import WeakSet

from ..errors import DataError, LengthError
from ..inference.generate import Continuation, continue_texts, start_continuation
from ..inference.settings import EngineSettings, GenerationSettings
from ..nn.kv_cache import KeyValueCache
from ..tasks.pretraining.network import PretrainingNetwork
from ..text.tokenizer import Tokenizer
from .queue import RemainingWork
from .runners import TOO_LONG, Text, memory_errors

_STEPS = 16
"""The most new tokens of a text in one batch, for which other requests have to wait."""

_CACHE_BATCHES = 8
"""Keys and values are kept for this many batches; other texts are recomputed in each batch."""


class PartialContinuation(NamedTuple):
    """A text that is being continued."""

    text: Continuation

    @property
    def num_tokens(self) -> int:
        """The tokens of the text after its next batch."""
        return min(len(self.text.tokens) + _STEPS, self.text.num_tokens)


class GenerateRunner:
    """Continues prompts with a causal model; each prompt has its settings.

    Args:
        batch_tokens: maximum tokens of the queue's batches.
    """

    def __init__(
        self,
        network: PretrainingNetwork,
        tokenizer: Tokenizer,
        engine: EngineSettings,
        batch_tokens: int,
    ) -> None:
        self.network, self.tokenizer, self.engine = network, tokenizer, engine
        self._max_cached_tokens = _CACHE_BATCHES * batch_tokens
        self._caches: WeakSet[KeyValueCache] = WeakSet()

    def prepare(
        self,
        items: Sequence[Text],
        settings: GenerationSettings | None = None,
        counts: Counter[Any] | None = None,
        copies: Mapping[str, int] | None = None,
    ) -> list[PartialContinuation]:
        """Tokenise prompts.

        Args:
            counts: the numbers of equal prompts of a request, so that each has
                different random draws.
            copies: how often a prompt was in earlier requests.

        Raises:
            LengthError: a prompt leaves no room for a new token.
            DataError: a prompt has no tokens.
        """
        settings = settings or GenerationSettings()
        counts = Counter() if counts is None else counts
        continuations = []
        limit = self.network.encoder.config.max_seqlen
        rows = self.tokenizer.piece_ids(
            [item.text for item in items], where=[item.where for item in items]
        )
        for item, row in zip(items, rows, strict=True):
            ids = tuple(row.tolist())
            if not ids:
                raise DataError("the prompt has no tokens", where=item.where)
            if len(ids) >= limit:
                raise LengthError(
                    f"{len(ids)} tokens, but at most {limit - 1} fit",
                    where=item.where,
                    fix=TOO_LONG,
                )
            number = counts[ids] + (copies or {}).get(item.text, 0)
            text = start_continuation(item.where, ids, number, settings, limit)
            continuations.append(PartialContinuation(text))
            counts[ids] += 1
        return continuations

    def run(self, examples: Sequence[PartialContinuation]) -> list[str | RemainingWork]:
        """Return the continuations; they do not depend on other requests."""
        texts = [example.text for example in examples]
        with memory_errors():
            pieces = self.tokenizer.vocab_size
            continuations = continue_texts(self.network, texts, self.engine, _STEPS, pieces=pieces)
        self._caches -= {text.memory for text in texts if text.memory is not None}
        return [
            self.tokenizer.decode(text.new)
            if text.is_over
            else RemainingWork(PartialContinuation(self._limit_caches(text)))
            for text in continuations
        ]

    def _limit_caches(self, text: Continuation) -> Continuation:
        """Return the text, without its memory (KV cache) if all memories would be too large."""
        assert text.memory is not None
        cached_tokens = sum(int(memory.lengths.sum()) for memory in self._caches)
        if cached_tokens + len(text.tokens) > self._max_cached_tokens:
            return replace(text, memory=None)
        self._caches.add(text.memory)
        return text

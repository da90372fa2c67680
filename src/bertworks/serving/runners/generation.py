"""Continuations of prompts, a few tokens a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from weakref import WeakSet

from ...errors import DataError
from ...inference.generate import Continuation, begin, continue_texts
from ...inference.settings import EngineSettings, GenerationSettings
from ...nn.kv_cache import KeyValueCache
from ...tasks.pretraining.network import PretrainingNetwork
from ...text.tokenizer import Tokenizer
from .base import (
    Text,
    Unfinished,
    memory_errors,
    too_long,
)

_STEPS = 16
"""The most new tokens of a text in one batch, for which other requests have to wait."""

_MEMORY_BATCHES = 8
"""Keys and values are kept for this many batches; other texts are recomputed in each batch."""


class Continued(NamedTuple):
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
        self._most_kept = _MEMORY_BATCHES * batch_tokens
        self._kept: WeakSet[KeyValueCache] = WeakSet()

    def prepare(
        self,
        items: Sequence[Text],
        settings: GenerationSettings | None = None,
        seen: Counter[Any] | None = None,
        copies: Mapping[str, int] | None = None,
    ) -> list[Continued]:
        """Tokenise prompts.

        Args:
            seen: counts equal prompts of a request, so that each has different random draws.
            copies: how often a prompt was in earlier requests.

        Raises:
            LengthError: a prompt leaves no room for a new token.
            DataError: a prompt has no tokens.
        """
        settings = settings or GenerationSettings()
        seen = Counter() if seen is None else seen
        made = []
        limit = self.network.encoder.config.max_seqlen
        rows = self.tokenizer.piece_ids(
            [item.text for item in items], where=[item.where for item in items]
        )
        for item, row in zip(items, rows, strict=True):
            ids = tuple(row.tolist())
            if not ids:
                raise DataError("the prompt has no tokens", where=item.where)
            if len(ids) >= limit:
                raise too_long(len(ids), limit - 1, item.where)
            earlier = (copies or {}).get(item.text, 0)
            made.append(Continued(begin(item.where, ids, seen[ids] + earlier, settings, limit)))
            seen[ids] += 1
        return made

    def run(self, examples: Sequence[Continued]) -> list[str | Unfinished]:
        """Return the continuations; they do not depend on other requests."""
        texts = [example.text for example in examples]
        with memory_errors():
            pieces = self.tokenizer.vocab_size
            found = continue_texts(self.network, texts, self.engine, _STEPS, pieces=pieces)
        self._kept -= {text.memory for text in texts if text.memory is not None}
        return [
            self.tokenizer.decode(text.new)
            if text.is_over
            else Unfinished(Continued(self._bounded(text)))
            for text in found
        ]

    def _bounded(self, text: Continuation) -> Continuation:
        """Return the text, without its memory (KV cache) if all memories would be too large."""
        assert text.memory is not None
        kept = sum(int(memory.lengths.sum()) for memory in self._kept)
        if kept + len(text.tokens) > self._most_kept:
            return replace(text, memory=None)
        self._kept.add(text.memory)
        return text

"""Runners of the queue: for each verb, how rows are tokenised and a batch is computed.

Rows of one runner share batches, also rows of different clients. Settings that only affect how a
text is tokenised, or which part of the result is kept, belong to the row and not to the runner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, NamedTuple
from weakref import WeakSet

import numpy as np
from jaxtyping import Float
from torch import Tensor

from ..data.rows import Row
from ..errors import DataError, LengthError
from ..inference.engine import outputs_of
from ..inference.features import NetworkEmbedder
from ..inference.generate import Continuation, continue_texts, start_continuation
from ..inference.network_runner import check_finite
from ..inference.pretraining_heads import MaskedExample, MaskedText, mask_examples, predict_masks
from ..inference.settings import EngineSettings, GenerationSettings
from ..inference.text_embedding import EncodedText
from ..nn.kv_cache import KeyValueCache
from ..packed import Batch
from ..tasks.answering.task import AnsweringTask
from ..tasks.network import Network
from ..tasks.pretraining.network import PretrainingNetwork
from ..tasks.pretraining.task import PretrainingTask
from ..tasks.task import Prediction, Task
from ..tasks.texts import TextTask
from ..text.tokenizer import Tokenizer
from ..utils.memory import is_memory_short
from .metrics import Truncation
from .queue import RemainingWork

WHOLE = 1 << 40
"""The engine's limit of tokens: never reached, because the queue has made the batch."""

_TOO_LONG = "Shorten the text, or ask for truncate."


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


@contextmanager
def memory_errors() -> Iterator[None]:
    """Convert the errors that libraries raise when memory runs out to `MemoryError`."""
    try:
        yield
    except RuntimeError as error:
        if is_memory_short(error):
            raise MemoryError(str(error)) from error
        raise


class EmbedRunner:
    """Computes what the embedder makes of each text, list of words, or list of token ids."""

    def __init__(self, embedder: NetworkEmbedder) -> None:
        self.embedder = embedder

    def prepare(
        self,
        items: Sequence[Text],
        truncation: Truncation | None = None,
        side: Literal["left", "right"] | None = None,
        prompt: str | None = None,
    ) -> list[EncodedText]:
        """Tokenise items, which are all texts, all lists of words, or all lists of token ids.

        Args:
            truncation: counts the truncated texts, and all tokens.
            side: the side at which texts that are too long are truncated; None: they are an error.
            prompt: put before texts; the embedder's own if omitted.

        Raises:
            LengthError: a text is too long and not to be truncated, or the total is too large.
            DataError: a text cannot be tokenised, no token of it is left beside the prompt, or a
                token id is not in the vocabulary.
        """
        try:
            encoded_texts = self.embedder.encode(
                [item.text for item in items],
                [item.where for item in items],
                prompt=prompt,
                truncation="longest_first" if side else "error",
                side=side or "right",
            )
        except LengthError as error:
            raise LengthError(error.what, where=error.where, fix=_TOO_LONG) from None
        truncation = truncation or Truncation()
        for text in encoded_texts:
            truncation.count(text.num_tokens, is_truncated=text.encoding.truncated_tokens > 0)
        return encoded_texts

    def run(self, examples: Sequence[EncodedText]) -> list[Float[np.ndarray, " width"]]:
        with memory_errors():
            return list(self.embedder.vectors(_number_rows(examples)))


class TokenStatesRunner(EmbedRunner):
    """Computes a vector for each token of a text: float32 `[tokens, width]`."""

    def run(self, examples: Sequence[EncodedText]) -> list[Float[np.ndarray, "tokens width"]]:
        results: list[Any] = [None] * len(examples)
        with memory_errors():
            for part, packed in self.embedder.batches(_number_rows(examples)):
                states = self.embedder.of_tokens(packed)
                check_finite(states, lambda _: "a text")
                edges = packed.cu_seqlens.tolist()
                vectors = states.cpu().numpy()
                for index, text in enumerate(part):
                    results[text.index] = vectors[edges[index] : edges[index + 1]]
        return results


def _number_rows(examples: Sequence[EncodedText]) -> list[EncodedText]:
    return [replace(example, index=index) for index, example in enumerate(examples)]


class ScoredPrediction(NamedTuple):
    """A prediction of a task on texts, and its logits."""

    prediction: Prediction
    logits: Float[np.ndarray, " labels"]


class TaskRunner:
    """Computes a task's prediction for each row; for a task on texts, `ScoredPrediction`."""

    def __init__(self, task: Task[Any], network: Network, engine: EngineSettings) -> None:
        self.task, self.network = task, network
        self.engine = engine.with_values(batch_tokens=WHOLE)
        self._rows = 0

    def prepare(
        self,
        items: Sequence[Any],
        task: Task[Any] | None = None,
        truncation: Truncation | None = None,
    ) -> list[Any]:
        """Tokenise `TaskRow`s.

        Args:
            task: replaces the runner's task, to treat long texts differently.
            truncation: counts the rows that the task truncates.

        Raises:
            DataError: a row is not valid for the task.
        """
        examples = (task or self.task).examples(
            [item.row for item in items],
            self._take_numbers(len(items)),
            where=[item.where for item in items],
            labelled=False,
        )
        if truncation is not None:
            truncation.truncated += sum(example.truncated_tokens > 0 for example in examples)
        return examples

    def _take_numbers(self, count: int) -> int:
        """Return the first of as many new numbers of rows."""
        self._rows += count
        return self._rows - count

    def run(self, examples: Sequence[Any]) -> list[Any]:
        results: dict[int, Any] = {}
        with memory_errors():
            for outputs, batch in outputs_of(self.network, self.task, examples, self.engine):
                results.update(self.decode(outputs, batch))
        return [results[example.index] for example in examples]

    def decode(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[int, Any]:
        """Return the result of each row, by the row's number."""
        answers: dict[int, Any] = self.task.decode(outputs, batch)
        if not isinstance(self.task, TextTask):
            return answers
        logits = outputs["logits" if "logits" in outputs else "values"]
        rows = logits.float().cpu().numpy().reshape(len(answers), -1)
        scored = zip(answers.items(), rows, strict=True)  # both in the order of the batch
        return {row: ScoredPrediction(answer, logits) for (row, answer), logits in scored}


class AnswerRunner(TaskRunner):
    """Computes spans of passages; each request makes its answer from them by `task.answer`."""

    task: AnsweringTask

    def decode(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[int, Any]:
        return {spans[0].index: spans for spans in self.task.spans(outputs, batch)}


class MaskedRunner(TaskRunner):
    """Computes what a pre-trained model predicts of texts; see `predict_masks`."""

    task: PretrainingTask

    def prepare(
        self,
        items: Sequence[MaskedText],
        task: Task[Any] | None = None,
        truncation: Truncation | None = None,
    ) -> list[MaskedExample]:
        del task, truncation
        return mask_examples(self.task, items, self._take_numbers(len(items)))

    def run(self, examples: Sequence[MaskedExample]) -> list[Prediction]:
        with memory_errors():
            return predict_masks(self.network, self.task, examples, self.engine)


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
                    fix=_TOO_LONG,
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

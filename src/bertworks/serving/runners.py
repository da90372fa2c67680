"""Runners of the queue: for each verb, how rows are tokenised and a batch is computed.

Rows of one runner share batches, also rows of different clients. Settings that only affect how a
text is tokenised, or which part of the result is kept, belong to the row and not to the runner.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple
from weakref import WeakSet

import numpy as np
from jaxtyping import Float
from torch import Tensor

from ..data.rows import Row
from ..errors import DataError, LengthError
from ..inference.engine import check_finite, outputs_of
from ..inference.features import Embedder, EncodedText
from ..inference.generate import Continuation, begin, continue_texts
from ..inference.settings import EngineSettings, GenerationSettings
from ..nn.kv_cache import Memory
from ..packed import Batch
from ..tasks.answering.task import AnsweringTask
from ..tasks.pretraining.candidates import ScoredPieces, probabilities_at_masks, score
from ..tasks.pretraining.network import PretrainingNetwork
from ..tasks.pretraining.source import PretrainingExample
from ..tasks.pretraining.task import PretrainingTask
from ..tasks.task import Network, Prediction, Task
from ..tasks.texts import TextTask
from ..text.encoding import Segment
from ..text.tokenizer import Tokenizer
from ..utils.memory import is_memory_short
from .queue import Unfinished

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


class EmbedRunner:
    """Computes a vector for each text, list of words, or list of token ids."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder
        self.tokenizer = embedder.tokenizer

    def prepare(
        self, items: Sequence[Text], truncation: Truncation | None = None
    ) -> list[EncodedText]:
        """Tokenise items, which are all texts, all lists of words, or all lists of token ids.

        Raises:
            LengthError: a text is too long and not to be truncated, or the total is too large.
            DataError: a text cannot be tokenised, or a token id is not in the vocabulary.
        """
        truncation = truncation or Truncation()
        where = [item.where for item in items]
        texts = [item.text for item in items]
        if texts and isinstance(texts[0], list) and texts[0] and isinstance(texts[0][0], int):
            segments = self._of_ids(items)
        else:
            segments = self.tokenizer.segments(texts, where=where)
        limit = self.embedder.limit
        around = self.tokenizer.num_special_tokens(pair=False)
        made = []
        for at, segment in enumerate(segments):
            tokens = len(segment) + around
            if tokens > limit and truncation.side is None:
                raise too_long(tokens, limit, where[at])
            if tokens > limit:
                truncation.truncated += 1
            room = limit - around
            kept = segment[:room] if truncation.side == "right" else segment[-room:]
            made.append(EncodedText(at, self.tokenizer.frame(kept)))
            truncation.count(made[-1].num_tokens)
        return made

    def _of_ids(self, items: Sequence[Text]) -> list[Segment]:
        found = []
        for where, ids in items:
            if min(ids) < 0 or max(ids) >= self.tokenizer.vocab_size:
                raise DataError(
                    f"ids are from 0 to {self.tokenizer.vocab_size - 1}: they are of this model's "
                    "vocabulary",
                    where=where,
                )
            count = len(ids)
            zeros = np.zeros((count, 2), np.int32)
            found.append(Segment(np.array(ids, np.int32), zeros, np.arange(count, dtype=np.int32)))
        return found

    def run(self, examples: Sequence[EncodedText]) -> list[Float[np.ndarray, " width"]]:
        with _memory_errors():
            return list(self.embedder.vectors(_numbered(examples)))


class TokenStatesRunner(EmbedRunner):
    """Computes a vector for each token of a text: float32 `[tokens, width]`."""

    def run(self, examples: Sequence[EncodedText]) -> list[Float[np.ndarray, "tokens width"]]:
        found: list[Any] = [None] * len(examples)
        with _memory_errors():
            for part, packed in self.embedder.batches(_numbered(examples)):
                states = self.embedder.of_tokens(packed)
                check_finite(states, lambda _: "a text")
                edges = packed.cu_seqlens.tolist()
                vectors = states.cpu().numpy()
                for at, text in enumerate(part):
                    found[text.index] = vectors[edges[at] : edges[at + 1]]
        return found


class Scored(NamedTuple):
    """A prediction of a task on texts, and its logits."""

    prediction: Prediction
    logits: Float[np.ndarray, " labels"]


class TaskRunner:
    """Computes a task's prediction for each row; for a task on texts, `Scored`."""

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
        first = self._rows
        self._rows += len(items)
        made = (task or self.task).examples(
            [item.row for item in items],
            first,
            where=[item.where for item in items],
            labelled=False,
        )
        if truncation is not None:
            truncation.truncated += sum(example.truncated_tokens > 0 for example in made)
        return made

    def run(self, examples: Sequence[Any]) -> list[Any]:
        found: dict[int, Any] = {}
        with _memory_errors():
            for outputs, batch in outputs_of(self.network, self.task, examples, self.engine):
                found.update(self.answers(outputs, batch))
        return [found[_number(example)] for example in examples]

    def answers(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[int, Any]:
        """Return the result of each row, by the row's number."""
        answers: dict[int, Any] = self.task.decode(outputs, batch)
        if not isinstance(self.task, TextTask):
            return answers
        logits = outputs["logits" if "logits" in outputs else "values"]
        rows = logits.float().cpu().numpy().reshape(len(answers), -1)
        scored = zip(answers.items(), rows, strict=True)  # both in the order of the batch
        return {row: Scored(answer, logits) for (row, answer), logits in scored}


class AnswerRunner(TaskRunner):
    """Computes spans of passages; each request makes its answer from them by `task.answer`."""

    task: AnsweringTask

    def answers(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[int, Any]:
        return {spans[0].index: spans for spans in self.task.spans(outputs, batch)}


class Masked(NamedTuple):
    """A text with masks, or a pair of texts.

    Attributes:
        where: its field, for errors.
        text, pair: the texts.
        top_k: number of pieces to return for each mask.
        candidates: see `ScoredPieces`.
    """

    where: str
    text: str
    pair: str | None = None
    top_k: int = 1
    candidates: ScoredPieces = ()


class MaskedRow(NamedTuple):
    """A tokenised `Masked`."""

    example: PretrainingExample
    item: Masked

    @property
    def num_tokens(self) -> int:
        return self.example.num_tokens


class MaskedRunner(TaskRunner):
    """Computes `PretrainingTask.decode` of texts with masks, and probabilities of `candidates`."""

    task: PretrainingTask

    def prepare(
        self,
        items: Sequence[Masked],
        task: Task[Any] | None = None,
        truncation: Truncation | None = None,
    ) -> list[MaskedRow]:
        rows = [TaskRow(item.where, self.task.text_row(item.text, item.pair)) for item in items]
        made = super().prepare(rows, task, truncation)
        return [MaskedRow(example, item) for item, example in zip(items, made, strict=True)]

    def run(self, examples: Sequence[MaskedRow]) -> list[Prediction]:
        task = copy.copy(self.task)
        task.top_k = max(one.item.top_k for one in examples)
        asked = {one.example.row: one.item for one in examples}
        found: dict[int | None, Prediction] = {}
        tokenised = [one.example for one in examples]
        with _memory_errors():
            for outputs, batch in outputs_of(self.network, task, tokenised, self.engine):
                for row, answer in task.decode(outputs, batch).items():
                    masks = [pieces[: asked[row].top_k] for pieces in answer["masks"]]
                    found[row] = {**answer, "masks": masks, "candidates": []}
                if any(item.candidates for item in asked.values()):
                    for row, pieces in probabilities_at_masks(outputs["mlm_logits"], batch):
                        found[row]["candidates"] = score(pieces, asked[row].candidates)
        return [found[row] for row in asked]


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
        self._kept: WeakSet[Memory] = WeakSet()

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
        with _memory_errors():
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


def too_long(tokens: int, limit: int, where: str) -> LengthError:
    """Return the error for a text that is too long."""
    return LengthError(
        f"{tokens} tokens, but at most {limit} fit",
        where=where,
        fix="Shorten the text, or ask for truncate.",
    )


def _number(example: Any) -> int:
    """Return the number of an example's row."""
    number: int | None = example.row if isinstance(example, PretrainingExample) else example.index
    assert number is not None, "it was made from a row"
    return number


def _numbered(examples: Sequence[EncodedText]) -> list[EncodedText]:
    return [replace(example, index=at) for at, example in enumerate(examples)]


@contextmanager
def _memory_errors() -> Iterator[None]:
    """Convert the errors that libraries raise when memory runs out to `MemoryError`."""
    try:
        yield
    except RuntimeError as error:
        if is_memory_short(error):
            raise MemoryError(str(error)) from error
        raise

"""Runners of the queue: for each operation, how rows are tokenised and a batch is computed.

Rows of one runner share batches, also rows of different clients. Settings that only affect how a
text is tokenised, or which part of the result is kept, belong to the row and not to the runner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import LengthError
from ..inference.engine import AnyNetwork, outputs_of
from ..inference.pretraining_heads import (
    MaskedExample,
    MaskedText,
    Variant,
    get_mask,
    mask_examples,
    predict_masks,
)
from ..inference.settings import EngineSettings
from ..inference.text_embedding import EncodedText, TextEmbedder
from ..packed import Batch, to_array
from ..tasks.answering.task import AnsweringTask
from ..tasks.pretraining.task import PretrainingTask
from ..tasks.task import Outputs, Prediction, Task
from ..tasks.texts import TextTask
from ..text.definition import Side
from ..utils.memory import is_memory_short
from .metrics import RequestTokens

if TYPE_CHECKING:
    from jaxtyping import Float

WHOLE = 1 << 40
"""The engine's limit of tokens: never reached, because the queue has made the batch."""

TOO_LONG = "Shorten the text, or ask for truncate."


class Text(NamedTuple):
    """A text of a request.

    Attributes:
        where: its field, for errors.
        text: the text; or token ids or words, where they are accepted.
    """

    where: str
    text: Any


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

    def __init__(self, embedder: TextEmbedder) -> None:
        self.embedder = embedder

    def prepare(
        self,
        items: Sequence[Text],
        counts: RequestTokens | None = None,
        *,
        truncate: bool = False,
        side: Side | None = None,
        prompt: str | None = None,
    ) -> list[EncodedText]:
        """Tokenise items, which are all texts, all lists of words, or all lists of token ids.

        Args:
            counts: counts the truncated texts, and all tokens.
            truncate: truncate texts that are too long; otherwise they are an error.
            side: the side at which they are truncated; the tokenizer's if omitted.
            prompt: put before texts; the embedder's own if omitted.

        Raises:
            LengthError: a text is too long and not to be truncated, or the total is too large.
            DataError: a text cannot be tokenised, no token of it is left next to the prompt, or a
                token id is not in the vocabulary.
        """
        try:
            encoded_texts = self.embedder.encode(
                [item.text for item in items],
                [item.where for item in items],
                prompt=prompt,
                truncation="longest_first" if truncate else "error",
                side=side,
            )
        except LengthError as error:
            raise LengthError(error.what, where=error.where, fix=TOO_LONG) from None
        counts = counts or RequestTokens()
        for text in encoded_texts:
            counts.count(text.num_tokens, is_truncated=text.encoding.truncated_tokens > 0)
        return encoded_texts

    def run(self, examples: Sequence[EncodedText]) -> list[Float[np.ndarray, " width"]]:
        with memory_errors():
            return list(self.embedder.vectors(_number_rows(examples)))


class TokenStatesRunner(EmbedRunner):
    """Computes a vector for each token of a text: float32 `[tokens, width]`."""

    def run(self, examples: Sequence[EncodedText]) -> list[Float[np.ndarray, "tokens width"]]:
        results: dict[int, Float[np.ndarray, "tokens width"]] = {}
        texts, places = _number_rows(examples), ["a text"] * len(examples)
        with memory_errors():
            for part, packed, vectors in self.embedder.token_states(texts, places):
                for text, tokens in zip(part, packed.slices, strict=True):
                    results[text.index] = vectors[tokens]
        return [results[text.index] for text in texts]


def _number_rows(examples: Sequence[EncodedText]) -> list[EncodedText]:
    return [replace(example, index=index) for index, example in enumerate(examples)]


class ScoredPrediction(NamedTuple):
    """A prediction of a task on texts, and its logits."""

    prediction: Prediction
    logits: Float[np.ndarray, " labels"]


class TaskRunner:
    """Computes a task's prediction for each row; for a task on texts, `ScoredPrediction`."""

    def __init__(self, task: Task[Any], network: AnyNetwork, engine: EngineSettings) -> None:
        self.task, self.network = task, network
        self.engine = engine.with_values(batch_tokens=WHOLE)
        self._rows = 0

    def prepare(
        self,
        items: Sequence[Any],
        task: Task[Any] | None = None,
        counts: RequestTokens | None = None,
    ) -> list[Any]:
        """Tokenise `LocatedRow`s.

        Args:
            task: replaces the runner's task, to treat long texts differently.
            counts: counts the rows that the task truncates.

        Raises:
            DataError: a row is not valid for the task.
        """
        examples = (task or self.task).examples(
            [item.values for item in items],
            self._take_numbers(len(items)),
            where=[item.where for item in items],
            labelled=False,
        )
        if counts is not None:
            counts.truncated += sum(example.truncated_tokens > 0 for example in examples)
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

    def decode(self, outputs: Outputs, batch: Batch) -> dict[int, Any]:
        """Return the result of each row, by the row's number."""
        answers: dict[int, Any] = self.task.decode(outputs, batch)
        if not isinstance(self.task, TextTask):
            return answers
        logits = outputs["logits" if "logits" in outputs else "values"]
        rows = to_array(logits).astype(np.float32).reshape(len(answers), -1)
        scored = zip(answers.items(), rows, strict=True)  # both in the order of the batch
        return {row: ScoredPrediction(answer, logits) for (row, answer), logits in scored}


class AnswerRunner(TaskRunner):
    """Computes spans of passages; each request makes its answer from them by `task.answer`."""

    task: AnsweringTask

    def decode(self, outputs: Outputs, batch: Batch) -> dict[int, Any]:
        return {spans[0].index: spans for spans in self.task.spans(outputs, batch)}


class MaskedRunner(TaskRunner):
    """Computes what a pre-trained model predicts of texts; see `predict_masks`."""

    task: PretrainingTask

    def prepare(
        self,
        items: Sequence[MaskedText | Variant],
        task: Task[Any] | None = None,
        counts: RequestTokens | None = None,
    ) -> list[MaskedExample]:
        del task, counts
        mask = get_mask(self.task)
        texts = [item.fill(mask) if isinstance(item, Variant) else item for item in items]
        return mask_examples(self.task, texts, self._take_numbers(len(texts)))

    def run(self, examples: Sequence[MaskedExample]) -> list[Prediction]:
        with memory_errors():
            return predict_masks(self.network, self.task, examples, self.engine)

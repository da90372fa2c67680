"""Question answering: the span of a passage that answers a question, or that none does.

    [CLS] question [SEP] window of the passage [SEP] ─► encoder ─► S·Tᵢ and E·Tᵢ for each token i

The score of a span from i to j is S·Tᵢ + E·Tⱼ; that of no answer is the span of `[CLS]` alone
(paper §4.2 and §4.3). A long passage is cut into windows that overlap, and of each token the window
with the most context around it has the say (the original `run_squad.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from torch import Tensor

from ...checkpoints.heads import SPANS
from ...errors import DataError
from ...packed import Batch
from ...text.encoding import Encoding, Segment
from ...text.windows import segment_windows
from ..example import by_length, pack
from ..json_document import TITLE
from ..labelled import LabelledTask, TaskOptions, TaskSettings, check_length
from ..placed import Rows, text_of
from ..schema import RoleColumns
from ..task import Evaluator, Prediction, Row, Shown
from .columns import SCHEMA, answers_of
from .evaluator import AnsweringEvaluator
from .examples import AnsweringExample
from .network import AnsweringNetwork
from .settings import AnsweringOptions, AnsweringSettings
from .spans import Candidate, Found, candidates, locate, passage_tokens, tellers, tokens_of

if TYPE_CHECKING:
    from ...checkpoints.published import Published
    from ...model.config import EncoderConfig

_PUBLISHED_LENGTH = 384  # tokens of a window: what published models were trained with


class AnsweringTask(LabelledTask[AnsweringExample]):
    """Which span of a passage answers a question.

    Args:
        tokenizer: the model's.
        settings: columns, windows, limits.
    """

    name: ClassVar[str] = "answering"
    head = SPANS
    best_metric = "f1"
    schema = SCHEMA
    options: ClassVar[type[TaskOptions]] = AnsweringOptions
    is_guessable: ClassVar[bool] = False
    settings_class: ClassVar[type[TaskSettings]] = AnsweringSettings
    settings: AnsweringSettings

    @classmethod
    def learned(cls, rows: Rows, columns: RoleColumns, options: TaskOptions) -> dict[str, Any]:  # noqa: ARG003
        column = columns["answers"]
        assert isinstance(column, str), "answers were asked for"
        return {"unanswerable": any(not answers_of(row, column, where)[0] for where, row in rows)}

    @classmethod
    def published(cls, of: Published) -> Self | None:
        if not of.has_head(cls.head):
            return None
        length = min(_PUBLISHED_LENGTH, of.config.max_seqlen)
        settings = AnsweringSettings(
            max_seq_length=length, stride=min(128, length // 4), dropout=of.dropout(cls.head)
        )
        return cls(of.tokenizer, settings)

    def network(self, config: EncoderConfig) -> AnsweringNetwork:
        """A fresh network.

        Raises:
            SettingsError: the encoder has fewer positions than `max_seq_length`.
        """
        own = self.settings
        check_length(own.max_seq_length, config)
        return AnsweringNetwork(config, own.dropout, own.span_loss, own.softmax)

    def source_columns(self, rows: Rows) -> Sequence[tuple[str, ...]]:
        article = [(TITLE,)] if TITLE in rows.columns else []
        return [*article, (self.settings.context,)]

    def text_row(self, text: str, pair: str | None = None) -> Row:
        if pair is None:
            raise DataError("the model takes a question and a passage", where=repr(text))
        return {self.settings.question: text, self.settings.context: pair}

    def placed_examples(
        self, rows: Sequence[Row], first_index: int, where: Sequence[str], *, labelled: bool
    ) -> list[AnsweringExample]:
        """Tokenise many rows at once; a passage that stands in several, once.

        Raises:
            DataError: a column is missing, or holds no text, or no answers as SQuAD writes them.
        """
        own = self.settings
        questions = [text_of(row, own.question, at) for row, at in zip(rows, where, strict=True)]
        contexts = {text_of(row, own.context, at): at for row, at in zip(rows, where, strict=True)}
        parts = self.tokenizer.segments(list(contexts), where=list(contexts.values()))
        passages = dict(zip(contexts, parts, strict=True))
        segments = self.tokenizer.segments(questions, where=where)
        return [
            self._example(
                first_index + at, row, segments[at], passages[row[own.context]], where[at], labelled
            )
            for at, row in enumerate(rows)
        ]

    def _example(
        self,
        index: int,
        row: Row,
        question: Segment,
        passage: Segment,
        where: str,
        labelled: bool,
    ) -> AnsweringExample:
        own = self.settings
        question_seen = question[: own.max_question_tokens]
        room = own.max_seq_length - self.tokenizer.num_special_tokens(pair=True)
        windows = segment_windows(
            self.tokenizer,
            question_seen,
            passage,
            max_length=own.max_seq_length,
            # Beside a long question a window may be narrower than the stride.
            stride=min(own.stride, max(1, room - len(question_seen))),
            where=where,
        )
        answers = targets = None
        found: Found = "as given"
        if labelled:
            texts, starts = answers_of(row, own.answers, where)
            answers = tuple(texts)
            start = end = -1
            if texts:
                text = texts[0]
                start, found = locate(row[own.context], text, starts[0])
                if found != "lost":  # blanks around the answer are no token's
                    end = start + len(text.rstrip())
                    start += len(text) - len(text.lstrip())
            targets = [self._target(window, start, end) for window in windows]
        return AnsweringExample(
            index=index,
            sequences=windows,
            target=targets,
            truncated_tokens=max(0, len(question) - own.max_question_tokens),
            texts=(row[own.question], row[own.context]),
            where=where,
            answers=answers,
            found=found,
        )

    @staticmethod
    def _target(window: Encoding, start: int, end: int) -> tuple[int, int]:
        if start < 0:
            return 0, 0
        return tokens_of(window, passage_tokens(window), start, end) or (0, 0)

    def training_examples(self, example: AnsweringExample) -> Sequence[AnsweringExample]:
        """Each window by itself; a question whose answer is lost teaches nothing."""
        if example.found == "lost":
            return []
        assert example.target is not None, "answers are known where they are learned"
        return [
            replace(
                example, sequences=[window], target=[target], found="as given", truncated_tokens=0
            )
            for window, target in zip(example.sequences, example.target, strict=True)
        ]

    def collate(self, examples: Sequence[AnsweringExample]) -> Batch:
        """Pack windows in order of length.

        `targets["spans"]` is `[sequences, 2]` int64, first and last token of the answer in its
        window; `["may_answer"]` `[tokens]` bool: the passage's tokens and `[CLS]`;
        `counts["answering"]` the windows.
        """
        places = by_length(examples)
        packed = pack(examples, places)
        if any(example.target is None for example in examples):
            return Batch(packed, examples=examples)
        may_answer = np.zeros(packed.num_tokens, bool)
        for (at, number), start in zip(places, packed.cu_seqlens.tolist(), strict=False):
            may_answer[start + passage_tokens(examples[at].sequences[number])] = True
            may_answer[start] = True
        spans = [examples[at].target[number] for at, number in places]
        targets = {"spans": np.array(spans, np.int64), "may_answer": may_answer}
        return Batch(packed, targets, {"answering": len(places)}, examples)

    def decode(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[int, Prediction]:
        """For each row its `answer` (empty if there is none), the `start` and `end` characters, its
        `probability`, and the `alternatives`, best first.

        Probabilities are shared out among the `n_best` spans, and no answer if there may be none.
        """
        return {
            example.index: self.answer(example, spans, null)
            for example, spans, null in self.spans(outputs, batch)
        }

    def shown(self, prediction: Prediction) -> list[Shown]:
        return [(prediction["answer"] or "no answer", prediction["probability"])]

    def answer(
        self, example: AnsweringExample, spans: Sequence[Candidate], null: float
    ) -> Prediction:
        """What is told of a row: see `decode`."""
        every = [*spans, Candidate(null, 0, 0)] if self.settings.unanswerable else spans
        scores = np.array([span.score for span in every])
        shares = np.exp(scores - scores.max(initial=-np.inf))
        told: list[Prediction] = [
            {
                "answer": example.context[span.start : span.end],
                "start": span.start,
                "end": span.end,
                "probability": float(share),
            }
            for span, share in zip(every, shares / max(shares.sum(), 1e-300), strict=True)
        ]
        nothing: Prediction = {"answer": "", "start": 0, "end": 0, "probability": 0.0}
        best = told[0] if told else nothing
        if self.settings.unanswerable and self._is_null(spans, null):
            best = told[-1]
        told.sort(key=lambda one: one["probability"], reverse=True)
        return {**best, "alternatives": told}

    def _is_null(self, spans: Sequence[Candidate], null: float) -> bool:
        return not spans or null - spans[0].score > self.settings.null_threshold

    def spans(
        self, outputs: Mapping[str, Tensor], batch: Batch
    ) -> Iterator[tuple[AnsweringExample, list[Candidate], float]]:
        """Each row's example, its best spans of different texts, and the score of no answer."""
        logits = outputs["logits"].double().cpu().numpy()
        cu_seqlens = batch.packed.cu_seqlens.tolist()
        rows, numbers = batch.packed.sequence_row.tolist(), batch.packed.sequence_number.tolist()
        places = {pair: cu_seqlens[at] for at, pair in enumerate(zip(rows, numbers, strict=True))}
        own = self.settings
        for example in batch.examples:
            tokens = [passage_tokens(window) for window in example.sequences]
            firsts = [own.stride * number for number in range(len(tokens))]
            says = tellers([(first, len(part)) for first, part in zip(firsts, tokens, strict=True)])
            null = np.inf
            best: list[Candidate] = []
            for number, (window, part) in enumerate(zip(example.sequences, tokens, strict=True)):
                start = places[example.index, number]
                null = min(null, logits[start].sum())
                own_logits = logits[start + part]
                best += candidates(
                    own_logits[:, 0],
                    own_logits[:, 1],
                    window.offsets[part],
                    says[number],
                    max_answer_tokens=own.max_answer_tokens,
                    count=own.n_best,
                )
            best.sort(key=lambda span: -span.score)
            unlike: dict[str, Candidate] = {}
            for span in best:
                unlike.setdefault(example.context[span.start : span.end], span)
            yield example, list(unlike.values())[: own.n_best], float(null)

    def count_targets(self, examples: Sequence[AnsweringExample]) -> Mapping[str, int]:
        counts = {"answered": 0, "without an answer": 0, "moved": 0, "lost": 0}
        for example in examples:
            if not example.answers:
                counts["without an answer"] += 1
            else:
                counts["answered" if example.found == "as given" else example.found] += 1
        return {name: count for name, count in counts.items() if count or name == "answered"}

    @property
    def metrics(self) -> tuple[str, ...]:
        base = ("loss", "exact_match", "f1")
        if not self.settings.unanswerable:
            return base
        return (*base, "answered_f1", "unanswered_accuracy", "best_f1", "best_null_threshold")

    def tuned(self, metrics: Mapping[str, float]) -> Self:
        if "best_null_threshold" not in metrics:
            return self
        values = self.settings.with_values(null_threshold=metrics["best_null_threshold"])
        return type(self)(self.tokenizer, values)

    def evaluator(self) -> Evaluator:
        return AnsweringEvaluator(self)

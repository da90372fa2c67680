"""Question answering: predict the span of a passage that answers a question, or "no answer".

    [CLS] question [SEP] window of the passage [SEP] ─► encoder ─► S·Tᵢ and E·Tᵢ for each token i

The score of a span from i to j is S·Tᵢ + E·Tⱼ; the score of "no answer" is that of the span of
`[CLS]` alone (paper §4.2 and §4.3). A long passage is split into overlapping windows. An answer may
start at a token only in the window where this token has the most context (`run_squad.py`, the
original).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, get_args

import numpy as np
from numpy.typing import NDArray

from ...checkpoints.heads import SPANS, PublishedCheckpoint
from ...data.questions import TITLE
from ...data.rows import Row, Rows, texts_of
from ...data.schema import RoleColumns
from ...errors import DataError
from ...nn.config import EncoderConfig
from ...nn.head_layouts import HeadLayout, token_layout
from ...packed import Batch, to_array
from ...text.encoding import Encoding, Segment, with_marks
from ...text.tokenizer import Tokenizer
from ...text.windows import segment_windows
from ..array_network import ArrayNetwork, head_outputs
from ..evaluators import ScoredEvaluator
from ..example import pack, sort_sequences
from ..labelled import LabelledTask
from ..probabilities import log_softmax
from ..task import DisplayValue, Evaluator, Outputs, Prediction, TaskSettings
from .answers import SCHEMA, USUAL_COLUMNS, has_ignored_answers, read_answers
from .scores import AnsweringScores
from .settings import AnsweringSettings
from .spans import (
    AnsweringExample,
    AnswerMatch,
    ScoredSpan,
    find_answer_tokens,
    find_best_spans,
    find_max_context,
    find_passage_tokens,
    find_target,
    locate_answer,
)

if TYPE_CHECKING:
    from jaxtyping import Float

    from .network import AnsweringNetwork
else:
    AnsweringNetwork = Any

_PUBLISHED_LENGTH = 384  # tokens per window in the training of published models


class AnsweringEvaluator(ScoredEvaluator[AnsweringScores]):
    """Computes `loss` per window and the scores of `AnsweringScores`."""

    def __init__(self, task: AnsweringTask) -> None:
        self._task, settings = task, task.settings
        super().__init__(
            AnsweringScores(unanswerable=settings.unanswerable, threshold=settings.null_threshold)
        )

    def add(self, outputs: Outputs, batch: Batch) -> None:
        settings = self._task.settings
        self._loss += _loss_sum(to_array(outputs["logits"]), batch, settings)
        self._count += batch.packed.num_sequences
        for example, spans, null in self._task.spans(outputs, batch):
            assert example.answers is not None, "answers are known where they are measured"
            answer = self._task.answer(example, spans, null)
            margin = None
            if settings.unanswerable:  # without a span, no threshold changes the empty prediction
                margin = null - spans[0].score if spans else 0.0
            self._scores.add(
                example,
                example.question,
                example.context,
                example.answers,
                example.context[spans[0].start : spans[0].end] if spans else "",
                margin=margin,
                probability=answer["probability"],
                mark=(answer["start"], answer["end"]),
            )

    def tuned_settings(self, metrics: Mapping[str, float]) -> dict[str, Any]:
        best = metrics.get("best_null_threshold")
        return {} if best is None else {"null_threshold": best}


def _loss_sum(
    logits: Float[np.ndarray, "tokens 2"], batch: Batch, settings: AnsweringSettings
) -> float:
    """The sum over windows of the mean or sum of the start and end cross-entropies."""
    spans, may_answer = (to_array(batch.targets[name]) for name in ("spans", "may_answer"))
    total = 0.0
    for tokens, span in zip(batch.packed.slices, spans, strict=True):
        window = logits[tokens]
        if settings.softmax == "passage":
            window = np.where(may_answer[tokens, None], window, -np.inf)
        total -= float(log_softmax(window.T)[[0, 1], span].sum())
    return total * (0.5 if settings.span_loss == "mean" else 1.0)


class AnsweringTask(LabelledTask[AnsweringExample]):
    """Question answering: predict the span of a passage that answers a question."""

    name: ClassVar[str] = "answering"
    head = SPANS
    best_metric = "f1"
    schema = SCHEMA
    has_majority_baseline = False
    settings_class: ClassVar[type[TaskSettings]] = AnsweringSettings
    settings: AnsweringSettings

    def __init__(self, tokenizer: Tokenizer, settings: AnsweringSettings) -> None:
        frame = tokenizer.definition.frame
        has_cls = frame.start or tokenizer.puts_cls_last
        if not (has_cls and frame.between and frame.end):
            raise DataError(
                "the tokenizer has no special tokens around a question and its passage",
                fix="Use a model of another family, such as BERT.",
            )
        super().__init__(tokenizer, settings)

    def _passage_tokens(self, window: Encoding) -> np.ndarray:
        """The indices of a window's tokens that belong to the passage."""
        return find_passage_tokens(window, len(self.tokenizer.definition.frame.end))

    def _no_answer_token(self, window: Encoding) -> int:
        """The index of the token that stands for "no answer": `[CLS]`."""
        return len(window.input_ids) - 1 if self.tokenizer.puts_cls_last else 0

    @classmethod
    def settings_from_rows(
        cls,
        rows: Rows,
        columns: RoleColumns,
        settings: AnsweringSettings,  # noqa: ARG003
    ) -> dict[str, Any]:
        return {
            "unanswerable": any(not read_answers(row, columns, where)[0] for where, row in rows)
        }

    @classmethod
    def settings_of_checkpoint(cls, checkpoint: PublishedCheckpoint) -> dict[str, Any]:
        length = min(_PUBLISHED_LENGTH, checkpoint.max_length)
        return {**USUAL_COLUMNS, "max_seq_length": length, "stride": min(128, length // 4)}

    def network(self, config: EncoderConfig) -> AnsweringNetwork:
        from .network import AnsweringNetwork

        config.check_length(self.settings.max_seq_length)
        config = config.with_global_tokens("question", self.tokenizer.id_of("sep"))
        return AnsweringNetwork(config, self.settings)

    def head_layouts(self, config: EncoderConfig) -> Mapping[str, HeadLayout]:
        config.check_length(self.settings.max_seq_length)
        return {SPANS.name: token_layout(config, 2)}

    def compute(self, network: ArrayNetwork, batch: Batch) -> dict[str, NDArray[Any]]:
        return {"logits": head_outputs(network, SPANS.name, batch.packed)}

    def source_columns(self, rows: Rows) -> Sequence[tuple[str, ...]]:
        article = [(TITLE,)] if TITLE in rows.columns else []
        return [*article, (self.column("context"),)]

    def text_row(self, text: str, pair: str | None = None) -> Row:
        if pair is None:
            raise DataError("the model takes a question and a passage", where=repr(text))
        return {self.column("question"): text, self.column("context"): pair}

    def build_examples(
        self, rows: Sequence[Row], first_index: int, where: Sequence[str], *, labelled: bool
    ) -> list[AnsweringExample]:
        """Tokenise many rows at once; a passage shared by several rows is tokenised once."""
        questions = texts_of(rows, self.column("question"), where)
        contexts = texts_of(rows, self.column("context"), where)
        where_of = dict(zip(contexts, where, strict=True))
        parts = self.tokenizer.segments(list(where_of), where=list(where_of.values()))
        passages = {
            text: replace(part, offsets=with_marks(part.offsets, text))
            for text, part in zip(where_of, parts, strict=True)
        }
        segments = self.tokenizer.segments(questions, where=where)
        return [
            self._example(
                first_index + index,
                row,
                (questions[index], contexts[index]),
                segments[index],
                passages[contexts[index]],
                where[index],
                labelled,
            )
            for index, row in enumerate(rows)
        ]

    def _example(
        self,
        index: int,
        row: Row,
        texts: tuple[str, str],
        question: Segment,
        passage: Segment,
        where: str,
        labelled: bool,
    ) -> AnsweringExample:
        settings = self.settings
        question_tokens = question[: settings.max_question_tokens]
        room = settings.max_seq_length - self.tokenizer.num_special_tokens(pair=True)
        # With a long question, a window may have fewer passage tokens than the stride.
        stride = min(settings.stride, max(1, room - len(question_tokens)))
        windows = segment_windows(
            self.tokenizer,
            question_tokens,
            passage,
            max_length=settings.max_seq_length,
            stride=stride,
            where=where,
        )
        answers = targets = None
        match: AnswerMatch = "exact"
        if labelled:
            answer_texts, starts = read_answers(row, self.columns, where)
            answers = tuple(answer_texts)
            start = end = -1
            if answers:
                text = answers[0]
                start, match = locate_answer(texts[1], text, starts[0])
                if match != "not found":  # no token covers the spaces around the answer
                    end = start + len(text.rstrip())
                    start += len(text) - len(text.lstrip())
            answer = find_answer_tokens(passage, start, end)
            targets = [
                find_target(
                    self._passage_tokens(window),
                    stride * number,
                    answer,
                    self._no_answer_token(window),
                )
                for number, window in enumerate(windows)
            ]
            is_in_window = any(
                target[0] != self._no_answer_token(window)
                for window, target in zip(windows, targets, strict=True)
            )
            if answers and match != "not found" and not is_in_window:
                match = "in no window"  # or "no answer" would be learned of a question that has one
            elif answers and len(answer) > settings.max_answer_tokens:
                match = "longer than max_answer_tokens"
            elif not answers and has_ignored_answers(row, self.columns, where):
                match = "is_impossible, with answers"
        return AnsweringExample(
            index=index,
            sequences=windows,
            target=targets,
            truncated_tokens=max(0, len(question) - settings.max_question_tokens),
            texts=texts,
            where=where,
            answers=answers,
            match=match,
        )

    def training_examples(self, example: AnsweringExample) -> Sequence[AnsweringExample]:
        """One example per window; none if the answer is not in the passage, or in no window."""
        if example.match in ("not found", "in no window"):
            return []
        assert example.target is not None, "answers are known where they are learned"
        return [
            replace(example, sequences=[window], target=[target], match="exact", truncated_tokens=0)
            for window, target in zip(example.sequences, example.target, strict=True)
        ]

    def collate(self, examples: Sequence[AnsweringExample]) -> Batch:
        """Pack windows in order of length.

        If the answers are known, `targets["spans"]` is `[sequences, 2]` int64, the first and last
        token of the answer in the window; `targets["may_answer"]` is `[tokens]` bool, true for the
        passage's tokens and `[CLS]`; `counts["answering"]` is the number of windows.
        """
        indices = sort_sequences(examples)
        packed = pack(examples, indices)
        if any(example.target is None for example in examples):
            return Batch(packed, examples=examples)
        may_answer = np.zeros(packed.num_tokens, bool)
        for (index, number), start in zip(indices, packed.cu_seqlens.tolist(), strict=False):
            window = examples[index].sequences[number]
            may_answer[start + self._passage_tokens(window)] = True
            may_answer[start + self._no_answer_token(window)] = True
        spans = [examples[index].target[number] for index, number in indices]
        targets = {"spans": np.array(spans, np.int64), "may_answer": may_answer}
        return Batch(packed, targets, {"answering": len(indices)}, examples)

    def decode(self, outputs: Outputs, batch: Batch) -> dict[int, Prediction]:
        """For each row the `answer` (empty if there is none), its `start` and `end` characters, its
        `probability`, and the `alternatives`, best first.

        Probabilities are a softmax over the scores of the `n_best` spans, and of "no answer" if
        `unanswerable` is set.
        """
        return {
            example.index: self.answer(example, spans, null)
            for example, spans, null in self.spans(outputs, batch)
        }

    def display_values(self, prediction: Prediction) -> list[DisplayValue]:
        return [(prediction["answer"] or "no answer", prediction["probability"])]

    def answer(
        self, example: AnsweringExample, spans: Sequence[ScoredSpan], null: float
    ) -> Prediction:
        """The prediction for a row; see `decode`."""
        choices = [*spans, ScoredSpan(null, 0, 0)] if self.settings.unanswerable else spans
        scores = np.array([span.score for span in choices])
        weights = np.exp(scores - scores.max(initial=-np.inf))
        answers: list[Prediction] = [
            {
                "answer": example.context[span.start : span.end],
                "start": span.start,
                "end": span.end,
                "probability": float(weight),
            }
            for span, weight in zip(choices, weights / max(weights.sum(), 1e-300), strict=True)
        ]
        no_answer: Prediction = {"answer": "", "start": 0, "end": 0, "probability": 0.0}
        best = answers[0] if answers else no_answer
        threshold = self.settings.null_threshold
        if self.settings.unanswerable and (not spans or null - spans[0].score > threshold):
            best = answers[-1]
        answers.sort(key=lambda answer: answer["probability"], reverse=True)
        return {**best, "alternatives": answers}

    def spans(
        self, outputs: Outputs, batch: Batch
    ) -> Iterator[tuple[AnsweringExample, list[ScoredSpan], float]]:
        """Each row's example, its best spans with different texts, and the score of "no answer"."""
        logits = to_array(outputs["logits"]).astype(np.float64)
        cu_seqlens = batch.packed.on_host.cu_seqlens.tolist()
        rows, numbers = (
            batch.packed.on_host.sequence_row.tolist(),
            batch.packed.on_host.sequence_number.tolist(),
        )
        starts = {
            pair: cu_seqlens[number] for number, pair in enumerate(zip(rows, numbers, strict=True))
        }
        settings = self.settings
        for example in batch.examples:
            tokens = [self._passage_tokens(window) for window in example.sequences]
            # The smaller stride of a long question adjoins its windows: no token is in two.
            firsts = [settings.stride * number for number in range(len(tokens))]
            lengths = map(len, tokens)
            may_start = find_max_context(list(zip(firsts, lengths, strict=True)))
            null = np.inf
            best: list[ScoredSpan] = []
            for number, (window, passage) in enumerate(zip(example.sequences, tokens, strict=True)):
                start = starts[example.index, number]
                null = min(null, logits[start + self._no_answer_token(window)].sum())
                passage_logits = logits[start + passage]
                best += find_best_spans(
                    passage_logits[:, 0],
                    passage_logits[:, 1],
                    window.offsets[passage],
                    may_start[number],
                    max_answer_tokens=settings.max_answer_tokens,
                    count=settings.n_best,
                )
            best.sort(key=lambda span: -span.score)
            span_by_text: dict[str, ScoredSpan] = {}
            for span in best:
                span_by_text.setdefault(example.context[span.start : span.end], span)
            yield example, list(span_by_text.values())[: settings.n_best], float(null)

    def count_targets(self, examples: Sequence[AnsweringExample]) -> Mapping[str, int]:
        counts = dict.fromkeys(("answered", "without an answer", *get_args(AnswerMatch)[1:]), 0)
        for example in examples:
            exact = "answered" if example.answers else "without an answer"
            counts[exact if example.match == "exact" else example.match] += 1
        return {name: count for name, count in counts.items() if count or name == "answered"}

    @property
    def metrics(self) -> tuple[str, ...]:
        base = ("loss", "exact_match", "f1")
        if not self.settings.unanswerable:
            return base
        return (*base, "answered_f1", "unanswered_accuracy", "best_f1", "best_null_threshold")

    def evaluator(self) -> Evaluator:
        return AnsweringEvaluator(self)

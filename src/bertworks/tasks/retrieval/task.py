"""Retrieval: a bi-encoder, whose vectors of a query and its passage are near each other.

    [CLS] query [SEP]   ─► encoder ─► pooling ─► length 1 ─┐
    [CLS] passage [SEP] ─►   the same encoder    ─►        ┴─► cosine

Rows are queries with their passages and possibly negatives, or pairs of texts with a score.

Source: Reimers and Gurevych (2019), "Sentence-BERT"; Karpukhin et al. (2020), "Dense Passage
Retrieval", §3.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, ClassVar, Self

import numpy as np
from torch import Tensor

from ...checkpoints.sentence import SentenceSettings
from ...data.rows import Row, Rows, text_of
from ...errors import DataError, SettingsError
from ...nn.config import EncoderConfig
from ...packed import Batch
from ...text.tokenizer import Tokenizer
from ..evaluators import RegressionEvaluator
from ..example import LabelledExample, Tokens
from ..labelled import LabelledTask
from ..labels import read_finite_number
from ..task import DisplayValue, Evaluator, Prediction
from ..task_options import TaskOptions, TaskSettings, check_length
from .columns import SCHEMA, RetrievalColumns, find_retrieval_columns, read_negatives
from .evaluator import RankingEvaluator
from .network import RetrievalNetwork
from .packing import pack_texts
from .settings import RetrievalOptions, RetrievalSettings


class RetrievalTask(LabelledTask[LabelledExample]):
    """Retrieval: vectors of texts whose cosine measures how well they match."""

    name: ClassVar[str] = "retrieval"
    schema = SCHEMA
    options: ClassVar[type[TaskOptions]] = RetrievalOptions
    has_majority_baseline = False
    teacher_outputs = "vectors"
    settings_class: ClassVar[type[TaskSettings]] = RetrievalSettings
    settings: RetrievalSettings

    def __init__(self, tokenizer: Tokenizer, settings: RetrievalSettings) -> None:
        super().__init__(tokenizer, settings)
        self.additive = settings.loss != "in-batch"
        self.best_metric = "mrr@10" if settings.columns.score is None else "spearman"

    @classmethod
    def inherit_options(cls, sentence: SentenceSettings | None) -> dict[str, Any]:
        if sentence is None:
            return {}
        limit = sentence.max_seq_length
        return {"pooling": sentence.pooling, **({} if limit is None else {"max_seq_length": limit})}

    @classmethod
    def _columns_of(cls, rows: Rows, options: RetrievalOptions) -> RetrievalColumns:
        negatives = options.negative_columns
        return find_retrieval_columns(
            rows,
            query=options.query_column,
            passage=options.passage_column,
            negatives=None
            if negatives is None
            else [name.strip() for name in negatives.split(",")],
            score=options.score_column,
            may_score=options.loss in {None, "cosine"},
        )

    @classmethod
    def find_label_columns(cls, rows: Rows, options: TaskOptions) -> list[str]:
        assert isinstance(options, RetrievalOptions)
        if options.text_column is not None:  # single texts, with a teacher's vectors as targets
            return []
        score = cls._columns_of(rows, options).score
        return [] if score is None else [score]

    @classmethod
    def from_table(cls, tokenizer: Tokenizer, rows: Rows, options: TaskOptions) -> Self:
        assert isinstance(options, RetrievalOptions)
        if options.text_column is not None:
            raise SettingsError(
                f"text_column={options.text_column!r} does nothing without teacher",
                fix="Name query_column and passage_column.",
            )
        columns = cls._columns_of(rows, options)
        loss = options.loss or ("in-batch" if columns.score is None else "cosine")
        if loss == "cosine" and columns.score is None:
            raise _missing_column_error(rows, "scores", "score_column")
        if loss == "triplet" and not columns.negatives:
            raise _missing_column_error(rows, "negatives", "negative_columns")
        if options.symmetric and loss != "in-batch":
            raise SettingsError(f"symmetric=true is not for loss={loss}")
        if loss != "cosine":
            columns = columns.with_values(score=None)
        values = {k: v for k, v in options.values_for(RetrievalSettings).items() if v is not None}
        values |= {"columns": columns, "loss": loss}
        if columns.score is not None and options.score_range is None:
            scores = [read_finite_number(row, columns.score, where) for where, row in rows]
            values["score_range"] = find_score_range(scores)
            if min(scores) == max(scores):
                what = f"all scores (column {columns.score!r}) are {scores[0]:g}"
                raise DataError(what, where=rows.name)
        return cls(tokenizer, RetrievalSettings.parse(values))

    def for_table(self, rows: Rows, *, labelled: bool) -> Self:
        columns = self.settings.columns
        required_columns = {columns.query, columns.passage}
        if labelled:
            required_columns |= {*columns.negatives, *filter(None, [columns.score])}
        if required_columns <= set(rows.columns):
            return self

        def keep_present(name: str | None) -> str | None:
            return name if name in rows.columns else None

        has_negatives = columns.negatives and set(columns.negatives) <= set(rows.columns)
        new_columns = find_retrieval_columns(
            rows,
            query=keep_present(columns.query),
            passage=keep_present(columns.passage),
            negatives=columns.negatives if has_negatives else None,
            score=keep_present(columns.score),
            labelled=labelled,
            may_score=columns.score is not None
            or not {columns.query, columns.passage} <= set(rows.columns),
        )
        values: dict[str, Any] = {"columns": new_columns}
        if new_columns.score is not None:
            sample = [read_finite_number(row, new_columns.score, rows.name) for row in rows.sample]
            values["score_range"] = self.settings.score_range or find_score_range(sample)
        return type(self)(self.tokenizer, self.settings.with_values(**values))

    @property
    def sentence(self) -> SentenceSettings:
        settings = self.settings
        return SentenceSettings(
            pooling=settings.pooling, normalize=True, max_seq_length=settings.max_seq_length
        )

    def network(self, config: EncoderConfig) -> RetrievalNetwork:
        check_length(self.settings.max_seq_length, config)
        return RetrievalNetwork(config, self.settings)

    def check_batches(self, examples: Sequence[LabelledExample], batch_size: int) -> None:
        has_negatives = any(len(example.sequences) > 2 for example in examples)
        if batch_size == 1 and not self.additive and not has_negatives:
            raise SettingsError(
                "batch_size=1: loss=in-batch compares a query with the passages of the other rows "
                "of its batch, and there are none: nothing would be learned",
                fix="Give a larger batch_size, or negatives.",
            )

    def source_columns(self, rows: Rows) -> Sequence[tuple[str, ...]]:  # noqa: ARG002
        return [(self.settings.columns.query,)]

    @property
    def columns_text(self) -> str:
        return str(self.settings.columns)

    def text_row(self, text: str, pair: str | None = None) -> Row:
        if pair is None:
            raise DataError(
                "the model compares two texts, and there is one",
                where=repr(text),
                fix="Give a pair of texts; bertworks embed makes vectors, bertworks search finds.",
            )
        return {self.settings.columns.query: text, self.settings.columns.passage: pair}

    def build_examples(
        self, rows: Sequence[Row], first_index: int, where: Sequence[str], *, labelled: bool
    ) -> list[LabelledExample]:
        settings, columns = self.settings, self.settings.columns
        texts: list[list[str]] = []
        scores: list[float | None] = [None] * len(rows)
        for index, (row, location) in enumerate(zip(rows, where, strict=True)):
            parts = [text_of(row, column, location) for column in (columns.query, columns.passage)]
            if labelled:
                parts += read_negatives(row, columns.negatives, location)
                if settings.loss == "triplet" and columns.negatives and len(parts) == 2:
                    raise DataError("the row has no negative", where=location)
                if columns.score is not None:
                    assert settings.score_range is not None, "found in the table"
                    low, high = settings.score_range
                    scores[index] = (read_finite_number(row, columns.score, location) - low) / (
                        high - low
                    )
            texts.append(parts)
        return self.build_examples_from_texts(texts, first_index, where, scores)

    def build_examples_from_texts(
        self,
        texts: Sequence[Sequence[str]],
        first_index: int,
        where: Sequence[str],
        targets: Sequence[float | None],
    ) -> list[LabelledExample]:
        """Tokenise the texts of many rows at once.

        Raises:
            DataError: a text is too long and `truncation` is "error".
        """
        locations = [location for parts, location in zip(texts, where, strict=True) for _ in parts]
        encodings = self.tokenizer.encode_batch(
            [text for parts in texts for text in parts],
            max_length=self.settings.max_seq_length,
            truncation=self.settings.truncation,
            where=locations,
        )
        edges = pairwise(accumulate(map(len, texts), initial=0))
        return [
            LabelledExample(
                index=first_index + number,
                sequences=[Tokens.from_encoding(encoding) for encoding in encodings[start:end]],
                target=targets[number],
                truncated_tokens=sum(
                    encoding.truncated_tokens for encoding in encodings[start:end]
                ),
                texts=texts[number],
                where=where[number],
            )
            for number, (start, end) in enumerate(edges)
        ]

    def collate(self, examples: Sequence[LabelledExample]) -> Batch:
        """Pack all texts in order of length; `pack_texts` describes the targets.

        If scores are known, `targets["labels"]` is `[rows]` float32. `counts["retrieval"]` is the
        number of rows, or, in the triplet loss, of negatives.
        """
        packed, targets = pack_texts(examples)
        scores = [example.target for example in examples]
        if None not in scores:
            targets["labels"] = np.array(scores, np.float32)
        is_triplet = self.settings.loss == "triplet"
        count = len(targets["negative_row"]) if is_triplet else len(examples)
        return Batch(packed, targets, {"retrieval": count}, examples)

    def decode(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[int, Prediction]:
        """For each row the `similarity`: the cosine of its two texts."""
        values = outputs["values"].cpu().double().clamp(-1, 1).tolist()  # rounding may exceed 1
        return {
            example.index: {"similarity": value}
            for example, value in zip(batch.examples, values, strict=True)
        }

    def display_values(self, prediction: Prediction) -> list[DisplayValue]:
        return [(prediction["similarity"], None)]

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that the evaluator computes."""
        has_scores = self.settings.columns.score is not None
        return RegressionEvaluator.metrics if has_scores else RankingEvaluator.metrics

    def evaluator(self) -> Evaluator:
        has_scores = self.settings.columns.score is not None
        return RegressionEvaluator() if has_scores else RankingEvaluator()


def find_score_range(scores: Sequence[float]) -> tuple[float, float]:
    """The scores that mean cosines of 0 and 1: the lowest and the highest of `scores`.

    If all scores are between -1 and 1, they are used as cosines: the range is (0, 1).
    """
    low, high = min(scores), max(scores)
    if low >= -1 and high <= 1:
        return 0.0, 1.0
    return low, high if high > low else low + 1


def _missing_column_error(rows: Rows, what: str, option: str) -> DataError:
    return DataError(
        f"cannot tell which column holds the {what}",
        where=rows.name,
        fix=f"Name it: {option}=NAME.",
    )

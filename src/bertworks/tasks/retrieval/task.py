"""Retrieval: a bi-encoder, whose vectors of a query and its passage are near each other.

    [CLS] query [SEP]   ─► encoder ─► pooling ─► length 1 ─┐
    [CLS] passage [SEP] ─►   the same encoder    ─►        ┴─► cosine

Rows are queries with their passages and possibly negatives, or pairs of texts with a score.

Source: Reimers and Gurevych (2019), "Sentence-BERT"; Karpukhin et al. (2020), "Dense Passage
Retrieval", §3.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ...checkpoints.heads import MLM
from ...checkpoints.late_interaction import LateInteractionSettings
from ...checkpoints.sentence_settings import SentenceSettings
from ...data.missing_columns import missing_column_error
from ...data.rows import Row, Rows, text_of
from ...data.schema import RoleColumns, columns_present, names_of
from ...errors import DataError, SettingsError
from ...nn.config import EncoderConfig
from ...nn.head_layouts import HeadLayout
from ...packed import Batch, to_array
from ...text.encoding import Encoding, TokenIds
from ...text.tokenizer import Tokenizer
from ..array_network import ArrayNetwork, compute_in_chunks
from ..example import LabelledExample, Tokens
from ..labelled import LabelledTask
from ..labels import read_finite_number
from ..task import DisplayValue, Evaluator, Outputs, Prediction, Task, TaskSettings
from .columns import (
    SCHEMA,
    check_same_scale,
    find_retrieval_columns,
    find_score_range,
    read_negatives,
    read_score_list,
    scale_score,
    without_irrelevant,
)
from .late_interaction import TextForm, trained_form
from .packing import pack_texts
from .settings import DISTILLATION_LOSSES, ORDER_LOSSES, PAIR_LOSSES, RetrievalSettings

if TYPE_CHECKING:
    from ..evaluators import RegressionEvaluator
    from .evaluator import RankingEvaluator
    from .network import RetrievalNetwork
else:
    RetrievalNetwork = Any


class RetrievalTask(LabelledTask[LabelledExample]):
    """Retrieval: vectors of texts whose cosine measures how well they match."""

    name: ClassVar[str] = "retrieval"
    schema = SCHEMA
    has_majority_baseline = False
    teacher_outputs = "vectors"
    settings_class: ClassVar[type[TaskSettings]] = RetrievalSettings
    settings: RetrievalSettings

    def __init__(self, tokenizer: Tokenizer, settings: RetrievalSettings) -> None:
        self.pooling = settings.pooling or "mean"
        loss = settings.loss or ("in-batch" if settings.score_column is None else "cosine")
        super().__init__(tokenizer, settings.with_values(loss=loss, pooling=self.pooling))
        # FLOPS are of the means of a batch.
        is_of_batch = self.settings.has_loss("in-batch", *ORDER_LOSSES) or settings.is_sparse
        self.additive = not is_of_batch
        self.late_interaction: LateInteractionSettings | None = None
        if settings.is_late:
            self.late_interaction = trained_form(tokenizer, settings)
            self._form = TextForm(tokenizer, self.late_interaction)
        self.best_metric = "spearman" if self.settings.has_pair_scores else "mrr@10"

    @classmethod
    def inherit_options(cls, sentence: SentenceSettings | None) -> dict[str, Any]:
        if sentence is None:
            return {}
        limit = sentence.max_seq_length
        values: dict[str, Any] = {"pooling": sentence.pooling, "max_seq_length": limit}
        if (late := sentence.late_interaction) is None:
            values |= {
                "query_prompt": sentence.prompt("query"),
                "passage_prompt": sentence.prompt("document"),
            }
        else:
            values |= {
                "max_seq_length": late.document_length,
                "query_length": late.query_length,
                "query_marker": late.query_prefix,
                "passage_marker": late.document_prefix,
                "skipped_words": late.skipped_words,
            }
        return {option: value for option, value in values.items() if value is not None}

    @classmethod
    def _find_columns(cls, rows: Rows, settings: RetrievalSettings) -> RoleColumns:
        has_ids = settings.query_texts is not None or settings.passage_texts is not None
        names = cls._columns_in(settings)
        if settings.losses[0] not in (None, *PAIR_LOSSES, *DISTILLATION_LOSSES):
            names["score"] = None  # that of another table
        return find_retrieval_columns(
            rows,
            names,
            # A table of ids has judgements instead.
            may_score=settings.losses[0] in (None, *PAIR_LOSSES) and not has_ids,
            has_score_lists=settings.losses[0] in DISTILLATION_LOSSES,
        )

    @classmethod
    def find_label_columns(cls, rows: Rows, settings: RetrievalSettings) -> list[str]:
        if settings.text_column is not None:  # single texts, with a teacher's vectors as targets
            return []
        return cls._label_columns(cls._find_columns(rows, settings))

    @classmethod
    def complete_rows(cls, rows: Rows, settings: RetrievalSettings) -> Rows:
        from ...data.texts_by_id import with_texts

        files = {"query": settings.query_texts}
        files |= dict.fromkeys(("passage", "negatives"), settings.passage_texts)
        if not any(files.values()):
            return rows
        present = {
            role: name if all(map(rows.has, names_of(name))) else None
            for role, name in cls._columns_in(settings).items()
        }
        columns = find_retrieval_columns(rows, present, may_score=False)
        return with_texts(
            rows if columns["negatives"] else without_irrelevant(rows),
            {
                column: file
                for role, file in files.items()
                for column in names_of(columns[role])
                if file is not None
            },
            optional_columns=names_of(columns["negatives"]),
        )

    @classmethod
    def from_table(cls, tokenizer: Tokenizer, rows: Rows, settings: TaskSettings) -> Self:
        assert isinstance(settings, RetrievalSettings)
        if settings.text_column is not None:
            raise SettingsError(
                f"text_column={settings.text_column!r} does nothing without teacher",
                fix="Name query_column and passage_column.",
            )
        scored_losses = (*PAIR_LOSSES, *DISTILLATION_LOSSES)
        if settings.score_column is not None and not settings.has_loss(None, *scored_losses):
            what = f"score_column={settings.score_column!r} is not for loss={settings.loss}"
            raise SettingsError(what)
        columns = cls._find_columns(rows, settings)
        loss = settings.losses[0] or ("in-batch" if columns["score"] is None else "cosine")
        if loss in scored_losses and columns["score"] is None:
            raise missing_column_error(rows, "scores", "Name it: score_column=NAME.")
        if loss in ("triplet", *DISTILLATION_LOSSES) and not columns["negatives"]:
            raise missing_column_error(rows, "negatives", "Name it: negative_columns=NAME.")
        if loss not in scored_losses:
            columns["score"] = None
        values = settings.model_dump(include=set(cls.settings_class.model_fields))
        values |= cls._settings_of_columns(columns)
        values |= {"loss": settings.loss or loss, "query_texts": None, "passage_texts": None}
        if isinstance(settings.loss, tuple) and columns["score"] is None:
            values["score_column"] = settings.score_column  # that of another table
        has_pair_scores = loss in PAIR_LOSSES and settings.score_range is None
        if has_pair_scores and isinstance(score := columns["score"], str):
            scores = [read_finite_number(row, score, where) for where, row in rows]
            values["score_range"] = find_score_range(scores)
            if min(scores) == max(scores):
                raise DataError(f"all scores (column {score!r}) are {scores[0]:g}", where=rows.name)
        return cls(tokenizer, RetrievalSettings.parse(values))

    def for_table(self, rows: Rows, *, labelled: bool) -> Self:
        columns, settings = self.columns, self.settings
        roles = columns if labelled else ("query", "passage")
        names = {name for role in roles for name in names_of(columns[role])}
        # A student's training rows have no scores to detect the range of.
        needs_range = labelled and settings.has_pair_scores and settings.score_range is None
        if names <= set(rows.columns) and not needs_range:
            return self
        has_texts = {columns["query"], columns["passage"]} <= set(rows.columns)
        may_score = settings.has_pair_scores or not has_texts
        columns = find_retrieval_columns(
            rows, columns_present(rows, columns), labelled=labelled, may_score=may_score
        )
        values = self._settings_of_columns(columns)
        is_pairs = settings.losses[0] not in DISTILLATION_LOSSES
        if is_pairs and isinstance(score := columns["score"], str):
            sample = [read_finite_number(row, score, rows.name) for row in rows.sample]
            values["score_range"] = settings.score_range or find_score_range(sample)
        return type(self)(self.tokenizer, settings.with_values(**values))

    def check_tables(self, count: int) -> None:
        for name in ("query_prompt", "passage_prompt", "loss"):
            values = getattr(self.settings, name)
            if isinstance(values, tuple) and len(values) != count:
                what = f"{name} has {len(values)} values for {count} training tables"
                raise SettingsError(what, fix="Give one, or one for each.")

    def for_training_table(self, rows: Rows, number: int) -> Self:
        settings = self.settings.of_table(number)
        if number == 0:
            return type(self)(self.tokenizer, settings).for_table(rows, labelled=True)
        names = columns_present(rows, self.columns)
        if isinstance(self.settings.loss, tuple):  # so its rows may be of another kind
            if settings.loss not in (*PAIR_LOSSES, *DISTILLATION_LOSSES):
                names["score"] = None
            values = self._settings_of_columns(names)
            task = self.from_table(self.tokenizer, rows, settings.with_values(**values))
        else:
            has_lists = settings.loss in DISTILLATION_LOSSES
            columns = find_retrieval_columns(rows, names, has_score_lists=has_lists)
            score, first_score = columns["score"], self.columns["score"]
            if (score is None) != (first_score is None):
                what = "has no scores" if score is None else f"has scores (column {score!r})"
                raise DataError(
                    f"the table {what}, unlike the first training table",
                    where=rows.name,
                    fix="Train on tables of one kind, or remove the column.",
                )
            values = self._settings_of_columns(columns)
            task = type(self)(self.tokenizer, settings.with_values(**values))
        if isinstance(score := task.columns["score"], str) and settings.score_range is not None:
            check_same_scale(rows, score, settings.score_range)
        return task

    @property
    def sentence(self) -> SentenceSettings:
        limit = self.settings.max_seq_length
        query, passage = self.settings.prompts()
        prompts = {"query": query, "document": passage}
        entries: dict[str, Any] = {"prompts": prompts} if any(prompts.values()) else {}
        if self.settings.is_sparse:
            entries |= {"model_type": "SparseEncoder", "similarity_fn_name": "dot"}
        if self.settings.is_late:
            limit = max(limit, self.settings.query_length)
        return SentenceSettings(
            pooling=self.pooling,
            normalize=self.settings.has_cosines,
            max_seq_length=limit,
            late_interaction=self.late_interaction,
            entries=entries,
        )

    @property
    def model_class(self) -> str:
        return MLM.model_class if self.settings.is_sparse else super().model_class

    def is_head_compatible(self, other: Task[Any]) -> bool:
        from ..pretraining.task import PretrainingTask

        if self.settings.is_sparse and isinstance(other, PretrainingTask):
            return not other.causal
        if not isinstance(other, RetrievalTask):
            return False
        kinds = [
            (own.is_sparse, own.projection_size if own.is_late else None)
            for own in (self.settings, other.settings)
        ]
        return kinds[0] == kinds[1] and super().is_head_compatible(other)

    def network(self, config: EncoderConfig) -> RetrievalNetwork:
        from .late_network import LateInteractionNetwork
        from .network import RetrievalNetwork
        from .sparse_network import SparseNetwork

        config.check_length(self.settings.max_seq_length)
        if self.settings.is_late:
            config.check_length(self.settings.query_length, "query_length")
            return LateInteractionNetwork(config, self.settings, self._form.skipped_ids)
        if self.settings.is_sparse:
            if config.attention != "bidirectional":
                raise SettingsError(f"pooling={self.pooling}: the model's attention is causal")
            return SparseNetwork(config, self.settings)
        widest, size = max(self.settings.dimensions or (1,)), config.hidden_size
        if widest > size:
            what = f"dimensions={widest} is more than the encoder's hidden_size={size}"
            raise SettingsError(what)
        return RetrievalNetwork(config, self.settings)

    def head_layouts(self, config: EncoderConfig) -> Mapping[str, HeadLayout] | None:
        config.check_length(self.settings.max_seq_length)
        return None if self.settings.is_sparse or self.settings.is_late else {}

    def compute(self, network: ArrayNetwork, batch: Batch) -> dict[str, NDArray[Any]]:
        vectors = compute_in_chunks(partial(network.vectors, pooling=self.pooling), batch.packed)
        queries, passages = vectors[batch.targets["query"]], vectors[batch.targets["passage"]]
        values = np.array([one @ other for one, other in zip(queries, passages, strict=False)])
        return {"queries": queries, "passages": passages, "values": values}

    def check_batches(self, examples: Sequence[LabelledExample], batch_size: int) -> None:
        order_losses = [loss for loss in self.settings.losses if loss in ORDER_LOSSES]
        if batch_size == 1 and order_losses:
            what = f"batch_size=1: loss={order_losses[0]} compares the rows of a batch"
            raise SettingsError(what, fix="Give a larger batch_size.")
        has_negatives = any(len(example.sequences) > 2 for example in examples)
        if batch_size == 1 and not self.additive and not has_negatives:
            raise SettingsError(
                "batch_size=1: loss=in-batch compares a query with the passages of the other rows "
                "of its batch, and there are none: nothing would be learned",
                fix="Give a larger batch_size, or negatives.",
            )

    def source_columns(self, rows: Rows) -> Sequence[tuple[str, ...]]:  # noqa: ARG002
        return [(self.column("query"),)]

    @property
    def columns_text(self) -> str:
        is_scored = self.settings.has_pair_scores
        titles = {"query": "query", "passage": "positive", "negatives": "negative"}
        titles |= {"query": "text", "passage": "second text"} if is_scored else {}
        return ", ".join(
            f"{titles.get(role, role)} = {name!r}"
            for role, column in self.columns.items()
            for name in names_of(column)
        )

    def text_row(self, text: str, pair: str | None = None) -> Row:
        if pair is None:
            raise DataError(
                "the model compares two texts, and there is one",
                where=repr(text),
                fix="Give a pair of texts; bertworks embed makes vectors, bertworks search finds.",
            )
        return {self.column("query"): text, self.column("passage"): pair}

    def build_examples(
        self, rows: Sequence[Row], first_index: int, where: Sequence[str], *, labelled: bool
    ) -> list[LabelledExample]:
        settings, negatives = self.settings, names_of(self.columns["negatives"])
        text_columns = self.column("query"), self.column("passage")
        texts: list[list[str]] = []
        scores: list[Any] = [None] * len(rows)
        loss = settings.losses[0]  # a list's others are those of other tables
        needs_negatives = loss in ("triplet", *DISTILLATION_LOSSES)
        for index, (row, location) in enumerate(zip(rows, where, strict=True)):
            parts = [text_of(row, column, location) for column in text_columns]
            if labelled:
                parts += read_negatives(row, negatives, location)
                if needs_negatives and negatives and len(parts) == 2:
                    fix = "Leave the row out, or give loss=in-batch."
                    raise DataError("the row has no negative", where=location, fix=fix)
                if settings.score_column is not None and loss in DISTILLATION_LOSSES:
                    count = len(parts) - 1
                    scores[index] = read_score_list(row, settings.score_column, count, location)
                elif settings.score_column is not None:
                    assert settings.score_range is not None, "found in the table"
                    score = read_finite_number(row, settings.score_column, location)
                    scores[index] = scale_score(score, settings.score_range)
            texts.append(parts)
        prompts = settings.prompts()
        return self.build_examples_from_texts(texts, first_index, where, scores, prompts)

    def build_examples_from_texts(
        self,
        texts: Sequence[Sequence[str]],
        first_index: int,
        where: Sequence[str],
        targets: Sequence[Any],
        prompts: tuple[str, str] = ("", ""),
    ) -> list[LabelledExample]:
        """Tokenise the texts of many rows at once.

        Args:
            prompts: the prompt of the first text of a row, and that of the others.

        Raises:
            DataError: a text is too long and `truncation` is "error".
        """
        locations = [location for parts, location in zip(texts, where, strict=True) for _ in parts]
        is_query = [number == 0 for parts in texts for number in range(len(parts))]
        all_texts = [
            prompts[number > 0] + text for parts in texts for number, text in enumerate(parts)
        ]
        encodings = self._encode(all_texts, locations, is_query)
        edges = pairwise(accumulate(map(len, texts), initial=0))
        return [
            LabelledExample(
                index=first_index + number,
                sequences=[*map(Tokens.from_encoding, encodings[start:end])],
                target=targets[number],
                truncated_tokens=sum(one.truncated_tokens for one in encodings[start:end]),
                texts=texts[number],
                where=where[number],
            )
            for number, (start, end) in enumerate(edges)
        ]

    def _encode(
        self, texts: Sequence[str], where: Sequence[str], is_query: Sequence[bool]
    ) -> Sequence[Encoding | TokenIds]:
        settings = self.settings
        limit, truncation = settings.max_seq_length, settings.truncation
        if settings.is_late:
            limits = settings.query_length, limit
            return self._form.encode_both(texts, where, limits, truncation, is_query)
        return self.tokenizer.encode_batch(
            texts, max_length=limit, truncation=truncation, where=where
        )

    def collate(self, examples: Sequence[LabelledExample]) -> Batch:
        """Pack all texts in order of length; `pack_texts` describes the targets.

        If scores are known, `targets["labels"]` is float32: `[rows]`, or for distillation `[rows +
        negatives]`, in the order of the passages. `counts["retrieval"]` is the number of rows, or,
        in the losses triplet and margin-mse, of negatives.
        """
        packed, targets = pack_texts(examples)
        scores = [example.target for example in examples]
        if all(score is not None for score in scores):
            lists = [np.atleast_1d(np.asarray(score, np.float32)) for score in scores]
            parts = [np.array([own[0] for own in lists]), *(own[1:] for own in lists)]
            targets["labels"] = np.concatenate(parts)
        loss = self.settings.of_table(examples[0].table).loss
        count = len(targets["negative_row"] if loss in ("triplet", "margin-mse") else examples)
        return Batch(packed, targets, {"retrieval": count}, examples)

    def decode(self, outputs: Outputs, batch: Batch) -> dict[int, Prediction]:
        """For each row the `similarity` of its texts: cosine, inner product if sparse, MaxSim."""
        values = to_array(outputs["values"]).astype(np.float64)
        if self.settings.has_cosines:
            values = values.clip(-1, 1)  # rounding may exceed 1
        return {
            example.index: {"similarity": value}
            for example, value in zip(batch.examples, values.tolist(), strict=True)
        }

    def display_values(self, prediction: Prediction) -> list[DisplayValue]:
        return [(prediction["similarity"], None)]

    @property
    def metrics(self) -> tuple[str, ...]:
        return self._evaluator_class().metrics

    def evaluator(self) -> Evaluator:
        return self._evaluator_class()()

    def _evaluator_class(self) -> type[RegressionEvaluator | RankingEvaluator]:
        from ..evaluators import RegressionEvaluator
        from .evaluator import RankingEvaluator

        return RegressionEvaluator if self.settings.has_pair_scores else RankingEvaluator

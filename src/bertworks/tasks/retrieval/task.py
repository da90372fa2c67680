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
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ...checkpoints.heads import MLM
from ...checkpoints.sentence_settings import SentenceSettings
from ...data.rows import Row, Rows, text_of
from ...data.schema import RoleColumns, names_of
from ...errors import DataError, SettingsError
from ...nn.config import EncoderConfig
from ...nn.head_layouts import HeadLayout
from ...packed import Batch, Packed, to_array
from ...text.tokenizer import Tokenizer
from ..array_network import ArrayNetwork, compute_in_chunks
from ..example import LabelledExample, Tokens, list_sequences, pack
from ..labelled import LabelledTask, TaskSettings, check_length
from ..labels import read_finite_number
from ..task import DisplayValue, Evaluator, Outputs, Prediction, Task
from .columns import SCHEMA, find_retrieval_columns, read_negatives, read_score_list
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
        values: dict[str, Any] = {"loss": loss, "pooling": self.pooling}
        if settings.is_sparse and "scale" not in settings.model_fields_set:
            values["scale"] = 1.0
        super().__init__(tokenizer, settings.with_values(**values))
        # FLOPS are of the means of a batch.
        is_of_batch = loss in ("in-batch", *ORDER_LOSSES) or settings.is_sparse
        self.additive = not is_of_batch
        self.best_metric = "spearman" if self.settings.has_pair_scores else "mrr@10"

    @classmethod
    def inherit_options(cls, sentence: SentenceSettings | None) -> dict[str, Any]:
        if sentence is None:
            return {}
        limit = sentence.max_seq_length
        return {"pooling": sentence.pooling, **({} if limit is None else {"max_seq_length": limit})}

    @classmethod
    def _find_columns(cls, rows: Rows, settings: RetrievalSettings) -> RoleColumns:
        return find_retrieval_columns(
            rows,
            cls._columns_in(settings),
            may_score=settings.loss in (None, *PAIR_LOSSES),
            has_score_lists=settings.loss in DISTILLATION_LOSSES,
        )

    @classmethod
    def find_label_columns(cls, rows: Rows, settings: RetrievalSettings) -> list[str]:
        if settings.text_column is not None:  # single texts, with a teacher's vectors as targets
            return []
        return cls._label_columns(cls._find_columns(rows, settings))

    @classmethod
    def from_table(cls, tokenizer: Tokenizer, rows: Rows, settings: TaskSettings) -> Self:
        assert isinstance(settings, RetrievalSettings)
        if settings.text_column is not None:
            raise SettingsError(
                f"text_column={settings.text_column!r} does nothing without teacher",
                fix="Name query_column and passage_column.",
            )
        scored_losses = (*PAIR_LOSSES, *DISTILLATION_LOSSES)
        if settings.score_column is not None and settings.loss not in (None, *scored_losses):
            what = f"score_column={settings.score_column!r} is not for loss={settings.loss}"
            raise SettingsError(what)
        columns = cls._find_columns(rows, settings)
        loss = settings.loss or ("in-batch" if columns["score"] is None else "cosine")
        if loss in scored_losses and columns["score"] is None:
            raise _missing_column_error(rows, "scores", "score_column")
        if loss in ("triplet", *DISTILLATION_LOSSES) and not columns["negatives"]:
            raise _missing_column_error(rows, "negatives", "negative_columns")
        if loss not in scored_losses:
            columns["score"] = None
        values = settings.model_dump(include=set(cls.settings_class.model_fields))
        values |= {**cls._settings_of_columns(columns), "loss": loss}
        has_pair_scores = loss in PAIR_LOSSES and settings.score_range is None
        if has_pair_scores and isinstance(score := columns["score"], str):
            scores = [read_finite_number(row, score, where) for where, row in rows]
            values["score_range"] = find_score_range(scores)
            if min(scores) == max(scores):
                what = f"all scores (column {score!r}) are {scores[0]:g}"
                raise DataError(what, where=rows.name)
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
        table_columns = {
            role: column if column and set(names_of(column)) <= set(rows.columns) else None
            for role, column in columns.items()
        }
        may_score = settings.has_pair_scores or not has_texts
        columns = find_retrieval_columns(
            rows, table_columns, labelled=labelled, may_score=may_score
        )
        values = self._settings_of_columns(columns)
        is_pairs = settings.loss not in DISTILLATION_LOSSES
        if is_pairs and isinstance(score := columns["score"], str):
            sample = [read_finite_number(row, score, rows.name) for row in rows.sample]
            values["score_range"] = settings.score_range or find_score_range(sample)
        return type(self)(self.tokenizer, settings.with_values(**values))

    def check_tables(self, count: int) -> None:
        for name in ("query_prompt", "passage_prompt"):
            prompts = getattr(self.settings, name)
            if not isinstance(prompts, str) and len(prompts) != count:
                what = f"{name} has {len(prompts)} prompts for {count} training tables"
                raise SettingsError(what, fix="Give one, or one for each.")

    def for_training_table(self, rows: Rows, number: int) -> Self:
        query, passage = self.settings.prompts(number)
        settings = self.settings.with_values(query_prompt=query, passage_prompt=passage)
        if number == 0:
            return type(self)(self.tokenizer, settings).for_table(rows, labelled=True)
        names = {
            role: column if column and set(names_of(column)) <= set(rows.columns) else None
            for role, column in self.columns.items()
        }
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
        if isinstance(score, str) and settings.score_range is not None:
            _check_same_scale(rows, score, settings.score_range)
        values = self._settings_of_columns(columns)
        return type(self)(self.tokenizer, settings.with_values(**values))

    @property
    def sentence(self) -> SentenceSettings:
        limit = self.settings.max_seq_length
        query, passage = self.settings.prompts()
        prompts = {"query": query, "document": passage} if query or passage else {}
        entries: dict[str, Any] = {"prompts": prompts} if prompts else {}
        if self.settings.is_sparse:
            entries |= {"model_type": "SparseEncoder", "similarity_fn_name": "dot"}
        return SentenceSettings(
            pooling=self.pooling,
            normalize=not self.settings.is_sparse,
            max_seq_length=limit,
            entries=entries,
        )

    @property
    def model_class(self) -> str:
        return MLM.model_class if self.settings.is_sparse else super().model_class

    def is_head_compatible(self, other: Task[Any]) -> bool:
        from ..pretraining.task import PretrainingTask

        if self.settings.is_sparse and isinstance(other, PretrainingTask):
            return not other.causal
        is_same_kind = (
            isinstance(other, RetrievalTask) and self.settings.is_sparse == other.settings.is_sparse
        )
        return is_same_kind and super().is_head_compatible(other)

    def network(self, config: EncoderConfig) -> RetrievalNetwork:
        from .network import RetrievalNetwork
        from .sparse_network import SparseNetwork

        check_length(self.settings.max_seq_length, config)
        if self.settings.is_sparse:
            if config.attention != "bidirectional":
                raise SettingsError(f"pooling={self.pooling}: the model's attention is causal")
            return SparseNetwork(config, self.settings)
        if (widest := max(self.settings.dimensions or (1,))) > config.hidden_size:
            what = (
                f"dimensions={widest} is more than the encoder's hidden_size={config.hidden_size}"
            )
            raise SettingsError(what)
        return RetrievalNetwork(config, self.settings)

    def head_layouts(self, config: EncoderConfig) -> Mapping[str, HeadLayout] | None:
        check_length(self.settings.max_seq_length, config)
        return None if self.settings.is_sparse else {}

    def compute(self, network: ArrayNetwork, batch: Batch) -> dict[str, NDArray[Any]]:
        def compute_vectors(part: Packed) -> NDArray[np.float32]:
            return network.vectors(part, self.pooling)

        vectors = compute_in_chunks(compute_vectors, batch.packed)
        queries, passages = vectors[batch.targets["query"]], vectors[batch.targets["passage"]]
        values = np.array([one @ other for one, other in zip(queries, passages, strict=False)])
        return {"queries": queries, "passages": passages, "values": values}

    def check_batches(self, examples: Sequence[LabelledExample], batch_size: int) -> None:
        if batch_size == 1 and self.settings.loss in ORDER_LOSSES:
            what = f"batch_size=1: loss={self.settings.loss} compares the rows of a batch"
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
        needs_negatives = settings.loss in ("triplet", *DISTILLATION_LOSSES)
        query_prompt, passage_prompt = settings.prompts()
        for index, (row, location) in enumerate(zip(rows, where, strict=True)):
            query, passage = (text_of(row, column, location) for column in text_columns)
            parts = [query, passage]
            if labelled:
                others = read_negatives(row, negatives, location)
                parts += others
                if needs_negatives and negatives and len(parts) == 2:
                    fix = "Leave the row out, or give loss=in-batch."
                    raise DataError("the row has no negative", where=location, fix=fix)
                if settings.score_column is not None and settings.loss in DISTILLATION_LOSSES:
                    count = len(parts) - 1
                    scores[index] = read_score_list(row, settings.score_column, count, location)
                elif settings.score_column is not None:
                    assert settings.score_range is not None, "found in the table"
                    low, high = settings.score_range
                    scores[index] = (
                        read_finite_number(row, settings.score_column, location) - low
                    ) / (high - low)
            texts.append(parts)
        prompts = query_prompt, passage_prompt
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
        encodings = self.tokenizer.encode_batch(
            [prompts[number > 0] + text for parts in texts for number, text in enumerate(parts)],
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
        is_of_negatives = self.settings.loss in ("triplet", "margin-mse")
        count = len(targets["negative_row"]) if is_of_negatives else len(examples)
        return Batch(packed, targets, {"retrieval": count}, examples)

    def decode(self, outputs: Outputs, batch: Batch) -> dict[int, Prediction]:
        """For each row the `similarity` of its texts: the cosine, or inner product if sparse."""
        values = to_array(outputs["values"]).astype(np.float64)
        if not self.settings.is_sparse:
            values = values.clip(-1, 1)  # rounding may exceed 1
        return {
            example.index: {"similarity": value}
            for example, value in zip(batch.examples, values.tolist(), strict=True)
        }

    def display_values(self, prediction: Prediction) -> list[DisplayValue]:
        return [(prediction["similarity"], None)]

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that the evaluator computes."""
        return self._evaluator_class().metrics

    def evaluator(self) -> Evaluator:
        return self._evaluator_class()()

    def _evaluator_class(self) -> type[RegressionEvaluator | RankingEvaluator]:
        from ..evaluators import RegressionEvaluator
        from .evaluator import RankingEvaluator

        return RegressionEvaluator if self.settings.has_pair_scores else RankingEvaluator


def pack_texts(examples: Sequence[LabelledExample]) -> tuple[Packed, dict[str, np.ndarray]]:
    """Pack all texts in order of length.

    Returns:
        The pack, and by name:
        `query` `[rows]` int64: indices of the queries' sequences in the pack;
        `passage` `[rows + negatives]` int64: the same for the rows' passages, then all negatives;
        `negative_row` `[negatives]` int64: index of the row that each negative belongs to;
        `is_excluded` `[rows, rows + negatives]` bool: passages that are not negatives of a query.
    """
    # First queries, then their passages, then the negatives, each in the order of the rows.
    roles = sorted(list_sequences(examples), key=lambda role: min(role[1], 2))
    token_ids = [examples[at].sequences[number].input_ids for at, number in roles]
    texts = [examples[at].texts[number] for at, number in roles]
    order = sorted(range(len(roles)), key=lambda role: len(token_ids[role]))
    packed = pack(examples, [roles[role] for role in order])
    positions = np.empty(len(order), np.int64)
    positions[order] = np.arange(len(order))
    rows = len(examples)
    return packed, {
        "query": positions[:rows],
        "passage": positions[rows:],
        "negative_row": np.array([at for at, _ in roles[2 * rows :]], np.int64),
        "is_excluded": _find_excluded(token_ids, texts, rows),
    }


def _find_excluded(
    token_ids: Sequence[np.ndarray], texts: Sequence[str], num_queries: int
) -> NDArray[np.bool_]:
    """Which passages must not be used as negatives of a query: `[queries, passages]`.

    These are passages that belong to the same query in another row, and passages that equal the
    query. The first passages are the positives, in the order of the queries; they are not excluded.
    Texts are compared by their token ids; a query and a passage, which may have different prompts,
    also as they are in the table.

    Args:
        token_ids, texts: of the queries, then of the passages.
    """
    numbers: dict[bytes, int] = {}
    ids = np.array([numbers.setdefault(one.tobytes(), len(numbers)) for one in token_ids])
    text_numbers: dict[str, int] = {}
    of_texts = np.array([text_numbers.setdefault(text, len(text_numbers)) for text in texts])
    queries, passages = ids[:num_queries, None], ids[num_queries:]
    pairs = queries * len(numbers) + passages
    is_excluded: NDArray[np.bool_] = np.isin(pairs, pairs.diagonal()) | (queries == passages)
    is_excluded |= of_texts[:num_queries, None] == of_texts[num_queries:]
    np.fill_diagonal(is_excluded, val=False)
    return is_excluded


def _check_same_scale(rows: Rows, column: str, score_range: tuple[float, float]) -> None:
    """Check that the scores of a training table are of the scale of the first one's.

    Raises:
        DataError: one lies outside, or all lie in the lower half.
    """
    low, high = score_range
    scores = [read_finite_number(row, column, where) for where, row in rows]
    if min(scores) < low or not (low + high) / 2 < max(scores) <= high:
        raise DataError(
            f"its scores (column {column!r}) are from {min(scores):g} to {max(scores):g}, those of "
            f"the first training table from {low:g} to {high:g}",
            where=rows.name,
            fix="Write them in one scale.",
        )


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

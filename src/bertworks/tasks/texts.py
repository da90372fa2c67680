"""The base of tasks on whole texts: a row is one text or two, with one prediction.

    row ── columns ──► text (and second text) ── tokenizer ──► one sequence, truncated if too long
                                                          └──► or as many windows as needed

Classification and regression derive from it; they differ only in how they use the label. Their
networks are in `text_network.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field

from ..checkpoints.heads import CLASSIFIER, POOLER, PublishedCheckpoint
from ..data.rows import Row, Rows, texts_of
from ..data.schema import TEXT_NAMES, Role, RoleColumns, Schema, canonical, find_text_columns
from ..errors import CheckpointError, DataError, SettingsError
from ..nn.config import EncoderConfig
from ..nn.encoder_settings import ClassifierPooling
from ..nn.head_layouts import HeadLayout, classification_layout, pooler_layout
from ..packed import Batch
from ..settings.base import Need
from ..text.encoding import Encoding, truncate
from ..text.tokenizer import Tokenizer
from ..text.windows import segment_windows
from .array_network import ArrayNetwork, SequencePooling, head_outputs, pool_rows
from .example import LabelledExample, Tokens
from .labelled import LabelledTask
from .task import TaskSettings, detected_setting

if TYPE_CHECKING:
    from jaxtyping import Float

WindowPooling = Literal["mean", "max"]
Truncation = Literal["longest_first", "first", "second", "error", "windows"]
_PAIR = "pair"
_SWAPPED_TRUNCATION: Mapping[Truncation, Truncation] = {"first": "second", "second": "first"}


class _TextSchema(Schema):
    """Columns of texts and of pairs of texts, which are detected together."""

    def __init__(self, *, of_numbers: bool) -> None:
        pair = Role("pair", title="second text", optional=True)
        super().__init__(Role("text"), pair, Role("label", of_label=True))
        self.of_numbers = of_numbers

    def find(
        self, rows: Rows, names: Mapping[str, Any] | None = None, *, labelled: bool
    ) -> RoleColumns:
        return find_text_columns(
            rows, **(names or {}), labelled=labelled, of_numbers=self.of_numbers
        )


TEXTS, VALUED_TEXTS = _TextSchema(of_numbers=False), _TextSchema(of_numbers=True)


def check_stride(stride: int | None, max_seq_length: int) -> None:
    """Check that windows overlap or adjoin; None is valid.

    Raises:
        SettingsError: a window is shorter than `stride`, so that tokens would be in no window.
    """
    if stride is not None and stride > max_seq_length:
        raise SettingsError(
            f"stride={stride} is more than max_seq_length={max_seq_length}: tokens between two "
            "windows would be lost"
        )


class TextSettings(TaskSettings):
    """Text columns, long texts, and pairs of texts."""

    needs: ClassVar[tuple[Need, ...]] = (
        Need(
            ("window_pooling", "stride"),
            "without truncation=windows",
            lambda own: own.truncation == "windows",
        ),
    )
    text_column: str | None = Field(None, description="column name or number; detected if omitted")
    pair_column: str | None = Field(None, description="column of the second text")
    label_column: str | None = Field(None, description="column name or number; detected if omitted")
    truncation: Truncation = Field(
        "longest_first",
        description="how longer rows are truncated; `windows`: not at all, and the logits of a "
        "row's windows are pooled (of a pair, windows of the second text, each "
        "with at most half a window of the first)",
    )
    stride: int | None = Field(
        None, ge=1, description="tokens between the starts of windows; a whole window if omitted"
    )
    window_pooling: WindowPooling = Field(
        "mean", description="how the logits of a row's windows are pooled"
    )
    classifier_pooling: ClassifierPooling | None = Field(
        None,
        description="input of the output layer: the first token's vector, the mean of all (for "
        "sentence encoders), or the last one's; the checkpoint's if omitted",
    )
    both_orders: bool = Field(
        False,
        description="read pairs in both orders and add their vectors (GPT)",
    )
    is_pair_optional: bool = detected_setting(
        False, "rows may be single texts or pairs: a published model does not say"
    )

    def check_together(self) -> None:
        super().check_together()
        if self.truncation == "windows" and self.both_orders:
            raise SettingsError("truncation='windows' and both_orders=true exclude each other")
        check_stride(self.stride, self.max_seq_length)

    def encoder_config(self, config: EncoderConfig) -> EncoderConfig:
        """Return the configuration of the encoder, with this task's `classifier_pooling` if set.

        Raises:
            SettingsError: the encoder has fewer positions than `max_seq_length`.
        """
        config.check_length(self.max_seq_length)
        if self.classifier_pooling is None:
            return config
        return config.with_values(classifier_pooling=self.classifier_pooling)

    @property
    def pooling(self) -> SequencePooling:
        """How the logits of a row's sequences are pooled."""
        return "sum" if self.both_orders else self.window_pooling


class TextTask(LabelledTask[LabelledExample]):
    """A task with one prediction for a text or a pair of texts."""

    schema = TEXTS
    settings_class: ClassVar[type[TaskSettings]] = TextSettings
    settings: TextSettings

    def __init__(self, tokenizer: Tokenizer, settings: Any) -> None:
        super().__init__(tokenizer, settings)
        if settings.both_orders and settings.pair_column is None:
            raise SettingsError("both_orders=true is for pairs of texts")

    def compute_logits(
        self, network: ArrayNetwork, batch: Batch
    ) -> Float[np.ndarray, "rows outputs"]:
        """Return the pooled logits of each row; see `text_network.TextNetwork.logits`."""
        packed = batch.packed
        outputs = head_outputs(network, CLASSIFIER.name, packed)
        return pool_rows(outputs, packed, self.settings.pooling)

    def _layouts(self, config: EncoderConfig, outputs: int) -> dict[str, HeadLayout]:
        """The layouts of the classification head, and of the pooler if it is needed."""
        config = self.settings.encoder_config(config)
        layouts = {CLASSIFIER.name: classification_layout(config, outputs)}
        return {**layouts, POOLER.name: pooler_layout(config)} if config.has_pooler else layouts

    def text_row(self, text: str, pair: str | None = None) -> Row:
        text_column, pair_column = self.column("text"), self.settings.pair_column
        if self.settings.is_pair_optional and pair is not None:
            return {text_column: text, _PAIR: pair}
        if (pair is None) != (pair_column is None):
            takes = "single texts" if pair_column is None else "pairs of texts"
            raise DataError(f"the model takes {takes}", where=repr(text))
        return {text_column: text} | ({} if pair_column is None else {pair_column: pair})

    def build_examples(
        self, rows: Sequence[Row], first_index: int, where: Sequence[str], *, labelled: bool
    ) -> list[LabelledExample]:
        """Tokenise all rows in one call, so that the tokenizer can use several threads."""
        pair_column = self.settings.pair_column
        if self.settings.is_pair_optional and pair_column is None:
            _check_no_pairs(rows, where)
        pairs = None if pair_column is None else texts_of(rows, pair_column, where)
        texts = texts_of(rows, self.column("text"), where)
        truncation = self.settings.truncation
        encodings = self._encode(texts, pairs, truncation, where)
        if self.settings.both_orders and pairs is not None:
            others = self._encode(
                pairs, texts, _SWAPPED_TRUNCATION.get(truncation, truncation), where
            )
            encodings = [[*first, *other] for first, other in zip(encodings, others, strict=True)]
        return [
            LabelledExample(
                index=first_index + at,
                sequences=[Tokens.from_encoding(encoding) for encoding in first],
                target=self.read_target(row, where[at], labelled=labelled),
                truncated_tokens=first[0].truncated_tokens,
                texts=(texts[at],) if pairs is None else (texts[at], pairs[at]),
                where=where[at],
            )
            for at, (row, first) in enumerate(zip(rows, encodings, strict=True))
        ]

    def _encode(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None,
        truncation: Truncation,
        where: Sequence[str],
    ) -> list[list[Encoding]]:
        """Return the sequences of each row."""
        limit = self.settings.max_seq_length
        if truncation != "windows":
            encodings = self.tokenizer.encode_batch(
                texts, pairs, max_length=limit, truncation=truncation, where=where
            )
            return [[encoding] for encoding in encodings]
        firsts = self.tokenizer.segments(texts, where=where)
        seconds = (
            [None] * len(firsts) if pairs is None else self.tokenizer.segments(pairs, where=where)
        )
        room = limit - self.tokenizer.num_special_tokens(pair=pairs is not None)
        rows: list[list[Encoding]] = []
        for first, second, location in zip(firsts, seconds, where, strict=True):
            truncated_first, stride = first, self.settings.stride or room
            if second is not None:
                if len(first) + len(second) > room:
                    truncated_first = truncate(first, room // 2, self.tokenizer.truncation_side)
                stride = min(stride, room - len(truncated_first))
            windows = segment_windows(
                self.tokenizer,
                truncated_first,
                second,
                max_length=limit,
                stride=stride,
                where=location,
            )
            windows[0] = replace(windows[0], truncated_tokens=len(first) - len(truncated_first))
            rows.append(windows)
        return rows

    def for_table(self, rows: Rows, *, labelled: bool) -> Self:
        columns, either = self.columns, self.settings.is_pair_optional
        if either and columns["pair"] is None and _has_pairs(rows, self.column("text")):
            columns["pair"] = _PAIR
        if self.schema.has_required_columns(rows, columns, labelled=labelled):
            return self.with_columns(columns, rows.name)
        has_texts = columns["text"] in rows.columns and columns["pair"] in {None, *rows.columns}
        table_columns = {role: columns[role] for role in ("text", "pair") if has_texts}
        if columns["label"] in rows.columns:
            table_columns["label"] = columns["label"]
        columns = self.schema.find(rows, table_columns, labelled=labelled)
        if either and columns["pair"] is None and not has_texts:
            _check_single(rows, columns)
        return self.with_columns(columns, rows.name)

    def with_columns(self, columns: RoleColumns, where: str) -> Self:
        """Return the same task for the columns of another table.

        Raises:
            DataError: the table has pairs of texts and the task takes single texts, or the reverse.
        """
        settings = self.settings
        if columns == self.columns:
            return self
        if not settings.is_pair_optional and (columns["pair"] is None) != (
            settings.pair_column is None
        ):
            takes, has = (
                ("pairs of texts", "single texts")
                if settings.pair_column
                else ("single texts", "pairs")
            )
            raise DataError(f"the model takes {takes}, and the table has {has}", where=where)
        values = self._settings_of_columns(columns)
        return type(self)(self.tokenizer, settings.with_values(**values))


def _has_pairs(rows: Rows, text: str) -> bool:
    """Whether a table has columns of both texts, and a row has a second one."""
    has_columns = {text, _PAIR} <= set(rows.columns)
    return has_columns and any(isinstance(row.get(_PAIR), str) for row in rows.sample)


def _check_no_pairs(rows: Sequence[Row], where: Sequence[str]) -> None:
    """Raise a DataError if one of rows that are read as single texts has a second text."""
    for row, location in zip(rows, where, strict=True):
        if isinstance(row.get(_PAIR), str):
            raise DataError(
                f"the column {_PAIR!r} holds a second text, but the rows are read as single texts",
                where=location,
                fix="Give single texts or pairs, not both; the columns of pairs are text and pair.",
            )


def _check_single(rows: Rows, columns: RoleColumns) -> None:
    """Check that a table whose text column has no usual name holds no second text.

    Raises:
        DataError: another column holds texts too, so the rows may be pairs.
    """
    text = columns["text"]
    assert isinstance(text, str), "the schema requires texts"
    if canonical(text) in TEXT_NAMES:
        return
    for name in rows.columns:
        if name in (text, columns["label"]):
            continue
        values = [row.get(name) for row in rows.sample]
        if 2 * sum(isinstance(value, str) and is_prose(value) for value in values) > len(values):
            raise DataError(
                f"cannot tell whether the rows are single texts (column {text!r}) or "
                f"pairs with the column {name!r}",
                where=rows.name,
                fix="Call the columns of pairs text and pair; call that of single texts text.",
            )


def is_prose(value: str) -> bool:
    """Whether a value may be a text of words: it has a space, or other signs than ASCII."""
    return " " in value.strip() or not value.isascii()


def sigmoid(logit: float) -> float:
    """Return 1 / (1 + exp(-logit)), computed so that neither end overflows or is cut to 0."""
    if logit >= 0:
        return 1 / (1 + math.exp(-logit))
    power = math.exp(logit)
    return power / (1 + power)


def has_single_output(checkpoint: PublishedCheckpoint) -> bool:
    """Whether another tool's classifier is a regression: one output, and not one of several labels.

    Raises:
        CheckpointError: its configuration says that it is a regression, but it has several outputs.
    """
    kind, outputs = checkpoint.raw.get("problem_type"), len(checkpoint.labels(CLASSIFIER))
    if kind == "regression" and outputs != 1:
        raise CheckpointError(f"a regression of {outputs} values is not supported")
    return outputs == 1 and kind != "multi_label_classification"


def columns_of_checkpoint(checkpoint: PublishedCheckpoint) -> dict[str, Any]:
    """Return the columns of a task on texts, from another tool's checkpoint."""
    return {
        "text_column": "text",
        "pair_column": "pair" if checkpoint.takes_pairs else None,
        "label_column": "label",
        "is_pair_optional": not checkpoint.takes_pairs,
    }

"""Read models in the Hugging Face layout, with strict checks (`saving.py` writes them).

    config.json          the encoder's settings, class names
    model.safetensors    weights (or shards of it with model.safetensors.index.json; also read:
                         pytorch_model.bin, tf_model.h5)
    tokenizer.json, tokenizer_config.json, vocab.txt or the family's other files
    bertworks.json       the task and its settings, for which that layout has no place

`network_weights.py` loads the tensors into a network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from pydantic import Field

from ..errors import CheckpointError, SettingsError
from ..nn.config import EncoderConfig
from ..nn.part_settings import BottleneckSettings
from ..settings.base import Settings
from ..text.tokenizer import Tokenizer
from ..utils.json_files import check_format_version
from . import tensorflow
from .families import find_published_family
from .family import Family
from .router import Route
from .sentence_directory import read_max_seq_length
from .static import (
    STATIC,
    read_max_length,
    read_static_config,
    static_directory,
)
from .weight_files import read_json

FORMAT_VERSION = 4


class PublishedSettings(Settings):
    """The settings in a `config.json` that are read in addition to the encoder's."""

    architectures: tuple[str, ...] | None = None
    id2label: dict[int, str | int | float] | None = None
    problem_type: str | None = None
    classifier_dropout: float | None = Field(None, ge=0, lt=1)


class TaskFile(Settings):
    """The content of `bertworks.json`."""

    format_version: int
    task: str
    task_settings: dict[str, Any]
    heads: tuple[str, ...] = Field((), description="those that are saved under their own names")
    learning_rate: float | None = Field(
        None, gt=0, description="learning rate that suits fine-tuning it; the usual one if omitted"
    )


def read_config(directory: Path) -> tuple[EncoderConfig, dict[str, Any]]:
    """Read a directory's `config.json`; return the encoder's configuration and the whole content.

    Without that file, the original release's `bert_config.json` is read.

    Raises:
        CheckpointError: the file is missing or not JSON, describes another architecture, or a
            value has an unexpected type.
    """
    file = directory / "config.json"
    if not file.exists() and (directory / tensorflow.CONFIG).exists():
        file = directory / tensorflow.CONFIG
    raw = read_json(file) if static_directory(directory) is None else read_static_config(directory)
    if file.name == tensorflow.CONFIG:
        raw = tensorflow.with_activation(raw)
    family = find_published_family(raw, where=str(file))
    keys = PublishedSettings.model_fields.keys() & raw.keys()
    try:
        PublishedSettings.parse({key: raw[key] for key in keys})
    except SettingsError as error:
        raise CheckpointError(error.what, where=str(file)) from None
    return family.read_config(raw, where=str(file)), raw


def read_limit(
    directory: Path, whole_directory: Path, config: EncoderConfig, route: Route = "document"
) -> int:
    """The maximum number of tokens of a text: the positions, or a smaller limit in other files.

    Other tools truncate texts at the tokenizer's limit, and sentence-transformers 6 writes its
    limit only there; its older versions have a file for it, which counts if there are both.

    Args:
        directory: of the encoder and its tokenizer.
        whole_directory: of the model's modules.
        route: whose modules to use, if those of queries are others.
    """
    if config.family == STATIC.name:
        return read_max_length(directory) or config.max_seqlen
    limit = read_max_seq_length(whole_directory, route)
    if limit is not None:
        return min(limit, config.max_seqlen)
    file = directory / "tokenizer_config.json"
    limit = read_json(file).get("model_max_length") if file.exists() else None
    if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0:
        return min(limit, config.max_seqlen)
    return config.max_seqlen


def read_task(directory: Path) -> TaskFile | None:
    """Read the task of a directory's model; None if another tool saved the model.

    Raises:
        CheckpointError: `bertworks.json` is damaged, or was written in another format.
    """
    path = directory / "bertworks.json"
    if not path.exists():
        return None
    values = read_json(path)
    fix = "Train the model again, or remove this file to use the weights without the task."
    check_format_version(values, FORMAT_VERSION, path, CheckpointError, fix=fix)
    try:
        return TaskFile.parse(values)
    except SettingsError as error:
        raise CheckpointError(error.what, where=str(path)) from None


def load_tokenizer(directory: Path, config: EncoderConfig, *, lowercase: bool) -> Tokenizer:
    """Load a model's tokenizer, and check that the encoder has vectors for all pieces."""
    tokenizer = Tokenizer.load(directory)
    if tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"the vocabulary has {tokenizer.vocab_size} pieces, but the embeddings "
            f"{config.vocab_size} rows",
            where=str(directory),
        )
    return tokenizer.to_lowercase() if lowercase else tokenizer


class HasShape(Protocol):
    """A tensor, or an array in a file."""

    @property
    def shape(self) -> Sequence[int]: ...


def check_geometry(
    config: EncoderConfig, tensors: Mapping[str, HasShape], family: Family, where: str
) -> None:
    """Check that the sizes of a checkpoint's encoder are those in its `config.json`.

    It only compares shapes, so that no memory is allocated for sizes that the file does not have.
    `load_weights` later checks every tensor.

    Raises:
        CheckpointError: a tensor is missing or has another shape.
    """
    for name, expected_shape in _expected_shapes(config):
        for theirs, expected in family.keys_for(config).parts(name, expected_shape).items():
            if theirs not in tensors:
                raise CheckpointError(
                    f"the tensor {theirs!r} is missing, which config.json requires", where=where
                )
            shape = tuple(tensors[theirs].shape)
            if shape != expected:
                raise CheckpointError(
                    f"the tensor {theirs!r} has shape {shape}, not {expected} as config.json says",
                    where=where,
                )


def _expected_shapes(config: EncoderConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield tensors, with their shapes, that together depend on every size in a configuration."""
    is_two_way, config = config.attention == "two-way", config.per_direction_config
    width, size, inner = config.embedding_width, config.hidden_size, config.intermediate_size
    embeddings = {
        "word": config.vocab_size,
        "position": config.max_position_embeddings if config.positions == "learned" else 0,
        "token_type": config.type_vocab_size,
        "task_type": config.task_type_vocab_size,
    }
    for kind, rows in embeddings.items():
        if rows:
            columns = width if kind == "word" else config.embedding_sum_width
            yield f"encoder.embeddings.{kind}_embeddings.weight", (rows, columns)
    if config.word_map is not None:
        inputs = width * (3 if config.word_map.trigrams else 1)
        yield "encoder.embeddings.word_map.weight", (size, inputs)
    elif config.embedding_size is not None:
        yield "encoder.embeddings.projection.weight", (size, width)
    if last := config.num_weighted_layers:
        layer = f"encoder.layers.{last - 1}" + ".backwards" * is_two_way
        if config.mixer == "lstm":
            yield f"{layer}.recurrence.weight_ih_l0", (4 * size, size)
        elif config.bottleneck is not None:
            yield from _shapes_of_bottleneck(config.bottleneck, size, layer)
            size = config.bottleneck.size
        else:
            heads = config.num_attention_heads + 2 * config.num_key_heads
            shape = (heads * config.head_size, size // config.groups.query_key_value)
            yield f"{layer}.attention.query_key_value.weight", shape
        inputs = size // config.groups.intermediate
        yield f"{layer}.feed_forward.intermediate.weight", ((1 + config.gated) * inner, inputs)


def _shapes_of_bottleneck(
    bottleneck: BottleneckSettings, size: int, layer: str
) -> Iterator[tuple[str, tuple[int, ...]]]:
    narrow, inputs = bottleneck.size, f"{layer}.attention.query_key_value"
    yield f"{layer}.bottleneck.dense.weight", (narrow, size)
    if bottleneck.attention:
        yield f"{inputs}.weight", (3 * narrow, narrow)
    else:
        yield f"{inputs}.query_key.weight", (2 * narrow, narrow)
        yield f"{inputs}.value.weight", (narrow, size)
    if bottleneck.num_feed_forward > 1:
        last = bottleneck.num_feed_forward - 2
        yield f"{layer}.feed_forward_blocks.{last}.norm.weight", (narrow,)

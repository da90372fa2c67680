"""Load models in the Hugging Face layout, with strict checks (`saving.py` saves them).

    config.json          the encoder's settings, class names
    model.safetensors    weights (or shards of it with model.safetensors.index.json; also read:
                         pytorch_model.bin)
    tokenizer.json, tokenizer_config.json, vocab.txt or the family's other files
    bertworks.json       the task and its settings, for which that layout has no place

Every tensor of a checkpoint is used, dropped with a reason, or an error; newly initialised tensors
are listed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from ..errors import CheckpointError, SettingsError
from ..nn.config import EncoderConfig
from ..nn.device import is_finite
from ..nn.layers import Linear
from ..nn.quantized import InputCodes, compute_row_scales
from ..settings.base import Settings
from ..utils.json_files import check_format_version
from . import tensorflow
from .families import family_named
from .family import Family
from .heads import is_published, may_be_new, may_differ
from .keymap import KeyMap, Rule
from .sentence import read_max_seq_length
from .weights import INPUTS, SHIFT, has_weights, read_json, read_weights
from .wrappers import unwrapped

FORMAT_VERSION = 2


@dataclass(frozen=True)
class LoadReport:
    """The result for each tensor when a checkpoint was loaded."""

    used: tuple[str, ...]  # the network's tensors that were loaded
    # the checkpoint's tensors that were not used, and why
    dropped: Mapping[str, str] = field(default_factory=dict)
    # the network's tensors that were newly initialised: the checkpoint has none, or another shape
    initialized: tuple[str, ...] = ()
    # the checkpoint's tensors with NaN or infinity, and how many such numbers each has; empty
    # unless they were allowed
    non_finite: Mapping[str, int] = field(default_factory=dict)


class PublishedSettings(Settings):
    """The settings in a `config.json` that are read in addition to the encoder's."""

    architectures: tuple[str, ...] | None = None
    id2label: dict[int, str] | None = None
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
    raw = read_json(file)
    if file.name == tensorflow.CONFIG:
        raw = tensorflow.with_activation(raw)
    family = family_named(raw.get("model_type", "bert"), where=str(file))
    keys = PublishedSettings.model_fields.keys() & raw.keys()
    try:
        PublishedSettings.parse({key: raw[key] for key in keys})
    except SettingsError as error:
        raise CheckpointError(error.what, where=str(file)) from None
    return family.read_config(raw, where=str(file)), raw


def read_limit(directory: Path, config: EncoderConfig) -> int:
    """The maximum number of tokens of a text: the positions, or a smaller limit in other files.

    Other tools truncate texts at the tokenizer's limit, and sentence-transformers 6 writes its
    limit only there; its older versions have a file for it, which counts if there are both.
    """
    limit = read_max_seq_length(directory)
    if limit is not None:
        return min(limit, config.max_seqlen)
    file = directory / "tokenizer_config.json"
    said = read_json(file).get("model_max_length") if file.exists() else None
    if isinstance(said, int) and not isinstance(said, bool) and said > 0:
        return min(said, config.max_seqlen)
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


def read_tensors(directory: Path, family: Family) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read all tensors of a directory, under the current names of their family.

    Returns:
        the tensors; and the names of dropped tensors, with the reasons.

    Raises:
        CheckpointError: there are no weights, or a file is damaged, or holds more than weights,
            or several models.
    """
    dropped: dict[str, str] = {}
    if has_weights(directory) or (prefix := tensorflow.find_checkpoint(directory)) is None:
        tensors = read_weights(directory, lambda names: _stacks(names, family))
    else:
        tensors, dropped = tensorflow.read_checkpoint(prefix)
    tensors = unwrapped(tensors, family, str(directory))
    found = {_today(name, family): tensor for name, tensor in tensors.items()}
    # Some classes save the tied tensor only under the decoder's name.
    (embeddings,) = family.keys.theirs("encoder.embeddings.word_embeddings.weight")
    (decoder,) = family.keys.theirs("mlm_head.decoder")
    if embeddings not in found and decoder in found:
        found[embeddings] = found.pop(decoder)
    if family.decoder_bias is not None:
        dropped |= _with_one_bias(found, *family.decoder_bias)
    return found, dropped


def _with_one_bias(tensors: dict[str, Tensor], bias: str, decoders: str) -> dict[str, str]:
    """Keep one of a decoder's two biases, the one named `decoders`, under the name `bias`.

    Models whose decoder is not tied to the embeddings have two that differ. Returns the name of
    the dropped bias, with the reason.
    """
    if decoders not in tensors:
        return {}
    wanted = tensors.pop(decoders)
    other = tensors.get(bias)
    tensors[bias] = wanted
    if other is None:
        return {}
    if _equal(wanted, other):
        return {decoders: "the same as the head's bias"}
    return {bias: "redundant with the decoder's bias"}


def _today(name: str, family: Family) -> str:
    """A tensor's current name; a suffix of calibration (`INPUTS`, `SHIFT`) is kept."""
    whole = name.removesuffix(INPUTS).removesuffix(SHIFT)
    return family.normalize_name(whole) + name[len(whole) :]


def _stacks(names: Iterable[str], family: Family) -> Iterator[list[str]]:
    """Groups of a file's tensor names, each of which forms one tensor of ours, in its order."""
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for name in names:
        today = family.normalize_name(name)
        if stack := family.keys.stack(today):
            found.setdefault(stack, {})[today] = name
    for stack, given in found.items():
        if len(given) == len(stack):  # else some are in another file, or missing
            yield [given[today] for today in stack]


def check_geometry(
    config: EncoderConfig, tensors: Mapping[str, Tensor], family: Family, where: str
) -> None:
    """Check that the sizes of a checkpoint's encoder are those in its `config.json`.

    It only compares shapes, so that no memory is allocated for sizes that the file does not have.
    `load_weights` later checks every tensor.

    Raises:
        CheckpointError: a tensor is missing or has another shape.
    """
    for name, shape in _outline(config):
        for theirs, expected in family.keys.parts(name, shape).items():
            if theirs not in tensors:
                raise CheckpointError(
                    f"the tensor {theirs!r} is missing, which config.json asks for", where=where
                )
            found = tuple(tensors[theirs].shape)
            if found != expected:
                raise CheckpointError(
                    f"the tensor {theirs!r} has shape {found}, not {expected} as config.json says",
                    where=where,
                )


def _outline(config: EncoderConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Tensors, with their shapes, that together depend on every size in a configuration."""
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
            yield f"encoder.embeddings.{kind}_embeddings.weight", (rows, width)
    if config.embedding_size is not None:
        yield "encoder.embeddings.projection.weight", (size, width)
    if last := config.num_weighted_layers:
        layer = f"encoder.layers.{last - 1}" + ".backwards" * is_two_way
        if config.mixer == "lstm":
            yield f"{layer}.recurrence.weight_ih_l0", (4 * size, size)
        else:
            yield f"{layer}.attention.query_key_value.weight", (3 * size, size)
        yield f"{layer}.feed_forward.intermediate.weight", ((1 + config.gated) * inner, size)


def load_weights(
    network: nn.Module,
    tensors: Mapping[str, Tensor],
    family: Family,
    where: str,
    *,
    allow_non_finite: bool = False,
    unused_heads: Collection[str] = (),
) -> LoadReport:
    """Load a checkpoint's tensors into a network.

    Args:
        network: newly initialised, or on the device "meta": then the tensors become its
            parameters without a copy. Its encoder is `encoder`.
        tensors: under the family's names.
        allow_non_finite: whether a tensor may hold NaN or infinity; the report then lists it.
        unused_heads: the checkpoint's heads without published names, which the network need not
            have.

    Raises:
        CheckpointError: a tensor of the encoder is missing, one has another shape or type, one
            is unknown, or one holds numbers that are not finite.
    """
    values: dict[str, Tensor] = {}
    initialized: list[str] = []
    taken: set[str] = set()
    keys = keys_of(network, family)
    for name, parameter in own_tensors(network).items():
        parts = keys.parts(name, parameter.shape)
        missing = [part for part in parts if part not in tensors]
        if len(missing) == len(parts) and may_be_new(name):
            initialized.append(name)
            continue
        if missing:
            raise CheckpointError(f"the tensor {missing[0]!r} is missing", where=where)
        other = [part for part, shape in parts.items() if tensors[part].shape != shape]
        if other and may_differ(name):
            initialized.append(name)
            continue
        if other:
            found, expected = tuple(tensors[other[0]].shape), parts[other[0]]
            raise CheckpointError(
                f"the tensor {other[0]!r} has shape {found}, not {expected}", where=where
            )
        for part in parts:
            if not tensors[part].is_floating_point():
                kind = str(tensors[part].dtype).removeprefix("torch.")
                raise CheckpointError(f"the tensor {part!r} is of type {kind}", where=where)
        values[name] = keys.fetch(name, tensors)
        taken.update(parts)
    _fill(network, values)
    taken.update(_take_calibration(network, values, tensors, keys))
    non_finite = _non_finite(network, tensors, keys)
    if non_finite and not allow_non_finite:
        raise CheckpointError(complaint_of(non_finite), where=where, fix=_INSPECT)
    tied = _tied_tensors(network, keys)
    dropped = {
        name: "the head of another task"
        if name.partition(".")[0] in unused_heads
        else _why_dropped(name, tensors, tied, family, where)
        for name in tensors
        if name not in taken
    }
    return LoadReport(tuple(values), dropped, tuple(initialized), non_finite)


def _take_calibration(
    network: nn.Module, names: Iterable[str], tensors: Mapping[str, Tensor], keys: KeyMap
) -> Iterator[str]:
    """Set `input_codes` of calibrated linear maps; yields the names of the tensors used."""
    for name in names:
        linear = network.get_submodule(name.rpartition(".")[0])
        inputs, shifts = ([part + end for part in keys.theirs(name)] for end in (INPUTS, SHIFT))
        if isinstance(linear, Linear) and all(one in tensors for one in (*inputs, *shifts)):
            steps, offsets = tensors[inputs[0]]  # equal in all parts: they form one map of ours
            scales = compute_row_scales(linear.weight.detach().float() * steps)
            shift = torch.cat([tensors[one] for one in shifts])
            linear.input_codes = InputCodes(steps, offsets, shift, scales)
            yield from (*inputs, *shifts)


_INSPECT = "`bertworks inspect` names all such tensors."


def _non_finite(network: nn.Module, tensors: Mapping[str, Tensor], keys: KeyMap) -> dict[str, int]:
    """The loaded tensors with NaN or infinity, and how many such numbers each has.

    Numbers beyond the range of the network's type (float32) count as infinite.
    """
    found: dict[str, int] = {}
    for name, parameter in own_tensors(network).items():
        if parameter.is_meta or is_finite(parameter):
            continue
        for part in keys.theirs(name):
            if part in tensors and (count := int((~tensors[part].to(parameter).isfinite()).sum())):
                found[part] = count
    return found


def complaint_of(non_finite: Mapping[str, int]) -> str:
    """The error message for tensors that are not finite, in one line."""
    (name, count), *others = non_finite.items()
    numbers = "a number that is" if count == 1 else f"{count:,} numbers that are"
    more = f", the first of {len(non_finite):,} such tensors," if others else ""
    return f"the tensor {name!r}{more} holds {numbers} not finite (NaN or infinity)"


def keys_of(network: nn.Module, family: Family) -> KeyMap:
    """The key map of a network: the family's; heads without published names keep their names."""
    unpublished = [name for name in network.state_dict() if not is_published(name)]
    return KeyMap([*family.keys.rules, *(Rule(name, (name,)) for name in unpublished)])


def own_tensors(network: nn.Module) -> dict[str, Tensor]:
    """A network's tensors by name, a tied tensor only under its first name."""
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in network.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor.detach()
    return tensors


def _fill(network: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Copy values into a network's parameters; those on the device "meta" are replaced instead."""
    first: dict[int, str] = {}
    taken: dict[str, nn.Parameter] = {}
    for name, parameter in network.named_parameters(remove_duplicate=False):
        source = first.setdefault(id(parameter), name)
        if source not in values:
            continue
        if not parameter.is_meta:
            with torch.no_grad():
                parameter.copy_(values[source])
            continue
        if source not in taken:
            value = values[source].to(parameter.dtype).contiguous()
            taken[source] = nn.Parameter(value, requires_grad=parameter.requires_grad)
        module, _, attribute = name.rpartition(".")
        setattr(network.get_submodule(module), attribute, taken[source])


def _tied_tensors(network: nn.Module, keys: KeyMap) -> dict[str, str]:
    """Their second name of each tied parameter, mapped to the first."""
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, parameter in network.named_parameters(remove_duplicate=False):
        other = first.setdefault(id(parameter), name)
        if other != name:
            tied[keys.theirs(name)[0]] = keys.theirs(other)[0]
    return tied


def _why_dropped(
    name: str,
    tensors: Mapping[str, Tensor],
    tied: Mapping[str, str],
    family: Family,
    where: str,
) -> str:
    if name in tied:
        if not _equal(tensors[name], tensors[tied[name]]):
            raise CheckpointError(
                f"the tensor {name!r} is not {tied[name]!r}, to which config.json ties it",
                where=where,
                fix="Set tie_word_embeddings to false in config.json.",
            )
        return f"tied to {tied[name]}"
    reason = family.why_dropped(name)
    if reason is None:
        raise CheckpointError(f"the tensor {name!r} is not known", where=where)
    return reason


def _equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same numbers; NaN equals NaN."""
    if one.shape != other.shape or torch.equal(one, other):
        return one.shape == other.shape
    return bool(((one == other) | (one.isnan() & other.isnan())).all())

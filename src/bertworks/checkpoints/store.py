"""Models on disk, in the Hugging Face layout, read strictly (`saving.py` writes them).

    config.json          geometry, class names
    model.safetensors    weights (or shards of it with model.safetensors.index.json; read as well:
                         pytorch_model.bin)
    tokenizer.json, tokenizer_config.json, vocab.txt or what the family has
    bertworks.json       what that layout has no place for: the task and its settings

Every tensor of a checkpoint is used, dropped with a reason, or an error; what is newly initialised
is listed.
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
from ..model.config import EncoderConfig
from ..model.device import is_finite
from ..model.eight_bits import InputCodes, scales_of
from ..model.layers import Linear
from ..settings import Settings
from . import tensorflow
from .families import family_named
from .family import Family
from .heads import is_published, may_be_new, may_differ
from .keymap import KeyMap, Rule
from .weights import INPUTS, SHIFT, has_weights, read_json, read_weights

FORMAT_VERSION = 1


@dataclass(frozen=True)
class LoadReport:
    """What became of each tensor when a checkpoint was loaded."""

    used: tuple[str, ...]  # the network's tensors that were filled
    # the checkpoint's tensors that were not used, and why
    dropped: Mapping[str, str] = field(default_factory=dict)
    # the network's tensors that the checkpoint has not, newly initialised
    initialized: tuple[str, ...] = ()
    # the checkpoint's tensors with NaN or infinity, and how many such numbers each has; empty,
    # unless they were allowed
    non_finite: Mapping[str, int] = field(default_factory=dict)


class PublishedSettings(Settings):
    """What a `config.json` says of a model beside its geometry, as far as it is read here."""

    architectures: tuple[str, ...] | None = None
    id2label: dict[int, str] | None = None
    problem_type: str | None = None
    classifier_dropout: float | None = Field(None, ge=0, lt=1)


class TaskFile(Settings):
    """What `bertworks.json` holds."""

    format_version: int
    task: str
    task_settings: dict[str, Any]
    heads: tuple[str, ...] = Field((), description="those that are saved under their own names")


def read_config(directory: Path) -> tuple[EncoderConfig, dict[str, Any]]:
    """The geometry in a directory's `config.json`, and all of the file.

    The original release's `bert_config.json` is read where there is no other.

    Raises:
        CheckpointError: the file is missing, no JSON, describes another architecture, or holds
            something of another type than expected.
    """
    file = directory / "config.json"
    if not file.is_file() and (directory / tensorflow.CONFIG).is_file():
        file = directory / tensorflow.CONFIG
    raw = read_json(file)
    family = family_named(raw.get("model_type", "bert"), where=str(file))
    keys = PublishedSettings.model_fields.keys() & raw.keys()
    try:
        PublishedSettings.parse({key: raw[key] for key in keys})
    except SettingsError as error:
        raise CheckpointError(error.what, where=str(file)) from None
    return family.read_config(raw, where=str(file)), raw


def read_limit(directory: Path, config: EncoderConfig) -> int:
    """The most tokens of a text: of its positions, and of what its tokenizer's files allow.

    Other tools cut texts there, and sentence-transformers 6 writes its limit nowhere else.
    """
    file = directory / "tokenizer_config.json"
    said = read_json(file).get("model_max_length") if file.is_file() else None
    if isinstance(said, int) and not isinstance(said, bool) and said > 0:
        return min(said, config.max_seqlen)
    return config.max_seqlen


def read_task(directory: Path) -> TaskFile | None:
    """The task of a directory's model, or None where another tool wrote it.

    Raises:
        CheckpointError: `bertworks.json` is damaged or from a later version.
    """
    path = directory / "bertworks.json"
    if not path.is_file():
        return None
    values = read_json(path)
    if values.get("format_version") != FORMAT_VERSION:
        raise CheckpointError(
            f"format version {values.get('format_version')!r} is not {FORMAT_VERSION}",
            where=str(path),
            fix="Use the version of bertworks that wrote it.",
        )
    try:
        return TaskFile.parse(values)
    except SettingsError as error:
        raise CheckpointError(error.what, where=str(path)) from None


def read_tensors(directory: Path, family: Family) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors of a directory, under today's names of their family.

    Returns:
        the tensors, and what was left out, and why.

    Raises:
        CheckpointError: there are no weights, or a file is damaged, or holds more than weights.
    """
    dropped: dict[str, str] = {}
    if has_weights(directory) or (prefix := tensorflow.find_checkpoint(directory)) is None:
        tensors = read_weights(
            directory,
            lambda name: family.keys.repacks(family.normalize_name(name)),
            lambda names: _stacks(names, family),
        )
    else:
        tensors, dropped = tensorflow.read_checkpoint(prefix)
    found = {_today(name, family): tensor for name, tensor in tensors.items()}
    # Of two names of one tensor, some classes save the decoder's.
    (embeddings,) = family.keys.theirs("encoder.embeddings.word_embeddings.weight")
    (decoder,) = family.keys.theirs("mlm_head.decoder")
    if embeddings not in found and decoder in found:
        found[embeddings] = found.pop(decoder)
    if family.decoder_bias is not None:
        dropped |= _with_one_bias(found, *family.decoder_bias)
    return found, dropped


def _with_one_bias(tensors: dict[str, Tensor], bias: str, decoders: str) -> dict[str, str]:
    """Leave one of the two biases of a decoder, under the name of the first; what was left out, and
    why. Models whose decoder is not tied to the embeddings have two that differ."""
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
    """A tensor's name in today's spelling, with what follows it where it was calibrated."""
    whole = name.removesuffix(INPUTS).removesuffix(SHIFT)
    return family.normalize_name(whole) + name[len(whole) :]


def _stacks(names: Iterable[str], family: Family) -> Iterator[list[str]]:
    """A file's names of tensors that become one of ours, in its order."""
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for name in names:
        today = family.normalize_name(name)
        if stack := family.keys.stack(today):
            found.setdefault(stack, {})[today] = name
    for stack, given in found.items():
        if len(given) == len(stack):  # else others are in another file, or missing
            yield [given[today] for today in stack]


def check_geometry(
    config: EncoderConfig, tensors: Mapping[str, Tensor], family: Family, where: str
) -> None:
    """See that a checkpoint's encoder has the geometry that its `config.json` describes.

    It looks at shapes alone, so that nothing is allocated for a geometry that is not there. What
    this leaves to be found is found by `load_weights`, which looks at every tensor.

    Raises:
        CheckpointError: a tensor is missing or of another shape.
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
    """Tensors that together show every number a geometry's size depends on, and their shapes."""
    is_two_way, config = config.attention == "two-way", config.one_way
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
    """Fill a network from a checkpoint's tensors.

    Args:
        network: freshly initialised, or on the device "meta": then it takes the tensors as they
            are, which may lie in mapped files, rather than copies. Its encoder is `encoder`.
        tensors: under the family's names.
        allow_non_finite: whether a tensor may hold NaN or infinity; the report then names it.
        unused_heads: those of the checkpoint's that are saved under their own names, which the
            network need not have.

    Raises:
        CheckpointError: a tensor of the encoder is missing, one is of another shape or type, one
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
    """Give linear maps the codes of their inputs; yields the tensors that these were made of."""
    for name in names:
        linear = network.get_submodule(name.rpartition(".")[0])
        inputs, shifts = ([part + end for part in keys.theirs(name)] for end in (INPUTS, SHIFT))
        if isinstance(linear, Linear) and all(one in tensors for one in (*inputs, *shifts)):
            steps, offsets = tensors[inputs[0]]  # the same for all: they are one map of ours
            scales = scales_of(linear.weight.detach().float() * steps)
            shift = torch.cat([tensors[one] for one in shifts])
            linear.input_codes = InputCodes(steps, offsets, shift, scales)
            yield from (*inputs, *shifts)


_INSPECT = "`bertworks inspect` names all such tensors."


def _non_finite(network: nn.Module, tensors: Mapping[str, Tensor], keys: KeyMap) -> dict[str, int]:
    """The checkpoint's tensors with NaN or infinity that a network was filled from.

    Numbers that float32 has no room for are infinite too.
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
    """What is wrong with tensors that are not finite, in one line."""
    (name, count), *others = non_finite.items()
    numbers = "a number that is" if count == 1 else f"{count:,} numbers that are"
    more = f", the first of {len(non_finite):,} such tensors," if others else ""
    return f"the tensor {name!r}{more} holds {numbers} not finite (NaN or infinity)"


def keys_of(network: nn.Module, family: Family) -> KeyMap:
    """The family's names of a network's tensors; heads without published names keep their own."""
    unpublished = [name for name in network.state_dict() if not is_published(name)]
    return KeyMap([*family.keys.rules, *(Rule(name, (name,)) for name in unpublished)])


def own_tensors(network: nn.Module) -> dict[str, Tensor]:
    """A network's tensors; one that has two names under the first."""
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in network.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor.detach()
    return tensors


def _fill(network: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Give a network's tensors their values; those on the device "meta" become the values."""
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
    """Their names of parameters that have two, and the other name of each."""
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
    """Whether two tensors hold the same numbers; NaN is NaN."""
    if one.shape != other.shape or torch.equal(one, other):
        return one.shape == other.shape
    return bool(((one == other) | (one.isnan() & other.isnan())).all())

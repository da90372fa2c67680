"""Load a checkpoint's tensors into a network, with strict checks.

Every tensor of a checkpoint is used, dropped with a reason, or an error; newly initialised tensors
are listed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ..errors import CheckpointError
from ..nn.device import is_finite
from ..nn.encoder import Encoder
from ..nn.layers import Linear
from ..nn.quantization import InputCodes, compute_row_scales
from .family import Family
from .heads import is_published, may_be_new, may_differ
from .keymap import KeyMap, Rule
from .weight_files import ENCODER_FIX, INPUTS, SHIFT


@dataclass(frozen=True)
class LoadReport:
    """The result for each tensor when a checkpoint was loaded."""

    used_tensors: tuple[str, ...]  # the network's tensors that were loaded
    # the checkpoint's tensors that were not used, and why
    dropped_tensors: Mapping[str, str] = field(default_factory=dict)
    # the network's tensors that were newly initialised: the checkpoint has none, or another shape
    new_tensors: tuple[str, ...] = ()
    # the checkpoint's tensors with NaN or infinity, and how many such numbers each has; empty
    # unless they were allowed
    non_finite_tensors: Mapping[str, int] = field(default_factory=dict)


def load_weights(
    network: nn.Module,
    tensors: Mapping[str, Tensor],
    family: Family,
    where: str,
    *,
    allow_non_finite: bool = False,
    unused_heads: Collection[str] = (),
    is_encoder_alone: bool = False,
) -> LoadReport:
    """Load a checkpoint's tensors into a network.

    Args:
        network: newly initialised, or on the device "meta": then the tensors become its
            parameters without a copy. Its encoder is `encoder`.
        tensors: under the family's names.
        allow_non_finite: whether a tensor may hold NaN or infinity; the report then lists it.
        unused_heads: the checkpoint's heads without published names, which the network need not
            have.
        is_encoder_alone: whether the user asked for the encoder alone: all else is dropped.

    Raises:
        CheckpointError: a tensor of the encoder is missing, one has another shape or type, one
            is unknown, or one holds numbers that are not finite.
    """
    values: dict[str, Tensor] = {}
    new_names: list[str] = []
    used_names: set[str] = set()
    keys = key_map_of(network, family)
    for name, parameter in unique_tensors(network).items():
        parts = keys.parts(name, parameter.shape)
        missing = [part for part in parts if part not in tensors]
        if len(missing) == len(parts) and may_be_new(name):
            new_names.append(name)
            continue
        if missing:
            raise CheckpointError(f"the tensor {missing[0]!r} is missing", where=where)
        mismatches = [part for part, shape in parts.items() if tensors[part].shape != shape]
        if mismatches and may_differ(name):
            new_names.append(name)
            continue
        if mismatches:
            part = mismatches[0]
            shape, expected = tuple(tensors[part].shape), parts[part]
            raise CheckpointError(
                f"the tensor {part!r} has shape {shape}, not {expected}", where=where
            )
        for part in parts:
            if not tensors[part].is_floating_point():
                kind = str(tensors[part].dtype).removeprefix("torch.")
                raise CheckpointError(f"the tensor {part!r} is of type {kind}", where=where)
        values[name] = keys.fetch(name, tensors)
        used_names.update(parts)
    _fill_parameters(network, values)
    used_names.update(_set_input_codes(network, values, tensors, keys))
    non_finite = _count_non_finite(network, tensors, keys)
    if non_finite and not allow_non_finite:
        raise CheckpointError(describe_non_finite(non_finite), where=where, fix=_INSPECT_FIX)
    tied = _tied_tensors(network, keys)
    drop_reasons = {
        name: "the head of another task"
        if name.partition(".")[0] in unused_heads
        else "not of the encoder, which alone is read"
        if is_encoder_alone and not (family.prefix and name.startswith(family.prefix))
        else _drop_reason(name, tensors, tied, family, where)
        for name in tensors
        if name not in used_names
    }
    return LoadReport(tuple(values), drop_reasons, tuple(new_names), non_finite)


def _set_input_codes(
    network: nn.Module, names: Iterable[str], tensors: Mapping[str, Tensor], keys: KeyMap
) -> Iterator[str]:
    """Set `input_codes` of calibrated linear maps; yield the names of the tensors used."""
    for name in names:
        linear = network.get_submodule(name.rpartition(".")[0])
        inputs, shifts = ([part + end for part in keys.theirs(name)] for end in (INPUTS, SHIFT))
        if isinstance(linear, Linear) and all(part in tensors for part in (*inputs, *shifts)):
            steps, offsets = tensors[inputs[0]]  # equal in all parts: they form one map of ours
            scales = compute_row_scales(linear.weight.detach().float() * steps)
            shift = keys.rule_of(name).join([tensors[part] for part in shifts])
            linear.input_codes = InputCodes(steps, offsets, shift, scales)
            yield from (*inputs, *shifts)


_INSPECT_FIX = "`bertworks inspect` names all such tensors."


def _count_non_finite(
    network: nn.Module, tensors: Mapping[str, Tensor], keys: KeyMap
) -> dict[str, int]:
    """Return the loaded tensors with NaN or infinity, and how many such numbers each has.

    Numbers beyond the range of the network's type (float32) count as infinite.
    """
    counts: dict[str, int] = {}
    for name, parameter in unique_tensors(network).items():
        if parameter.is_meta or is_finite(parameter):
            continue
        for part in keys.theirs(name):
            if part in tensors and (count := int((~tensors[part].to(parameter).isfinite()).sum())):
                counts[part] = count
    return counts


def describe_non_finite(non_finite: Mapping[str, int]) -> str:
    """Return the error message for tensors that are not finite, in one line."""
    (name, count), *others = non_finite.items()
    numbers = "a number that is" if count == 1 else f"{count:,} numbers that are"
    more = f", the first of {len(non_finite):,} such tensors," if others else ""
    return f"the tensor {name!r}{more} holds {numbers} not finite (NaN or infinity)"


def key_map_of(network: nn.Module, family: Family) -> KeyMap:
    """Return a network's key map; heads without published names keep their names."""
    own_names = [name for name in network.state_dict() if not is_published(name)]
    encoder = network.get_submodule("encoder")
    assert isinstance(encoder, Encoder)
    rules = [*family.keys.rules, *(Rule(name, (name,)) for name in own_names)]
    return KeyMap(rules, encoder.config.num_attention_heads)


def unique_tensors(network: nn.Module) -> dict[str, Tensor]:
    """Return a network's tensors by name, a tied tensor only under its first name."""
    tensors: dict[str, Tensor] = {}
    ids: set[int] = set()
    for name, tensor in network.state_dict(keep_vars=True).items():
        if id(tensor) not in ids:
            ids.add(id(tensor))
            tensors[name] = tensor.detach()
    return tensors


def _fill_parameters(network: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Copy values into a network's parameters and buffers; those on the device "meta" are replaced
    instead."""
    first: dict[int, str] = {}
    parameters: dict[str, Tensor] = {}
    for name, parameter in _named_tensors(network):
        source = first.setdefault(id(parameter), name)
        if source not in values:
            continue
        if not parameter.is_meta:
            with torch.no_grad():
                parameter.copy_(values[source])
            continue
        if source not in parameters:
            value = values[source].to(parameter.dtype).contiguous()
            if isinstance(parameter, nn.Parameter):
                value = nn.Parameter(value, requires_grad=parameter.requires_grad)
            parameters[source] = value
        module, _, attribute = name.rpartition(".")
        setattr(network.get_submodule(module), attribute, parameters[source])


def _named_tensors(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from network.named_parameters(remove_duplicate=False)
    yield from network.named_buffers()


def _tied_tensors(network: nn.Module, keys: KeyMap) -> dict[str, str]:
    """Return their second name of each tied parameter, mapped to the first."""
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, parameter in network.named_parameters(remove_duplicate=False):
        other = first.setdefault(id(parameter), name)
        if other != name:
            tied[keys.theirs(name)[0]] = keys.theirs(other)[0]
    return tied


def _drop_reason(
    name: str,
    tensors: Mapping[str, Tensor],
    tied: Mapping[str, str],
    family: Family,
    where: str,
) -> str:
    if name in tied:
        if not equal_tensors(tensors[name], tensors[tied[name]]):
            raise CheckpointError(
                f"the tensor {name!r} is not {tied[name]!r}, to which config.json ties it",
                where=where,
                fix=f"Set tie_word_embeddings to false in config.json. {ENCODER_FIX}",
            )
        return f"tied to {tied[name]}"
    reason = family.drop_reason(name)
    if reason is None:
        raise CheckpointError(f"the tensor {name!r} is not known", where=where, fix=ENCODER_FIX)
    return reason


def equal_tensors(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same numbers; NaN equals NaN."""
    if one.shape != other.shape or torch.equal(one, other):
        return one.shape == other.shape
    return bool(((one == other) | (one.isnan() & other.isnan())).all())

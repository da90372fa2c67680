"""Models on disk, in the Hugging Face layout, read and written strictly.

    config.json          geometry, class names
    model.safetensors    weights (or shards of it with model.safetensors.index.json; read as well:
                         pytorch_model.bin)
    tokenizer.json, tokenizer_config.json, vocab.txt or what the family has
    bertworks.json       what that layout has no place for: the task and its settings

Every tensor of a checkpoint is used, dropped with a reason, or an error; what is newly initialised
is listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .. import files
from ..errors import CheckpointError
from ..locks import claim
from ..model.config import EncoderConfig
from ..text.files import write_definition
from . import tensorflow
from .families import family_named, family_of
from .family import Family
from .replacing import check_target, is_other
from .sentence import SentenceSettings, write_sentence_settings
from .weights import SAFETENSORS, has_weights, read_json, read_weights, write_weights

if TYPE_CHECKING:
    from ..text.tokenizer import Tokenizer

FORMAT_VERSION = 1

TASK_HEADS = ("head.", "tag_head.", "span_head.", "choice_head.")
NEW_IF_ABSENT = ("encoder.pooler.", "mlm_head.", "nsp_head.", "rtd_head.", *TASK_HEADS)
"""What may be newly initialised: the heads, and the pooler, which is one."""


@dataclass(frozen=True)
class LoadReport:
    """What became of each tensor when a checkpoint was loaded.

    Attributes:
        used: the network's tensors that were filled.
        dropped: the checkpoint's tensors that were not used, and why.
        initialized: the network's tensors that the checkpoint has not, newly initialised.
    """

    used: tuple[str, ...]
    dropped: Mapping[str, str] = field(default_factory=dict)
    initialized: tuple[str, ...] = ()


def read_config(directory: Path) -> tuple[EncoderConfig, dict[str, Any]]:
    """The geometry in a directory's `config.json`, and all that stands in the file.

    The original release's `bert_config.json` is read where there is no other.

    Raises:
        CheckpointError: the file is missing, no JSON, or describes another architecture.
    """
    file = directory / "config.json"
    if not file.is_file() and (directory / tensorflow.CONFIG).is_file():
        file = directory / tensorflow.CONFIG
    raw = read_json(file)
    family = family_named(raw.get("model_type", "bert"), where=str(file))
    return family.read_config(raw, where=str(file)), raw


def read_task(directory: Path) -> tuple[str, dict[str, Any]] | None:
    """The name and settings of a directory's task, or None where another tool wrote it.

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
    return values["task"], values["task_settings"]


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
            directory, lambda name: family.keys.repacks(family.normalize_name(name))
        )
    else:
        tensors, dropped = tensorflow.read_checkpoint(prefix)
    found = {family.normalize_name(name): tensor for name, tensor in tensors.items()}
    # Of two names of one tensor, some classes save the decoder's.
    (embeddings,) = family.keys.theirs("encoder.embeddings.word_embeddings.weight")
    (decoder,) = family.keys.theirs("mlm_head.decoder")
    if embeddings not in found and decoder in found:
        found[embeddings] = found.pop(decoder)
    return found, dropped


def load_weights(
    network: nn.Module, tensors: Mapping[str, Tensor], family: Family, where: str
) -> LoadReport:
    """Fill a network from a checkpoint's tensors.

    Args:
        network: freshly initialised, or on the device "meta": then it takes the tensors as they
            are, which may lie in mapped files, rather than copies. Its encoder is `encoder`.
        tensors: under the family's names.
        family: whose names these are.
        where: the checkpoint's name, for errors.

    Raises:
        CheckpointError: a tensor of the encoder is missing, one is of another shape, or one is
            unknown.
    """
    values: dict[str, Tensor] = {}
    initialized: list[str] = []
    taken: set[str] = set()
    for name, own in own_tensors(network).items():
        theirs = family.keys.theirs(name)
        try:
            found = family.keys.fetch(name, tensors)
        except KeyError as error:
            raise CheckpointError(f"the tensor {error} is missing", where=where) from None
        if found is None:
            if not name.startswith(NEW_IF_ABSENT):
                raise CheckpointError(f"the tensor {theirs[0]!r} is missing", where=where)
            initialized.append(name)
            continue
        if found.shape != own.shape:
            if name.startswith(TASK_HEADS):
                initialized.append(name)
                continue
            raise CheckpointError(
                f"the tensor {theirs[0]!r} has shape {tuple(found.shape)}, not {tuple(own.shape)}",
                where=where,
            )
        values[name] = found
        taken.update(theirs)
    _fill(network, values)
    tied = _tied_tensors(network, family)
    dropped = {
        name: _why_dropped(name, tensors, tied, family, where)
        for name in tensors
        if name not in taken
    }
    return LoadReport(tuple(values), dropped, tuple(initialized))


def save_model(
    directory: str | Path,
    *,
    network: nn.Module,
    config: EncoderConfig,
    task: str | None,
    task_settings: Mapping[str, Any],
    model_class: str,
    config_entries: Mapping[str, Any],
    tokenizer: Tokenizer,
    sentence: SentenceSettings | None = None,
    keep_others: bool = False,
) -> Path:
    """Write a model; one that is there is replaced once the new one is complete.

    Args:
        directory: where to; new, empty, or a saved model's. See `files.new_directory` for where
            the former model is if the program is killed while it is replaced.
        network: the network, its encoder as its attribute `encoder`.
        config: its geometry.
        task: the task's name; None for a bare encoder.
        task_settings: what the task needs to be built again.
        model_class: which class of the family's opens the model: a key of `Family.classes`.
        config_entries: what the task adds to `config.json` (`id2label`).
        tokenizer: the model's tokenizer.
        sentence: how a sentence encoder makes vectors; None if it is none.
        keep_others: keep the files in the directory that are no part of a saved model, rather than
            refuse to save there.

    Raises:
        CheckpointError: the directory holds something else, or the family has no place for the
            model.
        OutputError: the directory cannot be written, or is being written by another process.
    """
    directory = Path(directory)
    family = family_of(config)
    check_layout(network, config, model_class)
    raw = {
        "pad_token_id": tokenizer.id_of("pad"),
        **{key: tokenizer.id_of(role) for key, role in family.token_ids.items()},
        **family.write_config(config),
        "architectures": [_class_of(family, config, model_class)],
        "dtype": "float32",
        **config_entries,
    }
    own = {"format_version": FORMAT_VERSION, "task": task, "task_settings": dict(task_settings)}
    exported = family.keys.export(own_tensors(network))
    contiguous = {key: value.contiguous().cpu() for key, value in exported.items()}
    with claim(directory, kind="whole directory"):
        check_target(directory, keep_others=keep_others)
        with files.new_directory(directory, last="config.json", replace=True, keep=is_other) as new:
            files.write_json(new / "config.json", raw)
            if task is not None:
                files.write_json(new / "bertworks.json", own)
            write_weights(new / SAFETENSORS, contiguous, format="pt")
            (new / SAFETENSORS).chmod(0o644)  # safetensors leaves it to its owner alone
            write_definition(tokenizer.definition, new, model_max_length=config.max_seqlen)
            if sentence is not None:
                write_sentence_settings(new, sentence, config.hidden_size)
    return directory


def check_layout(network: nn.Module, config: EncoderConfig, model_class: str) -> None:
    """See that a network can be saved as one of its family, before it is trained.

    Args:
        network: the network.
        config: its geometry.
        model_class: a key of `Family.classes`.

    Raises:
        CheckpointError: the family has no words for a setting, or no place for a tensor.
    """
    family = family_of(config)
    family.write_config(config)
    if model_class not in family.classes:
        raise CheckpointError(
            f"the family {family.name!r} has no models for {model_class}",
            fix=f"It has: {', '.join(family.classes)}.",
        )
    for name in own_tensors(network):
        try:
            family.keys.theirs(name)
        except KeyError:
            raise CheckpointError(
                f"the family {family.name!r} has no place for the tensor {name!r}"
            ) from None


def _class_of(family: Family, config: EncoderConfig, model_class: str) -> str:
    """The class that opens a model; a causal one may have another.

    Of a classifier on a vector that the family's class does not stand on, it opens the encoder.
    """
    if model_class in ("classification", "choice") and not family.pools_as_published(config):
        model_class = "encoder"
    causal = config.attention == "causal" and model_class == "masked-lm"
    return family.classes.get("causal-lm" if causal else model_class, family.classes[model_class])


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
    for name, own in network.named_parameters(remove_duplicate=False):
        source = first.setdefault(id(own), name)
        if source not in values:
            continue
        if not own.is_meta:
            with torch.no_grad():
                own.copy_(values[source])
            continue
        if source not in taken:
            value = values[source].to(own.dtype).contiguous()
            taken[source] = nn.Parameter(value, requires_grad=own.requires_grad)
        module, _, attribute = name.rpartition(".")
        setattr(network.get_submodule(module), attribute, taken[source])


def _tied_tensors(network: nn.Module, family: Family) -> dict[str, str]:
    """Their names of parameters that have two, and the other name of each."""
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, parameter in network.named_parameters(remove_duplicate=False):
        other = first.setdefault(id(parameter), name)
        if other != name:
            tied[family.keys.theirs(name)[0]] = family.keys.theirs(other)[0]
    return tied


def _why_dropped(
    name: str,
    tensors: Mapping[str, Tensor],
    tied: Mapping[str, str],
    family: Family,
    where: str,
) -> str:
    if name in tied:
        if not torch.equal(tensors[name], tensors[tied[name]]):
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

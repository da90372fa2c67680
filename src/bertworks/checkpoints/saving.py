"""Save models in the Hugging Face layout (`store.py` loads them) without losing other files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import CheckpointError
from ..nn.config import EncoderConfig
from ..nn.device import is_finite
from ..nn.encoder import HasEncoder
from ..nn.encoder_layers import Layer
from ..nn.layers import Linear
from ..nn.quantization import InputCodes, quantize_rows
from ..nn.vector_modules import VectorModules
from ..settings.pooling import PIECE_WEIGHTS
from ..text import file_names as tokenizer_files
from ..text.files import write_definition
from ..text.tokenizer import Tokenizer
from ..utils.directories import LOCK_NAME, new_directory
from ..utils.json_files import write_json
from ..utils.outputs import locked_output
from . import sentence_saving
from .card_usage import SavedUse, write_card
from .families import family_of
from .family import Family
from .heads import is_published
from .model_card import CARD, ModelCard
from .network_weights import describe_non_finite, key_map_of, unique_tensors
from .router import QUERY
from .sentence_settings import SentenceSettings
from .static import STATIC, piece_weight_files, static_entries
from .store import FORMAT_VERSION
from .weight_files import CALIBRATED_CODES, CODES, INPUTS, SAFETENSORS, SCALES, SHIFT
from .weights import write_weights

_FILES = {
    *("config.json", "bertworks.json", SAFETENSORS, CARD, LOCK_NAME, QUERY),
    *tokenizer_files.FILES,
}
"""All files that a saved model may have, besides those of a sentence encoder."""


def is_other_file(name: str) -> bool:
    """Whether the file `name` in a saved model's directory is not part of the model."""
    name = name.removeprefix(f"{QUERY}/")
    return name not in _FILES and not sentence_saving.is_sentence_file(name)


@dataclass(frozen=True)
class SavedTask:
    """What is saved of a model's task, in `bertworks.json` and `config.json`.

    Attributes:
        name, settings: the task's, as `read_task` reads them.
        model_class: the key in `Family.classes` of the class that loads the model.
        config_entries: additions to `config.json` (`id2label`).
        head_dropout: before the task's output layer, where it is not the family's default.
        is_user_task: whether the task is defined in a user's file.
    """

    name: str
    settings: Mapping[str, Any]
    model_class: str
    config_entries: Mapping[str, Any]
    head_dropout: float | None = None
    is_user_task: bool = False


@dataclass(frozen=True)
class SavedModel:
    """What is saved of a model.

    Attributes:
        task: None for a bare encoder.
        learning_rate: that suits fine-tuning the model; saved if there is a task.
        card: the model card so far; what the model is used for is added.
        max_seq_length: the tokenizer's limit, if it is below the positions; a sentence encoder's is
            in files of its own.
    """

    network: HasEncoder
    tokenizer: Tokenizer
    task: SavedTask | None = None
    sentence: SentenceSettings | None = None
    modules: VectorModules | None = None
    learning_rate: float | None = None
    card: ModelCard | None = None
    max_seq_length: int | None = None


def save_model(
    directory: str | Path,
    model: SavedModel,
    query_model: SavedModel | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    keep_others: bool = False,
    overwrite: bool = False,
) -> Path:
    """Save a model, as `Model.save` does. An existing one is replaced once the new one is complete.

    Args:
        directory: see `new_directory` for where the previous model is if the program is
            killed during the replacement.
        query_model: the model of queries, if that is another one; its network may be the same.
        dtype: of the weights in the file; with int8, the layers' linear maps are int8 (see
            `weights.CODES`) and the rest is bfloat16.

    Raises:
        CheckpointError: the family's layout cannot store the model, or a weight is not finite.
        OutputError: the directory exists and must not be overwritten, holds something else, cannot
            be written, or is being written by another process.
    """
    directory = Path(directory)
    if query_model is not None and query_model.sentence is not None:
        # The file of prompts and of the function that compares vectors is for both.
        query_sentence = query_model.sentence.with_values(entries={})
        query_model = replace(query_model, sentence=query_sentence)
    files = _files_of(model, dtype)
    query_files = None
    if query_model is not None and query_model.network is not model.network:
        query_files = _files_of(query_model, dtype, is_query=True)
    allowed = None if overwrite and keep_others else overwrite
    with (
        locked_output(directory, kind="whole directory", overwrite=allowed),
        new_directory(directory, last="config.json", replace=True, keep=is_other_file) as new,
    ):
        parts = _write(new, model, files)
        if query_model is not None:
            (new / QUERY).mkdir()
            query_parts = _write(new / QUERY, query_model, query_files)
            sentence_saving.write_routes(
                new, query_parts, parts, shares_transformer=query_files is None
            )
        elif model.sentence is not None or files.is_static:
            sentence_saving.write_modules(new, parts)
        use = use_of(model, files.config, has_int8=dtype is torch.int8)
        card = model.card
        if card is not None and dtype is torch.int8:
            card = card.update({"model-index": None}, {})  # the metrics are of other weights
        write_card(new, directory, card, use.entries, use.section)
    return directory


def use_of(model: SavedModel, config: Mapping[str, Any], *, has_int8: bool) -> SavedUse:
    """Return what the model card says of the use of a model.

    Args:
        config: the content of `config.json`.
        has_int8: whether the weights are saved as 8-bit numbers.
    """
    task, tokenizer = model.task, model.tokenizer
    names = _own_tensors(model)
    architecture = (config.get("architectures") or [""])[0]
    is_encoder_alone = task is not None and model.sentence is None and task.model_class != "encoder"
    is_encoder_alone &= architecture == family_of(model.network.encoder.config).classes["encoder"]
    has_own_heads = task is not None and not all(is_published(name) for name in names)
    return SavedUse(
        task=None if task is None else task.name,
        settings={} if task is None else task.settings,
        is_user_task=task is not None and task.is_user_task,
        architecture=architecture,
        sentence=model.sentence,
        has_own_files=has_int8 or has_own_heads or is_encoder_alone,
        mask=tokenizer.id_to_token(tokenizer.mask_id) if tokenizer.has("mask") else None,
        note="The weights are 8-bit numbers, which no other software reads; metrics of a training "
        "were measured before."
        if has_int8
        else "",
    )


class _Files(NamedTuple):
    """The contents of a model's files."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    max_length: int
    is_static: bool


def _files_of(model: SavedModel, dtype: torch.dtype, *, is_query: bool = False) -> _Files:
    """Return what `config.json` and the file of weights hold.

    Raises:
        CheckpointError: the family's layout cannot store the model, or a weight is not finite.
    """
    network, tokenizer, sentence = model.network, model.tokenizer, model.sentence
    config = network.encoder.config
    family = family_of(config)
    model_class = "encoder" if model.task is None else model.task.model_class
    check_layout(network, config, model_class)
    own_limit = None if sentence is not None else model.max_seq_length
    max_length, is_static = own_limit or config.max_seqlen, family is STATIC
    if is_static:
        dtype, sentence = _static_dtype(dtype), sentence or SentenceSettings()
    tensors = _tensors_of(model, family, dtype)
    if is_static and is_query and sentence is not None and sentence.pooling == PIECE_WEIGHTS:
        raw, tensors = piece_weight_files(tensors)
        max_length = sentence.max_seq_length or max_length
    else:
        raw = _config_of(config, family, tokenizer, model.task)
        raw["dtype"] = str(dtype).removeprefix("torch.")
        if is_static and sentence is not None:
            has_modules = model.modules is not None
            raw |= static_entries(tokenizer.definition, sentence, has_modules=has_modules)
    if sentence is not None and sentence.layer_weights is not None:
        raw["output_hidden_states"] = True  # or other tools ignore the weights of layers
    bare = family.prefix if family.has_bare_encoders and model_class == "encoder" else ""
    contiguous = {
        key.removeprefix(bare): value.cpu().contiguous() for key, value in tensors.items()
    }
    return _Files(raw, contiguous, max_length, is_static)


def _write(directory: Path, model: SavedModel, files: _Files | None) -> sentence_saving.Parts:
    """Write a model's files but the list of its parts, which is returned.

    Args:
        files: None: another model's, which are in another directory.
    """
    if files is not None:
        write_json(directory / "config.json", files.config)
        if model.task is not None:
            task_file = _task_file(model, model.task)
            write_json(directory / "bertworks.json", task_file)
        write_weights(directory / SAFETENSORS, files.tensors, format="pt")
        (directory / SAFETENSORS).chmod(0o644)  # safetensors makes it readable by its owner only
        write_definition(model.tokenizer.definition, directory, model_max_length=files.max_length)
        if files.is_static:
            settings = model.sentence or SentenceSettings()
            return sentence_saving.write_static_sentence(directory, settings)
    if model.sentence is None:
        return []
    width = model.network.encoder.config.hidden_size
    return sentence_saving.write_sentence_encoder(directory, model.sentence, model.modules, width)


def _config_of(
    config: EncoderConfig, family: Family, tokenizer: Tokenizer, task: SavedTask | None
) -> dict[str, Any]:
    """The content of `config.json` that does not depend on how the weights are stored."""
    model_class = "encoder" if task is None else task.model_class
    raw = {
        "pad_token_id": tokenizer.id_of("pad"),
        **{key: tokenizer.id_of(role) for key, role in family.token_ids.items()},
        **family.write_config(config),
        "architectures": [_class_of(family, config, model_class)],
        **({} if task is None else task.config_entries),
    }
    if task is not None and task.head_dropout is not None and model_class in family.dropouts:
        raw[family.dropouts[model_class]] = task.head_dropout
    return raw


def _own_tensors(model: SavedModel) -> dict[str, Tensor]:
    """A network's tensors but those of modules after pooling, which are in files of their own."""
    prefixes = () if model.modules is None else model.modules.prefixes_in(model.network)
    tensors = unique_tensors(model.network).items()
    return {name: tensor for name, tensor in tensors if not name.startswith(prefixes)}


def _task_file(model: SavedModel, task: SavedTask) -> dict[str, Any]:
    """The content of `bertworks.json`."""
    values: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "task": task.name,
        "task_settings": dict(task.settings),
    }
    if model.learning_rate is not None:
        values["learning_rate"] = model.learning_rate
    unpublished = [name for name in _own_tensors(model) if not is_published(name)]
    if unpublished:
        values["heads"] = sorted({name.partition(".")[0] for name in unpublished})
    return values


def _tensors_of(model: SavedModel, family: Family, dtype: torch.dtype) -> dict[str, Tensor]:
    """A network's tensors under the family's names, of a dtype.

    Raises:
        CheckpointError: a weight is not finite.
    """
    network, own = model.network, _own_tensors(model)
    tensors = key_map_of(network, family).export(own)
    if family.has("mlm_head.decoder", tensors) and family.decoder_bias is not None:
        bias, second = family.decoder_bias
        tensors[second] = tensors[bias].clone()  # other tools add this one to untied logits
    non_finite = {
        name: int((~tensor.isfinite()).sum())
        for name, tensor in tensors.items()
        if not is_finite(tensor)
    }
    if non_finite:
        raise CheckpointError(f"the model is not saved: {describe_non_finite(non_finite)}")
    if dtype is torch.int8:
        tensors = _in_eight_bits(network, tensors, family)
    else:
        tensors = {key: value.to(dtype) for key, value in tensors.items()}
    buffers = dict(network.named_buffers())
    constants = {name: tensor for name, tensor in own.items() if name in buffers}
    # Sines and cosines of rotary positions: rounded, they would be others.
    return tensors | key_map_of(network, family).export(constants)


def _static_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of a static model's vectors: float16 for bfloat16, which model2vec cannot read.

    Raises:
        CheckpointError: they are to be 8-bit numbers.
    """
    if dtype is torch.int8:
        raise CheckpointError(
            "a static model has no layers whose matrices could be 8-bit numbers",
            fix='Save it with precision="bf16", which halves the file.',
        )
    return torch.float16 if dtype is torch.bfloat16 else dtype


def _in_eight_bits(
    network: nn.Module, tensors: Mapping[str, Tensor], family: Family
) -> dict[str, Tensor]:
    """Exported tensors: the layers' matrices in int8, all others in bfloat16."""
    keys = key_map_of(network, family)
    if any(rule.is_transposed or rule.is_convolution for rule in keys.rules):
        how = "transposed" if any(rule.is_transposed for rule in keys.rules) else "as convolutions"
        raise CheckpointError(
            f"the family {family.name!r} stores its matrices {how}, which files with "
            "8-bit weights do not support",
            fix='Save it in bfloat16; precision="int8" can still compute with it.',
        )
    matrices: dict[str, tuple[InputCodes | None, Tensor]] = {}  # with the shift of the outputs
    for outer, layer in network.named_modules():
        for inner, part in layer.named_modules() if isinstance(layer, Layer) else ():
            if isinstance(part, Linear):
                inputs = part.input_codes
                if inputs is not None and not inputs.match(part.weight.detach().float()):
                    inputs = None
                shift = part.weight.new_zeros(part.out_features) if inputs is None else inputs.shift
                name = f"{outer}.{inner}.weight"
                shifts = keys.rule_of(name).split(shift, part.weight.shape)
                parts = ((inputs, some) for some in shifts)
                matrices.update(zip(keys.theirs(name), parts, strict=True))
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name not in matrices:
            result[name] = tensor.to(torch.bfloat16)
            continue
        inputs, shift = matrices[name]
        if inputs is None:
            result[name + CODES], result[name + SCALES] = quantize_rows(tensor)
            continue
        coded = quantize_rows(tensor.float() * inputs.steps)
        result[name + CALIBRATED_CODES], result[name + SCALES] = coded
        result[name + INPUTS] = torch.stack([inputs.steps, inputs.offsets])
        result[name + SHIFT] = shift
    return result


def check_layout(network: nn.Module, config: EncoderConfig, model_class: str) -> None:
    """Check, before training, that a network can be saved in its family's layout.

    Args:
        model_class: a key of `Family.classes`.

    Raises:
        CheckpointError: the layout has no place for a setting, a tensor, or the model class.
    """
    family = family_of(config)
    family.write_config(config)
    if model_class not in family.classes:
        raise CheckpointError(
            f"the family {family.name!r} has no models for {model_class}",
            fix=f"It has: {', '.join(family.classes)}.",
        )
    keys = key_map_of(network, family)
    for name in unique_tensors(network):
        try:
            (theirs, *_) = keys.theirs(name)
        except KeyError:
            raise CheckpointError(
                f"the family {family.name!r} has no place for the tensor {name!r}"
            ) from None
        if not is_published(name) and family.normalize_name(theirs) != theirs:
            raise CheckpointError(
                f"the tensor {name!r} has a name that the family {family.name!r} reads as another",
                fix="Rename the network's attribute, for example to my_head.",
            )


def _class_of(family: Family, config: EncoderConfig, model_class: str) -> str:
    """The name of the class that loads a model; causal models may have a different one.

    For a classifier that pools another vector than the family's class, it is the encoder's class.
    """
    if model_class in ("classification", "choice") and not family.pools_as_published(config):
        model_class = "encoder"
    causal = config.attention == "causal" and model_class == "masked-lm"
    return family.classes.get("causal-lm" if causal else model_class, family.classes[model_class])

"""Load a model with a network: read its files, detect its task, and fill the network."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .checkpoints.card_usage import load_card
from .checkpoints.families import family_of
from .checkpoints.family import Family
from .checkpoints.heads import PublishedCheckpoint, is_published
from .checkpoints.late_interaction_files import read_original_colbert
from .checkpoints.locate import locate_with_adapter
from .checkpoints.network_weights import load_weights
from .checkpoints.peft_adapters import merge_adapter
from .checkpoints.router import Route
from .checkpoints.sentence import read_sentence_encoder
from .checkpoints.sentence_directory import (
    has_query_route,
    lowers_case,
    transformer_directory,
    with_limit,
)
from .checkpoints.sentence_modules import load_vector_modules
from .checkpoints.sentence_settings import SentenceEncoder
from .checkpoints.static import STATIC, read_static_settings
from .checkpoints.store import (
    check_geometry,
    load_tokenizer,
    read_config,
    read_limit,
    read_task,
)
from .checkpoints.task_adapters import (
    find_adapter,
    has_unused_adapters,
    list_adapters,
    split_adapter,
    with_adapter_prompt,
)
from .checkpoints.tensors import read_tensors
from .errors import BertworksWarning, CheckpointError, SettingsError
from .model import Model
from .nn.cpu import keep_freed_memory
from .nn.device import pick_device, without_weights
from .nn.encoder import BareEncoder, Encoder
from .nn.part_settings import Activation
from .nn.vector_modules import VectorModules
from .tasks.network import Network
from .tasks.saved_task import find_task
from .tasks.task import Task


def load_network(
    name: str | Path,
    *,
    task: str | type[Task[Any]] | None = None,
    device: torch.device | str = "auto",
    hidden_act: Activation | None = None,
    allow_non_finite: bool = False,
    base: str | Path | None = None,
    adapter: str | None = None,
) -> Model:
    """Load a model whose network is PyTorch's; see `loading.load`."""
    whole_directory, peft_directory = locate_with_adapter(name, base)
    options: dict[str, Any] = {
        "task": task,
        "hidden_act": hidden_act,
        "allow_non_finite": allow_non_finite,
        "adapter": adapter,
        "peft_directory": peft_directory,
    }
    query_adapter = adapter
    if adapter is not None:
        directory = transformer_directory(whole_directory)
        query_adapter, options["adapter"] = split_adapter(directory, adapter)
    model = _load(str(name), whole_directory, "document", **options)
    if query_adapter != options["adapter"]:
        options["adapter"] = query_adapter
        model.query_model = _load(str(name), whole_directory, "query", **options)
    elif has_query_route(whole_directory):
        model.query_model = _load_query_model(model, whole_directory, options)
    model.card = load_card(name, whole_directory)
    return model.to(pick_device(device))


def _load_query_model(model: Model, whole_directory: Path, options: dict[str, Any]) -> Model:
    """Load the modules for queries of a model whose other modules are loaded."""
    name = str(model.source)
    directory = transformer_directory(whole_directory, "query")
    if directory != transformer_directory(whole_directory):
        return _load(name, whole_directory, "query", **options)
    query_model = Model(model.tokenizer, model.task, model.network, model.report, None, name)
    encoder = read_sentence_encoder(whole_directory, "query")
    assert encoder is not None, "documents have the same transformer, and other modules"
    query_model.modules = _load_modules(encoder)
    config = model.encoder.config
    limit = read_limit(directory, whole_directory, config, "query")
    query_model.max_seq_length = limit if limit < config.max_seqlen else None
    query_model.sentence = with_limit(encoder.settings, limit, config.max_seqlen, where=name)
    query_model.embedder()  # an error in the files is shown now
    return query_model


def _load(
    name: str,
    whole_directory: Path,
    route: Route,
    *,
    task: str | type[Task[Any]] | None,
    hidden_act: Activation | None,
    allow_non_finite: bool,
    adapter: str | None,
    peft_directory: Path | None,
) -> Model:
    """Load a model, or its modules of a route: see `load`."""
    directory = transformer_directory(whole_directory, route)
    config, raw = read_config(directory)
    if hidden_act is not None:
        config = config.with_values(hidden_act=hidden_act)
    parts = _directory_of_parts(whole_directory, peft_directory)
    tokenizer = load_tokenizer(directory, config, lowercase=lowers_case(parts, route))
    family = family_of(config)
    tensors, dropped_tensors, adapter_name = _read_tensors(
        directory, adapter, peft_directory, family, raw, name
    )
    original_colbert = read_original_colbert(directory, raw, tensors)
    check_geometry(config, tensors, family, name)
    task_file = read_task(directory)
    limit = read_limit(directory, parts, config, route)
    checkpoint = PublishedCheckpoint(raw, config, family, tensors, tokenizer, limit)
    loaded_task = find_task(task, task_file, checkpoint, directory, parts, where=name)

    def build() -> Network | BareEncoder:
        if loaded_task is None:
            return BareEncoder(
                Encoder(config, pooler=family.has("encoder.pooler.dense.weight", tensors))
            )
        return loaded_task.network(config)

    try:
        with without_weights():  # no random weights, which would be replaced
            network = build()
    except SettingsError as error:  # the task and the encoder do not fit together
        raise CheckpointError(error.what, where=name, fix=error.fix) from None
    if not all(is_published(name) for name, _ in network.named_buffers()):
        # A task's constants are in no file.
        network = build()
    has_parts = family is not STATIC and original_colbert is None
    encoder = read_sentence_encoder(parts, route) if has_parts else None
    modules = None if encoder is None else _load_modules(encoder)
    own_modules = network.vector_modules if isinstance(network, Network) else None
    if own_modules is not None and modules is not None:  # which are in files of their own
        tensors |= modules.state_dict(prefix=own_modules.prefixes_in(network)[0])
    report = load_weights(
        network,
        tensors,
        family,
        name,
        allow_non_finite=allow_non_finite,
        unused_heads=task_file.heads if task_file is not None and loaded_task is None else (),
        is_encoder_alone=task == "encoder",
    )
    report = replace(report, dropped_tensors={**report.dropped_tensors, **dropped_tensors})
    if report.new_tensors:
        raise CheckpointError(
            f"the weights {', '.join(report.new_tensors)} are missing, or of another shape",
            where=name,
        )
    keep_freed_memory()
    network.eval()
    rate = None if task_file is None else task_file.learning_rate
    model = Model(tokenizer, loaded_task, network, report, None, name, rate)
    if family is STATIC:
        model.sentence = read_static_settings(directory, whole_directory, route)
    elif original_colbert is not None:
        model.sentence, model.modules = original_colbert
    elif encoder is not None:
        model.sentence = encoder.settings
        model.modules = modules if own_modules is None else own_modules
    model.max_seq_length = limit if limit < config.max_seqlen else None
    model.sentence = with_limit(model.sentence, limit, config.max_seqlen, where=name)
    model.sentence = with_adapter_prompt(model.sentence, raw, adapter_name)
    if model.modules is not None:
        model.embedder()  # an error in the files is shown now
    return model


def _directory_of_parts(whole_directory: Path, peft_directory: Path | None) -> Path:
    """Return the directory with the modules: an adapter's, if sentence-transformers saved it."""
    if peft_directory is not None and (peft_directory / "modules.json").exists():
        return peft_directory
    return whole_directory


def _load_modules(encoder: SentenceEncoder) -> VectorModules | None:
    return None if encoder.modules is None else load_vector_modules(encoder.modules)


def _read_tensors(
    directory: Path,
    adapter: str | None,
    peft_directory: Path | None,
    family: Family,
    raw: dict[str, Any],
    name: str,
) -> tuple[dict[str, Tensor], dict[str, str], str | None]:
    """Read a model's tensors, and merge adapters: one of its own, one in another directory.

    Returns:
        as `read_tensors`; and the name of its own adapter, as its files write it.
    """
    adapters = list_adapters(directory, raw)
    own_adapter = None if adapter is None else find_adapter(adapter, adapters, name)
    own_name, folder = (None, None) if own_adapter is None else own_adapter
    tensors, drop_reasons = read_tensors(directory, family, own_name if folder is None else None)
    for place in filter(None, (folder, peft_directory)):
        merge_adapter(place, family, tensors, raw)
    if own_adapter is None and has_unused_adapters(adapters, drop_reasons):
        names = ", ".join(one.name for one in adapters)
        what = f"{name}: loaded without an adapter; choose one with adapter: {names}"
        warnings.warn(what, BertworksWarning, stacklevel=4)
    return tensors, drop_reasons, own_name

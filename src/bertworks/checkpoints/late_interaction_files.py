"""Late-interaction models (ColBERT) in the three layouts that `late_interaction.py` describes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CheckpointError, truncate_repr
from ..nn.vector_module_settings import DenseSettings
from ..settings.pooling import NO_POOLING
from ..utils.json_files import write_json
from .late_interaction import (
    MASK_KIND,
    MULTI_VECTOR_TYPE,
    PROJECTION,
    LateInteractionSettings,
    read_multi_vector_settings,
    read_original_settings,
    read_pylate_settings,
)
from .sentence_directory import read_entries, read_limits
from .sentence_modules import ModuleFiles, read_dense
from .sentence_settings import CONFIG, SentenceEncoder, SentenceSettings
from .weight_files import read_json

if TYPE_CHECKING:
    from torch import Tensor

    from ..nn.vector_modules import VectorModules
else:
    Tensor = VectorModules = Any  # settings are read without PyTorch

TOKENS = "token_embeddings"
"""sentence-transformers' name of token vectors, among the inputs and outputs of modules."""


def read_pylate(directory: Path, parts: Sequence[tuple[str, Path]]) -> SentenceEncoder | None:
    """Read a late-interaction model in PyLate's layout; None if it is not one."""
    file = directory / CONFIG
    entries = read_entries(file, is_late=True) if file.exists() else {}
    settings = read_pylate_settings(entries, str(file))
    if settings is None:
        return None
    where = str(directory / "modules.json")
    (first, transformer), *others = parts
    if first != "Transformer" or not others or any(kind != "Dense" for kind, _ in others):
        raise CheckpointError(
            f"the modules of late interaction are {', '.join(kind for kind, _ in parts)}",
            where=where,
            fix="Supported: Transformer, then Dense.",
        )
    directories = tuple(directory / path for _, path in others)
    limits = read_limits(directory / transformer)
    return _late_encoder(directories, settings, limits, entries, where)


def read_multi_vector(directory: Path, parts: Sequence[tuple[str, Path]]) -> SentenceEncoder | None:
    """Read a late-interaction model in sentence-transformers' layout; None if it is not one."""
    file = directory / CONFIG
    entries = read_entries(file, is_late=True) if file.exists() else {}
    kinds = [kind for kind, _ in parts]
    if MASK_KIND not in kinds and entries.get("model_type") != MULTI_VECTOR_TYPE:
        return None
    where = str(directory / "modules.json")
    directories = tuple(directory / path for kind, path in parts if kind == "Dense")
    start = ["Transformer", *["Dense"] * len(directories)]
    has_norm = "Normalize" in kinds
    ends = [MASK_KIND, *["Normalize"] * has_norm]
    if not directories or kinds not in ([*start, *ends], [*start, *reversed(ends)]):
        raise CheckpointError(
            f"the modules of late interaction are {', '.join(kinds)}",
            where=where,
            fix=f"Supported: Transformer, then Dense, then {MASK_KIND} and perhaps Normalize.",
        )
    folders = {kind: directory / path for kind, path in parts}
    if has_norm:
        norm_file = folders["Normalize"] / "config.json"
        name = read_json(norm_file).get("module_input_name")
        if name != TOKENS:
            what = f"module_input_name is {truncate_repr(name)}, not {TOKENS!r}"
            raise CheckpointError(what, where=str(norm_file))
    limits = read_limits(folders["Transformer"])
    prompts: dict[str, str] = dict(entries.get("prompts") or {})
    pieces = _added_pieces(folders["Transformer"])
    # A prompt that is an added piece precedes the text as this piece; another one is text.
    prefixes = {
        role: prompts.pop(role)
        for role in ("query", "document")
        if {prompts.get(role), prompts.get(role, "").strip()} & pieces
    }
    if any(piece in prompt for piece in pieces for prompt in prompts.values()):
        what = "a prompt has an added piece of the tokenizer with text, which is not supported"
        raise CheckpointError(what, where=str(file))
    mask = read_json(folders[MASK_KIND] / "config.json")
    settings = read_multi_vector_settings(
        entries, prefixes, limits, mask, str(directory), normalize=has_norm
    )
    return _late_encoder(directories, settings, limits, {**entries, "prompts": prompts}, where)


def _late_encoder(
    directories: Sequence[Path],
    settings: LateInteractionSettings,
    limits: Mapping[str, Any],
    entries: Mapping[str, Any],
    where: str,
) -> SentenceEncoder:
    """An encoder whose `directories` have the linear maps after it; `entries` are kept."""
    denses = tuple(
        read_dense(read_json(path / "config.json"), path / "config.json", TOKENS)
        for path in directories
    )
    sentence = SentenceSettings(
        pooling=NO_POOLING,
        max_seq_length=limits.get("max_seq_length"),
        late_interaction=settings,
        entries={key: value for key, value in entries.items() if key != "similarity_fn_name"},
    )
    return SentenceEncoder(sentence, ModuleFiles(denses, tuple(directories), where))


def _added_pieces(directory: Path) -> set[str]:
    """The pieces that a tokenizer searches for before it splits a text."""
    file = directory / "tokenizer.json"
    entries = read_json(file).get("added_tokens") if file.exists() else []
    return {str(entry["content"]) for entry in entries or [] if isinstance(entry, dict)}


def add_pieces(directory: Path, pieces: Iterable[str]) -> None:
    """Have a written tokenizer search for pieces of its vocabulary before it splits a text."""
    file = directory / "tokenizer.json"
    tree = read_json(file)
    vocabulary = tree["model"]["vocab"]
    if isinstance(vocabulary, list):
        vocabulary = {piece: number for number, (piece, _) in enumerate(vocabulary)}
    entries = {entry["content"]: entry for entry in tree["added_tokens"]}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    for piece in pieces:
        content = piece if piece in vocabulary else piece.strip()
        if piece not in entries and content in vocabulary:
            entry = {"id": vocabulary[content], "content": content, **flags, "special": True}
            entries.setdefault(content, entry)
    tree["added_tokens"] = sorted(entries.values(), key=lambda entry: int(entry["id"]))
    write_json(file, tree)


def read_original_colbert(
    directory: Path, config: Mapping[str, Any], tensors: dict[str, Tensor]
) -> tuple[SentenceSettings, VectorModules] | None:
    """Read a late-interaction model in the original release's layout; None if it is not one.

    Args:
        config: its `config.json`.
        tensors: its weights, from which the projection is removed.

    Raises:
        CheckpointError: a file is damaged, or the projection is missing.
    """
    settings = read_original_settings(directory, config)
    if settings is None:
        return None
    weight = tensors.pop(PROJECTION, None)
    if weight is None or weight.ndim != 2 or not weight.isfinite().all():
        what = f"the tensor {PROJECTION!r} is missing, no matrix, or not finite"
        raise CheckpointError(what, where=str(directory))
    outputs, inputs = weight.shape
    dense = DenseSettings(
        in_features=inputs, out_features=outputs, bias=False, activation="identity"
    )
    from ..nn.vector_modules import VectorModules

    modules = VectorModules([dense]).eval()
    modules.load_state_dict({"steps.0.linear.weight": weight.float()})
    own = SentenceSettings(pooling=NO_POOLING, late_interaction=settings)
    return own, modules

"""Contents of a checkpoint: geometry, parameters, vocabulary, and how each tensor was used."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoints.card_usage import read_card
from ..checkpoints.families import family_of
from ..checkpoints.heads import HEADS
from ..checkpoints.locate import locate, locate_with_adapter
from ..checkpoints.sentence_directory import lowers_case, transformer_directory
from ..checkpoints.store import load_tokenizer, read_config, read_task
from ..checkpoints.weight_files import ENCODER_FIX
from ..errors import (
    BertworksError,
    BertworksWarning,
    CheckpointError,
    NeedsPyTorchError,
    has_pytorch,
    needs_pytorch_error,
)
from ..inference.native_network import auto_precision
from ..loading import load
from ..native.library import instruction_set
from ..tasks import is_registered
from ..text.tokenizer import Tokenizer
from ..utils.regular_files import read_bytes
from .stored_tensors import StoredTensors

if TYPE_CHECKING:
    from ..model import Model


@dataclass(frozen=True)
class Inspection:
    """The result of `inspect`.

    Attributes:
        family: the model's family.
        task: the task for which it was trained; None for a bare encoder.
        geometry: every setting of the encoder.
        parameters: number of parameters, by part: `embeddings`, `layers`, `each layer`, `heads`
            (all else, such as a pooler), `total`.
        vocabulary: kind, size, casing, number of unused pieces, special pieces.
        heads: names of the heads on top of the encoder.
        dtypes: number of tensors of each dtype in the files.
        license: from its README or license file; None if neither states one.
        used_tensors: the network's tensors that were loaded.
        dropped_tensors: the checkpoint's tensors that were not used, and why.
        non_finite: tensors with NaN or infinity, and the number of such values in each.
        engine: what computes it where it is only used (`embed`, `predict`), and why.
    """

    family: str
    task: str | None
    geometry: Mapping[str, Any]
    parameters: Mapping[str, int]
    vocabulary: Mapping[str, Any]
    heads: tuple[str, ...]
    dtypes: Mapping[str, int]
    license: str | None
    used_tensors: tuple[str, ...]
    dropped_tensors: Mapping[str, str]
    non_finite: Mapping[str, int]
    engine: str


def inspect(
    name: str | Path, *, base: str | Path | None = None, adapter: str | None = None
) -> Inspection:
    """Load a checkpoint and describe its contents.

    Without PyTorch, parameters and tensors are those of the files, of which no network is built.

    Args:
        name: a model directory, a run directory, or a name on the Hugging Face hub.
        base, adapter: as in `load`.

    Raises:
        CheckpointError: there is no such model, it is damaged, or of another architecture.
    """
    engine = _find_engine(name, base, adapter)
    if not has_pytorch():
        if base is not None or adapter is not None:
            raise needs_pytorch_error("an adapter", where=str(name))
        return _inspect_files(name, engine)
    from ..checkpoints.tensors import read_tensors

    directory, _ = locate_with_adapter(name, base)
    description = read_task(directory)
    # A checkpoint never causes an import: of a user's task, only the name is known.
    unknown = description is not None and not is_registered(description.task)
    options: dict[str, Any] = {
        "device": "cpu",
        "backend": "torch",
        "allow_non_finite": True,
        "base": base,
        "adapter": adapter,
    }
    try:
        model: Model = load(name, task="encoder" if unknown else None, **options)
    except CheckpointError as error:
        if error.fix != ENCODER_FIX:
            raise
        warnings.warn(str(error), BertworksWarning, stacklevel=2)
        model = load(name, task="encoder", **options)
    tensors, _ = read_tensors(transformer_directory(directory), family_of(model.encoder.config))
    dtypes = Counter(str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values())
    assert model.report is not None
    task_name = None if model.task is None else model.task.name
    task_name = task_name if description is None else description.task
    parts = {name for name, _ in model.network.named_modules()}
    return Inspection(
        family=model.encoder.config.family,
        task=task_name,
        geometry=model.encoder.config.model_dump(mode="json"),
        parameters=_count(model),
        vocabulary=_vocabulary(model.tokenizer),
        heads=(
            *(head.title for head in HEADS if head.name in parts),
            *(() if description is None else description.heads),
        ),
        dtypes=dict(dtypes),
        license=_license(directory),
        used_tensors=model.report.used_tensors,
        dropped_tensors=model.report.dropped_tensors,
        non_finite=model.report.non_finite_tensors,
        engine=engine,
    )


def _find_engine(name: str | Path, base: str | Path | None, adapter: str | None) -> str:
    """What computes the model where it is only used, and why."""
    try:
        if base is not None or adapter is not None:
            raise needs_pytorch_error("an adapter")
        task_error = load(name, backend="native").task_error
    except NeedsPyTorchError as error:
        return f"PyTorch: {error.what}"
    except BertworksError:  # the inspection has this error, too, or shows what is not finite
        return "none"
    engine = f"native code for {instruction_set()}, in {auto_precision()}"
    return engine if task_error is None else f"{engine}; but PyTorch: {task_error.what}"


def _inspect_files(name: str | Path, engine: str) -> Inspection:
    whole_directory = locate(name)
    directory = transformer_directory(whole_directory)
    config, raw = read_config(directory)
    tokenizer = load_tokenizer(directory, config, lowercase=lowers_case(whole_directory))
    description = read_task(directory)
    own_heads = () if description is None else description.heads
    architectures = raw.get("architectures") or ()
    tensors = StoredTensors.from_directory(directory, config, own_heads, architectures)
    return Inspection(
        family=config.family,
        task=None if description is None else description.task,
        geometry=config.model_dump(mode="json"),
        parameters=tensors.count_parameters(),
        vocabulary=_vocabulary(tokenizer),
        heads=tuple(tensors.heads),
        dtypes=tensors.dtypes,
        license=_license(whole_directory),
        used_tensors=tuple(dict.fromkeys(tensors.used_names.values())),
        dropped_tensors=tensors.drop_reasons,
        non_finite=tensors.count_non_finite(),
        engine=engine,
    )


def _count(model: Model) -> dict[str, int]:
    """Count parameters by part; a shared one is counted once, in its first part."""
    encoder = model.encoder
    counts = {"embeddings": _size(encoder.embeddings), "layers": _size(encoder.layers)}
    if len(encoder.layers):
        counts["each layer"] = _size(encoder.layers[-1])
    total = _size(model.network)
    counts["heads"] = total - counts["embeddings"] - counts["layers"]
    return {**counts, "total": total}


def _size(module: Any) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _vocabulary(tokenizer: Tokenizer) -> dict[str, Any]:
    definition = tokenizer.definition
    roles = definition.roles
    return {
        "kind": definition.kind,
        "size": tokenizer.vocab_size,
        "casing": "uncased" if tokenizer.lowercase else "cased",
        "unused": len(tokenizer.unused_ids),
        **{r: getattr(roles, r) for r in ("pad", "unk", "cls", "sep", "mask") if tokenizer.has(r)},
    }


def _license(directory: Path) -> str | None:
    """Return the license that a model card names, or else a license file's first line."""
    card = read_card(directory)
    if card is not None and isinstance(name := card.metadata.get("license"), str):
        return name
    for name in ("LICENSE", "LICENSE.txt", "LICENSE.md"):
        file = directory / name
        if file.is_file():
            lines = read_bytes(file).decode("utf-8", errors="replace").splitlines()
            return next((line.strip() for line in lines if line.strip()), None)
    return None

"""Checkpoints of the original release: `bert_config.json`, `bert_model.ckpt.*`, `vocab.txt`.

TensorFlow stores the transposed matrix of a linear map, as `kernel`, and has other names for the
rest. This module converts its names to Hugging Face's and back, for `bert.py`. Source: the
variables of google-research/bert's `modeling.py`, `run_pretraining.py` and `run_classifier.py`.
`tensorflow2.py` reads files of the same names that TensorFlow 2 wrote.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import CheckpointError
from .bundle import read_bundle
from .tensorflow2 import read_objects, variable_names

CONFIG, CHECKPOINT = "bert_config.json", "bert_model.ckpt"

TANH_GELU = {"hidden_act": "gelu", "gelu_form": "tanh"}
"""How `bert_config.json` says `gelu_new`.

The original has the name `gelu` alone, for the form of its code: erf in 2018, then tanh. It ignores
keys that it does not know, such as ours for the form.
"""

# Parts of a name: TensorFlow's and Hugging Face's; the first match counts.
_PARTS = (
    ("word_embeddings", "word_embeddings.weight"),
    ("position_embeddings", "position_embeddings.weight"),
    ("token_type_embeddings", "token_type_embeddings.weight"),
    ("LayerNorm/gamma", "LayerNorm.weight"),
    ("LayerNorm/beta", "LayerNorm.bias"),
    ("cls/predictions/output_bias", "cls.predictions.bias"),
    ("cls/seq_relationship/output_weights", "cls.seq_relationship.weight"),
    ("cls/seq_relationship/output_bias", "cls.seq_relationship.bias"),
    ("cls/squad/output_weights", "qa_outputs.weight"),
    ("cls/squad/output_bias", "qa_outputs.bias"),
    ("output_weights", "classifier.weight"),
    ("output_bias", "classifier.bias"),
    ("kernel", "weight"),
    ("bias", "bias"),
)
_HEADS = ("cls.", "classifier.", "qa_outputs.")
_SLOT = re.compile(r".*/(adam_m|adam_v|AdamWeightDecayOptimizer|Adam|Adam_1)(_\d+)?")
_COUNTER = re.compile(r"global_step|beta[12]_power")
# The original's decoder is always the word embeddings.
_DECODER = "cls.predictions.decoder.weight"
_KERNEL = re.compile(r".*\.(query|key|value|dense)\.weight")


def find_checkpoint(directory: Path) -> Path | None:
    """Return the prefix of a directory's TensorFlow checkpoint; None if there is none.

    Raises:
        CheckpointError: there are several, and none has the usual name.
    """
    found = sorted(path.with_suffix("") for path in directory.glob("*.index"))
    usual = directory / CHECKPOINT
    if usual in found or len(found) < 2:
        return usual if usual in found else next(iter(found), None)
    names = ", ".join(path.name for path in found)
    raise CheckpointError(
        f"there are several checkpoints: {names}", where=str(directory), fix="Leave one there."
    )


def with_activation(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a `bert_config.json` with the activation's current name."""
    is_tanh = all(raw.get(key) == value for key, value in TANH_GELU.items())
    return {**raw, "hidden_act": "gelu_new"} if is_tanh else dict(raw)


def read_checkpoint(prefix: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a checkpoint's tensors, under Hugging Face's names, and why others were dropped.

    Raises:
        CheckpointError: a file is missing or damaged, or a tensor is unknown.
    """
    names = variable_names(prefix)
    if names is not None:
        return read_objects(prefix, names)
    tensors: dict[str, Tensor] = {}
    dropped: dict[str, str] = {}
    bundle = read_bundle(prefix, is_used=lambda name: not _SLOT.fullmatch(name))
    for name, tensor in bundle.items():
        if _SLOT.fullmatch(name):
            dropped[name] = "optimizer state, which training starts anew"
        elif _COUNTER.fullmatch(name):
            dropped[name] = "a counter of the finished training"
        else:
            published = published_name(name)
            if published is None:
                raise CheckpointError(f"the tensor {name!r} is not known", where=str(prefix))
            tensors[published] = tensor.t() if _KERNEL.fullmatch(published) else tensor
    return tensors, dropped


def published_name(name: str) -> str | None:
    """Hugging Face's name of a variable; None if it is not one of BERT's."""
    for theirs, published in _PARTS:
        if name == theirs or name.endswith(f"/{theirs}"):
            if published.startswith(_HEADS):
                return published
            stem = name[: -len(theirs)]
            return re.sub(r"\blayer_(\d+)\b", r"layer.\1", stem).replace("/", ".") + published
    return None


def original_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert tensors with Hugging Face's names to TensorFlow's names and layout.

    Raises:
        CheckpointError: a tensor is not one of BERT's.
    """
    found: dict[str, Tensor] = {}
    for published, tensor in tensors.items():
        name = _original_name(published)
        if name is None or published_name(name) != published:
            raise CheckpointError(f"the original release has no place for {published!r}")
        found[name] = tensor.t() if _KERNEL.fullmatch(published) else tensor
    return found


def _original_name(published: str) -> str | None:
    if published == _DECODER:
        return None
    for theirs, ours in _PARTS:
        if published == ours:
            return theirs
        if not ours.startswith(_HEADS) and published.endswith(f".{ours}"):
            stem = published[: -len(ours)]
            return re.sub(r"\blayer\.(\d+)\b", r"layer_\1", stem).replace(".", "/") + theirs
    return None

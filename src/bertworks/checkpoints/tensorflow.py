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
from typing import TYPE_CHECKING, Any

from ..errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = Any  # files of settings and names are read without PyTorch

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
_SLOT = re.compile(
    r".*/(adam_m|adam_v|AdamWeightDecayOptimizer|Adam|Adam_1|lamb_m|lamb_v|LAMB|LAMB_1|vr|vc)(_\d+)?"
)
_COUNTER = re.compile(r"global_step|beta[12]_power|(current_)?loss_scale|(good|bad)_steps")
# The original's decoder is always the word embeddings.
_DECODER = "cls.predictions.decoder.weight"
_KERNEL = re.compile(r".*\.(query|key|value|dense)\.weight")


def find_checkpoint(directory: Path) -> Path | None:
    """Return the prefix of a directory's TensorFlow checkpoint; None if there is none.

    Raises:
        CheckpointError: there are several, and none has the usual name.
    """
    prefixes = sorted(path.with_suffix("") for path in directory.glob("*.index"))
    usual = directory / CHECKPOINT
    if usual in prefixes or len(prefixes) < 2:
        return usual if usual in prefixes else next(iter(prefixes), None)
    names = ", ".join(path.name for path in prefixes)
    raise CheckpointError(
        f"there are several checkpoints: {names}", where=str(directory), fix="Leave one there."
    )


def with_activation(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a `bert_config.json` with the activation's current name."""
    is_tanh = all(raw.get(key) == value for key, value in TANH_GELU.items())
    return {**raw, "hidden_act": "gelu_new"} if is_tanh else dict(raw)


def read_checkpoint(prefix: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a checkpoint's tensors, under Hugging Face's names, and why others were dropped.

    Unknown tensors keep their names.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    from .bundle import read_bundle
    from .tensorflow2 import read_objects, variable_names

    names = variable_names(prefix)
    if names is not None:
        return read_objects(prefix, names)
    tensors: dict[str, Tensor] = {}
    drop_reasons: dict[str, str] = {}
    bundle = read_bundle(prefix, is_used=lambda name: not _SLOT.fullmatch(name))
    for name, tensor in bundle.items():
        if _SLOT.fullmatch(name):
            drop_reasons[name] = "optimizer state, which training starts anew"
        elif _COUNTER.fullmatch(name):
            drop_reasons[name] = "a counter of the finished training"
        else:
            hf_name = hf_name_of(name) or name  # what is unknown may be left out by the reader
            tensors[hf_name] = tensor.t() if _KERNEL.fullmatch(hf_name) else tensor
    return tensors, drop_reasons


def hf_name_of(name: str) -> str | None:
    """Hugging Face's name of a variable; None if it is not one of BERT's."""
    for theirs, hf_name in _PARTS:
        if name == theirs or name.endswith(f"/{theirs}"):
            if hf_name.startswith(_HEADS):
                return hf_name
            stem = name[: -len(theirs)]
            return re.sub(r"\blayer_(\d+)\b", r"layer.\1", stem).replace("/", ".") + hf_name
    return None


def original_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert tensors with Hugging Face's names to TensorFlow's names and layout.

    Raises:
        CheckpointError: a tensor is not one of BERT's.
    """
    originals: dict[str, Tensor] = {}
    for hf_name, tensor in tensors.items():
        name = _original_name(hf_name)
        if name is None or hf_name_of(name) != hf_name:
            raise CheckpointError(f"the original release has no place for {hf_name!r}")
        originals[name] = tensor.t() if _KERNEL.fullmatch(hf_name) else tensor
    return originals


def _original_name(hf_name: str) -> str | None:
    if hf_name == _DECODER:
        return None
    for theirs, ours in _PARTS:
        if hf_name == ours:
            return theirs
        if not ours.startswith(_HEADS) and hf_name.endswith(f".{ours}"):
            stem = hf_name[: -len(ours)]
            return re.sub(r"\blayer\.(\d+)\b", r"layer_\1", stem).replace(".", "/") + theirs
    return None

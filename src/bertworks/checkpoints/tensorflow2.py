"""TensorFlow 2's checkpoints of BERT, as the model garden saves them.

The names in a file are paths through Python objects (`model/layer_with_weights-0/embeddings/…`),
from which the variable is not clear. The file also has a graph of these objects, a protocol buffer
of the type `TrackableObjectGraph`, with each variable's full name (`word_embeddings/embeddings`).
Attention matrices have a dimension for the heads. Source: tensorflow/models,
`official/nlp/modeling` and its `tf1_bert_checkpoint_converter_lib.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

from torch import Tensor

from ..errors import CheckpointError
from ..utils.protobuf import fields
from .bundle import read_bundle, read_text

_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_LAYER = r"transformer/layer_(\d+)"
_OURS = r"bert.encoder.layer.\1"
_HEAD = "cls.predictions"

# The end of a variable's name without its last part, and Hugging Face's name.
_MODULES = (
    ("word_embeddings", "bert.embeddings.word_embeddings"),
    ("position_embedding", "bert.embeddings.position_embeddings"),
    ("type_embeddings", "bert.embeddings.token_type_embeddings"),
    ("embeddings/layer_norm", "bert.embeddings.LayerNorm"),
    (rf"{_LAYER}/self_attention/(query|key|value)", rf"{_OURS}.attention.self.\2"),
    (rf"{_LAYER}/self_attention/attention_output", f"{_OURS}.attention.output.dense"),
    (rf"{_LAYER}/self_attention_output", f"{_OURS}.attention.output.dense"),
    (rf"{_LAYER}/self_attention_layer_norm", f"{_OURS}.attention.output.LayerNorm"),
    (rf"{_LAYER}/intermediate", f"{_OURS}.intermediate.dense"),
    (rf"{_LAYER}/output", f"{_OURS}.output.dense"),
    (rf"{_LAYER}/output_layer_norm", f"{_OURS}.output.LayerNorm"),
    ("pooler_transform", "bert.pooler.dense"),
    ("cls/predictions/transform/dense", f"{_HEAD}.transform.dense"),
    ("cls/predictions/transform/LayerNorm", f"{_HEAD}.transform.LayerNorm"),
    ("cls/predictions/output_bias", _HEAD),
    ("predictions/transform/logits", "cls.seq_relationship"),
)
_KINDS = {
    "kernel": "weight",
    "gamma": "weight",
    "embeddings": "weight",
    "position_embeddings": "weight",
    "beta": "bias",
    "bias": "bias",
}
_OPTIMIZER = re.compile(r".*/\.OPTIMIZER_SLOT/.*|(.*/)?optimizer/.*")
_COUNTER = re.compile(r"(.*/)?(save_counter|global_step|step)/.*")


def variable_names(prefix: Path) -> dict[str, str] | None:
    """Return each variable's full name, by its name in the file; None without a graph of objects.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    graph = read_text(prefix, _GRAPH)
    if graph is None:
        return None
    names: dict[str, str] = {}
    try:
        nodes = [node for number, node in fields(graph) if number == 1]
        attributes = [part for node in nodes for number, part in fields(node) if number == 2]
        for part in map(dict, map(fields, attributes)):
            names[part[3].decode()] = part.get(2, b"").decode()
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        what = f"its graph of objects cannot be read ({error!r})"
        raise CheckpointError(what, where=str(prefix)) from None
    return names


def read_objects(prefix: Path, names: dict[str, str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a checkpoint's tensors, under Hugging Face's names, and why others were dropped.

    Args:
        prefix: the path without `.index`.
        names: the result of `variable_names`.

    Raises:
        CheckpointError: a file is missing or damaged, or a tensor is unknown.
    """
    tensors: dict[str, Tensor] = {}
    drop_reasons: dict[str, str] = {}
    bundle = read_bundle(prefix, is_used=lambda key: not _OPTIMIZER.fullmatch(key))
    for key, tensor in bundle.items():
        if _OPTIMIZER.fullmatch(key):
            drop_reasons[key] = "optimizer state, which training starts anew"
            continue
        if _COUNTER.fullmatch(key):
            drop_reasons[key] = "a counter of the finished training"
            continue
        hf_name = hf_name_of(names.get(key, ""))
        if hf_name is None:
            raise CheckpointError(
                f"the tensor {key!r} ({names.get(key) or 'without a name'}) is not known",
                where=str(prefix),
                fix="Only BERT as TensorFlow's model garden saves it is read.",
            )
        if hf_name in tensors:
            raise CheckpointError(f"there are two tensors for {hf_name!r}", where=str(prefix))
        tensors[hf_name] = _flat(hf_name, tensor)
    return tensors, drop_reasons


def hf_name_of(name: str) -> str | None:
    """Hugging Face's name of a variable; None if it is not one of BERT's."""
    module, _, kind = name.removesuffix(":0").rpartition("/")
    if kind not in _KINDS:
        return "cls.predictions.bias" if name.endswith("cls/predictions/output_bias") else None
    for pattern, hf_name in _MODULES:
        match = re.fullmatch(rf"(?:.*/)?{pattern}", module)
        if match is not None:
            return f"{match.expand(hf_name)}.{_KINDS[kind]}"
    return None


def _flat(hf_name: str, tensor: Tensor) -> Tensor:
    """A tensor without the dimension of the heads; the rows of a matrix are the outputs."""
    if hf_name.endswith(".bias"):
        return tensor.flatten()
    if "embeddings" in hf_name or tensor.ndim == 1:
        return tensor
    inputs_first = tensor.flatten(0, 1) if "output.dense" in hf_name else tensor.flatten(1)
    return (inputs_first if tensor.ndim == 3 else tensor).t()

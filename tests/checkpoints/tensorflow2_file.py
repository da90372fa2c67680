"""Writes the small checkpoint in `tensorflow2/`, with TensorFlow 2 itself (2.21 wrote it).

    python -m tests.checkpoints.tensorflow2_file

Its objects and names are those of the model garden's BERT; its values are drawn here, under the
names of the original release, so that the paper's forward pass can be computed from them.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

DIRECTORY = Path(__file__).with_name("tensorflow2")
LAYERS, HEADS, SIZE, INNER = 2, 2, 6, 10
CONFIG = {
    "vocab_size": 11,
    "hidden_size": SIZE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": INNER,
    "max_position_embeddings": 9,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
}
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdef"]


def _dense(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}/kernel": (inputs, outputs), f"{name}/bias": (outputs,)}


def _norm(name: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}/gamma": (SIZE,), f"{name}/beta": (SIZE,)}


def original_shapes() -> dict[str, tuple[int, ...]]:
    """The variables of the original release."""
    shapes: dict[str, tuple[int, ...]] = {
        "bert/embeddings/word_embeddings": (11, SIZE),
        "bert/embeddings/position_embeddings": (9, SIZE),
        "bert/embeddings/token_type_embeddings": (2, SIZE),
        **_norm("bert/embeddings/LayerNorm"),
        **_dense("bert/pooler/dense", SIZE, SIZE),
        **_dense("cls/predictions/transform/dense", SIZE, SIZE),
        **_norm("cls/predictions/transform/LayerNorm"),
        "cls/predictions/output_bias": (11,),
        "cls/seq_relationship/output_weights": (2, SIZE),
        "cls/seq_relationship/output_bias": (2,),
    }
    for number in range(LAYERS):
        layer = f"bert/encoder/layer_{number}"
        for part in ("query", "key", "value"):
            shapes |= _dense(f"{layer}/attention/self/{part}", SIZE, SIZE)
        shapes |= _dense(f"{layer}/attention/output/dense", SIZE, SIZE)
        shapes |= _norm(f"{layer}/attention/output/LayerNorm")
        shapes |= _dense(f"{layer}/intermediate/dense", SIZE, INNER)
        shapes |= _dense(f"{layer}/output/dense", INNER, SIZE)
        shapes |= _norm(f"{layer}/output/LayerNorm")
    return shapes


def original_variables() -> dict[str, Any]:
    """The values, each drawn by its name."""
    return {
        name: np.random.default_rng(zlib.crc32(name.encode())).normal(size=shape).astype("f4")
        for name, shape in original_shapes().items()
    }


def keras_names(name: str, value: Any) -> tuple[str, str, Any]:
    """The path of a variable's object, its full name, and its value with a dimension for heads."""
    heads = (HEADS, SIZE // HEADS)
    table = {
        "bert/embeddings/word_embeddings": ("0", "word_embeddings/embeddings"),
        "bert/embeddings/position_embeddings": ("1", "position_embedding/embeddings"),
        "bert/embeddings/token_type_embeddings": ("2", "type_embeddings/embeddings"),
        "bert/embeddings/LayerNorm/": ("3", "embeddings/layer_norm/"),
        "bert/pooler/dense/": (f"{4 + LAYERS}", "pooler_transform/"),
        "cls/predictions/output_bias": ("lm", "bert/cls/predictions/output_bias/bias"),
        "cls/predictions/transform/dense/": ("lm/dense", "bert/cls/predictions/transform/dense/"),
        "cls/predictions/transform/LayerNorm/": (
            "lm/layer_norm",
            "bert/cls/predictions/transform/LayerNorm/",
        ),
        "cls/seq_relationship/output_weights": ("nsp", "predictions/transform/logits/kernel"),
        "cls/seq_relationship/output_bias": ("nsp", "predictions/transform/logits/bias"),
    }
    for number in range(LAYERS):
        old, new = f"bert/encoder/layer_{number}", f"transformer/layer_{number}"
        position = f"{4 + number}"
        for part in ("query", "key", "value"):
            place = f"{position}/_attention_layer/_{part}_dense"
            table[f"{old}/attention/self/{part}/"] = (place, f"{new}/self_attention/{part}/")
        table |= {
            f"{old}/attention/output/dense/": (
                f"{position}/_attention_layer/_output_dense",
                f"{new}/self_attention/attention_output/",
            ),
            f"{old}/attention/output/LayerNorm/": (
                f"{position}/_attention_layer_norm",
                f"{new}/self_attention_layer_norm/",
            ),
            f"{old}/intermediate/dense/": (
                f"{position}/_intermediate_dense",
                f"{new}/intermediate/",
            ),
            f"{old}/output/dense/": (f"{position}/_output_dense", f"{new}/output/"),
            f"{old}/output/LayerNorm/": (
                f"{position}/_output_layer_norm",
                f"{new}/output_layer_norm/",
            ),
        }
    start = next(start for start in table if name.startswith(start))
    place, full = table[start]
    full += name.removeprefix(start)
    if "/attention/self/" in name:
        value = value.reshape(SIZE, *heads) if name.endswith("kernel") else value.reshape(heads)
    elif name.endswith("attention/output/dense/kernel"):
        value = value.reshape(*heads, SIZE)
    elif name.endswith("seq_relationship/output_weights"):
        value = value.T
    where = place if place.startswith(("lm", "nsp")) else f"layer_with_weights-{place}"
    return f"{where}/{full.rpartition('/')[2]}", full, value


def write(directory: Path) -> None:
    """Write the model with an optimizer's slot and a counter of checkpoints."""
    import tensorflow as tf

    model = tf.Module()
    for name, value in original_variables().items():
        path, full, tensor = keras_names(name, value)
        *parents, leaf = path.split("/")
        module = model
        for parent in parents:
            if not hasattr(module, parent):
                setattr(module, parent, tf.Module())
            module = getattr(module, parent)
        setattr(module, leaf, tf.Variable(tensor, name=full))
    table = getattr(model, "layer_with_weights-0").embeddings
    model.lm.embedding_table = table  # the same object under two names
    optimizer = tf.compat.v1.train.MomentumOptimizer(0.0, 0.9)
    optimizer.apply_gradients([(tf.zeros_like(table), table)])
    directory.mkdir(exist_ok=True)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    checkpoint.save(str(directory / "bert_model.ckpt"))
    (directory / "checkpoint").unlink()
    (directory / "bert_config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))


if __name__ == "__main__":
    write(DIRECTORY)

"""A small BERT, as other tools write it, and what it computes by its formulas: NumPy alone."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

WORDS = ("the", "door", "was", "open", "river", "deep", "in", "london", "a")
PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS)
CLS, SEP = 2, 3
WIDTH, INNER, HEADS, LAYERS, LIMIT = 64, 96, 2, 2, 32

Array = NDArray[Any]


@dataclass(frozen=True)
class SavedBert:
    """A model's directory, and its tensors."""

    directory: Path
    tensors: Mapping[str, Array]

    def hidden(self, words: Sequence[str]) -> Array:
        """The last layer's output for `[CLS] words [SEP]`, in float64."""
        ids = [CLS, *map(PIECES.index, words), SEP]
        return _encode(self.tensors, ids)

    def embed(self, text: str) -> Array:
        """The mean of a text's states."""
        return self.hidden(text.split()).mean(0)

    def probabilities(self, text: str) -> Array:
        """The probability of each label, by the pooler and the classifier."""
        pooled = np.tanh(_map(self.tensors, "bert.pooler.dense", self.hidden(text.split())[0]))
        return _softmax(_map(self.tensors, "classifier", pooled))

    def pieces(self, text: str) -> Array:
        """The probability of each piece at the first mask."""
        words = text.split()
        state = self.hidden(words)[1 + words.index("[MASK]")]
        head = "cls.predictions.transform"
        state = _gelu(_map(self.tensors, f"{head}.dense", state))
        state = _norm(self.tensors, f"{head}.LayerNorm", state)
        table = self.tensors["bert.embeddings.word_embeddings.weight"].astype(np.float64)
        return _softmax(table @ state + self.tensors["cls.predictions.bias"])


def save_bert(directory: Path, *, labels: Sequence[str] = (), masked_lm: bool = False) -> SavedBert:
    """Write a model with random weights: an encoder, a classifier, or for masked words."""
    directory.mkdir(parents=True)
    random = np.random.default_rng(len(labels) + masked_lm)
    shapes = _shapes(labels, masked_lm=masked_lm)
    tensors: dict[str, Array] = {
        name: (name.endswith("LayerNorm.weight") + random.normal(0, 0.2, shape)).astype(np.float32)
        for name, shape in shapes.items()
    }
    save_file(tensors, directory / "model.safetensors")
    kind = "MaskedLM" if masked_lm else "SequenceClassification"
    config = {
        "architectures": [f"BertFor{kind}" if labels or masked_lm else "BertModel"],
        "model_type": "bert",
        "hidden_act": "gelu",
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "max_position_embeddings": LIMIT,
        "type_vocab_size": 2,
        "vocab_size": len(PIECES),
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
        **({"id2label": dict(enumerate(labels))} if labels else {}),
    }
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": True})
    )
    return SavedBert(directory, tensors)


def _shapes(labels: Sequence[str], *, masked_lm: bool) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}

    def add_map(name: str, outputs: int, inputs: int) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (outputs, inputs), (outputs,)

    def add_norm(name: str) -> None:
        shapes[f"{name}.weight"] = shapes[f"{name}.bias"] = (WIDTH,)

    for table, rows in (("word", len(PIECES)), ("position", LIMIT), ("token_type", 2)):
        shapes[f"bert.embeddings.{table}_embeddings.weight"] = (rows, WIDTH)
    add_norm("bert.embeddings.LayerNorm")
    for number in range(LAYERS):
        layer = f"bert.encoder.layer.{number}"
        for name in ("query", "key", "value"):
            add_map(f"{layer}.attention.self.{name}", WIDTH, WIDTH)
        add_map(f"{layer}.attention.output.dense", WIDTH, WIDTH)
        add_map(f"{layer}.intermediate.dense", INNER, WIDTH)
        add_map(f"{layer}.output.dense", WIDTH, INNER)
        add_norm(f"{layer}.attention.output.LayerNorm")
        add_norm(f"{layer}.output.LayerNorm")
    if labels:
        add_map("bert.pooler.dense", WIDTH, WIDTH)
        add_map("classifier", len(labels), WIDTH)
    if masked_lm:
        add_map("cls.predictions.transform.dense", WIDTH, WIDTH)
        add_norm("cls.predictions.transform.LayerNorm")
        shapes["cls.predictions.bias"] = (len(PIECES),)
    return shapes


def _encode(tensors: Mapping[str, Array], ids: Sequence[int]) -> Array:
    def table(name: str) -> Array:
        return tensors[f"bert.embeddings.{name}_embeddings.weight"].astype(np.float64)

    states = table("word")[list(ids)] + table("position")[: len(ids)] + table("token_type")[0]
    states = _norm(tensors, "bert.embeddings.LayerNorm", states)
    for number in range(LAYERS):
        layer = f"bert.encoder.layer.{number}"
        query, key, value = (
            _map(tensors, f"{layer}.attention.self.{name}", states).reshape(len(ids), HEADS, -1)
            for name in ("query", "key", "value")
        )
        scores = np.einsum("qhd,khd->hqk", query, key) / math.sqrt(WIDTH // HEADS)
        context = np.einsum("hqk,khd->qhd", _softmax(scores), value).reshape(len(ids), -1)
        attended = _map(tensors, f"{layer}.attention.output.dense", context)
        states = _norm(tensors, f"{layer}.attention.output.LayerNorm", states + attended)
        inner = _gelu(_map(tensors, f"{layer}.intermediate.dense", states))
        inner = _map(tensors, f"{layer}.output.dense", inner)
        states = _norm(tensors, f"{layer}.output.LayerNorm", states + inner)
    return states


def _map(tensors: Mapping[str, Array], name: str, x: Array) -> Array:
    return x @ tensors[f"{name}.weight"].T.astype(np.float64) + tensors[f"{name}.bias"]


def _norm(tensors: Mapping[str, Array], name: str, x: Array) -> Array:
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
    return x * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]


def _gelu(x: Array) -> Array:
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def _softmax(scores: Array) -> Array:
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)

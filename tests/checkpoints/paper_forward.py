"""BERT's forward pass in NumPy, written from the paper: an oracle for the original checkpoints.

It knows the variables of the original release by their own names, and nothing of PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import erf, sqrt

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
GELU = np.vectorize(lambda x: x * 0.5 * (1 + erf(x / sqrt(2))), otypes=[np.float64])


def layer_norm(x: Array, gain: Array, bias: Array) -> Array:
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-12) * gain + bias


def softmax(x: Array) -> Array:
    shifted = np.exp(x - x.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


class PaperBert:
    """One sequence at a time, without a mask, since nothing is padded."""

    def __init__(self, variables: Mapping[str, Array], layers: int, heads: int) -> None:
        self.values = {name: np.asarray(v, np.float64) for name, v in variables.items()}
        self.layers, self.heads = layers, heads

    def dense(self, x: Array, name: str) -> Array:
        return x @ self.values[f"{name}/kernel"] + self.values[f"{name}/bias"]

    def norm(self, x: Array, name: str) -> Array:
        return layer_norm(x, self.values[f"{name}/gamma"], self.values[f"{name}/beta"])

    def hidden_states(self, ids: NDArray[np.int64], types: NDArray[np.int64]) -> list[Array]:
        """The embeddings, then each layer's output (§3, figure 2; Vaswani et al. §3)."""
        part = "bert/embeddings"
        x = (
            self.values[f"{part}/word_embeddings"][ids]
            + self.values[f"{part}/position_embeddings"][: len(ids)]
            + self.values[f"{part}/token_type_embeddings"][types]
        )
        states = [self.norm(x, f"{part}/LayerNorm")]
        for number in range(self.layers):
            states.append(self.layer(states[-1], f"bert/encoder/layer_{number}"))
        return states

    def layer(self, x: Array, name: str) -> Array:
        attention = f"{name}/attention"
        query, key, value = (
            self.dense(x, f"{attention}/self/{part}").reshape(len(x), self.heads, -1)
            for part in ("query", "key", "value")
        )
        scores = np.einsum("qhd,khd->hqk", query, key) / sqrt(query.shape[-1])
        context = np.einsum("hqk,khd->qhd", softmax(scores), value).reshape(x.shape)
        x = self.norm(
            x + self.dense(context, f"{attention}/output/dense"), f"{attention}/output/LayerNorm"
        )
        inner = GELU(self.dense(x, f"{name}/intermediate/dense"))
        return self.norm(x + self.dense(inner, f"{name}/output/dense"), f"{name}/output/LayerNorm")

    def pooled(self, last: Array) -> Array:
        return np.tanh(self.dense(last[:1], "bert/pooler/dense"))[0]

    def mlm_logits(self, last: Array) -> Array:
        name = "cls/predictions"
        x = self.norm(
            GELU(self.dense(last, f"{name}/transform/dense")), f"{name}/transform/LayerNorm"
        )
        words = self.values["bert/embeddings/word_embeddings"]
        return x @ words.T + self.values[f"{name}/output_bias"]

    def nsp_logits(self, pooled: Array) -> Array:
        name = "cls/seq_relationship"
        return self.values[f"{name}/output_weights"] @ pooled + self.values[f"{name}/output_bias"]

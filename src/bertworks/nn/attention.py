"""Scaled dot-product attention within each sequence: softmax(Q Kᵀ / √d) V.

Three backends compute the same result; `attention` chooses one. Queries and keys may have
different layouts; attention may be causal or not, limited to a window or not, with first tokens
that all see; terms that depend on distances may be added to the scores; dropout may be applied to
the probabilities.

- *grouped*: one matrix product for each group of neighbouring sequences of equal length. When
  gradients are computed, neighbouring groups may be padded to one length. Used on the CPU, and on
  CUDA with terms in the scores. Inference in float32 on a CPU with AVX-512 has native code for it
  (`native/attention_fp32.py`), unless attention is causal or limited to a window, or the terms
  depend on queries and keys too.
- *varlen*: PyTorch's kernels for sequences of several lengths (`varlen_attention.py`). CUDA, no
  terms in the scores.
- *dense* (`dense_attention`): one masked product over all tokens of a pack, or over the rows of a
  padded batch. The plain formula: the reference of the tests, and the one in exported models.

Source: Vaswani et al. (2017), equation 1.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from ..native import attention_fp32
from ..packed import Layout, Padded
from .attention_masks import (
    make_pack_distances,
    make_pack_mask,
    make_padded_distances,
    make_padded_mask,
)
from .grouped_attention import grouped_attention, infer_grouped, pair_groups
from .score_bias import ScoreBias, scale_of
from .varlen_attention import choose_kernel, varlen_attention


def attention(
    query: Float[Tensor, "queries heads head_size"],
    key: Float[Tensor, "keys key_heads head_size"],
    value: Float[Tensor, "keys key_heads value_size"],
    layout: Layout | Padded,
    key_layout: Layout | None = None,
    *,
    causal: bool = False,
    window: int | None = None,
    dropout: float = 0.0,
    bias: ScoreBias | None = None,
    is_global: Bool[Tensor, " tokens"] | None = None,
) -> Float[Tensor, "queries heads value_size"]:
    """Let each token attend to the tokens of its sequence.

    Args:
        query: one vector per token and head. The grouped backend accepts extra rows after the last
            sequence, and returns zeros for them.
        key: likewise; if there are fewer heads than of queries, as many of these share each.
        value: likewise, as many as keys; the vectors may have another size.
        layout: the positions of the sequences in the queries.
        key_layout: the positions of the same number of sequences in the keys; `layout` by default.
            If a sequence has more keys than queries, the queries are its last tokens.
        causal: no token attends to a later one.
        window: the largest distance at which tokens attend to each other; unlimited by default.
        dropout: the probability that a weight is dropped (zero in evaluation).
        bias: terms that are added to the scores.
        is_global: for each key, whether all tokens of its sequence attend to it, also beyond the
            window.
    """
    if isinstance(layout, Padded):
        scope: dict[str, Any] = {"causal": causal, "window": window, "dropout": dropout}
        return dense_attention(query, key, value, layout, bias=bias, is_global=is_global, **scope)
    key, value = repeat_heads(key, query.shape[1]), repeat_heads(value, query.shape[1])
    key_layout = key_layout or layout
    is_plain = bias is None and is_global is None
    if is_plain and choose_kernel(query, value, window) is not None:
        return varlen_attention(query, key, value, layout, key_layout, causal, window, dropout)
    is_inferred = torch.is_inference_mode_enabled()
    is_unmasked = not causal and window is None
    if is_inferred and is_unmasked and (bias is None or bias.has_numbers_only):
        numbers = None if bias is None else bias.numbers
        inputs = (query, key, value, layout, key_layout, numbers)
        if attention_fp32.can_attend(*inputs):
            return attention_fp32.attention(*inputs)
    pairs = tuple(pair_groups(layout, key_layout))
    if is_inferred:
        return infer_grouped(query, key, value, pairs, causal, window, bias, is_global)
    return grouped_attention(query, key, value, pairs, causal, window, dropout, bias, is_global)


def repeat_heads(
    x: Float[Tensor, "keys key_heads head_size"], heads: int
) -> Float[Tensor, "keys heads head_size"]:
    """Return keys or values for each head of the queries, of which neighbours share one.

    Source: Ainslie et al. (2023), "GQA", §2.2.
    """
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def dense_attention(
    query: Float[Tensor, "queries heads head_size"],
    key: Float[Tensor, "keys key_heads head_size"],
    value: Float[Tensor, "keys key_heads value_size"],
    layout: Layout | Padded,
    key_layout: Layout | None = None,
    *,
    causal: bool = False,
    window: int | None = None,
    dropout: float = 0.0,
    bias: ScoreBias | None = None,
    is_global: Bool[Tensor, " tokens"] | None = None,
) -> Float[Tensor, "queries heads value_size"]:
    """Compute `attention` by the plain formula, with the scores of all pairs of tokens."""
    key, value = repeat_heads(key, query.shape[1]), repeat_heads(value, query.shape[1])
    if isinstance(layout, Padded):
        masked = make_padded_mask(layout, causal, window, is_global)
        distances = None if bias is None else make_padded_distances(layout)
    else:
        layouts = layout, key_layout or layout
        masked = make_pack_mask(*layouts, causal, window, query.device, is_global)
        distances = None if bias is None else make_pack_distances(*layouts, query.device)
    rows = masked.shape[0]
    q, k, v = (
        part.reshape(rows, -1, *part.shape[1:]).transpose(1, 2) for part in (query, key, value)
    )
    scores = torch.matmul(q, k.transpose(-1, -2)) * scale_of(query, bias)
    if bias is not None and distances is not None:
        scores = scores + bias.of_distances(q, k, distances)
    # Not minus infinity: all keys of a pad token may be masked, which would give NaN.
    weights = torch.softmax(scores.masked_fill(masked, torch.finfo(scores.dtype).min), -1)
    if dropout:
        weights = F.dropout(weights, dropout)
    return torch.matmul(weights, v).transpose(1, 2).flatten(0, 1)

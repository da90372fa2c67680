"""Global tokens: those that attend to all others of their sequence, in layers with windows.

Source: Beltagy et al. (2020), "Longformer: The Long-Document Transformer", §3.1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from ..packed import Layout, Packed, Padded, Sequences, to_tensor
from .part_settings import GlobalTokensSettings

_SEPARATORS = 2
"""The number of separators between the two texts of a pair."""


class GlobalTokens(NamedTuple):
    """The global tokens of some sequences.

    Attributes:
        mask: which tokens are global.
        indices: of the global tokens and, for a sequence without any, of its first token; None for
            a padded batch.
        layout: the positions of the sequences among these; None for a padded batch.
    """

    mask: Bool[Tensor, " tokens"]
    indices: Int64[Tensor, " queries"] | None = None
    layout: Layout | None = None


def find_global_tokens(
    settings: GlobalTokensSettings | None, packed: Sequences, device: torch.device
) -> GlobalTokens | None:
    """Return the global tokens of some sequences; None if there are none by the settings."""
    if settings is None or settings.position == "none":
        return None
    if isinstance(packed, Padded):
        return GlobalTokens(_mask_of_padded(settings, packed))
    mask = mask_of_packed(settings, packed)
    firsts = packed.on_host.first_tokens
    counts = np.add.reduceat(mask, firsts, dtype=np.int64)
    is_query = mask.copy()
    is_query[firsts[counts == 0]] = True
    layout = Layout.from_lengths(np.maximum(counts, 1)).to(device)
    return GlobalTokens(
        to_tensor(mask, device), to_tensor(np.flatnonzero(is_query), device), layout
    )


def mask_of_packed(settings: GlobalTokensSettings, packed: Packed) -> Bool[np.ndarray, " tokens"]:
    """Return which tokens of a pack are global."""
    packed = packed.on_host
    positions = np.asarray(packed.position_ids)
    is_global: np.ndarray
    if settings.position == "first":
        is_global = positions == 0
        return is_global
    firsts = packed.first_tokens
    is_separator = packed.input_ids == settings.separator_id
    # How many separators precede each token of the pack, and each sequence's first token.
    preceding = np.concatenate([[0], np.cumsum(is_separator)])
    preceding_of_first = np.repeat(preceding[firsts], packed.lengths)
    if settings.position == "question":
        is_global = preceding[1:] == preceding_of_first
        return is_global
    # The token after the first separator is the second one.
    earlier = np.maximum(np.arange(packed.num_tokens) - (_SEPARATORS - 1), 0)
    is_global = (positions >= _SEPARATORS) & (preceding[earlier] > preceding_of_first)
    return is_global


def _mask_of_padded(settings: GlobalTokensSettings, padded: Padded) -> Bool[Tensor, " tokens"]:
    """The same for a padded batch, by operations that can be exported."""
    ids = padded.input_ids.view(padded.mask.shape)
    if settings.position == "first":
        is_global = padded.position_ids.view(ids.shape) == 0
    else:
        separators = torch.cumsum((ids == settings.separator_id).long(), 1)
        is_global = separators == 0
        if settings.position == "choice":
            shifted = torch.cat([torch.zeros_like(ids[:, :1])] * _SEPARATORS + [separators], 1)
            is_global = shifted[:, : ids.shape[1]] > 0
    return (is_global & padded.mask).flatten()

"""The network of late interaction (ColBERT): a vector for each token, compared by MaxSim.

tokens ─ encoder ─► hidden states ─ projection ─► vectors of length 1, one a token

Source: Khattab and Zaharia (2020), "ColBERT", §3.2 and §3.3.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from ...nn.config import EncoderConfig
from ...nn.layers import promote_to_float32
from ...nn.vector_module_settings import DenseSettings
from ...nn.vector_modules import VectorModules
from ...packed import Batch, Packed, to_array, to_tensor
from .losses import max_similarities, score_loss_sum
from .network import RetrievalNetwork
from .settings import RetrievalSettings


class LateInteractionNetwork(RetrievalNetwork):
    """A `RetrievalNetwork` that compares texts by the vectors of their tokens.

    Args:
        skipped_ids: the pieces of documents that are not compared.
    """

    def __init__(
        self, config: EncoderConfig, settings: RetrievalSettings, skipped_ids: NDArray[np.int64]
    ) -> None:
        super().__init__(config, settings)
        projection = DenseSettings(
            in_features=config.hidden_size,
            out_features=settings.projection_size,
            bias=False,
            activation="identity",
        )
        self.projection = VectorModules([projection])
        self._skipped_ids = skipped_ids

    @property
    def vector_modules(self) -> VectorModules:
        return self.projection

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return `retrieval`: the sum of the losses of rows, or of negatives; see `losses`."""
        outputs = self._token_vectors(batch)
        scores = max_similarities(*outputs)
        return {"retrieval": score_loss_sum(self.settings_of(batch), scores, batch.targets)}

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """Return `queries` `[rows, longest, width]`; `passages` `[rows + negatives, longest,
        width]`, the rows' passages, then all negatives; and `values` `[rows]`, the MaxSim of each
        row's query and passage.

        A shorter text, and one whose punctuation is left out, has copies of its first vector, which
        change no maximum.
        """
        queries, passages = self._token_vectors(batch)
        own = zip(queries, passages, strict=False)
        values = [max_similarities(query[None], passage[None])[0, 0] for query, passage in own]
        return {"queries": queries, "passages": passages, "values": torch.stack(values)}

    def _token_vectors(self, batch: Batch) -> tuple[Tensor, Tensor]:
        packed = batch.packed
        vectors = self._vectors(packed)
        is_skipped = np.isin(packed.on_host.input_ids, self._skipped_ids)
        queries, passages = (to_array(batch.targets[name]) for name in ("query", "passage"))
        query_tokens = _list_tokens(packed, queries, np.zeros_like(is_skipped))
        passage_tokens = _list_tokens(packed, passages, is_skipped)
        device = vectors.device
        return vectors[to_tensor(query_tokens, device)], vectors[to_tensor(passage_tokens, device)]

    def _encode(self, packed: Packed) -> Float[Tensor, "tokens width"]:
        hidden = promote_to_float32(self.encoder(packed))
        return F.normalize(self.projection(hidden), dim=-1)


def _list_tokens(
    packed: Packed, sequences: NDArray[np.int64], is_skipped: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """The tokens of sequences: `[sequences, longest]` indices in the pack.

    The first token of a sequence stands for those that are skipped, and fills shorter ones.
    """
    edges = packed.on_host.cu_seqlens.astype(np.int64)
    starts, ends = edges[sequences, None], edges[sequences + 1, None]
    tokens = starts + np.arange((ends - starts).max())
    is_left_out = (tokens >= ends) | is_skipped[np.minimum(tokens, len(is_skipped) - 1)]
    chosen_tokens: NDArray[np.int64] = np.where(is_left_out, starts, tokens)
    return chosen_tokens

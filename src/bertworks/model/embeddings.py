"""What a token is before the first layer: its piece, its position, its segment."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from ..packed import Packed
from .config import EncoderConfig
from .layers import Dropout, LayerNorm


class Embeddings(nn.Module):
    """The sum of token, position and segment embeddings, normalised (paper §3, figure 2).

    Computed in the parameters' precision, since three small numbers are added up here.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, packed: Packed) -> Float[Tensor, "tokens hidden_size"]:
        total = self.word_embeddings(packed.input_ids)
        total = total + self.position_embeddings(packed.position_ids)
        total = total + self.token_type_embeddings(packed.token_type_ids)
        result: Tensor = self.dropout(self.norm(total))
        return result

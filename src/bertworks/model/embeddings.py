"""What a token is before the first layer: its piece, its position, its segment."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from ..packed import Sequences
from .config import EncoderConfig
from .layers import Dropout, LayerNorm, Linear


class Embeddings(nn.Module):
    """The sum of token, position and segment embeddings, normalised (paper §3, figure 2).

    Computed in the parameters' precision, since a few small numbers are added up here. What a
    family does not have (positions that are rotated instead, segments, the norm) is None.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width = config.embedding_width
        self.position_offset = config.position_offset
        self.word_embeddings = nn.Embedding(config.vocab_size, width)
        learned = config.positions == "learned"
        self.position_embeddings = (
            nn.Embedding(config.max_position_embeddings, width) if learned else None
        )
        types, tasks = config.type_vocab_size, config.task_type_vocab_size
        self.token_type_embeddings = nn.Embedding(types, width) if types else None
        self.task_type_embeddings = nn.Embedding(tasks, width) if tasks else None
        self.norm = (
            LayerNorm(width, config.layer_norm_eps, bias=config.norm_bias)
            if config.embedding_norm
            else None
        )
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.projection = (
            Linear(width, config.hidden_size) if config.embedding_size is not None else None
        )

    def forward(self, packed: Sequences) -> Float[Tensor, "tokens hidden_size"]:
        total = self.word_embeddings(packed.input_ids)
        if self.position_embeddings is not None:
            total = total + self.position_embeddings(packed.position_ids + self.position_offset)
        if self.token_type_embeddings is not None:
            total = total + self._token_types(self.token_type_embeddings, packed)
        if self.task_type_embeddings is not None:
            total = total + self.task_type_embeddings.weight[0]
        if self.norm is not None:
            total = self.norm(total)
        result: Tensor = self.dropout(total)
        return result if self.projection is None else self.projection(result)

    @staticmethod
    def _token_types(embeddings: nn.Embedding, packed: Sequences) -> Tensor:
        """What is added for the segments; where there is one kind alone, all tokens are of it."""
        if embeddings.num_embeddings == 1:
            return embeddings.weight[0]
        result: Tensor = embeddings(packed.token_type_ids)
        return result

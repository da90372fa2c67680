"""Heads on top of an encoder: for pre-training, for sequences and for tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..packed import Packed, Sequences
from .config import Classifier, EncoderConfig
from .cpu import align_rows
from .encoder import Encoder
from .layers import (
    ACTIVATIONS,
    Dropout,
    LayerNorm,
    Linear,
    OutputLinear,
    draw_weight,
    initialize,
    make_norm,
    promote_to_float32,
)
from .losses import linear_cross_entropy
from .pooling import pool


class MLMHead(nn.Module):
    """Predicts the token at a position: transform, decoder tied to the embeddings, bias.

    Use it only for the masked positions: the decoder is as wide as the vocabulary, and the most
    expensive part of a small BERT. Source: paper §3.1, Task #1, and the original code.

    Of a two-way encoder's vectors it uses the first half, which does not depend on later tokens.

    Args:
        word_embeddings: the encoder's `[vocab_size, embedding_width]` parameter, which the decoder
            shares unless `tie_word_embeddings` is off.
    """

    def __init__(self, config: EncoderConfig, word_embeddings: nn.Parameter) -> None:
        super().__init__()
        config = config.per_direction_config
        self.width = config.hidden_size
        width = config.decoder_width
        self.transform = MLMTransform(config, width) if config.mlm_transform else nn.Identity()
        self.bias = nn.Parameter(torch.zeros(config.vocab_size)) if config.mlm_bias else None
        self.decoder = word_embeddings
        self.decoder_extension: nn.Parameter | None = None
        if config.tie_word_embeddings and width > config.embedding_width:
            columns = width - config.embedding_width
            self.decoder_extension = nn.Parameter(
                word_embeddings.new_empty(config.vocab_size, columns)
            )
            draw_weight(self.decoder_extension, config.initializer_range)
        if not config.tie_word_embeddings:
            self.decoder = nn.Parameter(word_embeddings.new_empty(config.vocab_size, width))
            draw_weight(self.decoder, config.initializer_range)

    def forward(
        self, hidden: Float[Tensor, "masked hidden_size"]
    ) -> Float[Tensor, "masked vocab_size"]:
        return self.logits(self.transform(hidden[..., : self.width]))

    def logits(self, vectors: Float[Tensor, "masked width"]) -> Float[Tensor, "masked vocab_size"]:
        """Apply only the decoder, in float32 at least (see `OutputLinear`)."""
        return F.linear(promote_to_float32(vectors), self.decoder_weight, self.bias)

    @property
    def decoder_weight(self) -> Float[Tensor, "vocab_size width"]:
        """The decoder's matrix; the embeddings may be its first columns only."""
        if self.decoder_extension is None:
            return self.decoder
        return torch.cat([self.decoder, self.decoder_extension], 1)

    def loss_sum(
        self, hidden: Float[Tensor, "masked hidden_size"], labels: Int[Tensor, " masked"]
    ) -> Float[Tensor, ""]:
        """The summed cross-entropy of the masked positions, without keeping the logits."""
        return linear_cross_entropy(
            self.transform(align_rows(hidden)), self.decoder_weight, self.bias, labels
        )


class MLMTransform(nn.Module):
    """The layer before the decoder: a linear map to the decoder's width, activation, norm."""

    def __init__(self, config: EncoderConfig, width: int) -> None:
        super().__init__()
        has_bias = config.use_bias if config.mlm_dense_bias is None else config.mlm_dense_bias
        self.dense = Linear(config.hidden_size, width, bias=has_bias)
        self.activation = ACTIVATIONS[config.mlm_act or config.hidden_act]
        has_norm = config.norm != "none"  # MobileBERT has a layer norm here alone
        self.norm = (
            make_norm(config, width) if has_norm else LayerNorm(width, config.layer_norm_eps)
        )
        initialize(self, config.initializer_range)

    def forward(self, hidden: Float[Tensor, "masked hidden_size"]) -> Float[Tensor, "masked width"]:
        result: Tensor = self.norm(self.activation(self.dense(hidden)))
        return result


class NSPHead(OutputLinear):
    """Predicts whether B follows A: `[sequences, 2]` logits from the pooled vectors.

    Label 0: B is the next segment; 1: B is a random one (as in the original code).
    Source: paper §3.1, Task #2.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config.hidden_size, 2)
        initialize(self, config.initializer_range)


class ReplacedTokenHead(nn.Module):
    """Predicts whether a token was replaced: a layer, and one logit per token.

    DeBERTa's (`classifier: context`) first adds the first token's vector to each token's, and
    normalises the sum.

    Source: Clark et al. (2020), §2, and the original code's `discriminator_predictions`; He et al.
    (2021), "DeBERTaV3", and the original code's `mask_predictions`.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        has_context = config.classifier == "context"
        self.norm = make_norm(config, config.hidden_size) if has_context else None
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.dense_prediction = OutputLinear(config.hidden_size, 1)
        initialize(self, config.initializer_range)

    def forward(
        self, hidden: Float[Tensor, "tokens hidden_size"], packed: Sequences
    ) -> Float[Tensor, " tokens"]:
        if self.norm is not None:
            first = pool(hidden, packed, "cls")
            if isinstance(packed, Packed):
                lengths, rows = packed.cu_seqlens.long().diff(), packed.num_tokens
                by_token = first.repeat_interleave(lengths, 0, output_size=rows)
            else:
                by_token = first.unsqueeze(1).expand(-1, packed.max_seqlen, -1).flatten(0, 1)
            hidden = self.norm(hidden + by_token)
        logits: Tensor = self.dense_prediction(self.activation(self.dense(hidden)))
        return logits.squeeze(-1)


class ClassificationHead(nn.Module):
    """`[sequences, num_labels]` logits from a vector of each sequence (paper §4.1).

    `config.classifier_pooling` chooses the vector: the first token's, the mean of all, or the last
    token's (GPT); or the mean of all after the layer (EuroBERT). `config.classifier` is the layer
    between the vector and the output layer:

    - `pooler`: the encoder's pooler (BERT, ALBERT, ERNIE); no layer if the vector is not the first
      token's;
    - `linear`: no layer; the pooler's output is the first token's vector (MobileBERT, if its
      configuration says so);
    - `tanh`, `gelu`, `relu`: a layer of this head with this activation (RoBERTa, ELECTRA and
      EuroBERT, DistilBERT); with `tanh` and `gelu`, dropout also precedes it;
    - `context`: a layer of this head with GELU, which no dropout precedes (DeBERTa);
    - `hidden_act`: as `gelu`, with the activation of the layers (RoFormer);
    - `norm`: the layer of the masked-language-model head (ModernBERT);
    - `none`: no layer, and no bias in the output layer (GPT).

    Args:
        dropout: `config.classifier_dropout` by default.
        kind: `config.classifier` by default.
        bias: whether the output layer has a bias; by default it has, except with kind `none`.
    """

    def __init__(
        self,
        config: EncoderConfig,
        num_labels: int,
        dropout: float | None = None,
        *,
        kind: Classifier | None = None,
        bias: bool | None = None,
    ) -> None:
        super().__init__()
        self.kind = kind or config.classifier
        self.pooling = config.classifier_pooling
        default = config.head_dropout("classifier_dropout")
        self.dropout = Dropout(default if dropout is None else dropout)
        size = config.hidden_size
        self.transform: nn.Module | None = None
        names = {"hidden_act": config.hidden_act, "context": "gelu"}
        self.activation = ACTIVATIONS.get(names.get(self.kind, self.kind))
        if self.activation is not None:
            self.transform = Linear(size, size)
        elif self.kind == "norm":
            self.transform = MLMTransform(config, size)
        bias = self.kind != "none" if bias is None else bias
        self.linear = OutputLinear(size, num_labels, bias=bias)
        initialize(self, config.initializer_range)

    def forward(
        self,
        encoder: Encoder,
        hidden: Float[Tensor, "tokens hidden_size"],
        packed: Sequences,
    ) -> Float[Tensor, "sequences num_labels"]:
        vectors = self._vectors(encoder, hidden, packed)
        result: Tensor = self.linear(self.dropout(vectors))
        return result

    def _vectors(
        self, encoder: Encoder, hidden: Tensor, packed: Sequences
    ) -> Float[Tensor, "sequences hidden_size"]:
        if self.kind in ("pooler", "linear") and self.pooling == "cls":
            return encoder.pool(hidden, packed)
        if self.pooling == "late":
            return pool(self._transform(hidden), packed, "mean")
        if self.pooling == "mean":
            return self._transform(pool(hidden, packed, "mean"))
        is_first = self.pooling == "cls"
        return self._transform(hidden[packed.first_tokens if is_first else packed.last_tokens])

    def _transform(
        self, vectors: Float[Tensor, "rows hidden_size"]
    ) -> Float[Tensor, "rows hidden_size"]:
        """Apply the layer between the vectors and the output layer."""
        if self.transform is None:
            return vectors
        if self.kind == "norm":
            transformed: Tensor = self.transform(vectors)
            return transformed
        if self.kind not in ("relu", "context"):
            vectors = self.dropout(vectors)
        assert self.activation is not None
        return self.activation(self.transform(vectors))


class TokenHead(nn.Module):
    """`[tokens, num_outputs]` from each token's vector, for tagging and for spans (paper §4.2).

    ModernBERT has the layer of its masked-language-model head before the output layer; the other
    families have only dropout.
    """

    def __init__(self, config: EncoderConfig, num_outputs: int, dropout: float) -> None:
        super().__init__()
        has_transform = config.classifier == "norm"
        self.transform = MLMTransform(config, config.hidden_size) if has_transform else None
        self.dropout = Dropout(dropout)
        self.linear = OutputLinear(config.hidden_size, num_outputs)
        initialize(self, config.initializer_range)

    def forward(
        self, hidden: Float[Tensor, "tokens hidden_size"]
    ) -> Float[Tensor, "tokens num_outputs"]:
        if self.transform is not None:
            hidden = self.transform(hidden)
        result: Tensor = self.linear(self.dropout(hidden))
        return result

"""Heads on top of an encoder: for pre-training, for sequences and for tokens.

Their parts and formulas are those of their layouts (`head_layouts.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..packed import Packed, Sequences
from .config import EncoderConfig
from .cpu import align_rows, apply_in_whole_vectors
from .encoder import Encoder
from .encoder_settings import Classifier
from .head_layouts import (
    Activate,
    AddFirst,
    ApplyPooler,
    Decode,
    DropOut,
    HeadLayout,
    LinearMap,
    Normalize,
    Pool,
    Step,
    classification_layout,
    masked_lm_layout,
    next_sentence_layout,
    replaced_token_layout,
    token_layout,
)
from .layers import (
    ACTIVATIONS,
    Dropout,
    LayerNorm,
    Linear,
    OutputLinear,
    RMSNorm,
    draw_weight,
    initialize,
    promote_to_float32,
)
from .losses import linear_cross_entropy
from .pooling import pool


class LayoutHead(nn.Module):
    """A head with the parts of a layout.

    Args:
        layout: its steps.
        dropout: probability, in all steps of dropout.
    """

    def __init__(self, layout: HeadLayout, config: EncoderConfig, dropout: float = 0.0) -> None:
        super().__init__()
        self.layout = layout
        self.dropout = Dropout(dropout)
        for step in layout:
            if isinstance(step, LinearMap):
                kind = OutputLinear if step.is_output else Linear
                self._add(step.name, kind(step.inputs, step.outputs, bias=step.has_bias))
            elif isinstance(step, Normalize):
                self._add(step.name, _make_norm(step))
        initialize(self, config.initializer_range)

    def _add(self, name: str, part: nn.Module) -> None:
        folder, _, attribute = name.rpartition(".")
        if folder and folder not in self._modules:
            self.add_module(folder, nn.Module())
        self.get_submodule(folder).add_module(attribute, part)

    def compute(
        self,
        vectors: Tensor,
        packed: Sequences | None = None,
        encoder: Encoder | None = None,
        *,
        steps: Sequence[Step] | None = None,
    ) -> Tensor:
        """Apply the steps to the vectors of tokens.

        Args:
            packed, encoder: needed by steps that pool.
            steps: those of the layout that are applied; all if omitted.
        """
        for step in self.layout if steps is None else steps:
            vectors = self._apply_step(step, vectors, packed, encoder)
        return vectors

    def _apply_step(
        self, step: Step, vectors: Tensor, packed: Sequences | None, encoder: Encoder | None
    ) -> Tensor:
        if isinstance(step, LinearMap | Normalize):
            result: Tensor = self.get_submodule(step.name)(vectors)
            return result
        if isinstance(step, Activate):
            return apply_in_whole_vectors(ACTIVATIONS[step.activation], vectors)
        if isinstance(step, DropOut):
            dropped: Tensor = self.dropout(vectors)
            return dropped
        assert packed is not None and not isinstance(step, Decode)
        if isinstance(step, Pool):
            return pool(vectors, packed, step.mode)
        if isinstance(step, AddFirst):
            return vectors + _repeat_first(vectors, packed)
        assert isinstance(step, ApplyPooler) and encoder is not None
        return encoder.pool(vectors, packed)


def _make_norm(step: Normalize) -> LayerNorm | RMSNorm:
    if step.kind == "rms":
        return RMSNorm(step.width, step.epsilon)
    return LayerNorm(step.width, step.epsilon, bias=step.has_bias)


def _repeat_first(vectors: Tensor, packed: Sequences) -> Tensor:
    """The vector of each token's sequence's first token."""
    first = pool(vectors, packed, "cls")
    if isinstance(packed, Packed):
        lengths, rows = packed.cu_seqlens.long().diff(), packed.num_tokens
        return first.repeat_interleave(lengths, 0, output_size=rows)
    return first.unsqueeze(1).expand(-1, packed.max_seqlen, -1).flatten(0, 1)


class MLMHead(LayoutHead):
    """Predicts the token at a position: transform, decoder tied to the embeddings, bias.

    Use it only for the masked positions: the decoder is as wide as the vocabulary, and the most
    expensive part of a small BERT. Source: paper §3.1, Task #1, and the original code.

    Of a two-way encoder's vectors it uses the first half, which does not depend on later tokens.

    Args:
        word_embeddings: the encoder's `[vocab_size, embedding_width]` parameter, which the decoder
            shares unless `tie_word_embeddings` is off.
    """

    def __init__(self, config: EncoderConfig, word_embeddings: nn.Parameter) -> None:
        *transform, decode = masked_lm_layout(config)
        assert isinstance(decode, Decode)
        super().__init__(tuple(transform), config)
        self.width = config.per_direction_config.hidden_size
        self.bias = nn.Parameter(torch.zeros(decode.outputs)) if decode.has_bias else None
        self.decoder = word_embeddings
        self.decoder_extension: nn.Parameter | None = None
        if decode.extension:
            self.decoder_extension = nn.Parameter(
                word_embeddings.new_empty(decode.outputs, decode.extension)
            )
            draw_weight(self.decoder_extension, config.initializer_range)
        if not decode.is_tied:
            self.decoder = nn.Parameter(word_embeddings.new_empty(decode.outputs, decode.inputs))
            draw_weight(self.decoder, config.initializer_range)

    def forward(
        self, hidden: Float[Tensor, "masked hidden_size"]
    ) -> Float[Tensor, "masked vocab_size"]:
        return self.logits(self.compute(hidden[..., : self.width]))

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
            self.compute(align_rows(hidden)), self.decoder_weight, self.bias, labels
        )


class NSPHead(OutputLinear):
    """Predicts whether B follows A: `[sequences, 2]` logits from the pooled vectors.

    Label 0: B is the next segment; 1: B is a random one (as in the original code).
    Source: paper §3.1, Task #2.
    """

    def __init__(self, config: EncoderConfig) -> None:
        _, output = next_sentence_layout(config)
        assert isinstance(output, LinearMap)
        super().__init__(output.inputs, output.outputs)
        initialize(self, config.initializer_range)


class ReplacedTokenHead(LayoutHead):
    """Predicts whether a token was replaced: a layer, and one logit per token.

    DeBERTa's (`classifier: context`) first adds the first token's vector to each token's, and
    normalises the sum.

    Source: Clark et al. (2020), §2, and the original code's `discriminator_predictions`; He et al.
    (2021), "DeBERTaV3", and the original code's `mask_predictions`.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(replaced_token_layout(config), config)

    def forward(
        self, hidden: Float[Tensor, "tokens hidden_size"], packed: Sequences
    ) -> Float[Tensor, " tokens"]:
        return self.compute(hidden, packed).squeeze(-1)


class ClassificationHead(LayoutHead):
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
        default = config.head_dropout("classifier_dropout")
        layout = classification_layout(config, num_labels, kind=kind, bias=bias)
        super().__init__(layout, config, default if dropout is None else dropout)

    def forward(
        self,
        encoder: Encoder,
        hidden: Float[Tensor, "tokens hidden_size"],
        packed: Sequences,
    ) -> Float[Tensor, "sequences num_labels"]:
        return self.compute(hidden, packed, encoder)


class TokenHead(LayoutHead):
    """`[tokens, num_outputs]` from each token's vector, for tagging and for spans (paper §4.2).

    ModernBERT has the layer of its masked-language-model head before the output layer; the other
    families have only dropout.
    """

    def __init__(self, config: EncoderConfig, num_outputs: int, dropout: float) -> None:
        super().__init__(token_layout(config, num_outputs), config, dropout)

    def forward(
        self, hidden: Float[Tensor, "tokens hidden_size"]
    ) -> Float[Tensor, "tokens num_outputs"]:
        return self.compute(hidden)

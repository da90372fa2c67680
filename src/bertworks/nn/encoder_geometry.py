"""What follows from the settings of an encoder: widths, lengths, groups of layers."""

from __future__ import annotations

from typing import Self

from ..errors import SettingsError
from .encoder_settings import EncoderSettings
from .part_settings import GlobalPosition, LinearGroups

HEAD_DROPOUTS = frozenset({"classifier_dropout", "tagging_dropout", "answering_dropout"})
"""Settings of the heads that tasks add; the encoder does not depend on them."""


class EncoderGeometry(EncoderSettings):
    """The settings, and what follows from them."""

    @property
    def groups(self) -> LinearGroups:
        """The groups of the layers' linear maps."""
        return LinearGroups() if self.linear_groups is None else self.linear_groups

    @property
    def has_heads(self) -> bool:
        """Whether the layers have attention heads that all see the same tokens."""
        return self.mixer == "attention" and self.attention != "two-way"

    @property
    def is_transformer_xl(self) -> bool:
        """Whether attention has the positions and segments of Transformer-XL and XLNet."""
        return self.score_bias is not None and self.score_bias.kind == "transformer-xl"

    @property
    def has_attention_bias(self) -> bool:
        """Whether the linear maps of attention have biases."""
        return self.use_bias and not self.is_transformer_xl

    @property
    def has_segments(self) -> bool:
        """Whether the encoder distinguishes the segments of a text."""
        return self.type_vocab_size > 1 or self.is_transformer_xl

    @property
    def is_static(self) -> bool:
        """Whether a token's vector is its row in the table of word embeddings."""
        has_more = self.type_vocab_size or self.task_type_vocab_size or self.embedding_size
        has_norm = self.embedding_norm or self.norm_first
        is_bare = self.positions == "none" and self.attention != "two-way"
        is_bare = is_bare and self.zeroed_token_id is None
        return not self.num_hidden_layers and is_bare and not has_more and not has_norm

    @property
    def can_generate(self) -> bool:
        """Whether the encoder can generate text, token by token."""
        return self.has_heads and self.attention == "causal"

    @property
    def per_direction_config(self) -> Self:
        """The geometry of each half of a two-way encoder, as a causal one; else the same."""
        if self.attention != "two-way":
            return self
        halves = ("hidden_size", "num_attention_heads", "intermediate_size")
        return self.with_values(
            attention="causal", **{name: max(1, getattr(self, name) // 2) for name in halves}
        )

    @property
    def has_global_tokens(self) -> bool:
        """Whether some tokens attend to all others of their sequence."""
        return self.global_tokens is not None and self.global_tokens.position != "none"

    def with_global_tokens(self, position: GlobalPosition, separator_id: int | None = None) -> Self:
        """Return the geometry with these global tokens, if the encoder has maps for them.

        Args:
            position: see `GlobalTokensSettings`.
            separator_id: likewise; None: unchanged.
        """
        if self.global_tokens is None:
            return self
        values = {"position": position, "separator_id": separator_id}
        changes = {name: value for name, value in values.items() if value is not None}
        return self.with_values(global_tokens=self.global_tokens.with_values(**changes))

    @property
    def narrow_config(self) -> Self:
        """The geometry inside the layers, if they have bottlenecks; else the same."""
        if self.bottleneck is None:
            return self
        values = dict.fromkeys(
            ("bottleneck", "word_map", "embedding_size", "output_embedding_size"), None
        )
        return self.with_values(hidden_size=self.bottleneck.size, **values)

    @property
    def has_pooler(self) -> bool:
        """Whether a classifier needs the encoder's pooler, whose input is the first token."""
        return self.classifier in ("pooler", "linear") and self.classifier_pooling == "cls"

    def head_dropout(self, name: str) -> float:
        """Return one of `HEAD_DROPOUTS`, or its default if it is None."""
        value: float | None = getattr(self, name)
        default = 0.0 if name == "answering_dropout" else self.hidden_dropout_prob
        return default if value is None else value

    @property
    def attention_width(self) -> int:
        """The width of the queries of all heads."""
        return self.hidden_size if self.bottleneck is None else self.bottleneck.size

    @property
    def head_size(self) -> int:
        return self.attention_width // self.num_attention_heads

    @property
    def has_intermediate_bias(self) -> bool:
        """Whether the first feed-forward map of a layer has a bias."""
        return self.use_bias if self.intermediate_bias is None else self.intermediate_bias

    def has_attention_norm(self, layer: int) -> bool:
        """Whether a layer has the first of its norms: its input may be normalised already."""
        is_normalized = self.norm_first and self.embedding_norm and not self.first_layer_norm
        return layer > 0 or not is_normalized

    @property
    def has_key_bias(self) -> bool:
        """Whether the layers' maps to keys have biases, if those to queries have."""
        return self.score_bias is None or self.score_bias.key_bias

    @property
    def score_divisor(self) -> int:
        """The number whose square root divides the products of queries and keys."""
        bias = self.score_bias
        is_disentangled = bias is not None and bias.kind == "disentangled"
        return self.head_size * (1 + len(bias.terms) if is_disentangled and bias else 1)

    @property
    def num_key_heads(self) -> int:
        """The number of heads of keys and values."""
        heads = self.num_key_value_heads
        return self.num_attention_heads if heads is None else heads

    @property
    def embedding_width(self) -> int:
        """The width of the embeddings."""
        return self.hidden_size if self.embedding_size is None else self.embedding_size

    @property
    def embedding_sum_width(self) -> int:
        """The width of the sum of the embeddings of tokens, positions and segments."""
        return self.embedding_width if self.word_map is None else self.hidden_size

    @property
    def decoder_width(self) -> int:
        """The width of the masked-language-model decoder."""
        size = self.output_embedding_size
        return self.embedding_width if size is None else size

    @property
    def max_seqlen(self) -> int:
        """The maximum number of tokens of a sequence."""
        positions = self.max_position_embeddings - self.position_offset
        return min(positions, self.max_full_attention or positions)

    def check_length(self, limit: int, setting: str = "max_seq_length") -> None:
        """Check that there are enough positions for sequences of `limit` tokens.

        Args:
            setting: the setting with the limit, for the error.

        Raises:
            SettingsError: there are fewer.
        """
        if limit > self.max_seqlen:
            room = (
                f"that the encoder's max_position_embeddings={self.max_position_embeddings} has "
                "room for"
                if self.max_full_attention is None
                else "that the encoder can read"
            )
            raise SettingsError(
                f"{setting}={limit} is more than the {self.max_seqlen} tokens {room}"
            )

    @property
    def num_weighted_layers(self) -> int:
        """The number of layers with distinct weights."""
        groups, layers = self.num_hidden_groups, self.num_hidden_layers
        return layers if groups is None else min(groups, layers)

    @property
    def layer_groups(self) -> tuple[int, ...]:
        """For each layer, the index of its weights."""
        layers, groups = self.num_hidden_layers, self.num_weighted_layers
        # In floating point, as in Hugging Face's code: 9 / (18 / 14) is just below 7.
        return tuple(int(number / (layers / groups)) for number in range(layers))

    def window(self, layer: int) -> int | None:
        """Return the largest distance between tokens that attend to each other; None: unlimited."""
        is_global = self.global_tokens is None and layer % self.global_attention_every == 0
        if self.local_attention is None or is_global:
            return None
        return self.local_attention // 2

    def is_local(self, layer: int) -> bool:
        """Whether a layer's attention is limited to a window."""
        return self.window(layer) is not None

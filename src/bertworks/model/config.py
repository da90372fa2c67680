"""The geometry of an encoder: the settings in which BERT and its family differ."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from ..errors import SettingsError, nearest
from ..settings import Settings

Activation = Literal["gelu", "gelu_new", "relu", "silu", "tanh"]
"""`gelu` is the erf form (paper, Hugging Face); `gelu_new` the tanh form, which the original code
has used since February 2019."""

Classifier = Literal["pooler", "tanh", "relu", "gelu", "norm", "none"]
"""The layer between a sequence's vector and a classifier's output layer; see
`heads.ClassificationHead`."""

ClassifierPooling = Literal["cls", "mean", "last"]
"""A classifier's input: the vector of the first token, the mean of all tokens, special ones
included, or the vector of the last token."""

_GEOMETRIES = {  # layers, hidden size, heads; the feed-forward layer is four times as wide
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}


HEAD_DROPOUTS = frozenset({"classifier_dropout", "tagging_dropout", "answering_dropout"})
"""Settings of the heads that tasks add; the encoder does not depend on them."""


class EncoderConfig(Settings):
    """The geometry, in the names of `config.json`; the defaults are those of BERT-Base.

    The first group of fields is what people choose. The second distinguishes the families: each
    family's file under `checkpoints` sets them.

    Attributes:
        max_position_embeddings: as published: RoBERTa's 514 leave room for 512 tokens
            (`max_seqlen`), since its positions begin at 2.
        family: the family whose tensor names and settings its checkpoints use.
        embedding_size: the width of the embeddings, where a linear map widens them to `hidden_size`
            (ALBERT §3.1, ELECTRA); None without such a map.
        num_hidden_groups: the number of distinct layers; neighbouring layers share their weights
            (ALBERT §3.1); None if no layers do.
        positions: a learned vector for each, or a rotation of queries and keys (Su et al. 2021).
        position_offset: the number of a sequence's first position.
        task_type_vocab_size: the size of the table of task embeddings, of which the first is added
            to every token (ERNIE 2.0).
        attention: whether a token attends to later tokens.
        local_attention: the width of the window in local layers, with the token in the middle; None
            without local layers.
        global_attention_every: every so many layers is global, beginning with the first.
        rope_theta: the base of the rotations in global layers (`local_rope_theta`: in local ones).
        norm_first: whether each half of a layer normalises its input rather than its output; then a
            norm follows the last layer, and the first layer begins without one if the embeddings
            are normalised.
        embedding_norm: whether the embeddings are normalised.
        use_bias: whether the layers' linear maps have biases (`norm_bias`: their norms).
        gated: whether the feed-forward layer's activation is multiplied by a second map (Shazeer
            2020).
        classifier: the layer before a classifier's output layer (`classifier_pooling`: its input).
        classifier_dropout: before the output layer of a classifier, a regression or a choice;
            `hidden_dropout_prob` if None (`tagging_dropout`: of tagging, likewise;
            `answering_dropout`: of spans, 0 if None).
        mlm_transform: whether the masked-language-model head has a layer before its decoder
            (`mlm_act`: that layer's activation, `hidden_act` if None; `mlm_bias`: whether the
            decoder has a bias).
        tie_word_embeddings: whether that decoder shares its matrix with the embeddings.

    Source: paper §3, "Model Architecture", and the original release's `bert_config.json`.
    """

    vocab_size: int = Field(default=30522, ge=1)
    hidden_size: int = Field(default=768, ge=1)
    num_hidden_layers: int = Field(default=12, ge=0, le=10_000)
    num_attention_heads: int = Field(default=12, ge=1)
    intermediate_size: int = Field(default=3072, ge=1)
    hidden_act: Activation = "gelu"
    hidden_dropout_prob: float = Field(default=0.1, ge=0, lt=1)
    attention_probs_dropout_prob: float = Field(default=0.1, ge=0, lt=1)
    max_position_embeddings: int = Field(default=512, ge=1)
    type_vocab_size: int = Field(default=2, ge=0)
    initializer_range: float = Field(default=0.02, gt=0)
    layer_norm_eps: float = Field(default=1e-12, gt=0)

    family: str = "bert"
    embedding_size: int | None = Field(default=None, ge=1)
    num_hidden_groups: int | None = Field(default=None, ge=1)
    positions: Literal["learned", "rotary"] = "learned"
    position_offset: int = Field(default=0, ge=0)
    task_type_vocab_size: int = Field(default=0, ge=0)
    attention: Literal["bidirectional", "causal"] = "bidirectional"
    local_attention: int | None = Field(default=None, ge=1)
    global_attention_every: int = Field(default=1, ge=1)
    rope_theta: float = Field(default=10_000.0, gt=0)
    local_rope_theta: float = Field(default=10_000.0, gt=0)
    norm_first: bool = False
    embedding_norm: bool = True
    use_bias: bool = True
    norm_bias: bool = True
    gated: bool = False
    classifier: Classifier = "pooler"
    classifier_pooling: ClassifierPooling = "cls"
    classifier_dropout: float | None = Field(default=None, ge=0, lt=1)
    tagging_dropout: float | None = Field(default=None, ge=0, lt=1)
    answering_dropout: float | None = Field(default=None, ge=0, lt=1)
    mlm_transform: bool = True
    mlm_act: Activation | None = None
    mlm_bias: bool = True
    tie_word_embeddings: bool = True

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} is not divisible by "
                f"num_attention_heads={self.num_attention_heads}"
            )
        if self.positions == "rotary" and self.head_size % 2:
            raise ValueError(
                f"hidden_size={self.hidden_size} over num_attention_heads="
                f"{self.num_attention_heads} is odd, and cannot be rotated in pairs"
            )
        if self.max_seqlen < 1:
            raise ValueError(
                f"max_position_embeddings={self.max_position_embeddings} leaves no position, since "
                f"the first is number {self.position_offset}"
            )
        groups = self.num_hidden_groups
        if groups is not None and groups > max(1, self.num_hidden_layers):
            raise ValueError(
                f"num_hidden_groups={groups} is more than num_hidden_layers="
                f"{self.num_hidden_layers}"
            )
        if not self.mlm_transform and self.embedding_size is not None:
            raise ValueError("embedding_size needs mlm_transform, which maps back to it")
        return self

    @property
    def has_pooler(self) -> bool:
        """Whether a classifier needs the encoder's pooler, whose input is the first token."""
        return self.classifier == "pooler" and self.classifier_pooling == "cls"

    def head_dropout(self, name: str) -> float:
        """One of `HEAD_DROPOUTS`, or its default where it is None."""
        value: float | None = getattr(self, name)
        default = 0.0 if name == "answering_dropout" else self.hidden_dropout_prob
        return default if value is None else value

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def embedding_width(self) -> int:
        """The width of the embeddings."""
        return self.hidden_size if self.embedding_size is None else self.embedding_size

    @property
    def max_seqlen(self) -> int:
        """The most tokens that a sequence may have."""
        return self.max_position_embeddings - self.position_offset

    @property
    def num_weighted_layers(self) -> int:
        """How many layers have weights of their own."""
        groups, layers = self.num_hidden_groups, self.num_hidden_layers
        return layers if groups is None else min(groups, layers)

    @property
    def layer_groups(self) -> tuple[int, ...]:
        """For each layer, the index of its weights."""
        layers, groups = self.num_hidden_layers, self.num_weighted_layers
        return tuple(number * groups // layers for number in range(layers))

    def window(self, layer: int) -> int | None:
        """The largest distance at which a layer's tokens attend to each other, if it is limited."""
        if self.local_attention is None or layer % self.global_attention_every == 0:
            return None
        return self.local_attention // 2

    def is_local(self, layer: int) -> bool:
        """Whether a layer's attention is limited to a window."""
        return self.window(layer) is not None

    @classmethod
    def of_size(cls, size: str, **values: Any) -> Self:
        """One of the released sizes: tiny, mini, small, medium, base, large.

        Args:
            size: the name of the size.
            values: settings that differ from the released ones, such as `vocab_size`.

        Raises:
            SettingsError: no such size, or a value is not valid.
        """
        if size not in _GEOMETRIES:
            raise SettingsError(f"no size is called {size!r}", fix=nearest(size, _GEOMETRIES))
        layers, hidden_size, heads = _GEOMETRIES[size]
        geometry = {
            "num_hidden_layers": layers,
            "hidden_size": hidden_size,
            "num_attention_heads": heads,
            "intermediate_size": 4 * hidden_size,
        }
        return cls.parse({**geometry, **values})

"""The geometry of an encoder: the settings that distinguish BERT and related models."""

from __future__ import annotations

from typing import Literal, Self, Unpack

from pydantic import Field, model_validator

from ..errors import SettingsError, did_you_mean
from ..settings.base import Settings
from ..settings.keywords import EncoderKeywords

Activation = Literal["gelu", "gelu_new", "relu", "silu", "tanh"]
"""`gelu` is the erf form (paper, Hugging Face); `gelu_new` the tanh form, which the original code
has used since February 2019."""

Positions = Literal["learned", "rotary", "sinusoidal", "none"]
"""How the encoder represents positions. Models with one of the last two, or with another setting
that no published family has, are saved as `family: bertworks`."""

RopeScaling = Literal["linear", "ntk"]
"""How rotary positions are scaled to longer texts: all angles alike, or slow ones more than fast
ones; see `rotary.make_frequencies`."""

RopeKind = Literal["halves", "neighbours", "frequencies", "table"]
"""Which features are rotated together, and whether a checkpoint has tensors with the rotations; see
`rotary.py`."""

Norm = Literal["layer", "rms", "none"]
"""A norm of hidden states: layer normalisation (Ba et al. 2016), division by the root mean square
(Zhang and Sennrich 2019), or only a factor and a bias of each feature (Sun et al. 2020)."""

Classifier = Literal[
    "pooler", "tanh", "relu", "gelu", "context", "hidden_act", "norm", "linear", "none"
]
"""The layer between a sequence's vector and a classifier's output layer; see
`heads.ClassificationHead`."""

ClassifierPooling = Literal["cls", "mean", "last", "late"]
"""A classifier's input: the vector of the first token, the mean of all tokens, special ones
included, or the vector of the last token; late: the mean of all tokens after the classifier's own
layer (EuroBERT)."""

GlobalPosition = Literal["none", "first", "question", "choice"]
"""Which tokens attend to all others of their sequence; see `global_tokens.py`."""

ScoreBiasKind = Literal["buckets", "alibi", "disentangled", "transformer-xl"]
"""The terms that depend on distances in attention's scores; see `score_bias.py`."""

# The bytes of a matrix of this size can still be counted in 64 bits.
MAX_ROWS = 2**26
MAX_COLUMNS = 2**20

_GEOMETRIES = {  # layers, hidden size, heads; the feed-forward layer is four times as wide
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}


STATIC_SETTINGS = {
    **{"family": "bertworks", "num_hidden_layers": 0, "num_attention_heads": 1},
    **{"positions": "none", "type_vocab_size": 0, "embedding_norm": False},
    **{"hidden_dropout_prob": 0.0, "classifier": "none", "classifier_pooling": "mean"},
}
"""Settings of an encoder with static vectors: a piece has the same vector in every context."""

HEAD_DROPOUTS = frozenset({"classifier_dropout", "tagging_dropout", "answering_dropout"})
"""Settings of the heads that tasks add; the encoder does not depend on them."""


class ScoreBiasSettings(Settings):
    """Terms that depend on the distance of two tokens, in attention's scores."""

    kind: ScoreBiasKind = Field(
        description="buckets: a learned number for each head and bucket of distances (Raffel et "
        "al. 2020, T5); alibi: minus the distance times a fixed slope of each head (Press et al. "
        "2022); disentangled: products with vectors of distances (He et al. 2021, DeBERTa); "
        "transformer-xl: products with sinusoids of distances and vectors of segments, without "
        "biases in the maps of attention (Dai et al. 2019; Yang et al. 2019, XLNet)"
    )
    num_buckets: int | None = Field(
        32,
        ge=4,
        le=MAX_ROWS,
        description="number of buckets of distances; null: a vector for each distance "
        "(disentangled only, which has as many in each direction)",
    )
    max_distance: int = Field(
        128, ge=2, le=MAX_ROWS, description="distance from which all are in the last bucket"
    )
    terms: tuple[Literal["c2p", "p2c"], ...] = Field(
        ("c2p", "p2c"),
        min_length=1,
        max_length=2,
        description="products of disentangled: c2p: of queries and distances; p2c: of keys and "
        "distances",
    )
    shared_maps: bool = Field(
        False, description="a layer's maps of queries and keys are also those of distances"
    )
    norm: bool = Field(False, description="normalise the vectors of distances")
    key_bias: bool = Field(
        True,
        description="the maps to keys, also of distances, have biases; false (DeBERTa v1): only "
        "the maps to queries and values have",
    )

    @property
    def has_numbers_only(self) -> bool:
        """Whether the terms are a number for each head and distance, the same in all layers."""
        return self.kind in ("buckets", "alibi")

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        if not self.key_bias and (self.kind != "disentangled" or self.shared_maps):
            raise ValueError("key_bias=false needs kind=disentangled and shared_maps=false")
        if self.kind == "disentangled":
            if len(set(self.terms)) < len(self.terms):
                raise ValueError("terms: one is given twice")
            exact = 0 if self.num_buckets is None else self.num_buckets // 2
        elif self.num_buckets is None or self.num_buckets % 4:
            raise ValueError(f"num_buckets={self.num_buckets} is not a multiple of 4")
        else:
            exact = self.num_buckets // 4
        if self.max_distance <= exact + 1:
            raise ValueError(
                f"max_distance={self.max_distance}: must be more than {exact + 1}, since "
                f"num_buckets={self.num_buckets} have one distance each up to {exact}"
            )
        return self


class LinearGroups(Settings):
    """How many groups each linear map of a layer has (Iandola et al. 2020, "SqueezeBERT").

    A map with groups is as many smaller maps side by side: a group of outputs depends on one group
    of inputs.
    """

    query_key_value: int = Field(1, ge=1, description="groups of queries, of keys and of values")
    attention_output: int = Field(1, ge=1, description="groups of attention's output map")
    intermediate: int = Field(1, ge=1, description="groups of the first feed-forward map")
    output: int = Field(1, ge=1, description="groups of the second feed-forward map")


class ConvolutionSettings(Settings):
    """A convolution of the embeddings, added to the first layer's output."""

    kernel_size: int = Field(
        3, ge=1, le=MAX_COLUMNS, description="number of neighbouring tokens; an odd number"
    )
    groups: int = Field(1, ge=1, description="groups of its inputs and outputs")
    activation: Activation = Field("tanh", description="activation of its outputs")

    @model_validator(mode="after")
    def _has_a_middle(self) -> Self:
        if self.kernel_size % 2 == 0:
            raise ValueError(f"kernel_size={self.kernel_size} is not odd")
        return self


class GlobalTokensSettings(Settings):
    """Tokens that attend to all others of their sequence, in layers with windows.

    They have maps of their own to queries, keys and values. Source: Beltagy et al. (2020),
    "Longformer: The Long-Document Transformer", §3.1.
    """

    position: GlobalPosition = Field(
        "none",
        description="which tokens are global; first: the first, as classifiers need; question: all "
        "before the first separator; choice: all after the two separators between the texts of a "
        "pair",
    )
    separator_id: int = Field(
        2, ge=0, le=MAX_ROWS, description="id of the separator, for question and choice"
    )


class WordMapSettings(Settings):
    """A linear map of word embeddings to the layers' width, before positions are added.

    Source: Sun et al. (2020), "MobileBERT", §3.1 and the original code.
    """

    trigrams: bool = Field(
        True,
        description="the input is the embeddings of the next token, the token and the previous "
        "one, side by side; zeros beyond the ends of a sequence",
    )
    norm_eps: float | None = Field(
        None, gt=0, le=1, description="layer_norm_eps of the embeddings' norm, if it is another"
    )


class BottleneckSettings(Settings):
    """Layers that are narrower inside than between them (Sun et al. 2020, "MobileBERT", §3.1)."""

    size: int = Field(128, ge=1, le=MAX_COLUMNS, description="width inside a layer")
    attention: bool = Field(
        False,
        description="queries, keys and values are maps of the layer's narrow vectors; otherwise "
        "values are maps of its input",
    )
    shared_query_key: bool = Field(
        True,
        description="the layer has other narrow vectors, for queries and keys; unused with "
        "attention",
    )
    num_feed_forward: int = Field(
        4, ge=1, le=1000, description="number of feed-forward networks, one after another"
    )
    norm_eps: float | None = Field(
        None,
        gt=0,
        le=1,
        description="layer_norm_eps of the norm after the last of them, if it is another",
    )

    @model_validator(mode="after")
    def _queries_have_inputs(self) -> Self:
        if not self.attention and not self.shared_query_key:
            raise ValueError("attention=false needs shared_query_key=true")
        return self


class EncoderConfig(Settings):
    """Geometry of an encoder, with the names of `config.json`; the defaults are BERT-Base's.

    Users choose the first group of fields. The second group distinguishes the families: each
    family's file under `checkpoints` sets it.

    Source: paper §3, "Model Architecture", and the original release's `bert_config.json`.
    """

    vocab_size: int = Field(30522, ge=1, le=MAX_ROWS, description="vocabulary size")
    hidden_size: int = Field(768, ge=1, le=MAX_COLUMNS, description="width of the layers")
    num_hidden_layers: int = Field(12, ge=0, le=10_000, description="number of layers")
    num_attention_heads: int = Field(
        12,
        ge=1,
        description="attention heads per layer; must divide hidden_size",
    )
    intermediate_size: int = Field(
        3072, ge=1, le=MAX_ROWS, description="width of the feed-forward layers"
    )
    hidden_act: Activation = Field(
        "gelu",
        description="activation function; gelu is the erf form, gelu_new the tanh form",
    )
    hidden_dropout_prob: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="dropout after the embeddings and after each half of a layer",
    )
    attention_probs_dropout_prob: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="dropout on the attention probabilities",
    )
    max_position_embeddings: int = Field(
        512,
        ge=1,
        le=MAX_ROWS,
        description="number of positions, as published: RoBERTa's 514 allow 512 tokens, since "
        "its positions begin at 2",
    )
    type_vocab_size: int = Field(
        2, ge=0, le=MAX_ROWS, description="number of token types: first and second segment"
    )
    initializer_range: float = Field(
        0.02,
        gt=0,
        le=10,
        description="standard deviation of newly initialised weights",
    )
    layer_norm_eps: float = Field(
        1e-12, gt=0, le=1, description="added to the variance in layer norms"
    )

    family: str = Field(
        "bert", description="model family, which sets tensor names and settings of checkpoints"
    )
    embedding_size: int | None = Field(
        None,
        ge=1,
        le=MAX_COLUMNS,
        description="width of the embeddings, if a linear map widens them to hidden_size "
        "(ALBERT §3.1, ELECTRA); null: no such map",
    )
    output_embedding_size: int | None = Field(
        None,
        ge=1,
        le=MAX_COLUMNS,
        description="width of the masked-language-model decoder, if it is not that of the "
        "embeddings (RemBERT, Chung et al. 2021); with tie_word_embeddings it is larger, and the "
        "embeddings are the decoder's first columns (MobileBERT)",
    )
    word_map: WordMapSettings | None = Field(
        None,
        description="map of word embeddings to hidden_size before positions are added; needs "
        "embedding_size; null: none",
    )
    num_hidden_groups: int | None = Field(
        None,
        ge=1,
        description="number of distinct layers; neighbouring layers share their weights "
        "(ALBERT §3.1); null: no sharing",
    )
    positions: Positions = Field(
        "learned",
        description="learned: one vector per position; rotary: rotated queries and keys (Su et "
        "al. 2021); sinusoidal (Vaswani et al. 2017, §3.5); none: token order is "
        "lost",
    )
    position_offset: int = Field(
        0, ge=0, le=MAX_ROWS, description="index of a sequence's first position"
    )
    task_type_vocab_size: int = Field(
        0,
        ge=0,
        le=MAX_ROWS,
        description="size of the table of task embeddings; its first entry is added to every "
        "token (ERNIE 2.0)",
    )
    mixer: Literal["attention", "lstm"] = Field(
        "attention",
        description="how a layer combines the tokens of a sequence; lstm: a recurrent network "
        "from left to right, with attention=causal or two-way",
    )
    attention: Literal["bidirectional", "causal", "two-way"] = Field(
        "bidirectional",
        description="bidirectional: a token sees all tokens; causal: none after it; two-way "
        "(ELMo): two encoders side by side, of half the width and half the heads; "
        "the first sees no later tokens, the second no earlier ones",
    )
    max_full_attention: int | None = Field(
        None,
        ge=1,
        description="longest sequence, if attention would be sparse in longer ones (BigBird); "
        "null: all positions",
    )
    num_key_value_heads: int | None = Field(
        None,
        ge=1,
        description="heads of keys and values, each shared by as many heads of queries (Ainslie "
        "et al. 2023); must divide num_attention_heads, and needs use_bias=false; null: as many as "
        "those",
    )
    query_key_value_order: Literal["part", "head"] = Field(
        "part",
        description="outputs of the map to queries, keys and values; part: all queries first; "
        "head: each head's query, key and value (NeoBERT)",
    )
    local_attention: int | None = Field(
        None,
        ge=1,
        description="width of the window in local layers, centred on the token; null: no local "
        "layers",
    )
    global_tokens: GlobalTokensSettings | None = Field(
        None,
        description="tokens that attend to all others, while every layer is local; needs "
        "local_attention; null: no such tokens, nor maps for them",
    )
    global_attention_every: int = Field(
        1,
        ge=1,
        description="every n-th layer is global, starting with the first; without global_tokens",
    )
    rope_theta: float = Field(
        10_000.0,
        gt=0,
        description="base of the rotations in global layers",
    )
    local_rope_theta: float = Field(
        10_000.0,
        gt=0,
        description="base of the rotations in local layers",
    )
    rope_factor: float = Field(
        1.0,
        gt=0,
        le=MAX_ROWS,
        description="factor by which rotary positions are scaled to longer texts",
    )
    rope_scaling: RopeScaling = Field(
        "linear",
        description="linear: positions are divided by rope_factor (Chen et al. 2023); ntk: slow "
        "rotations are, fast ones nearly unchanged (GTE)",
    )
    linear_groups: LinearGroups | None = Field(
        None, description="groups of the layers' linear maps; null: one each"
    )
    convolution: ConvolutionSettings | None = Field(
        None,
        description="a convolution beside the first layer (He et al. 2021, DeBERTa v2); null: none",
    )
    bottleneck: BottleneckSettings | None = Field(
        None, description="layers that are narrower inside; null: as wide as between them"
    )
    score_bias: ScoreBiasSettings | None = Field(
        None, description="terms that depend on distances, in attention's scores; null: none"
    )
    rope_kind: RopeKind = Field(
        "halves",
        description="rotary positions; halves: features of the two halves of a head are rotated "
        "together; neighbours: neighbouring features (NeoBERT); frequencies: halves, with the "
        "angle of each pair in a tensor (ESM); table: neighbours, with sines and cosines of each "
        "position in a tensor (RoFormer)",
    )
    zeroed_token_id: int | None = Field(
        None,
        ge=0,
        le=MAX_ROWS,
        description="id of [MASK] if its embedding is zero, as if by dropout, and the others of "
        "its sequence are scaled accordingly (ESM, Rives et al. 2021); null: an ordinary piece",
    )
    contact_head: bool = Field(
        False,
        description="keep a head for contacts of amino acids (ESM), which is neither used nor "
        "trained here",
    )
    norm_first: bool = Field(
        False,
        description="normalise the input of each half of a layer, not its output; a norm "
        "follows the last layer, and with embedding_norm the first layer has none",
    )
    first_layer_norm: bool = Field(
        False,
        description="with norm_first and embedding_norm: the first layer normalises its input, "
        "the normalised embeddings, once more",
    )
    embedding_norm: bool = Field(True, description="normalise the embeddings")
    use_bias: bool = Field(True, description="biases in the layers' linear maps")
    intermediate_bias: bool | None = Field(
        None, description="bias in the first feed-forward map; use_bias if null"
    )
    norm: Norm = Field(
        "layer",
        description="norm of hidden states; layer: layer norm; rms: division by the root mean "
        "square, without the mean and without biases (Zhang and Sennrich 2019); none: a factor and "
        "a bias of each feature",
    )
    norm_bias: bool = Field(True, description="biases in the layers' norms")
    gated: bool = Field(
        False,
        description="multiply the feed-forward activation by a second map (Shazeer 2020)",
    )
    keep_pooler: bool = Field(
        False,
        description="the encoder of every model has a pooler, used or not (BigBird, SqueezeBERT)",
    )
    classifier: Classifier = Field(
        "pooler",
        description="layer before a classifier's output layer",
    )
    classifier_pooling: ClassifierPooling = Field(
        "cls",
        description="input of a classifier: the first token's vector, the mean of all tokens' "
        "vectors, or the last token's vector; late: the mean of all tokens' vectors after the "
        "classifier's layer",
    )
    classifier_dropout: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="dropout before the output layer of a classifier, a regression or a "
        "choice; hidden_dropout_prob if null",
    )
    tagging_dropout: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="dropout before the output layer of tagging; hidden_dropout_prob if null",
    )
    answering_dropout: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="dropout before the output layer of spans; 0 if null",
    )
    mlm_transform: bool = Field(
        True,
        description="the masked-language-model head has a layer before its decoder",
    )
    mlm_act: Activation | None = Field(
        None,
        description="activation of that layer; hidden_act if null",
    )
    mlm_dense_bias: bool | None = Field(
        None, description="bias in the linear map of that layer; use_bias if null"
    )
    mlm_bias: bool = Field(True, description="bias in the masked-language-model decoder")
    tie_word_embeddings: bool = Field(
        True,
        description="share the decoder's matrix with the embeddings",
    )

    @model_validator(mode="after")
    def _heads_fit_together(self) -> Self:
        heads = f"num_attention_heads={self.num_attention_heads}"
        if self.attention_width % self.num_attention_heads:
            name = "hidden_size" if self.bottleneck is None else "bottleneck.size"
            raise ValueError(f"{name}={self.attention_width} is not divisible by {heads}")
        if self.num_attention_heads % self.num_key_heads:
            keys = f"num_key_value_heads={self.num_key_value_heads}"
            raise ValueError(f"{heads} is not divisible by {keys}")
        if self.num_attention_heads != self.num_key_heads and self.use_bias:
            raise ValueError("num_key_value_heads needs use_bias=false")
        if self.num_key_value_heads is not None and self.query_key_value_order == "head":
            raise ValueError("query_key_value_order=head needs num_key_value_heads=null")
        if self.positions == "rotary" and self.head_size % 2:
            raise ValueError(
                f"hidden_size={self.hidden_size} over {heads} is odd, and cannot be rotated in "
                "pairs"
            )
        if self.attention == "two-way":
            if self.hidden_size % 2 or self.num_attention_heads % 2:
                raise ValueError("attention=two-way needs an even hidden_size and number of heads")
            if self.num_key_value_heads is not None:
                raise ValueError("attention=two-way needs num_key_value_heads=null")
        return self

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
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
        if self.norm == "rms" and self.norm_bias:
            raise ValueError("norm=rms needs norm_bias=false")
        if self.mixer == "lstm":
            if self.attention == "bidirectional":
                raise ValueError("mixer=lstm needs attention=causal, or two-way")
            if self.local_attention is not None or self.positions == "rotary":
                raise ValueError("local_attention and positions=rotary do nothing with mixer=lstm")
        if self.attention == "two-way" and self.norm_first:
            # Its final norm would mix the two directions.
            raise ValueError("attention=two-way needs norm_first=false")
        return self

    @model_validator(mode="after")
    def _global_tokens_fit(self) -> Self:
        if self.global_tokens is None:
            return self
        if self.local_attention is None or self.local_attention % 2:
            raise ValueError("global_tokens needs an even number for local_attention")
        needs = {
            **{"mixer": "attention", "attention": "bidirectional", "num_key_value_heads": None},
            **{"query_key_value_order": "part", "score_bias": None, "bottleneck": None},
        }
        for name, value in needs.items():
            if getattr(self, name) != value:
                raise ValueError(f"global_tokens needs the default of {name}")
        if self.positions == "rotary":
            raise ValueError("global_tokens needs positions that are not rotary")
        return self

    @model_validator(mode="after")
    def _bottleneck_fits(self) -> Self:
        if self.bottleneck is None:
            return self
        needs = {
            **{"mixer": "attention", "attention": "bidirectional", "norm_first": False},
            **{"num_key_value_heads": None, "query_key_value_order": "part"},
            **{"linear_groups": None, "score_bias": None},
        }
        for name, value in needs.items():
            if getattr(self, name) != value:
                raise ValueError(f"bottleneck needs the default of {name}")
        if self.positions == "rotary":
            raise ValueError("bottleneck needs positions that are not rotary")
        return self

    @model_validator(mode="after")
    def _score_bias_has_scores(self) -> Self:
        if self.score_bias is not None and not self.has_heads:
            raise ValueError("score_bias needs mixer=attention, and not attention=two-way")
        kind = "buckets" if self.score_bias is None else self.score_bias.kind
        if kind == "transformer-xl" and self.hidden_size % 2:
            raise ValueError(
                f"hidden_size={self.hidden_size} is odd; score_bias.kind={kind} has "
                "a sine and a cosine of each frequency"
            )
        if kind in ("disentangled", "transformer-xl"):
            if self.attention == "causal":
                raise ValueError(f"score_bias.kind={kind} needs attention=bidirectional")
            if self.num_key_heads != self.num_attention_heads:
                raise ValueError(f"score_bias.kind={kind} needs num_key_value_heads=null")
        if self.score_bias is not None:
            if self.score_bias.shared_maps and self.query_key_value_order == "head":
                raise ValueError("score_bias.shared_maps needs query_key_value_order=part")
            if not self.score_bias.key_bias and not self.use_bias:
                raise ValueError("score_bias.key_bias=false needs use_bias=true")
        return self

    @model_validator(mode="after")
    def _convolution_fits(self) -> Self:
        if self.convolution is None:
            return self
        if not self.has_heads or self.attention == "causal" or not self.num_hidden_layers:
            raise ValueError("convolution needs attention=bidirectional and a layer")
        if self.hidden_size % self.convolution.groups:
            raise ValueError(
                f"convolution.groups={self.convolution.groups} does not divide "
                f"hidden_size={self.hidden_size}"
            )
        return self

    @model_validator(mode="after")
    def _groups_fit(self) -> Self:
        if self.groups.query_key_value > 1 and self.num_key_heads != self.num_attention_heads:
            raise ValueError("linear_groups.query_key_value needs num_key_value_heads=null")
        size, inner = self.hidden_size, self.intermediate_size * (1 + self.gated)
        widths = {
            "query_key_value": (size,),
            "attention_output": (size,),
            "intermediate": (size, inner),
            "output": (self.intermediate_size, size),
        }
        for name, groups in self.groups.model_dump().items():
            if any(width % groups for width in widths[name]):
                raise ValueError(
                    f"linear_groups.{name}={groups} does not divide the map's width: "
                    f"{' or '.join(map(str, widths[name]))}"
                )
        return self

    @model_validator(mode="after")
    def _tables_fit(self) -> Self:
        if self.tie_word_embeddings and self.decoder_width < self.embedding_width:
            raise ValueError(
                f"output_embedding_size={self.output_embedding_size} is less than the width of the "
                f"embeddings, {self.embedding_width}, and needs tie_word_embeddings=false"
            )
        if self.word_map is not None and self.embedding_size is None:
            raise ValueError("word_map needs embedding_size")
        if self.word_map is not None and self.zeroed_token_id is not None:
            raise ValueError("word_map needs zeroed_token_id=null")
        if self.zeroed_token_id is not None and self.zeroed_token_id >= self.vocab_size:
            raise ValueError(
                f"zeroed_token_id={self.zeroed_token_id} is not below vocab_size={self.vocab_size}"
            )
        return self

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
    def rotates_neighbours(self) -> bool:
        """Whether neighbouring features are rotated together."""
        return self.rope_kind in ("neighbours", "table")

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

    @classmethod
    def from_size(cls, size: str, **values: Unpack[EncoderKeywords]) -> Self:
        """Return the geometry of a released size: tiny, mini, small, medium, base, large.

        Args:
            size: the name of the size.
            values: settings that differ from the released ones, such as `vocab_size`.

        Raises:
            SettingsError: no such size, or a value is not valid.
        """
        if size not in _GEOMETRIES:
            raise SettingsError(f"no size is called {size!r}", fix=did_you_mean(size, _GEOMETRIES))
        layers, hidden_size, heads = _GEOMETRIES[size]
        geometry = {
            "num_hidden_layers": layers,
            "hidden_size": hidden_size,
            "num_attention_heads": heads,
            "intermediate_size": 4 * hidden_size,
        }
        return cls.parse({**geometry, **values})

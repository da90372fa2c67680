"""The settings of an encoder; `encoder_geometry.py` has what follows from them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ..settings.base import Settings
from .part_settings import (
    MAX_COLUMNS,
    MAX_ROWS,
    Activation,
    BottleneckSettings,
    ConvolutionSettings,
    GlobalTokensSettings,
    LinearGroups,
    RotarySettings,
    ScoreBiasSettings,
    WordMapSettings,
)

Positions = Literal["learned", "rotary", "sinusoidal", "none"]
"""How the encoder represents positions. Models with one of the last two, or with another setting
that no published family has, are saved as `family: bertworks`."""

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


class EncoderSettings(Settings):
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
    rotary: RotarySettings = Field(
        RotarySettings(), description="rotary positions; without effect if positions are others"
    )
    linear_groups: LinearGroups | None = Field(
        None, description="groups of the layers' linear maps; null: one each"
    )
    convolution: ConvolutionSettings | None = Field(
        None,
        description="a convolution next to the first layer (DeBERTa v2, He et al. 2021) or null",
    )
    bottleneck: BottleneckSettings | None = Field(
        None, description="layers that are narrower inside; null: as wide as between them"
    )
    score_bias: ScoreBiasSettings | None = Field(
        None, description="terms that depend on distances, in attention's scores; null: none"
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

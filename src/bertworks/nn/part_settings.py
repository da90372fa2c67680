"""Settings of an encoder's parts; each is a field of `EncoderConfig`."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from ..settings.base import Settings

Activation = Literal["gelu", "gelu_new", "relu", "silu", "tanh"]
"""`gelu` is the erf form (paper, Hugging Face); `gelu_new` the tanh form, which the original code
has used since February 2019."""

RopeScaling = Literal["linear", "ntk"]
"""How rotary positions are scaled to longer texts: all angles alike, or slow ones more than fast
ones; see `rotary.make_frequencies`."""

RopeKind = Literal["halves", "neighbours", "frequencies", "table"]
"""Which features are rotated together, and whether a checkpoint has tensors with the rotations; see
`rotary.py`."""

GlobalPosition = Literal["none", "first", "question", "choice"]
"""Which tokens attend to all others of their sequence; see `global_tokens.py`."""

ScoreBiasKind = Literal["buckets", "alibi", "disentangled", "transformer-xl"]
"""The terms that depend on distances in attention's scores; see `score_bias.py`."""

# The bytes of a matrix of this size can still be counted in 64 bits.
MAX_ROWS = 2**26

MAX_COLUMNS = 2**20


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


class RotarySettings(Settings):
    """Rotary positions (Su et al. 2021)."""

    theta: float = Field(
        10_000.0, gt=0, description="base of the rotations; in local layers that is local_theta"
    )
    local_theta: float = Field(10_000.0, gt=0, description="base of the rotations in local layers")
    factor: float = Field(
        1.0, gt=0, le=MAX_ROWS, description="factor by which positions are scaled to longer texts"
    )
    scaling: RopeScaling = Field(
        "linear",
        description="linear: positions are divided by factor (Chen et al. 2023); ntk: slow "
        "rotations are, fast ones nearly unchanged (GTE)",
    )
    kind: RopeKind = Field(
        "halves",
        description="halves: features of the two halves of a head are rotated together; "
        "neighbours: neighbouring features (NeoBERT); frequencies: halves, with the angle of each "
        "pair in a tensor (ESM); table: neighbours, with sines and cosines of each position in a "
        "tensor (RoFormer)",
    )

    @property
    def rotates_neighbours(self) -> bool:
        """Whether neighbouring features are rotated together."""
        return self.kind in ("neighbours", "table")

"""What heads are made of: their parts and their formula, as steps from vectors to outputs.

    vectors of tokens ─► step ─► step ─► … ─► outputs

Each head has one layout. The modules that are trained (`heads.py`) and the arrays of models without
PyTorch (`inference/native_heads.py`) are made from it: names and shapes of tensors come from here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from .config import EncoderConfig
from .encoder_settings import Classifier
from .part_settings import Activation


@dataclass(frozen=True)
class Pool:
    """From the vectors of tokens to one of each sequence."""

    mode: Literal["cls", "mean", "sep"]


@dataclass(frozen=True)
class ApplyPooler:
    """From the vectors of tokens to the output of the encoder's pooler, one of each sequence."""


@dataclass(frozen=True)
class AddFirst:
    """Add the vector of a sequence's first token to those of all its tokens."""


@dataclass(frozen=True)
class LinearMap:
    """A linear map.

    Attributes:
        name: of the part; empty: the head itself.
        is_output: whether it is the last one, which is computed in float32 at least.
    """

    name: str
    inputs: int
    outputs: int
    has_bias: bool = True
    is_output: bool = False

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the names and shapes of its tensors."""
        yield _join(self.name, "weight"), (self.outputs, self.inputs)
        if self.has_bias:
            yield _join(self.name, "bias"), (self.outputs,)


@dataclass(frozen=True)
class Normalize:
    """A norm; `kind` is one of `encoder_settings.Norm`."""

    name: str
    kind: Literal["layer", "rms", "none"]
    width: int
    epsilon: float
    has_bias: bool

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the names and shapes of its tensors."""
        yield _join(self.name, "weight"), (self.width,)
        if self.has_bias:
            yield _join(self.name, "bias"), (self.width,)


@dataclass(frozen=True)
class Decode:
    """The decoder of masked words: a linear map to the vocabulary.

    Attributes:
        is_tied: whether its matrix is that of the word embeddings.
        extension: the number of further columns of its matrix, if that is tied.
    """

    inputs: int
    outputs: int
    has_bias: bool
    is_tied: bool
    extension: int

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the names and shapes of its tensors, without the word embeddings."""
        if self.has_bias:
            yield "bias", (self.outputs,)
        if not self.is_tied:
            yield "decoder", (self.outputs, self.inputs)
        elif self.extension:
            yield "decoder_extension", (self.outputs, self.extension)


@dataclass(frozen=True)
class Activate:
    """An activation."""

    activation: Activation


@dataclass(frozen=True)
class DropOut:
    """Dropout, in training."""


Step: TypeAlias = (
    Pool | ApplyPooler | AddFirst | LinearMap | Normalize | Decode | Activate | DropOut
)
HeadLayout: TypeAlias = tuple[Step, ...]
"""The steps of a head, in order."""


def tensors_of(layout: HeadLayout) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of a head's tensors."""
    parts = (step for step in layout if isinstance(step, LinearMap | Normalize | Decode))
    return dict(tensor for part in parts for tensor in part.tensors())


def pooler_layout(config: EncoderConfig) -> HeadLayout:
    """The encoder's pooler: a linear map and tanh of the first token's vector.

    With `classifier: linear`, only the first token's vector (MobileBERT).
    """
    if config.classifier == "linear":
        return (Pool("cls"),)
    return (Pool("cls"), LinearMap("dense", config.hidden_size, config.hidden_size), _TANH)


def classification_layout(
    config: EncoderConfig,
    num_labels: int,
    *,
    kind: Classifier | None = None,
    bias: bool | None = None,
) -> HeadLayout:
    """A head for sequences; see `heads.ClassificationHead`."""
    kind, pooling, size = kind or config.classifier, config.classifier_pooling, config.hidden_size
    has_bias = kind != "none" if bias is None else bias
    ends = (DropOut(), LinearMap("linear", size, num_labels, has_bias, is_output=True))
    if kind in ("pooler", "linear") and pooling == "cls":
        return (ApplyPooler(), *ends)
    transform: HeadLayout = ()
    activations: dict[Classifier, Activation] = {
        **{"tanh": "tanh", "relu": "relu", "gelu": "gelu", "context": "gelu"},
        "hidden_act": config.hidden_act,
    }
    if kind == "norm":
        transform = transform_steps(config, size)
    elif kind in activations:
        dropout: HeadLayout = () if kind in ("relu", "context") else (DropOut(),)
        transform = (*dropout, LinearMap("transform", size, size), Activate(activations[kind]))
    if pooling == "late":
        return (*transform, Pool("mean"), *ends)
    modes: dict[str, Pool] = {"cls": Pool("cls"), "mean": Pool("mean"), "last": Pool("sep")}
    return (modes[pooling], *transform, *ends)


def choice_kind(config: EncoderConfig) -> Classifier:
    """The kind of a head for multiple choice.

    RoBERTa's and BigBird's published heads for choices use a pooler, unlike their classification
    heads. XLNet's have the same layer as those.
    """
    has_layer = config.classifier in ("tanh", "hidden_act") and not config.is_transformer_xl
    return "pooler" if has_layer else config.classifier


def token_layout(config: EncoderConfig, num_outputs: int) -> HeadLayout:
    """A head for tokens; see `heads.TokenHead`."""
    transform = transform_steps(config, config.hidden_size) if config.classifier == "norm" else ()
    output = LinearMap("linear", config.hidden_size, num_outputs, is_output=True)
    return (*transform, DropOut(), output)


def next_sentence_layout(config: EncoderConfig) -> HeadLayout:
    """The head that predicts whether B follows A; see `heads.NSPHead`."""
    return (ApplyPooler(), LinearMap("", config.hidden_size, 2, is_output=True))


def replaced_token_layout(config: EncoderConfig) -> HeadLayout:
    """The head that predicts whether a token was replaced; see `heads.ReplacedTokenHead`."""
    size = config.hidden_size
    context: HeadLayout = ()
    if config.classifier == "context":
        context = (AddFirst(), _norm("norm", config, size))
    dense = LinearMap("dense", size, size), Activate(config.hidden_act)
    return (*context, *dense, LinearMap("dense_prediction", size, 1, is_output=True))


def masked_lm_layout(config: EncoderConfig) -> HeadLayout:
    """The head that predicts tokens; see `heads.MLMHead`."""
    config = config.per_direction_config
    width, is_tied = config.decoder_width, config.tie_word_embeddings
    extension = max(0, width - config.embedding_width) if is_tied else 0
    decode = Decode(width, config.vocab_size, config.mlm_bias, is_tied, extension)
    return (*(transform_steps(config, width) if config.mlm_transform else ()), decode)


def transform_steps(config: EncoderConfig, width: int) -> HeadLayout:
    """The layer before the decoder: a linear map to the decoder's width, activation, norm."""
    has_bias = config.use_bias if config.mlm_dense_bias is None else config.mlm_dense_bias
    return (
        LinearMap("transform.dense", config.hidden_size, width, has_bias),
        Activate(config.mlm_act or config.hidden_act),
        _norm("transform.norm", config, width),
    )


_TANH = Activate("tanh")


def _norm(name: str, config: EncoderConfig, width: int) -> Normalize:
    if config.norm == "none":  # MobileBERT has a layer norm here alone
        return Normalize(name, "layer", width, config.layer_norm_eps, has_bias=True)
    has_bias = config.norm == "layer" and config.norm_bias
    return Normalize(name, config.norm, width, config.layer_norm_eps, has_bias)


def _join(*parts: str) -> str:
    return ".".join(filter(None, parts))

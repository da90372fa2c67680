"""What a family of encoders is on disk: names of settings, names of tensors, and nothing else.

A family is one `Family`, in a small file of its own; `FAMILIES` (`families.py`) lists them. Reading
and writing (`store.py`) is the same for all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import CheckpointError, SettingsError
from ..model.config import HEAD_DROPOUTS, EncoderConfig
from .keymap import KeyMap, Rule

Raw = Mapping[str, Any]
"""The content of a `config.json`."""

COMMON_SETTINGS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "max_position_embeddings",
    "type_vocab_size",
    "initializer_range",
    "layer_norm_eps",
    "tie_word_embeddings",
)
"""The settings whose names are the same with us, BERT, and most of its family."""

ACTIVATIONS = {
    "gelu_pytorch_tanh": "gelu_new",
    "gelu_fast": "gelu_new",
    "gelu_python_tanh": "gelu_new",
    "gelu_python": "gelu",
    "swish": "silu",
}
"""Other names of the activations. The fast forms of tanh-GELU are the same function."""

POOLING = "classifier_pooling"
"""A setting that Hugging Face's ModernBERT has, and any family's `config.json` may have with us."""

NO_DECODER = {"is_decoder": False, "add_cross_attention": False}
_DECODER = "mlm_head.decoder"


@dataclass(frozen=True)
class Family:
    """How a family's checkpoints are laid out.

    Attributes:
        name: its `model_type` in `config.json`.
        settings: their names of the settings that its `config.json` has, by ours.
        keys: between our tensors' names and theirs.
        prefix: what the names of the encoder's tensors begin with in a checkpoint with a head; a
            bare encoder's lack it.
        bare: what those names begin with without the prefix.
        classes: the Hugging Face class that opens each task's model.
        implied: our settings that are the same in all of its models.
        defaults: settings that a `config.json` may leave out, in its own names.
        must_be: what a `config.json` may say, but only with this value.
        spelled: brings a `config.json` in today's spelling.
        settled: brings settings of ours, each chosen by itself, to what its models can have.
        token_ids: keys of `config.json` that hold the ids of special pieces, and their roles.
        extra: what else `config.json` must say, from our settings.
        dropouts: the key of `config.json` from which the head of a task, a key of `classes`, reads
            its dropout; none for a head whose dropout is that of the layers.
        dropped: patterns of their tensors that may stay unused, and why.
    """

    name: str
    settings: Mapping[str, str]
    keys: KeyMap
    prefix: str
    bare: tuple[str, ...]
    classes: Mapping[str, str]
    implied: Mapping[str, Any] = field(default_factory=dict)
    defaults: Raw = field(default_factory=dict)
    must_be: Raw = field(default_factory=dict)
    spelled: Callable[[dict[str, Any]], dict[str, Any]] = dict
    settled: Callable[[dict[str, Any]], dict[str, Any]] = dict
    token_ids: Mapping[str, str] = field(default_factory=dict)
    extra: Callable[[EncoderConfig], dict[str, Any]] = lambda config: {}  # noqa: ARG005
    dropouts: Mapping[str, str] = field(
        default_factory=lambda: dict.fromkeys(
            ("classification", "tagging", "choice"), "classifier_dropout"
        )
    )
    dropped: tuple[tuple[str, str], ...] = ()

    def read_config(self, raw: Raw, *, where: str) -> EncoderConfig:
        """The geometry that a `config.json` describes.

        Raises:
            CheckpointError: it is not one that an encoder of ours can have.
        """
        values = self.spelled({**self.defaults, **raw})
        for key, value in self.must_be.items():
            if values.get(key, value) != value:
                raise CheckpointError(f"{key}={values[key]!r} is not supported", where=where)
        settings = {POOLING: POOLING, **self.settings}
        found = {ours: values[key] for ours, key in settings.items() if key in values}
        for name in ("hidden_act", "mlm_act"):
            if isinstance(activation := found.get(name), str):
                found[name] = ACTIVATIONS.get(activation, activation)
        try:
            return EncoderConfig.parse({**found, **self.implied, "family": self.name}, where=where)
        except SettingsError as error:
            raise CheckpointError(error.what, where=where) from None

    def write_config(self, config: EncoderConfig) -> dict[str, Any]:
        """What `config.json` says of a geometry.

        Raises:
            CheckpointError: the family has no words for it.
        """
        values = config.model_dump(mode="json")
        for name in HEAD_DROPOUTS & self.settings.keys():
            values[name] = config.head_dropout(name)
        raw = {theirs: values[ours] for ours, theirs in self.settings.items()}
        raw |= {"model_type": self.name, **self.extra(config)}
        if not self.pools_as_published(config):  # no default that need not be said
            raw[POOLING] = config.classifier_pooling
        again = self.read_config(raw, where=self.name).model_dump(mode="json")
        for name, value in values.items():
            if again[name] != value:
                raise CheckpointError(
                    f"the family {self.name!r} has no {name}={value!r}",
                    fix=f"Its models have {name}={again[name]!r}; family=bertworks allows all "
                    "values.",
                )
        return raw

    def pools_as_published(self, config: EncoderConfig) -> bool:
        """Whether Hugging Face's classifier of the family uses the same vector."""
        usual = self.defaults.get(POOLING, "cls")
        known = {"cls", "mean"} if POOLING in self.settings else {usual}
        return config.classifier_pooling in known

    def normalize_name(self, name: str) -> str:
        """A tensor's name in today's spelling: with its prefix, without gamma and beta."""
        name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
        return self.prefix + name if name.startswith(self.bare) else name

    @property
    def decoder_bias(self) -> tuple[str, str] | None:
        """Their names of the masked-language-model head's bias and of its decoder's, if a file may
        have both; the logits are made with the second."""
        try:
            (bias,), (decoder,) = self.keys.theirs("mlm_head.bias"), self.keys.theirs(_DECODER)
        except KeyError:
            return None
        second = decoder.removesuffix(".weight") + ".bias"
        return None if bias == second else (bias, second)

    def has(self, name: str, tensors: Container[str]) -> bool:
        """Whether our tensor `name` is among tensors of theirs."""
        try:
            theirs = self.keys.theirs(name)
        except KeyError:
            return False
        return all(part in tensors for part in theirs)

    def why_dropped(self, name: str) -> str | None:
        """Why a tensor of theirs may stay unused; None if it may not."""
        for pattern, reason in self.dropped:
            if re.fullmatch(pattern, name):
                return reason
        return None


def same_names(*more: str) -> dict[str, str]:
    """The common settings, and some more, under their own names."""
    return {name: name for name in (*COMMON_SETTINGS, *more)}


def key_map(
    table: Mapping[str, str | tuple[str, ...]], *, transposed: Iterable[str] = ()
) -> KeyMap:
    """A key map from names of ours to theirs; more than one of theirs are laid below each other.

    Args:
        table: the names.
        transposed: names of ours whose matrices they have with rows and columns exchanged.
    """
    turned = set(transposed)
    return KeyMap(
        Rule(ours, (theirs,) if isinstance(theirs, str) else theirs, ours in turned)
        for ours, theirs in table.items()
    )


def layer_keys(layer: str) -> dict[str, str | tuple[str, ...]]:
    """The names of BERT's layers, which most of its family took over.

    Args:
        layer: what a layer's names begin with, `{}` in place of its number.
    """
    attention = f"{layer}.attention"
    return {
        "encoder.layers.{}.attention.query_key_value": tuple(
            f"{attention}.self.{part}" for part in ("query", "key", "value")
        ),
        "encoder.layers.{}.attention.output": f"{attention}.output.dense",
        "encoder.layers.{}.attention_norm": f"{attention}.output.LayerNorm",
        "encoder.layers.{}.feed_forward.intermediate": f"{layer}.intermediate.dense",
        "encoder.layers.{}.feed_forward.output": f"{layer}.output.dense",
        "encoder.layers.{}.feed_forward_norm": f"{layer}.output.LayerNorm",
    }


def embedding_keys(embeddings: str) -> dict[str, str | tuple[str, ...]]:
    """The names of BERT's embeddings, which most of its family took over."""
    parts = ("word_embeddings", "position_embeddings", "token_type_embeddings")
    return {
        **{f"encoder.embeddings.{part}": f"{embeddings}.{part}" for part in parts},
        "encoder.embeddings.norm": f"{embeddings}.LayerNorm",
    }


def constants(prefix: str) -> tuple[tuple[str, str], ...]:
    """The buffers that older releases saved."""
    names = r"embeddings\.(position_ids|token_type_ids)"
    return ((re.escape(prefix) + names, "a constant that older releases saved"),)

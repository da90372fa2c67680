"""`Family`: how a family of encoders is stored on disk: the names of its settings and tensors.

Each family is a `Family` in a separate small file; `FAMILIES` (`families.py`) lists them. Reading
(`store.py`) and writing (`saving.py`) are the same for all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import CheckpointError, SettingsError
from ..nn.config import EncoderConfig
from ..nn.encoder_geometry import HEAD_DROPOUTS
from .heads import task_tensors
from .keymap import KeyMap, Rule
from .weight_files import INPUTS, SHIFT

RawConfig = Mapping[str, Any]
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
"""The settings whose names are the same here, in BERT, and in most families derived from it."""

ACTIVATIONS = {
    "gelu_pytorch_tanh": "gelu_new",
    "gelu_fast": "gelu_new",
    "gelu_python_tanh": "gelu_new",
    "gelu_python": "gelu",
    "swish": "silu",
}
"""Other names of activations, and our names. The fast forms of tanh-GELU are the same function."""

POOLING = "classifier_pooling"
"""A setting of Hugging Face's ModernBERT; here the `config.json` of any family may have it."""

NO_DECODER = {"is_decoder": False, "add_cross_attention": False}
_DECODER = "mlm_head.decoder"


@dataclass(frozen=True)
class Family:
    """The layout of a family's checkpoints.

    "Our" names are those of this package; "their" names are those of the published checkpoints.

    Attributes:
        name: its `model_type` in `config.json`.
        settings: their names of the settings that its `config.json` has, by our names; the name of
            a setting of a part has a dot, such as `score_bias.num_buckets`.
        keys: maps our tensors' names to theirs.
        prefix: the beginning of the encoder's tensor names in a checkpoint with a head; a bare
            encoder's names lack it.
        bare_prefixes: the possible beginnings of those names without the prefix.
        classes: the Hugging Face class that loads each task's model.
        fixed_settings: our settings that are the same in all of its models.
        defaults: settings that a `config.json` may omit, under their names.
        required_values: settings that a `config.json` may have, but only with this value.
        convert_config: converts a `config.json` to the current names and values.
        adjust_settings: replaces our settings, chosen independently, by values that its models can
            have.
        token_ids: keys of `config.json` that hold the ids of special pieces, and their roles.
        extra: computes the other entries that `config.json` needs from our settings.
        dropouts: for each task (a key of `classes`) the key of `config.json` with the dropout of
            its head; no entry for a head that uses the dropout of the layers.
        poolings: the values of `classifier_pooling` that its published classifier has, if it has
            that setting.
        unused_tensors: patterns of their tensors that may stay unused, each with the reason.
        alternative_names: patterns of other names of tensors in published files, each with the name
            used here, which may refer to groups of the pattern.
        row_parts: patterns of names that adapters have for some of a tensor's rows, each with the
            tensor's name, which part of its rows it is, and of how many equal parts.
        has_bare_encoders: whether an encoder without a head is written without the prefix, as the
            code expects for which its models were published.
        has_second_bias: whether the decoder of its masked-LM head may have a bias, besides that of
            the head.
        decided_by_class: what the class in `config.json` decides and no other entry or tensor
            tells, in words; a task's head is not read without the class.
    """

    name: str
    settings: Mapping[str, str]
    keys: KeyMap
    prefix: str
    bare_prefixes: tuple[str, ...]
    classes: Mapping[str, str]
    fixed_settings: Mapping[str, Any] = field(default_factory=dict)
    defaults: RawConfig = field(default_factory=dict)
    required_values: RawConfig = field(default_factory=dict)
    convert_config: Callable[[dict[str, Any]], dict[str, Any]] = dict
    adjust_settings: Callable[[dict[str, Any]], dict[str, Any]] = dict
    token_ids: Mapping[str, str] = field(default_factory=dict)
    extra: Callable[[EncoderConfig], dict[str, Any]] = lambda _: {}
    dropouts: Mapping[str, str] = field(
        default_factory=lambda: dict.fromkeys(
            ("classification", "tagging", "choice"), "classifier_dropout"
        )
    )
    poolings: tuple[str, ...] = ()
    unused_tensors: tuple[tuple[str, str], ...] = ()
    alternative_names: tuple[tuple[str, str], ...] = ()
    row_parts: tuple[tuple[str, str, int, int], ...] = ()
    has_second_bias: bool = True
    has_bare_encoders: bool = False
    decided_by_class: str | None = None

    def read_config(self, raw: RawConfig, *, where: str) -> EncoderConfig:
        """Return the encoder's configuration that a `config.json` describes.

        Raises:
            CheckpointError: an encoder of this package cannot have it.
        """
        values = self.convert_config({**self.defaults, **raw})
        for key, value in self.required_values.items():
            if values.get(key, value) != value:
                raise CheckpointError(f"{key}={values[key]!r} is not supported", where=where)
        settings = {POOLING: POOLING, **self.settings}
        values_by_name = {ours: values[key] for ours, key in settings.items() if key in values}
        values_by_name |= {**self.fixed_settings, "family": self.name}
        for name in ("hidden_act", "mlm_act"):
            if isinstance(activation := values_by_name.get(name), str):
                values_by_name[name] = ACTIVATIONS.get(activation, activation)
        try:
            return EncoderConfig.parse(_nest(values_by_name), where=where)
        except SettingsError as error:
            raise CheckpointError(error.what, where=where) from None

    def write_config(self, config: EncoderConfig) -> dict[str, Any]:
        """Return the entries of `config.json` for an encoder's configuration.

        Raises:
            CheckpointError: the family cannot express a setting.
        """
        values = config.model_dump(mode="json")
        for name in HEAD_DROPOUTS & self.settings.keys():
            values[name] = config.head_dropout(name)
        raw = {theirs: _nested_value(values, ours) for ours, theirs in self.settings.items()}
        raw |= {"model_type": self.name, **self.extra(config)}
        if not self.pools_as_published(config):  # no entry for the default
            raw[POOLING] = config.classifier_pooling
        reread = self.read_config(raw, where=self.name).model_dump(mode="json")
        for name, value in values.items():
            if reread[name] != value:
                raise CheckpointError(
                    f"the family {self.name!r} has no {name}={value!r}",
                    fix=f"Its models have {name}={reread[name]!r}; family=bertworks allows all "
                    "values.",
                )
        return raw

    def pools_as_published(self, config: EncoderConfig) -> bool:
        """Whether Hugging Face's classifier of this family pools the same vector."""
        default: str = self.defaults.get(POOLING, "cls")
        return config.classifier_pooling in (self.poolings or (default,))

    def keys_for(self, config: EncoderConfig) -> KeyMap:
        """Return the key map of an encoder, which knows the shapes of all tensors."""
        return KeyMap(self.keys.rules, config.num_attention_heads)

    def normalize_name(self, name: str) -> str:
        """Return a tensor's name here: with the prefix, without gamma and beta."""
        name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
        name = self.prefix + name if name.startswith(self.bare_prefixes) else name
        for pattern, own_name in self.alternative_names:
            if match := re.fullmatch(pattern, name):
                return match.expand(own_name)
        return name

    def normalize_tensor_name(self, name: str) -> str:
        """As `normalize_name`; a suffix of calibration (`INPUTS`, `SHIFT`) is kept."""
        whole = name.removesuffix(INPUTS).removesuffix(SHIFT)
        return self.normalize_name(whole) + name[len(whole) :]

    def find_rows(self, name: str) -> tuple[str, int, int]:
        """Return the tensor that an adapter changes, which part of its rows, and of how many."""
        name = self.normalize_name(name)
        for pattern, whole, part, num_parts in self.row_parts:
            if match := re.fullmatch(pattern, name):
                return match.expand(whole), part, num_parts
        return name, 0, 1

    @property
    def decoder_bias(self) -> tuple[str, str] | None:
        """Their names of the masked-LM head's bias and of its decoder's bias, if a file may have
        both; the logits use the second."""
        try:
            (bias,), (decoder,) = self.keys.theirs("mlm_head.bias"), self.keys.theirs(_DECODER)
        except KeyError:
            return None
        second = decoder.removesuffix(".weight") + ".bias"
        return None if bias == second or not self.has_second_bias else (bias, second)

    def has(self, name: str, tensors: Container[str]) -> bool:
        """Whether `tensors`, under their names, contain our tensor `name`."""
        try:
            theirs = self.keys.theirs(name)
        except KeyError:
            return False
        return all(part in tensors for part in theirs)

    def drop_reason(self, name: str) -> str | None:
        """The reason why one of their tensors may stay unused; None if it may not."""
        for pattern, reason in self.unused_tensors:
            if re.fullmatch(pattern, name):
                return reason
        return None


def _nest(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tree of values from dotted names."""
    tree: dict[str, Any] = {}
    for name, value in values.items():
        *groups, last = name.split(".")
        place = tree
        for group in groups:
            place = place.setdefault(group, {})
        place[last] = value
    return tree


def _nested_value(tree: Mapping[str, Any], name: str) -> Any:
    """Return the value of a dotted name; None if its group is None."""
    value: Any = tree
    for part in name.split("."):
        value = None if value is None else value[part]
    return value


def same_names(*more: str, exclude: Collection[str] = ()) -> dict[str, str]:
    """The common settings but for some, and more, each mapped to the same name."""
    return equal_names(*(name for name in COMMON_SETTINGS if name not in exclude), *more)


def equal_names(*names: str) -> dict[str, str]:
    """Settings, each mapped to the same name."""
    return {name: name for name in names}


def key_map(table: Mapping[str, str | tuple[str, ...]], **names: Collection[str]) -> KeyMap:
    """Return a key map from our names to theirs; several of theirs are concatenated by rows.

    Args:
        table: their names, by our names.
        names: for a field of `Rule`, such as `is_transposed`, our names for which it is true.
    """
    return KeyMap(
        Rule(
            ours,
            (theirs,) if isinstance(theirs, str) else theirs,
            **{field: ours in true_for for field, true_for in names.items()},
        )
        for ours, theirs in table.items()
    )


def layer_keys(layer: str) -> dict[str, str | tuple[str, ...]]:
    """The tensor names of BERT's layers, which most derived families use too.

    Args:
        layer: the beginning of a layer's names, with `{}` in place of its number.
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


def embedding_keys(
    embeddings: str, kinds: Sequence[str] = ("word", "position", "token_type")
) -> dict[str, str | tuple[str, ...]]:
    """The tensor names of BERT's embeddings of some kinds, which derived families use too."""
    parts = [f"{kind}_embeddings" for kind in kinds]
    return {
        **{f"encoder.embeddings.{part}": f"{embeddings}.{part}" for part in parts},
        "encoder.embeddings.norm": f"{embeddings}.LayerNorm",
    }


def roberta_head_keys() -> dict[str, str]:
    """The tensor names of RoBERTa's heads, which derived families use too."""
    return {
        "mlm_head.transform.dense": "lm_head.dense",
        "mlm_head.transform.norm": "lm_head.layer_norm",
        "mlm_head.bias": "lm_head.bias",
        "mlm_head.decoder": "lm_head.decoder.weight",
        "head.transform": "classifier.dense",
        "head.linear": "classifier.out_proj",
        **task_tensors(),
    }


def unused_constants(prefix: str) -> tuple[tuple[str, str], ...]:
    """Patterns of the buffers that old `transformers` saved, each with the reason to drop it."""
    names = r"embeddings\.(position_ids|token_type_ids)"
    return ((re.escape(prefix) + names, "a constant that old transformers saved"),)


def unused_tensors(prefix: str, pretraining: str) -> tuple[tuple[str, str], ...]:
    """Patterns of tensors that may stay unused, each with the reason, as most families have them.

    Args:
        prefix: of the encoder's tensors.
        pretraining: pattern of the names of pre-training heads.
    """
    return (
        *unused_constants(prefix),
        unused_pooler(prefix),
        *unused_heads(pretraining),
    )


def unused_pooler(prefix: str) -> tuple[str, str]:
    """The pattern of a pooler's tensors, and the reason why they may stay unused."""
    return rf"{re.escape(prefix)}pooler\..*", "the pooler, which this task does not have"


def unused_heads(
    pretraining: str, task: str = "classifier|qa_outputs"
) -> tuple[tuple[str, str], ...]:
    """Patterns of the tensors of heads, of names that match, each with the reason."""
    return (
        (rf"({pretraining})\..*", "a head of pre-training, which this task does not have"),
        (rf"({task})\..*", "the head of another task"),
    )

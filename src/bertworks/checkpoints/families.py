"""All families of models."""

from __future__ import annotations

from ..errors import CheckpointError, truncate_repr
from ..nn.config import EncoderConfig
from .albert import ALBERT
from .bert import BERT, ERNIE, MEGATRON_BERT, bert_classes, bert_keys
from .bigbird import BIG_BIRD
from .deberta import DEBERTA, DEBERTA_V2
from .distilbert import DISTILBERT
from .electra import ELECTRA
from .esm import ESM
from .eurobert import EUROBERT
from .family import Family, RawConfig, key_map, layer_keys, unused_tensors
from .gpt import GPT
from .gte import GTE, NEW
from .jina import JINA_V3, XLM_ROBERTA_FLASH, is_of_flash_code
from .jina_bert import JINA_BERT_V2
from .longformer import LONGFORMER
from .mobilebert import MOBILEBERT
from .modernbert import MODERNBERT
from .mpnet import MPNET
from .neobert import NEOBERT
from .nomic_bert import NOMIC_BERT
from .rembert import REMBERT
from .roberta import (
    CAMEMBERT,
    DATA2VEC,
    ROBERTA,
    ROBERTA_PRELAYERNORM,
    XLM_ROBERTA,
    XLM_ROBERTA_XL,
)
from .roformer import ROFORMER
from .squeezebert import SQUEEZEBERT
from .static import STATIC
from .xlnet import XLNET

FAMILIES = {
    family.name: family
    for family in (
        BERT,
        ROBERTA,
        XLM_ROBERTA,
        CAMEMBERT,
        DISTILBERT,
        ALBERT,
        ERNIE,
        ELECTRA,
        MODERNBERT,
        GPT,
        DATA2VEC,
        MEGATRON_BERT,
        ROBERTA_PRELAYERNORM,
        XLM_ROBERTA_XL,
        MPNET,
        REMBERT,
        ROFORMER,
        ESM,
        BIG_BIRD,
        EUROBERT,
        DEBERTA,
        DEBERTA_V2,
        NOMIC_BERT,
        GTE,
        JINA_V3,
        SQUEEZEBERT,
        XLNET,
        MOBILEBERT,
        LONGFORMER,
    )
}
"""The published families."""

_LAYER = "encoder.layers.{}"
_ENCODER_PARTS = (
    *("final_norm", "mask_vector", "contact_head", "rotary", "rotary.frequencies"),
    *("convolution.linear", "convolution.norm", "score_bias.table", "score_bias.norm"),
    *("embeddings.projection", "embeddings.word_map", "embeddings.task_type_embeddings"),
)
_DISTANCE_MAPS = (
    *("key", "query", "position"),
    *("content_bias", "position_bias", "segment_bias", "segments"),
)
_LAYER_PARTS = (
    *(f"attention.distance_maps.{part}" for part in _DISTANCE_MAPS),
    *("attention.query_bias", "attention.value_bias", "attention.global_query_key_value"),
    *("bottleneck.dense", "bottleneck.norm", "query_key_bottleneck.dense"),
    *("query_key_bottleneck.norm", "output", "output_norm"),
    *("attention.query_key_value.query_key", "attention.query_key_value.value"),
    *(f"feed_forward_blocks.{{}}.feed_forward.{part}" for part in ("intermediate", "output")),
    "feed_forward_blocks.{}.norm",
)
"""Tensors of this package's own layout, which have our names after the prefix."""


def _layer_keys() -> dict[str, str | tuple[str, ...]]:
    """The tensor names of LSTMs, and of the two directions of two-way layers."""
    lstm = [f"recurrence.{kind}_l0" for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    keys: dict[str, str | tuple[str, ...]] = {}
    for side in ("", ".forwards", ".backwards"):
        theirs = f"bert.encoder.layer.{{}}{side}"
        keys |= {f"{_LAYER}{side}.{part}": f"{theirs}.{part}" for part in lstm}
        if side:
            layer = layer_keys(theirs).items()
            keys |= {ours.replace(_LAYER, _LAYER + side): names for ours, names in layer}
    return keys


_BERTWORKS = Family(
    name="bertworks",
    settings={name: name for name in EncoderConfig.model_fields if name != "family"},
    keys=key_map(
        {
            **bert_keys("bert"),
            **_layer_keys(),
            **{f"encoder.{part}": f"bert.{part}" for part in _ENCODER_PARTS},
            **{f"{_LAYER}.{part}": f"bert.encoder.layer.{{}}.{part}" for part in _LAYER_PARTS},
            "mlm_head.decoder_extension": "cls.predictions.decoder_extension",
        },
        first_is_square=(f"{_LAYER}.attention.query_key_value",),
    ),
    prefix="bert.",
    bare_prefixes=(
        *("embeddings.", "encoder.", "pooler.", "final_norm.", "score_bias.", "rotary."),
        *("contact_head.", "convolution.", "mask_vector"),
    ),
    classes=bert_classes("Bertworks"),
    unused_tensors=unused_tensors("bert.", "cls"),
)
"""A family for this package alone, with every setting that an encoder can have, also those that no
published family has, such as sinusoidal positions or LSTMs. Settings have our names, tensors have
BERT's; other tools cannot load it."""

_OWN_CODE = (NEW, NEOBERT, JINA_BERT_V2, XLM_ROBERTA_FLASH)
"""Families and layouts that exist as their authors' own code alone."""

ALL_FAMILIES = {**FAMILIES, **{one.name: one for one in (*_OWN_CODE, _BERTWORKS, STATIC)}}
"""All families, by name."""


def find_published_family(raw: RawConfig, *, where: str) -> Family:
    """Return the family of a `config.json`.

    Raises:
        CheckpointError: no family has its `model_type`.
    """
    is_of_own_code = is_of_flash_code(raw)
    name = raw.get("model_type", "xlm-roberta" if is_of_own_code else "bert")
    if name == "bert" and raw.get("position_embedding_type") == "alibi":
        return JINA_BERT_V2
    if name == "xlm-roberta" and raw.get("position_embedding_type") == "rotary":
        return JINA_V3
    if name == "xlm-roberta" and is_of_own_code:
        return XLM_ROBERTA_FLASH
    return find_family(name, where=where)


def find_family(name: str, *, where: str | None = None) -> Family:
    """Return the family with this `model_type`.

    Raises:
        CheckpointError: no family has it.
    """
    if isinstance(name, str) and name in ALL_FAMILIES:
        return ALL_FAMILIES[name]
    names = {one.replace("_", "-"): one for one in ALL_FAMILIES}
    correction = names.get(str(name).lower().replace("_", "-"))
    fix = f"Supported: {', '.join(ALL_FAMILIES)}."
    if correction is not None:
        fix = f"The nearest valid name is {correction!r}."
    raise CheckpointError(
        f"model_type {truncate_repr(name)} is not supported", where=where, fix=fix
    )


def family_of(config: EncoderConfig) -> Family:
    """Return the family of an encoder's configuration.

    Raises:
        CheckpointError: no family has that name.
    """
    return find_family(config.family)

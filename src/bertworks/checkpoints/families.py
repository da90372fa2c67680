"""All families of models."""

from __future__ import annotations

from ..errors import CheckpointError, did_you_mean
from ..nn.config import EncoderConfig
from .albert import ALBERT
from .bert import BERT, ERNIE, bert_classes, bert_dropped, bert_keys
from .distilbert import DISTILBERT
from .electra import ELECTRA
from .family import Family, key_map, layer_keys
from .gpt import GPT
from .modernbert import MODERNBERT
from .roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA

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
    )
}
"""The published families."""

_LAYER = "encoder.layers.{}"


def _layer_keys() -> dict[str, str | tuple[str, ...]]:
    """The tensor names of LSTMs, and of the two directions of two-way layers."""
    lstm = [f"recurrence.{kind}_l0" for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    found: dict[str, str | tuple[str, ...]] = {}
    for side in ("", ".forwards", ".backwards"):
        theirs = f"bert.encoder.layer.{{}}{side}"
        found |= {f"{_LAYER}{side}.{part}": f"{theirs}.{part}" for part in lstm}
        if side:
            keys = layer_keys(theirs).items()
            found |= {ours.replace(_LAYER, _LAYER + side): names for ours, names in keys}
    return found


_UNPUBLISHED = Family(
    name="bertworks",
    settings={name: name for name in EncoderConfig.model_fields if name != "family"},
    keys=key_map(
        {
            **bert_keys("bert"),
            **_layer_keys(),
            "encoder.final_norm": "bert.final_norm",
            "encoder.embeddings.projection": "bert.embeddings.projection",
            "encoder.embeddings.task_type_embeddings": "bert.embeddings.task_type_embeddings",
        }
    ),
    prefix="bert.",
    bare=("embeddings.", "encoder.", "pooler.", "final_norm."),
    classes=bert_classes("Bertworks"),
    dropped=bert_dropped("bert"),
)
"""A family for this package alone, with every setting that an encoder can have, also those that no
published family has, such as sinusoidal positions or LSTMs. Settings have our names, tensors have
BERT's; other tools cannot load it."""

KNOWN = {**FAMILIES, _UNPUBLISHED.name: _UNPUBLISHED}
"""All families, by name."""


def family_named(name: str, *, where: str | None = None) -> Family:
    """Return the family with this `model_type`.

    Raises:
        CheckpointError: no family has it.
    """
    if not isinstance(name, str) or name not in KNOWN:
        fix = did_you_mean(str(name), KNOWN) + "."
        raise CheckpointError(f"model_type {name!r} is not supported", where=where, fix=fix)
    return KNOWN[name]


def family_of(config: EncoderConfig) -> Family:
    """Return the family of an encoder's configuration.

    Raises:
        CheckpointError: no family has that name.
    """
    return family_named(config.family)

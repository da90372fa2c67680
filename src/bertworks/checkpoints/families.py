"""All the families."""

from __future__ import annotations

from ..errors import CheckpointError, nearest
from ..model.config import EncoderConfig
from .albert import ALBERT
from .bert import BERT, ERNIE
from .distilbert import DISTILBERT
from .electra import ELECTRA
from .family import Family
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


def family_named(name: str, *, where: str | None = None) -> Family:
    """The family whose `model_type` is this.

    Raises:
        CheckpointError: there is none.
    """
    if not isinstance(name, str) or name not in FAMILIES:
        fix = nearest(str(name), FAMILIES) + "."
        raise CheckpointError(f"model_type {name!r} is not supported", where=where, fix=fix)
    return FAMILIES[name]


def family_of(config: EncoderConfig) -> Family:
    """The family of a geometry.

    Raises:
        CheckpointError: there is none of that name.
    """
    return family_named(config.family)

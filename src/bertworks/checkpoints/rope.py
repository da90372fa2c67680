"""The settings of rotary positions in a `config.json`, in the forms of several years.

rope_theta, rope_scaling          numbers, as in `transformers` 4
rope_parameters                   a table of both, as in version 5; `rope_scaling` replaces it

The type "ntk" of `rope_scaling` is that of GTE's published code; `transformers` has no such type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..nn.config import EncoderConfig
from ..nn.part_settings import RopeScaling

NO_ROPE_SCALING = {"rope_parameters": None, "rope_scaling": None}
"""Required values of a family: what `flatten_rope` leaves is refused by its name."""


def flatten_rope(values: Mapping[str, Any], scaling: RopeScaling = "linear") -> dict[str, Any]:
    """Replace the tables of rotary positions by the values of `ROPE_SETTINGS`.

    Args:
        scaling: the type of tables that is read besides "default"; a table of another type stays.
    """
    result = dict(values)
    key = "rope_scaling" if values.get("rope_scaling") else "rope_parameters"
    table = values.get(key) or {}
    numbers = _read_table(table, values, scaling) if isinstance(table, Mapping) else None
    if numbers is not None:
        for name in NO_ROPE_SCALING:
            result.pop(name, None)
        result |= numbers
    return result


def _read_table(
    table: Mapping[str, Any], values: Mapping[str, Any], scaling: RopeScaling
) -> dict[str, Any] | None:
    """The values of a table; None if it is of another type."""
    kind = table.get("rope_type", table.get("type", "default"))
    known = {"rope_type", "type", "rope_theta", "factor", "partial_rotary_factor"}
    if not known.issuperset(table) or table.get("partial_rotary_factor") not in (None, 1.0):
        return None
    theta = table.get("rope_theta", values.get("rope_theta"))
    numbers = {} if theta is None else {"rope_theta": theta}
    if kind == "default":
        return {**numbers, "rope_factor": 1.0, "rope_scaling_type": "linear"}
    if kind == scaling and "factor" in table:
        return {**numbers, "rope_factor": table["factor"], "rope_scaling_type": kind}
    return None


ROPE_SETTINGS = {
    "rotary.theta": "rope_theta",
    "rotary.factor": "rope_factor",
    "rotary.scaling": "rope_scaling_type",
}
"""Our settings of rotary positions, and the keys of the values that `flatten_rope` returns."""


def write_rope(config: EncoderConfig) -> dict[str, Any]:
    """Return the entries of `config.json` for rotary positions, in the form of version 5."""
    table = {"rope_type": "default", "rope_theta": config.rotary.theta}
    if config.rotary.factor != 1:
        table |= {"rope_type": config.rotary.scaling, "factor": config.rotary.factor}
    return {"rope_parameters": table}

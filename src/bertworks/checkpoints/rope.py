"""The settings of rotary positions in a `config.json`, in the forms of several years.

rope_theta, rope_scaling          numbers, as in `transformers` 4
rope_parameters                   a table of both, as in version 5; `rope_scaling` replaces it
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NO_ROPE_SCALING = {"rope_parameters": None, "rope_scaling": None}
"""Required values of a family: what `flatten_rope` leaves is refused by its name."""


def flatten_rope(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the tables of rotary positions by the numbers `rope_theta` and `rope_factor`.

    They express the rope types "default" and "linear"; a table of another type stays.
    """
    result = dict(values)
    key = "rope_scaling" if values.get("rope_scaling") else "rope_parameters"
    table = values.get(key) or {}
    numbers = _read_table(table, values) if isinstance(table, Mapping) else None
    if numbers is not None:
        for name in NO_ROPE_SCALING:
            result.pop(name, None)
        result |= numbers
    return result


def _read_table(table: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any] | None:
    """The two numbers of a table; None if they cannot express it."""
    kind = table.get("rope_type", table.get("type", "default"))
    known = {"rope_type", "type", "rope_theta", "factor", "partial_rotary_factor"}
    if not known.issuperset(table) or table.get("partial_rotary_factor") not in (None, 1.0):
        return None
    theta = table.get("rope_theta", values.get("rope_theta"))
    numbers = {} if theta is None else {"rope_theta": theta}
    if kind == "default":
        return numbers
    if kind == "linear" and "factor" in table:
        return {**numbers, "rope_factor": table["factor"]}
    return None


def write_rope(theta: float, factor: float) -> dict[str, Any]:
    """Return the table of version 5 with these numbers."""
    if factor == 1:
        return {"rope_type": "default", "rope_theta": theta}
    return {"rope_type": "linear", "rope_theta": theta, "factor": factor}

"""Machines for which a pre-training run is estimated."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import SettingsError


@dataclass(frozen=True)
class Machine:
    """A machine for which a run is estimated."""

    name: str  # as the user gives it
    # operations per second of dense matrix products on one device, by precision, as the
    # manufacturer states them
    peak: Mapping[str, float]
    memory: float  # bytes of one device; 0 if unknown
    share: float  # of the peak that training reaches; assumed, but for cpu2
    devices: int = 1


MACHINES = {
    one.name: one
    for one in (
        Machine("h200", {"bf16": 989e12, "fp32": 67e12}, 141e9, 0.4),
        Machine("h100", {"bf16": 989e12, "fp32": 67e12}, 80e9, 0.4),
        Machine("a100", {"bf16": 312e12, "fp32": 19.5e12}, 80e9, 0.4),
        Machine("l4", {"bf16": 121e12, "fp32": 30.3e12}, 24e9, 0.4),
        # Two cores of AMD's Zen 4; peak and share measured (docs/scale.md).
        Machine("cpu2", {"bf16": 440e9, "fp32": 207e9}, 0, 0.5),
    )
}


def find_machine(name: str, share: float | None = None) -> Machine | None:
    """Return a machine by its name, such as `h100x8`; None for "here".

    Raises:
        SettingsError: the name is unknown, or `share` is not above 0 and at most 1.
    """
    if share is not None and not 0 < share <= 1:
        raise SettingsError(f"share={share} is not above 0 and at most 1")
    if name == "here":
        return None
    match = re.fullmatch(r"(\w+?)(?:x([1-9]\d{0,5}))?", name)
    if match is None or match[1] not in MACHINES:
        known = ", ".join(["here", *MACHINES])
        raise SettingsError(f"unknown machine {name!r}", fix=f"Valid: {known}; or h100x8.")
    one = MACHINES[match[1]]
    return Machine(name, one.peak, one.memory, share or one.share, int(match[2] or 1))

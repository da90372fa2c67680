"""What all tests share: where the real data lies, and one seed."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings
from jaxtyping import install_import_hook
from typer import testing

# Tests are small and may run side by side: threads that wait for one another cost far more than
# they bring. This must stand before torch is first imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The types and shapes that packs and the model declare are checked wherever a test uses them.
_CHECKED = (
    "packed",
    *(f"model.{name}" for name in ("attention", "cpu", "embeddings", "encoder", "heads", "layers")),
    *(f"model.{name}" for name in ("memory", "pooling", "rotary")),
)
install_import_hook([f"bertworks.{name}" for name in _CHECKED], "beartype.beartype")

# A machine that is busy with something else is no fault of the code.
settings.register_profile("bertworks", deadline=None)
settings.load_profile("bertworks")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def auto_is_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """`precision=auto` is fp32 on every machine, so that tests compare float32 numbers."""
    monkeypatch.setattr("bertworks.model.device.is_fast_at_bfloat16", lambda _: False)


@pytest.fixture(autouse=True)
def auto_is_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """`device=auto` is the CPU on every machine, so that tests compare its bits."""
    import torch

    monkeypatch.setattr("bertworks.model.device.fastest_device", lambda: torch.device("cpu"))


def _not_synchronised(descriptor: int) -> None:
    """As `os.fsync`, without its wait for the disk."""
    os.fstat(descriptor)  # an error for what is not open


# What is not synchronised is lost in a crash of the machine alone, which `crashes.py` simulates.
os.fsync = _not_synchronised


# For each command line typer builds all verbs anew, which takes longer than most of them do.
testing._get_command = cache(testing._get_command)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data; where it is absent, tests that need it are skipped and say so."""
    directory = Path(os.environ.get("BERTWORKS_DATA", ROOT.parent / "shared" / "data"))
    if not directory.is_dir():
        pytest.skip(f"no real data at {directory}: set BERTWORKS_DATA")
    return directory

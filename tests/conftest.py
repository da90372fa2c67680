"""What all tests share: where the real data lies, and one seed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings
from jaxtyping import install_import_hook

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
    monkeypatch.setattr("bertworks.model.precision.is_fast_at_bfloat16", lambda _: False)


@pytest.fixture
def no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As without matplotlib: a report's charts take longer than most of the tests' runs."""
    monkeypatch.setattr("bertworks.training.report.charts.can_draw", lambda: False)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data; where it is absent, tests that need it are skipped and say so."""
    directory = Path(os.environ.get("BERTWORKS_DATA", ROOT.parent / "shared" / "data"))
    if not directory.is_dir():
        pytest.skip(f"no real data at {directory}: set BERTWORKS_DATA")
    return directory

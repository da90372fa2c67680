"""What all tests share: where the real data lies, and one seed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data; tests that need it are skipped, with a reason, where it is absent."""
    directory = Path(os.environ.get("BERTWORKS_DATA", ROOT.parent / "shared" / "data"))
    if not directory.is_dir():
        pytest.skip(f"no real data at {directory}: set BERTWORKS_DATA")
    return directory

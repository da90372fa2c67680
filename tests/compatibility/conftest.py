"""A copy of the fixtures to work in."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from . import look


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fixtures, copied: what resumes writes there."""
    copy = tmp_path_factory.mktemp("fixtures") / look.DIRECTORY.name
    return shutil.copytree(look.DIRECTORY, copy, symlinks=True)


@pytest.fixture(autouse=True)
def _in_root(root: Path) -> Iterator[None]:
    """Work where the relative paths of the runs' settings lead, on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with look.working_in(root):
        yield
    torch.set_num_threads(before)

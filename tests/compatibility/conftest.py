"""A copy of the fixtures to work in, and the conditions under which numbers must be equal."""

from __future__ import annotations

import json
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


@pytest.fixture
def same_conditions() -> bool:
    """Whether the processor and the libraries are those that the fixtures were made with.

    Where they are, every bit must be the same. Elsewhere sums of floats are made in another order,
    and numbers are compared with a tolerance.
    """
    made = json.loads((look.DIRECTORY / "conditions.json").read_bytes())
    return bool(made == look.conditions())

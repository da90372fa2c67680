"""A name of a model that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertworks.checkpoints.locate import locate
from bertworks.errors import CheckpointError

from .test_store import tiny


def test_misspelt_directory_suggests_a_readable_neighbour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A neighbour that belongs to another user is not looked into."""
    tiny().save(tmp_path / "model")
    (tmp_path / "modem").mkdir()
    exists = Path.exists

    def exists_or_raises(path: Path) -> bool:
        if tmp_path / "modem" in path.parents:
            raise PermissionError(13, "Permission denied", str(path))
        return exists(path)

    monkeypatch.setattr(Path, "exists", exists_or_raises)
    with pytest.raises(CheckpointError, match=r"Did you mean '.*/model'"):
        locate(tmp_path / "mode")

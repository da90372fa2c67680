"""A name of a model that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertworks.checkpoints.locate import locate
from bertworks.checkpoints.weight_files import digest_weights, list_weight_files
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


def test_weights_of_a_folder_are_of_one_format(tmp_path: Path) -> None:
    files = ("model.safetensors", "pytorch_model.bin", "2_Dense/pytorch_model.bin", "3/a.h5")
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    names = [file.relative_to(tmp_path).as_posix() for file in list_weight_files(tmp_path)]
    assert names == ["2_Dense/pytorch_model.bin", "3/a.h5", "model.safetensors"]
    digest = digest_weights(tmp_path)
    (tmp_path / "2_Dense" / "pytorch_model.bin").write_bytes(b"other")
    assert digest_weights(tmp_path) != digest

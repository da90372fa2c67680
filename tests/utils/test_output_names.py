"""What `--overwrite` may delete, and what the hub gives: all files that we write or read."""

from __future__ import annotations

import os
from fnmatch import fnmatch
from pathlib import Path

import pytest

from bertworks.analysis.retrieval import index
from bertworks.checkpoints import locate
from bertworks.inference import window_files
from bertworks.text import file_names
from bertworks.utils.output_names import foreign_file

SAVED_MODELS = Path(__file__).parents[1] / "saved_models"


@pytest.mark.parametrize("name", sorted(file_names.FILES))
def test_files_of_tokenizers_are_our_own_and_are_loaded_from_the_hub(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text("")
    assert foreign_file(tmp_path) is None
    assert any(fnmatch(name, pattern) for pattern in locate._HUB_FILES)


@pytest.mark.parametrize(
    "name", sorted(path.name for path in SAVED_MODELS.iterdir() if path.is_dir())
)
def test_saved_models_have_only_our_own_files(name: str) -> None:
    assert foreign_file(SAVED_MODELS / name) is None


@pytest.mark.parametrize(
    "name", ["teacher.npy", index._VECTORS, index._SPARSE_VECTORS, index._TOKEN_VECTORS]
)
def test_files_of_vectors_are_our_own(name: str, tmp_path: Path) -> None:
    out = tmp_path / name
    paths = (window_files.manifest_path, window_files.journal_path, window_files._part_path)
    for path in (out, *(path_of(out) for path_of in paths)):
        path.write_text("")
        assert foreign_file(tmp_path) is None


def test_a_file_of_another_program_is_foreign(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("")
    (tmp_path / "thesis.tex").write_text("")
    assert foreign_file(tmp_path) == "thesis.tex"


def test_a_pipe_in_place_of_a_card_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "README.md")
    with pytest.raises(OSError, match="not a regular file"):
        foreign_file(tmp_path)

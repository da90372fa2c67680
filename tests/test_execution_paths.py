"""The ways of a text, a request and a row through the package do not become longer."""

from __future__ import annotations

import pytest

from tests.execution_paths import PATHS

# Numbers of files. Lower a limit when a way becomes shorter.
_LIMITS = {"text": 14, "request": 19, "row": 33}


@pytest.mark.long
@pytest.mark.parametrize("path", _LIMITS)
def test_a_path_passes_through_no_more_files_than_before(path: str) -> None:
    files = PATHS[path]()
    assert len(files) <= _LIMITS[path], "\n".join(files)

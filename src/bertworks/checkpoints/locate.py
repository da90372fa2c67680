"""Where a model's files are: in a directory, in a run, or on the Hugging Face hub."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import CheckpointError, check_name

_HUB_FILES = ("*.json", "1_Pooling/*.json", "*.txt", "*.model")
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


def local_directory(name: str | Path) -> Path | None:
    """The directory of a model that is here, in a run or by itself; None if there is none."""
    path = Path(name)
    if not path.is_dir():
        return None
    is_run = (path / "model" / "config.json").is_file()
    return path / "model" if is_run and not (path / "config.json").exists() else path


def locate(name: str | Path, *, weights: bool = True) -> Path:
    """The directory of a model: here, in a run, or fetched from the Hugging Face hub.

    Args:
        name: its path, or its name on the hub.
        weights: fetch the weights as well.

    Raises:
        CheckpointError: there is none of that name.
        DataError: the name is not UTF-8.
    """
    check_name(name)
    if (here := local_directory(name)) is not None:
        return here
    if Path(name).exists():
        raise CheckpointError("is a file, not a model's directory", where=str(name))
    if not re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", str(name)):
        raise CheckpointError("no such directory", where=str(name))
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    wanted = [*_HUB_FILES, *(_WEIGHTS if weights else ())]
    try:
        return Path(snapshot_download(str(name), allow_patterns=wanted))
    except RepositoryNotFoundError:
        problem = "no such directory here, and no such model on the hub"
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError):
        problem = "no such directory here, and the hub cannot be reached"
    raise CheckpointError(problem, where=str(name))

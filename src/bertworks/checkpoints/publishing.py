"""Publish a saved model on the Hugging Face hub: plan what is sent, then send it.

Only the files of a model are sent. A run's checkpoints and journal, predictions, and whatever else
is in the directory stay here: they may hold paths, texts or keys.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ..errors import CheckpointError, DataError, OutputError, first_line
from .card_usage import read_card
from .locate import check_model, local_directory
from .saving import is_other_file

_FURTHER = re.compile(
    r"model\.onnx|bert_config\.json|bert_model\.ckpt\.[\w.-]+"
    r"|model-\d+-of-\d+\.safetensors|model\.safetensors\.index\.json"
    r"|(LICENSE|NOTICE)(\.txt|\.md)?"
)
"""Files of other layouts, and those on the licence."""

_WEIGHTS = re.compile(r"(0_\w+/)?model\S*\.safetensors|model\.onnx|bert_model\.ckpt\.data.+")

# The hub forbids "--" and ".." too, and a "-" or "." at an end.
_NAME = re.compile(r"(?!.*(--|\.\.))(\w([\w.-]*\w)?/)?\w([\w.-]*\w)?", re.ASCII)


@dataclass(frozen=True)
class Publication:
    """What is sent to the hub.

    Attributes:
        directory: the model's.
        name: the name on the hub, with its owner.
        files: the bytes of each file, by its path.
        left_out: the paths of all other files.
    """

    directory: Path
    name: str
    files: Mapping[str, int]
    left_out: Sequence[str]

    @classmethod
    def plan(cls, model: str | Path, name: str) -> Self:
        """Return what would be sent; nothing is sent, and the hub is not asked.

        Args:
            model: a directory, a run's, or a bundled model.
            name: `OWNER/NAME`, or `NAME` for the owner of the token.

        Raises:
            CheckpointError: there is no such model here, or its weights have no format that may be
                published.
            DataError: the hub has no such names.
        """
        if not _NAME.fullmatch(name):
            fix = "Use OWNER/NAME, of letters, digits, '-', '_' and '.'."
            raise DataError("is no name of a model on the hub", where=name, fix=fix)
        directory = local_directory(model)
        if directory is None:
            raise CheckpointError("no such directory here", where=str(model))
        check_model(directory)
        sizes, left_out = {}, []
        for folder, _, names in sorted(os.walk(directory)):
            for file in sorted(Path(folder, one) for one in names):
                path = file.relative_to(directory).as_posix()
                if is_other_file(path) and not _FURTHER.fullmatch(path):
                    left_out.append(path)
                elif not file.name.startswith("."):
                    _check_file(file, directory)
                    sizes[path] = file.stat().st_size
        if not any(_WEIGHTS.fullmatch(path) for path in sizes):
            fix = f"Convert it first: bertworks convert {model} DIR."
            raise CheckpointError("has no weights in safetensors", where=str(directory), fix=fix)
        return cls(directory, name, sizes, left_out)

    @property
    def license(self) -> str | None:
        """The licence that the model card gives; None if it gives none."""
        card = read_card(self.directory)
        value = None if card is None else card.metadata.get("license")
        return None if value is None else str(value)

    def send(self, *, public: bool) -> str:
        """Create the model on the hub if it does not exist, and send all files in one commit.

        Args:
            public: whether a new model is public.

        Returns:
            The model's address.

        Raises:
            OutputError: there is no token, the hub refuses it, or it cannot be reached.
        """
        from huggingface_hub import CommitOperationAdd, HfApi, get_token
        from huggingface_hub.errors import HfHubHTTPError

        token = get_token()
        if token is None:
            fix = "Log in (hf auth login), or set HF_TOKEN."
            raise OutputError("there is no token of the hub", where=self.name, fix=fix)
        api = HfApi(token=token)
        http_error: type[Exception] = HfHubHTTPError.__bases__[0]
        operations = [
            CommitOperationAdd(path_in_repo=path, path_or_fileobj=str(self.directory / path))
            for path in self.files
        ]
        try:
            repository = api.create_repo(self.name, private=not public, exist_ok=True)
            api.create_commit(
                repository.repo_id, operations, commit_message="Add a model of bertworks"
            )
        except HfHubHTTPError as error:
            raise self._refusal(error) from None
        # The error of its HTTP library; a file whose upload fails is a RuntimeError.
        except (OSError, RuntimeError, http_error) as error:
            if isinstance(error.__cause__, HfHubHTTPError):
                raise self._refusal(error.__cause__) from None
            reason = first_line(error.__cause__ or error)
            what = f"the upload failed ({reason})"
            raise OutputError(what, where=self.name, fix="Run the same command again.") from None
        return str(repository)

    def _refusal(self, error: Any) -> OutputError:
        """Return the error for an answer of the hub."""
        status: int = error.response.status_code
        fixes = {
            401: "The token is not valid: log in again (hf auth login), or set another HF_TOKEN.",
            403: "The token may not write there: give another name, or a token that may write.",
        }
        reason = getattr(error, "server_message", None) or first_line(error)
        what = f"the hub refuses it ({status}: {' '.join(str(reason).split())})"
        return OutputError(what, where=self.name, fix=fixes.get(status, "Try again later."))


def _check_file(file: Path, directory: Path) -> None:
    """Check that a file is one of the model's, and not a link to something else.

    Raises:
        CheckpointError: it is not a file, or a link that leaves the directory. In the hub's cache,
            files are links to the model's `blobs`.
    """
    places = (directory.resolve(), directory.absolute().parent.parent / "blobs")
    if not file.is_file():
        raise CheckpointError("is no file", where=str(file), fix="Remove it.")
    if file.is_symlink() and not any(file.resolve().is_relative_to(place) for place in places):
        what = "is a link to a file outside of the model"
        raise CheckpointError(what, where=str(file), fix="Copy the file, if it may be published.")

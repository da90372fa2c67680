"""Find a model's files: in the package, in a directory, in a run directory, or on the hub."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from ..errors import BertworksWarning, CheckpointError, check_path_name, closest_name
from ..utils.remote import fetch_folder, is_remote

BUNDLED_MODELS = {"mini": "mini", "mini-sentences": "mini_sentences"}
"""The bundled models (`docs/mini.md`, `docs/mini-sentences.md`): the folder of each, by name."""

ADAPTER_CONFIG = "adapter_config.json"
_CONFIGURATIONS = ("config.json", "bert_config.json", "modules.json", ADAPTER_CONFIG)
"""Files of which each model has one: also the original release's, static models', adapters'."""
# * matches / too.
_HUB_FILES = ("*.json", "*.txt", "*.model", "*.codes", "artifact.metadata", "README.md")
_WEIGHTS = ("*.safetensors", "adapter_model.bin", "*/pytorch_model.bin")
_NOT_READ = "checkpoint-*/*"  # of a Trainer
_OTHER_WEIGHTS = (
    ("pytorch_model.bin", "pytorch_model-*.bin"),
    ("tf_model*.h5",),
    ("*.index", "*.data-*"),
)
"""Files that are downloaded if the encoder has no weights of those before them."""


def local_directory(name: str | Path) -> Path | None:
    """Return the directory of a local model: a bundled one, a run's, or a saved one.

    Args:
        name: a path, or a key of `BUNDLED_MODELS`, such as "mini". To name a local directory
            `mini`, give "./mini" or a `Path`.

    Returns:
        None if there is none.
    """
    if isinstance(name, str) and name in BUNDLED_MODELS:
        return Path(__file__).parent / "bundled" / BUNDLED_MODELS[name]
    path = Path(name)
    if not path.is_dir():
        return None
    is_run = (path / "model" / "config.json").is_file()
    return path / "model" if is_run and not (path / "config.json").exists() else path


_HUB_PAGE = re.compile(
    r"https?://?(?:www\.)?(?:huggingface\.co|hf\.co)/"
    r"(?:(?!(?:datasets|spaces|models|docs|blog)\b)"
    r"([\w.-]+(?:/(?!(?:tree|blob|resolve|discussions|commits)\b)[\w.-]+)?))?"
)


def locate(name: str | Path, *, weights: bool = True) -> Path:
    """Return the directory of a model: bundled, local, a run's, or downloaded from the hub.

    Args:
        name: as for `local_directory`, or a name on the Hugging Face hub; or a directory on
            another file system, `s3://…`, which is copied to a cache.
        weights: whether to download the weights too.

    Raises:
        CheckpointError: there is no model with that name.
        DataError: the name is not UTF-8, or another file system cannot be reached.
    """
    check_path_name(name)
    if page := _HUB_PAGE.match(str(name)):
        what = "is a page of the hub, not a model's name"
        fix = f"Give the name: {page[1]}." if page[1] else None
        raise CheckpointError(what, where=str(name), fix=fix)
    if is_remote(name):
        copy = fetch_folder(str(name))
        return local_directory(copy) or copy
    if isinstance(name, str) and name in BUNDLED_MODELS and (Path(name) / "config.json").exists():
        warnings.warn(
            f"{name} is the model inside the package; the directory here is ./{name}",
            BertworksWarning,
            stacklevel=2,
        )
    if (here := local_directory(name)) is not None:
        _check_finished(here)
        return here
    if Path(name).exists():
        raise CheckpointError("is a file, not a model's directory", where=str(name))
    if not re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", str(name)):
        raise _no_model("no such directory", name)
    return _download(str(name), weights=weights)


def _download(name: str, *, weights: bool) -> Path:
    """Download a model's files from the hub, with the weights in one format; or find the copy."""
    from huggingface_hub import errors, snapshot_download

    from .sentence_directory import transformer_directory
    from .static import static_directory

    # That of its HTTP client, which differs among its versions.
    http_error: type[Exception] = getattr(errors, "HTTPError", errors.HfHubHTTPError)
    files = [*_HUB_FILES, *(_WEIGHTS if weights else ())]
    try:
        directory = Path(snapshot_download(name, allow_patterns=files, ignore_patterns=_NOT_READ))
        if not weights or is_adapter(directory):
            return directory
        encoder = static_directory(directory) or transformer_directory(directory)
        previous: Sequence[str] = ("model.safetensors", "model.safetensors.index.json")
        for patterns in _OTHER_WEIGHTS:
            if any(chain.from_iterable(map(encoder.glob, previous))):
                break
            snapshot_download(name, allow_patterns=[*patterns])
            previous = patterns
        return directory
    except errors.HFValidationError:
        problem = "no such directory here, and not a valid name on the hub"
    except errors.GatedRepoError:
        what = "the hub gives this model only to those who may use it"
        fix = "Ask for access on its page; then set HF_TOKEN, or log in with `hf auth login`."
        raise CheckpointError(what, where=name, fix=fix) from None
    except errors.RepositoryNotFoundError:
        problem = "no such directory here, and no such model on the hub"
    except (http_error, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of this machine, such as a full disk
        problem = "no such directory here, and the hub cannot be reached"
    raise _no_model(problem, name)


def is_adapter(directory: Path) -> bool:
    """Whether a directory holds an adapter of the `peft` library, and no model."""
    return (directory / ADAPTER_CONFIG).exists() and not (directory / "config.json").exists()


def locate_with_adapter(
    name: str | Path, base: str | Path | None = None
) -> tuple[Path, Path | None]:
    """Return the directory of a model, and that of an adapter of it, if the name is an adapter's.

    Args:
        base: the base model of an adapter; the one that its files name if omitted.

    Raises:
        CheckpointError: as `locate`; or a base is given for a whole model.
    """
    directory = locate(name)
    if is_adapter(directory):
        from .peft_adapters import base_name

        return locate(base or base_name(directory)), directory
    if base is not None:
        raise CheckpointError("is no adapter", where=str(name), fix="Leave base out.")
    return directory, None


def locate_transformer(name: str | Path) -> Path:
    """Return the directory of a model's encoder and tokenizer; see `locate`.

    It may be a part of the model's directory, as in older versions of sentence-transformers.
    """
    from .sentence_directory import transformer_directory

    return transformer_directory(locate(name))


def check_model(directory: Path) -> None:
    """Check that a local directory holds a model, without reading its files.

    Raises:
        CheckpointError: it has no configuration; or it is that of a run that has no model yet.
    """
    _check_finished(directory)
    if not _holds_model(directory):
        raise CheckpointError(
            f"there is no {_CONFIGURATIONS[0]}",
            where=str(directory),
            fix="Is it a model's directory?",
        )


def _holds_model(directory: Path) -> bool:
    return any((directory / name).exists() for name in _CONFIGURATIONS)


def _may_be_opened(path: Path) -> bool:
    try:
        return _holds_model(local_directory(path) or path)
    except OSError:  # a directory of another user
        return False


def _check_finished(directory: Path) -> None:
    """Raise a CheckpointError for the directory of a run that has no model yet."""
    is_run = (directory / "settings.yaml").is_file() and (directory / "journal.jsonl").is_file()
    if not is_run or (directory / "config.json").exists() or (directory / "model").exists():
        return
    names = [path.name for path in (directory / "checkpoints").glob("step-*")]
    reached = f" after step {int(max(names).removeprefix('step-')):,}" if names else ""
    raise CheckpointError(
        f"the run was stopped{reached}, and its model is written at the end",
        where=str(directory),
        fix="Run its command again: it resumes and writes the model.",
    )


def _no_model(problem: str, name: str | Path) -> CheckpointError:
    fix = "Bundled models: mini, a small BERT, and mini-sentences, for sentence vectors."
    path = Path(name)
    others = {other.name: str(other) for other in path.parent.glob("*") if _may_be_opened(other)}
    if str(name) == path.name:
        others |= {bundled: bundled for bundled in BUNDLED_MODELS}
    close = closest_name(path.name, others)
    if close is not None:
        fix = f"Did you mean {others[close]!r}? {fix}"
    return CheckpointError(problem, where=str(name), fix=fix)

"""The parts of a model that sentence-transformers saved: their kinds, places and limits of tokens.

modules.json                          the parts: a transformer, a pooling, modules that follow it
sentence_bert_config.json             the maximum number of tokens of a text
config_sentence_transformers.json     prompts by name, and the name of the default prompt
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from ..errors import BertworksWarning, CheckpointError, truncate_repr
from ..settings.literals import SimilarityFunction
from ..text.tokenizer import Tokenizer
from ..utils.json_files import parse_json
from ..utils.regular_files import read_bytes
from .router import KINDS as ROUTERS
from .router import Route, read_route
from .sentence_settings import SentenceSettings
from .weight_files import read_json

_LIMITS = (
    "sentence_bert_config.json",
    *(
        f"sentence_{name}_config.json"
        for name in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
    ),
)
"""Files that may hold the limit of tokens, the first that exists; old sentence-transformers named
them by the model's family."""
TRANSFORMERS = ("Transformer", "MLMTransformer")
SPARSE_STATIC = "SparseStaticEmbedding"
"""The module whose vectors are the weights of a text's pieces."""
_STATIC_KINDS = ("StaticEmbedding", SPARSE_STATIC)


def read_modules(directory: Path, route: Route = "document") -> list[tuple[str, Path]]:
    """The kinds and paths of a model's parts; none if sentence-transformers did not save it.

    Args:
        route: whose modules replace a router.
    """
    file = directory / "modules.json"
    if not file.exists():
        return []
    try:
        modules = parse_json(read_bytes(file))
        parts = [(module["type"].rpartition(".")[2], Path(module["path"])) for module in modules]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"is not a list of modules ({error})", where=str(file)) from None
    _check_paths(parts, file)
    numbers = [number for number, (kind, _) in enumerate(parts) if kind in ROUTERS]
    if len(numbers) > 1:
        raise CheckpointError("has several routers, which is not supported", where=str(file))
    for number in numbers:
        _, router = parts[number]
        route_parts = read_route(directory / router, route)
        _check_paths(route_parts, directory / router)
        parts[number : number + 1] = [(kind, router / path) for kind, path in route_parts]
    return parts


def _check_paths(parts: Sequence[tuple[str, Path]], file: Path) -> None:
    if any(path.is_absolute() or ".." in path.parts for _, path in parts):
        raise CheckpointError("names a path outside its directory", where=str(file))


def has_query_route(directory: Path) -> bool:
    """Whether a model has other modules for queries than for documents.

    Raises:
        CheckpointError: a file is damaged.
    """
    return read_modules(directory, "query") != read_modules(directory, "document")


def transformer_directory(directory: Path, route: Route = "document") -> Path:
    """The directory of a model's transformer: its own, or a part's, such as `0_Transformer`.

    It is also that of a static model which is one of several routes.

    Raises:
        CheckpointError: a file is damaged.
    """
    parts = read_modules(directory, route)
    kinds: tuple[str, ...] = TRANSFORMERS
    if has_query_route(directory):
        kinds = (*kinds, *_STATIC_KINDS)
    paths = [path for kind, path in parts if kind in kinds]
    return directory / paths[0] if paths else directory


def read_limits(directory: Path) -> Mapping[str, Any]:
    """The content of the file with a transformer's limit of tokens; empty if there is none.

    Raises:
        CheckpointError: it is damaged, or has settings of the tokenizer, which are not supported.
    """
    files_of_limits = (directory / name for name in _LIMITS)
    file = next((file for file in files_of_limits if file.exists()), None)
    limits = {} if file is None else read_json(file)
    options = limits.get("processing_kwargs") or {}
    if not isinstance(options, Mapping) or options.get("text") or options.get("common"):
        raise CheckpointError(
            f"processing_kwargs is {truncate_repr(options)}, which is not supported",
            where=str(file),
            fix="Remove it, if texts are to be read without these settings.",
        )
    return limits


def lowers_case(directory: Path, route: Route = "document") -> bool:
    """Whether sentence-transformers' files say that texts are converted to lower case.

    Raises:
        CheckpointError: a file is damaged.
    """
    parts = read_modules(directory, route)
    return any(
        bool(read_limits(directory / path).get("do_lower_case"))
        for kind, path in parts
        if kind in TRANSFORMERS
    )


def read_tokenizer(path: Path) -> Tokenizer:
    """Load the tokenizer of a model's directory, as it reads texts; or a tokenizer by itself.

    Raises:
        CheckpointError, DataError: there is none, or a file is damaged.
    """
    if not path.is_dir():
        return Tokenizer.load(path)
    tokenizer = Tokenizer.load(transformer_directory(path))
    return tokenizer.to_lowercase() if lowers_case(path) else tokenizer


def read_max_seq_length(directory: Path, route: Route = "document") -> int | None:
    """Read the limit of tokens of a model that sentence-transformers saved; None if it has none.

    Raises:
        CheckpointError: a file is damaged.
    """
    for kind, path in read_modules(directory, route):
        limits = read_limits(directory / path) if kind in TRANSFORMERS else {}
        limit = limits.get("max_seq_length")
        if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0:
            return limit
    return None


def with_limit(
    settings: SentenceSettings | None, limit: int, positions: int, *, where: str
) -> SentenceSettings | None:
    """Return the settings, if any, with a limit on a text's tokens that the encoder can compute.

    Some published files have a limit above the positions (514, which counts RoBERTa's offset);
    sentence-transformers opens them, and fails only at a text that is too long.

    Args:
        limit: the tokenizer's limit, or the positions if those are fewer.
        positions: the most tokens of the encoder.
        where: the model, for the warning about a limit above the positions.
    """
    if settings is None:
        return None
    own = settings.max_seq_length
    if own is None:
        return settings.with_values(max_seq_length=limit) if limit < positions else settings
    if own <= positions:
        return settings
    warnings.warn(
        f"{where}: texts may have {positions} tokens, since the model has that many positions, "
        f"not {own} as its max_seq_length says",
        BertworksWarning,
        stacklevel=3,
    )
    return settings.with_values(max_seq_length=positions)


def read_entries(file: Path, *, is_late: bool = False) -> dict[str, Any]:
    """The file's content, after a check of its similarity function, prompts and `truncate_dim`.

    Args:
        is_late: whether late interaction's function is one; other models are then not refused.
    """
    entries = dict(read_json(file))
    function, functions = entries.get("similarity_fn_name"), get_args(SimilarityFunction)
    plain = [name for name in functions if name != "maxsim"]
    if not is_late and function not in (None, *plain):
        raise CheckpointError(
            f"similarity_fn_name is {truncate_repr(function)}, which is not supported",
            where=str(file),
            fix=f"Set it to one of {', '.join(plain)}, or remove it: then cosines are used.",
        )
    prompts, default = entries.get("prompts") or {}, entries.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(one, str) for one in prompts.values()):
        raise CheckpointError("has prompts that are not texts by name", where=str(file))
    if default is not None and default not in prompts:
        raise CheckpointError(
            f"default_prompt_name is {default!r}, which is not one of the prompts",
            where=str(file),
            fix="Set it to null, or add the prompt.",
        )
    dimensions = entries.get("truncate_dim")
    if dimensions is not None and (type(dimensions) is not int or dimensions < 1):
        what = f"truncate_dim is {truncate_repr(dimensions)}, not a number from 1"
        raise CheckpointError(what, where=str(file))
    return entries

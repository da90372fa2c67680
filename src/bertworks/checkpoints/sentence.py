"""Sentence encoders in the layout of sentence-transformers: `modules.json` and its parts' files.

modules.json                          the parts: a transformer, a pooling, perhaps a normalisation
sentence_bert_config.json             the maximum number of tokens of a text
1_Pooling/config.json                 how token vectors are pooled
config_sentence_transformers.json     prompts by name, and the name of the default prompt
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from pydantic import Field

from ..errors import BertworksWarning, CheckpointError, truncate_repr
from ..settings.base import Settings
from ..settings.literals import SimilarityFunction
from ..utils.json_files import parse_json, write_json
from ..utils.regular_files import read_bytes
from .weights import read_json

SentencePooling = Literal["mean", "cls", "max", "mean-sqrt", "weighted-mean", "sep"]
"""The poolings for which this layout has a name; see `nn.pooling`."""

_MODES: Mapping[str, SentencePooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean-sqrt",
    "pooling_mode_weightedmean_tokens": "weighted-mean",
    "pooling_mode_lasttoken": "sep",
}
# Their names in version 5.
_NAMES: Mapping[str, SentencePooling] = {
    "mean": "mean",
    "cls": "cls",
    "max": "max",
    "mean_sqrt_len_tokens": "mean-sqrt",
    "weightedmean": "weighted-mean",
    "lasttoken": "sep",
}
_MODULES = "sentence_transformers.models"
_LIMITS = (
    "sentence_bert_config.json",
    *(
        f"sentence_{name}_config.json"
        for name in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
    ),
)
"""Files that may hold the limit of tokens, the first that exists; old sentence-transformers named
them by the model's family."""
_POOLING, _CONFIG = "1_Pooling/config.json", "config_sentence_transformers.json"
FILES = frozenset({"modules.json", "sentence_bert_config.json", "1_Pooling", _POOLING, _CONFIG})
"""The files and directories that `write_sentence_settings` writes."""

PromptRole = Literal["text", "query", "document"]
_ROLES: Mapping[PromptRole, tuple[str, ...]] = {
    "text": (),
    "query": ("query",),
    "document": ("document", "passage", "corpus"),
}


class SentenceSettings(Settings):
    """How a sentence encoder computes the vector of a text."""

    pooling: SentencePooling = "mean"
    normalize: bool = Field(False, description="whether vectors have length 1")
    max_seq_length: int | None = Field(None, ge=1, description="the most tokens of a text")
    entries: dict[str, Any] = Field({}, description=f"the content of {_CONFIG}")

    def prompt(self, role: PromptRole = "text") -> str:
        """Return the prefix of each text, chosen as sentence-transformers does.

        Args:
            role: queries and documents may have separate prompts; otherwise the default prompt
                is used, if there is one.
        """
        prompts: Mapping[str, str] = self.entries.get("prompts") or {}
        texts = [prompts[name] for name in _ROLES[role] if name in prompts]
        default = self.entries.get("default_prompt_name")
        return next(iter(texts), "" if default is None else prompts[default])

    @property
    def similarity_function(self) -> SimilarityFunction:
        """The function that compares vectors; the cosine if the files name none."""
        function: SimilarityFunction = self.entries.get("similarity_fn_name") or "cosine"
        return function


def read_sentence_settings(directory: Path, *, lowercase: bool) -> SentenceSettings | None:
    """Read a directory's sentence settings; None if it does not hold a sentence encoder.

    Args:
        lowercase: whether its tokenizer converts texts to lower case.

    Raises:
        CheckpointError: a file is missing or damaged, or a part is not supported.
    """
    parts = _read_modules(directory)
    if not parts or [kind for kind, _ in parts] == ["Transformer"]:  # a cross-encoder has its head
        return None
    file = directory / "modules.json"
    values: dict[str, Any] = {}
    for kind, path in parts:
        if kind == "Transformer":
            file_of_limits = _limits_file(directory / path)
            if file_of_limits is not None:
                limits = read_json(file_of_limits)
                values["max_seq_length"] = limits.get("max_seq_length")
                if limits.get("do_lower_case") and not lowercase:
                    raise CheckpointError(
                        "do_lower_case is not supported where the tokenizer keeps capitals",
                        where=str(file_of_limits),
                        fix="If the tokenizer is BERT's, set lowercase to true and strip_accents "
                        "to false in tokenizer.json, under normalizer, and do_lower_case and "
                        "strip_accents likewise in tokenizer_config.json.",
                    )
        elif kind == "Pooling":
            values["pooling"] = _read_pooling(directory / path / "config.json")
        elif kind == "Normalize":
            values["normalize"] = True
        else:
            raise CheckpointError(f"the module {kind!r} is not supported", where=str(file))
    if (directory / _CONFIG).exists():
        poolings = [directory / path / "config.json" for kind, path in parts if kind == "Pooling"]
        values["entries"] = _read_entries(directory / _CONFIG, poolings)
    return SentenceSettings.parse(values, where=str(file))


def with_limit(
    settings: SentenceSettings, limit: int, positions: int, *, where: str
) -> SentenceSettings:
    """Return the settings with a limit on a text's tokens that the encoder can compute.

    Some published files have a limit above the positions (514, which counts RoBERTa's offset);
    sentence-transformers opens them, and fails only at a text that is too long.

    Args:
        limit: the tokenizer's limit, or the positions if those are fewer.
        positions: the most tokens of the encoder.
        where: the model, for the warning about a limit above the positions.
    """
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


def read_max_seq_length(directory: Path) -> int | None:
    """Read the limit of tokens of a model that sentence-transformers saved; None if it has none.

    Raises:
        CheckpointError: a file is damaged.
    """
    for kind, path in _read_modules(directory):
        file = _limits_file(directory / path) if kind == "Transformer" else None
        limit = None if file is None else read_json(file).get("max_seq_length")
        if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0:
            return limit
    return None


def _read_modules(directory: Path) -> list[tuple[str, Path]]:
    """The kinds and paths of a model's parts; none if sentence-transformers did not save it."""
    file = directory / "modules.json"
    if not file.exists():
        return []
    try:
        modules = parse_json(read_bytes(file))
        parts = [(module["type"].rpartition(".")[2], Path(module["path"])) for module in modules]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"is not a list of modules ({error})", where=str(file)) from None
    if any(path.is_absolute() or ".." in path.parts for _, path in parts):
        raise CheckpointError("names a path outside its directory", where=str(file))
    return parts


def _limits_file(directory: Path) -> Path | None:
    """The file with a transformer's limit of tokens, if there is one."""
    files_of_limits = (directory / name for name in _LIMITS)
    return next((file for file in files_of_limits if file.exists()), None)


class CrossEncoder(NamedTuple):
    """How sentence-transformers saved a classifier of pairs of texts.

    Attributes:
        activation: the class of the activation after the classifier; None if none is named.
    """

    activation: str | None


_OLD_ACTIVATION_KEY = "sbert_ce_default_activation_function"


def read_cross_encoder(directory: Path, config: Mapping[str, Any]) -> CrossEncoder | None:
    """Read the marks of a cross-encoder; None if sentence-transformers did not save one.

    Args:
        config: its `config.json`, where versions before 6 store the activation.

    Raises:
        CheckpointError: the activation is not a name.
    """
    file = directory / _CONFIG
    marks = dict(read_json(file)) if file.exists() else {}
    if marks.get("model_type") != "CrossEncoder":
        marks = {}
        if not config.keys() & {"sentence_transformers", _OLD_ACTIVATION_KEY}:
            return None
    former = config.get("sentence_transformers") or {}
    places = (
        marks.get("activation_fn"),
        former.get("activation_fn"),
        config.get(_OLD_ACTIVATION_KEY),
    )
    activation = next((name for name in places if name is not None), None)
    if not isinstance(activation, str | None):
        raise CheckpointError("activation_fn is not the name of a class", where=str(directory))
    return CrossEncoder(activation)


def write_sentence_settings(directory: Path, settings: SentenceSettings, hidden_size: int) -> None:
    """Write the files that `read_sentence_settings` reads."""
    parts = [("Transformer", ""), ("Pooling", "1_Pooling")]
    if settings.normalize:
        parts.append(("Normalize", "2_Normalize"))
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"{_MODULES}.{kind}"}
        for number, (kind, path) in enumerate(parts)
    ]
    pooling = {"word_embedding_dimension": hidden_size}
    pooling |= {mode: name == settings.pooling for mode, name in _MODES.items()}
    limits = {"max_seq_length": settings.max_seq_length, "do_lower_case": False}
    (directory / "1_Pooling").mkdir()
    for name, content in (
        ("modules.json", modules),
        ("sentence_bert_config.json", limits),
        (_POOLING, pooling),
        *([(_CONFIG, settings.entries)] if settings.entries else []),
    ):
        write_json(directory / name, content)


def read_static_sentence(
    directory: Path, normalize: bool | None, max_seq_length: int | None
) -> SentenceSettings:
    """Read a static model's sentence settings: a text's vector is the mean of its pieces'.

    Args:
        normalize: what model2vec's `config.json` says about the length of vectors, if anything.
        max_seq_length: the most tokens of a text.

    Raises:
        CheckpointError: a file is damaged, or a module is not supported.
    """
    kinds = [kind for kind, _ in _read_modules(directory)]
    where = str(directory / "modules.json")
    others = [kind for kind in kinds[1:] if kind != "Normalize"]
    if others:
        what = f"the module {others[0]!r} is not supported after {kinds[0]!r}"
        raise CheckpointError(what, where=where)
    has_norm = "Normalize" in kinds
    if kinds and normalize not in (None, has_norm):
        raise CheckpointError(
            f"{'has' if has_norm else 'lacks'} the module 'Normalize', but normalize is "
            f"{str(normalize).lower()} in config.json",
            where=where,
            fix="Change one of the two files.",
        )
    file = directory / _CONFIG
    return SentenceSettings(
        pooling="mean",
        normalize=has_norm or bool(normalize),
        max_seq_length=max_seq_length,
        entries=_read_entries(file, []) if file.exists() else {},
    )


def write_static_sentence(directory: Path, settings: SentenceSettings) -> None:
    """Write the files that `read_static_sentence` reads, except `config.json`."""
    parts = [("StaticEmbedding", "."), *([("Normalize", "1_Normalize")] * settings.normalize)]
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"{_MODULES}.{kind}"}
        for number, (kind, path) in enumerate(parts)
    ]
    write_json(directory / "modules.json", modules)
    if settings.entries:
        write_json(directory / _CONFIG, settings.entries)


def _read_entries(file: Path, poolings: Sequence[Path]) -> dict[str, Any]:
    """The file's content, after a check of its similarity function, and that its prompts are valid
    and fit these poolings."""
    entries = dict(read_json(file))
    function, functions = entries.get("similarity_fn_name"), get_args(SimilarityFunction)
    if function not in (None, *functions):
        raise CheckpointError(
            f"similarity_fn_name is {truncate_repr(function)}, which is not supported",
            where=str(file),
            fix=f"Set it to one of {', '.join(functions)}, or remove it: then cosines are used.",
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
    for pooling in poolings if any(prompts.values()) else ():
        if read_json(pooling).get("include_prompt") is False:
            raise CheckpointError(
                "include_prompt=false is not supported together with prompts",
                where=str(pooling),
                fix=f"Remove the prompts from {_CONFIG}; texts then have none.",
            )
    return entries


def _read_pooling(file: Path) -> SentencePooling:
    config = read_json(file)
    if "pooling_mode" in config:
        modes = [mode for name, mode in _NAMES.items() if name == config["pooling_mode"]]
    else:
        modes = [mode for name, mode in _MODES.items() if config.get(name)]
    if len(modes) != 1:
        raise CheckpointError(
            "asks for a pooling that is not one of " + ", ".join(_MODES.values()), where=str(file)
        )
    return modes[0]

"""Read sentence encoders in the layout of sentence-transformers: `modules.json` and its parts.

modules.json                          the parts: a transformer, a pooling, modules that follow it
1_Pooling/, 2_Dense/, …               each part's settings and weights (`sentence_modules.py`)
config_sentence_transformers.json     prompts, the function that compares vectors, the model's type
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import CheckpointError, truncate_repr
from ..nn.vector_module_settings import ModuleSettings, NormalizeSettings
from ..settings.pooling import PIECE_WEIGHTS, SPARSE_POOLINGS
from .late_interaction_files import read_multi_vector, read_pylate
from .router import Route
from .sentence_directory import (
    SPARSE_STATIC,
    TRANSFORMERS,
    read_entries,
    read_limits,
    read_modules,
)
from .sentence_modules import (
    VECTOR_MODULES,
    ModuleFiles,
    read_layer_weights,
    read_pooling,
    read_sparse_pooling,
    read_vector_module,
)
from .sentence_settings import CONFIG, SentenceEncoder, SentenceSettings
from .weight_files import read_json

_MODEL_TYPES = (None, "SentenceTransformer", "SparseEncoder")
"""The kinds of models, in `config_sentence_transformers.json`, that give a vector for each text."""
LAYERS_KIND, SPARSE_KIND = "WeightedLayerPooling", "SpladePooling"


def read_sentence_encoder(directory: Path, route: Route = "document") -> SentenceEncoder | None:
    """Read a directory's sentence encoder; None if it does not hold one.

    Args:
        route: whose modules are read, if those of queries are others.

    Raises:
        CheckpointError: a file is missing or damaged, or a part is not supported.
    """
    parts = read_modules(directory, route)
    kinds = [kind for kind, _ in parts]
    if not parts or kinds == ["Transformer"]:  # a cross-encoder has its head
        return None
    file = directory / "modules.json"
    late = read_multi_vector(directory, parts) or read_pylate(directory, parts)
    if late is not None:
        return late
    values, followers = _read_parts(directory, parts)
    if "pooling" not in values:
        raise CheckpointError("has no Pooling, so texts would have no vectors", where=str(file))
    if followers and isinstance(followers[-1][0], NormalizeSettings):
        followers.pop()
        values["normalize"] = True
    if followers and values["pooling"] in SPARSE_POOLINGS:
        raise CheckpointError(
            f"the module {followers[0][0].kind!r} after {SPARSE_KIND} is not supported",
            where=str(file),
        )
    if (directory / CONFIG).exists():
        values["entries"] = read_entries(directory / CONFIG)
        model_type = values["entries"].get("model_type")
        if model_type not in _MODEL_TYPES:
            raise CheckpointError(
                f"model_type is {truncate_repr(model_type)}, which is not supported with the "
                f"modules {', '.join(kinds)}",
                where=str(directory / CONFIG),
            )
    modules: ModuleFiles | None = None
    if followers:
        settings, directories = zip(*followers, strict=True)
        modules = ModuleFiles(settings, directories, str(file))
    return SentenceEncoder(SentenceSettings.parse(values, where=str(file)), modules)


def _read_parts(
    directory: Path, parts: Sequence[tuple[str, Path]]
) -> tuple[dict[str, Any], list[tuple[ModuleSettings, Path]]]:
    """Return the settings in the parts' files, and the modules after pooling with their places."""
    kinds = [kind for kind, _ in parts]
    values: dict[str, Any] = {}
    followers: list[tuple[ModuleSettings, Path]] = []
    for number, (kind, path) in enumerate(parts):
        part_directory = directory / path
        if kind in TRANSFORMERS and not number:
            values["max_seq_length"] = _read_text_limit(kind, part_directory, kinds)
        elif kind == LAYERS_KIND and number == 1:
            if read_json(directory / parts[0][1] / "config.json").get("output_hidden_states"):
                values |= read_layer_weights(part_directory)
            # Without that key sentence-transformers gives the module no layers: it does nothing.
        elif (
            kind == "Pooling"
            and "pooling" not in values
            and number == 1 + (kinds[1] == LAYERS_KIND)
        ):
            values |= read_pooling(part_directory)
        elif kind == SPARSE_KIND and number == 1:
            values |= read_sparse_pooling(part_directory)
        elif kind in VECTOR_MODULES and "pooling" in values:
            followers.append((read_vector_module(kind, part_directory), part_directory))
        else:
            raise CheckpointError(
                f"the module {kind!r} in place {number} is not supported",
                where=str(directory / "modules.json"),
                fix="Supported: Transformer, perhaps WeightedLayerPooling, Pooling, then any of "
                f"{', '.join(sorted(VECTOR_MODULES))}; or MLMTransformer, SpladePooling.",
            )
    return values, followers


def _read_text_limit(kind: str, directory: Path, kinds: Sequence[str]) -> Any:
    """The limit of tokens in a transformer's file, which must not ask for another network."""
    limits = read_limits(directory)
    own_task = "fill-mask" if kind == "MLMTransformer" else "feature-extraction"
    transformer_task = limits.get("transformer_task", own_task)
    expected = "fill-mask" if SPARSE_KIND in kinds else "feature-extraction"
    if transformer_task != expected:
        raise CheckpointError(
            f"transformer_task is {truncate_repr(transformer_task)}, not {expected!r} as the "
            "modules after it need",
            where=str(directory),
        )
    for name in ("query_length", "document_length"):
        if limits.get(name) is not None:
            what = f"{name} is {truncate_repr(limits[name])}, which is for late interaction only"
            raise CheckpointError(what, where=str(directory))
    return limits.get("max_seq_length")


def read_static_sentence(
    directory: Path,
    normalize: bool | None,
    max_seq_length: int | None,
    route: Route = "document",
) -> SentenceSettings:
    """Read a static model's sentence settings: a text's vector is the mean of its pieces'.

    Args:
        normalize: what model2vec's `config.json` says about the length of vectors, if anything.
        max_seq_length: the most tokens of a text.
        route: whose modules are read, if those of queries are others.

    Raises:
        CheckpointError: a file is damaged, or a module is not supported.
    """
    kinds = [kind for kind, _ in read_modules(directory, route)]
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
    file = directory / CONFIG
    return SentenceSettings(
        pooling=PIECE_WEIGHTS if kinds[:1] == [SPARSE_STATIC] else "mean",
        normalize=has_norm or bool(normalize),
        max_seq_length=max_seq_length,
        entries=read_entries(file) if file.exists() else {},
    )


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
        CheckpointError: the activation is not a name, or a prompt precedes every text.
    """
    file = directory / CONFIG
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
    if marks.get("default_prompt_name") is not None:
        raise CheckpointError(
            "default_prompt_name is set, and prompts of cross-encoders are not supported",
            where=str(file),
            fix="Set it to null, and put the prompt before each first text.",
        )
    return CrossEncoder(activation)

"""Sentence encoders in the layout of sentence-transformers: `modules.json` and its parts' files.

modules.json                          the parts: a transformer, a pooling, modules that follow it
sentence_bert_config.json             the maximum number of tokens of a text
1_Pooling/, 2_Dense/, …               each part's settings and weights (`sentence_modules.py`)
config_sentence_transformers.json     prompts by name, and the name of the default prompt
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from pydantic import Field

from ..errors import BertworksWarning, CheckpointError, truncate_repr
from ..nn.vector_module_settings import DenseSettings, ModuleSettings, NormalizeSettings
from ..settings.base import Settings
from ..settings.literals import Combine, SimilarityFunction
from ..settings.pooling import NO_POOLING, PIECE_WEIGHTS, SPARSE_POOLINGS, SentencePooling
from ..utils.json_files import parse_json, write_json
from ..utils.regular_files import read_bytes
from .late_interaction import (
    MASK_KIND,
    MULTI_VECTOR_TYPE,
    PROJECTION,
    LateInteractionSettings,
    multi_vector_files,
    pylate_entries,
    read_multi_vector_settings,
    read_original_settings,
    read_pylate_settings,
)
from .router import KINDS as ROUTERS
from .router import Route, read_route
from .sentence_modules import (
    VECTOR_MODULES,
    ModuleFiles,
    read_dense,
    read_layer_weights,
    read_pooling,
    read_sparse_pooling,
    read_vector_module,
    write_layer_weights,
    write_pooling,
    write_settings,
    write_sparse_pooling,
    write_vector_module,
)
from .weight_files import SAFETENSORS, read_json

if TYPE_CHECKING:
    from torch import Tensor

    from ..nn.vector_modules import VectorModules
else:
    Tensor = VectorModules = Any  # settings are read without PyTorch

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
_CONFIG = "config_sentence_transformers.json"
_FILES = {"modules.json", "sentence_bert_config.json", _CONFIG}
_TRANSFORMERS = ("Transformer", "MLMTransformer")
_MODEL_TYPES = (None, "SentenceTransformer", "SparseEncoder")
"""The kinds of models, in `config_sentence_transformers.json`, that give a vector for each text."""
_TOKENS = "token_embeddings"
"""sentence-transformers' name of token vectors, among the inputs and outputs of modules."""
SPARSE_STATIC = "SparseStaticEmbedding"
"""The module whose vectors are the weights of a text's pieces."""
_STATIC_KINDS = ("StaticEmbedding", SPARSE_STATIC)
_LAYERS_KIND, _SPARSE_KIND = "WeightedLayerPooling", "SpladePooling"
_PART_KINDS = ("Pooling", _LAYERS_KIND, _SPARSE_KIND, MASK_KIND, *sorted(VECTOR_MODULES))
_PART = re.compile(
    rf"[1-9]\d*_({'|'.join(_PART_KINDS)})"
    rf"(/config\.json|/{re.escape(SAFETENSORS)})?"
)


def is_sentence_file(name: str) -> bool:
    """Whether `write_sentence_encoder` may write a file or directory of this name."""
    return name in _FILES or _PART.fullmatch(name) is not None


PromptRole = Literal["text", "query", "document"]
_ROLES: Mapping[PromptRole, tuple[str, ...]] = {
    "text": (),
    "query": ("query",),
    "document": ("document", "passage", "corpus"),
}


class SentenceSettings(Settings):
    """How a sentence encoder computes the vector of a text."""

    pooling: SentencePooling = "mean"
    layers: tuple[int, ...] = (-1,)
    combine: Combine = "concat"
    layer_weights: tuple[float, ...] | None = None
    include_prompt: bool = Field(True, description="whether pooling includes the prompt's tokens")
    normalize: bool = Field(False, description="whether vectors have length 1")
    max_seq_length: int | None = Field(None, ge=1, description="the most tokens of a text")
    late_interaction: LateInteractionSettings | None = None
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

    def embed_defaults(self, *, is_query: bool = False) -> dict[str, Any]:
        """The settings of `embed` that differ from their usual defaults."""
        values = self.model_dump(exclude={"entries", "late_interaction"}, exclude_defaults=True)
        late = self.late_interaction
        role: PromptRole = "query" if is_query else "text"
        if role == "text" and late is not None and late.layout == "multi-vector":
            role = "document"  # whose prompts are parts of documents' form
        prompt = self.prompt(role)
        return {**values, "prompt": prompt} if prompt else values

    @property
    def similarity_function(self) -> SimilarityFunction:
        """The function that compares vectors; if the files name none, the cosine, or the inner
        product of sparse ones; MaxSim for late interaction."""
        if self.late_interaction is not None:
            return "maxsim"
        usual: SimilarityFunction = "dot" if self.pooling in SPARSE_POOLINGS else "cosine"
        function: SimilarityFunction = self.entries.get("similarity_fn_name") or usual
        return function


class SentenceEncoder(NamedTuple):
    """What a sentence encoder's files define beside the transformer.

    Attributes:
        modules: those between pooling and a normalisation at the end; None if there are none.
    """

    settings: SentenceSettings
    modules: ModuleFiles | None


def read_sentence_encoder(directory: Path, route: Route = "document") -> SentenceEncoder | None:
    """Read a directory's sentence encoder; None if it does not hold one.

    Args:
        route: whose modules are read, if those of queries are others.

    Raises:
        CheckpointError: a file is missing or damaged, or a part is not supported.
    """
    parts = _read_modules(directory, route)
    kinds = [kind for kind, _ in parts]
    if not parts or kinds == ["Transformer"]:  # a cross-encoder has its head
        return None
    file = directory / "modules.json"
    late = _read_multi_vector(directory, parts) or _read_pylate(directory, parts)
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
            f"the module {followers[0][0].kind!r} after {_SPARSE_KIND} is not supported",
            where=str(file),
        )
    if (directory / _CONFIG).exists():
        values["entries"] = _read_entries(directory / _CONFIG)
        model_type = values["entries"].get("model_type")
        if model_type not in _MODEL_TYPES:
            raise CheckpointError(
                f"model_type is {truncate_repr(model_type)}, which is not supported with the "
                f"modules {', '.join(kinds)}",
                where=str(directory / _CONFIG),
            )
    modules: ModuleFiles | None = None
    if followers:
        settings, directories = zip(*followers, strict=True)
        modules = ModuleFiles(settings, directories, str(file))
    return SentenceEncoder(SentenceSettings.parse(values, where=str(file)), modules)


def _read_pylate(directory: Path, parts: Sequence[tuple[str, Path]]) -> SentenceEncoder | None:
    """Read a late-interaction model in PyLate's layout; None if it is not one."""
    file = directory / _CONFIG
    entries = _read_entries(file, is_late=True) if file.exists() else {}
    settings = read_pylate_settings(entries, str(file))
    if settings is None:
        return None
    where = str(directory / "modules.json")
    (first, transformer), *others = parts
    if first != "Transformer" or not others or any(kind != "Dense" for kind, _ in others):
        raise CheckpointError(
            f"the modules of late interaction are {', '.join(kind for kind, _ in parts)}",
            where=where,
            fix="Supported: Transformer, then Dense.",
        )
    directories = tuple(directory / path for _, path in others)
    denses = tuple(
        read_dense(read_json(path / "config.json"), path / "config.json", _TOKENS)
        for path in directories
    )
    modules = ModuleFiles(denses, directories, where)
    kept_entries = {key: value for key, value in entries.items() if key != "similarity_fn_name"}
    return SentenceEncoder(
        SentenceSettings(
            pooling=NO_POOLING,
            max_seq_length=_read_limits(directory / transformer).get("max_seq_length"),
            late_interaction=settings,
            entries=kept_entries,
        ),
        modules,
    )


def _read_multi_vector(
    directory: Path, parts: Sequence[tuple[str, Path]]
) -> SentenceEncoder | None:
    """Read a late-interaction model in sentence-transformers' layout; None if it is not one."""
    file = directory / _CONFIG
    entries = _read_entries(file, is_late=True) if file.exists() else {}
    kinds = [kind for kind, _ in parts]
    if MASK_KIND not in kinds and entries.get("model_type") != MULTI_VECTOR_TYPE:
        return None
    where = str(directory / "modules.json")
    directories = tuple(directory / path for kind, path in parts if kind == "Dense")
    start = ["Transformer", *["Dense"] * len(directories)]
    has_norm = "Normalize" in kinds
    ends = [MASK_KIND, *["Normalize"] * has_norm]
    if not directories or kinds not in ([*start, *ends], [*start, *reversed(ends)]):
        raise CheckpointError(
            f"the modules of late interaction are {', '.join(kinds)}",
            where=where,
            fix=f"Supported: Transformer, then Dense, then {MASK_KIND} and perhaps Normalize.",
        )
    folders = {kind: directory / path for kind, path in parts}
    if has_norm:
        norm_file = folders["Normalize"] / "config.json"
        name = read_json(norm_file).get("module_input_name")
        if name != _TOKENS:
            what = f"module_input_name is {truncate_repr(name)}, not {_TOKENS!r}"
            raise CheckpointError(what, where=str(norm_file))
    denses = tuple(
        read_dense(read_json(path / "config.json"), path / "config.json", _TOKENS)
        for path in directories
    )
    limits = _read_limits(folders["Transformer"])
    prompts: dict[str, str] = dict(entries.get("prompts") or {})
    pieces = _added_pieces(folders["Transformer"])
    # A prompt that is an added piece precedes the text as this piece; another one is text.
    prefixes = {
        role: prompts.pop(role)
        for role in ("query", "document")
        if {prompts.get(role), prompts.get(role, "").strip()} & pieces
    }
    if any(piece in prompt for piece in pieces for prompt in prompts.values()):
        what = "a prompt has an added piece of the tokenizer beside text, which is not supported"
        raise CheckpointError(what, where=str(file))
    mask = read_json(folders[MASK_KIND] / "config.json")
    settings = read_multi_vector_settings(
        entries, prefixes, limits, mask, str(directory), normalize=has_norm
    )
    others = {key: value for key, value in entries.items() if key != "similarity_fn_name"}
    return SentenceEncoder(
        SentenceSettings(
            pooling=NO_POOLING,
            max_seq_length=limits.get("max_seq_length"),
            late_interaction=settings,
            entries={**others, "prompts": prompts},
        ),
        ModuleFiles(denses, directories, where),
    )


def _added_pieces(directory: Path) -> set[str]:
    """The pieces that a tokenizer searches for before it splits a text."""
    file = directory / "tokenizer.json"
    entries = read_json(file).get("added_tokens") if file.exists() else []
    return {str(entry["content"]) for entry in entries or [] if isinstance(entry, dict)}


def _add_pieces(directory: Path, pieces: Iterable[str]) -> None:
    """Have a written tokenizer search for pieces of its vocabulary before it splits a text."""
    file = directory / "tokenizer.json"
    tree = read_json(file)
    vocabulary = tree["model"]["vocab"]
    if isinstance(vocabulary, list):
        vocabulary = {piece: number for number, (piece, _) in enumerate(vocabulary)}
    entries = {entry["content"]: entry for entry in tree["added_tokens"]}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    for piece in pieces:
        content = piece if piece in vocabulary else piece.strip()
        if piece not in entries and content in vocabulary:
            entry = {"id": vocabulary[content], "content": content, **flags, "special": True}
            entries.setdefault(content, entry)
    tree["added_tokens"] = sorted(entries.values(), key=lambda entry: int(entry["id"]))
    write_json(file, tree)


def read_original_colbert(
    directory: Path, config: Mapping[str, Any], tensors: dict[str, Tensor]
) -> tuple[SentenceSettings, VectorModules] | None:
    """Read a late-interaction model in the original release's layout; None if it is not one.

    Args:
        config: its `config.json`.
        tensors: its weights, from which the projection is removed.

    Raises:
        CheckpointError: a file is damaged, or the projection is missing.
    """
    settings = read_original_settings(directory, config)
    if settings is None:
        return None
    weight = tensors.pop(PROJECTION, None)
    if weight is None or weight.ndim != 2 or not weight.isfinite().all():
        what = f"the tensor {PROJECTION!r} is missing, no matrix, or not finite"
        raise CheckpointError(what, where=str(directory))
    outputs, inputs = weight.shape
    dense = DenseSettings(
        in_features=inputs, out_features=outputs, bias=False, activation="identity"
    )
    from ..nn.vector_modules import VectorModules

    modules = VectorModules([dense]).eval()
    modules.load_state_dict({"steps.0.linear.weight": weight.float()})
    own = SentenceSettings(pooling=NO_POOLING, late_interaction=settings)
    return own, modules


def _read_parts(
    directory: Path, parts: Sequence[tuple[str, Path]]
) -> tuple[dict[str, Any], list[tuple[ModuleSettings, Path]]]:
    """Return the settings in the parts' files, and the modules after pooling with their places."""
    kinds = [kind for kind, _ in parts]
    values: dict[str, Any] = {}
    followers: list[tuple[ModuleSettings, Path]] = []
    for number, (kind, path) in enumerate(parts):
        part_directory = directory / path
        if kind in _TRANSFORMERS and not number:
            values["max_seq_length"] = _read_text_limit(kind, part_directory, kinds)
        elif kind == _LAYERS_KIND and number == 1:
            if read_json(directory / parts[0][1] / "config.json").get("output_hidden_states"):
                values |= read_layer_weights(part_directory)
            # Without that key sentence-transformers gives the module no layers: it does nothing.
        elif (
            kind == "Pooling"
            and "pooling" not in values
            and number == 1 + (kinds[1] == _LAYERS_KIND)
        ):
            values |= read_pooling(part_directory)
        elif kind == _SPARSE_KIND and number == 1:
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
    limits = _read_limits(directory)
    own_task = "fill-mask" if kind == "MLMTransformer" else "feature-extraction"
    transformer_task = limits.get("transformer_task", own_task)
    expected = "fill-mask" if _SPARSE_KIND in kinds else "feature-extraction"
    if transformer_task != expected:
        raise CheckpointError(
            f"transformer_task is {truncate_repr(transformer_task)}, not {expected!r} as the "
            "modules after it need",
            where=str(directory),
        )
    return limits.get("max_seq_length")


def has_query_route(directory: Path) -> bool:
    """Whether a model has other modules for queries than for documents.

    Raises:
        CheckpointError: a file is damaged.
    """
    return _read_modules(directory, "query") != _read_modules(directory, "document")


def transformer_directory(directory: Path, route: Route = "document") -> Path:
    """The directory of a model's transformer: its own, or a part's, such as `0_Transformer`.

    It is also that of a static model which is one of several routes.

    Raises:
        CheckpointError: a file is damaged.
    """
    parts = _read_modules(directory, route)
    kinds: tuple[str, ...] = _TRANSFORMERS
    if has_query_route(directory):
        kinds = (*kinds, *_STATIC_KINDS)
    paths = [path for kind, path in parts if kind in kinds]
    return directory / paths[0] if paths else directory


def lowers_case(directory: Path, route: Route = "document") -> bool:
    """Whether sentence-transformers' files say that texts are converted to lower case.

    Raises:
        CheckpointError: a file is damaged.
    """
    parts = _read_modules(directory, route)
    return any(
        bool(_read_limits(directory / path).get("do_lower_case"))
        for kind, path in parts
        if kind in _TRANSFORMERS
    )


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


def read_max_seq_length(directory: Path, route: Route = "document") -> int | None:
    """Read the limit of tokens of a model that sentence-transformers saved; None if it has none.

    Raises:
        CheckpointError: a file is damaged.
    """
    for kind, path in _read_modules(directory, route):
        limits = _read_limits(directory / path) if kind in _TRANSFORMERS else {}
        limit = limits.get("max_seq_length")
        if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0:
            return limit
    return None


def _read_modules(directory: Path, route: Route = "document") -> list[tuple[str, Path]]:
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


def _read_limits(directory: Path) -> Mapping[str, Any]:
    """The content of the file with a transformer's limit of tokens; empty if there is none."""
    files_of_limits = (directory / name for name in _LIMITS)
    file = next((file for file in files_of_limits if file.exists()), None)
    return {} if file is None else read_json(file)


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


def write_sentence_encoder(
    directory: Path,
    settings: SentenceSettings,
    modules: VectorModules | None,
    hidden_size: int,
) -> None:
    """Write the files that `read_sentence_encoder` reads."""
    is_sparse = settings.pooling in SPARSE_POOLINGS
    is_late = settings.late_interaction is not None
    parts = [("MLMTransformer" if is_sparse else "Transformer", "")]

    def add(kind: str) -> Path:
        path = f"{len(parts)}_{kind}"
        parts.append((kind, path))
        return directory / path

    if settings.layer_weights is not None:
        write_layer_weights(add(_LAYERS_KIND), settings.layers, settings.layer_weights, hidden_size)
    if is_sparse:
        write_sparse_pooling(add(_SPARSE_KIND), settings.pooling)
    elif not is_late:
        include_prompt = settings.include_prompt
        write_pooling(add("Pooling"), settings.pooling, hidden_size, include_prompt=include_prompt)
    for index, one in enumerate(() if modules is None else modules.settings):
        assert modules is not None
        write_vector_module(add(one.kind), modules, index)
    if settings.normalize:
        add("Normalize")
    limits = {"max_seq_length": settings.max_seq_length, "do_lower_case": False}
    config = settings.entries
    late = settings.late_interaction
    if late is not None and late.layout == "multi-vector":
        late_entries, late_limits, mask = multi_vector_files(late)
        prompts = {**(config.get("prompts") or {}), **late_entries["prompts"]}
        config = config | late_entries | {"prompts": prompts}
        limits |= late_limits
        _add_pieces(directory, late_entries["prompts"].values())
        write_settings(add(MASK_KIND), mask)
        if late.normalize:
            write_settings(add("Normalize"), {"module_input_name": _TOKENS})
    elif late is not None:
        config = config | pylate_entries(late)
    is_pylate = late is not None and late.layout == "pylate"
    entries = [
        {
            "idx": number,
            "name": str(number),
            "path": path,
            "type": _class_of(kind, is_pylate=is_pylate),
        }
        for number, (kind, path) in enumerate(parts)
    ]
    write_json(directory / "modules.json", entries)
    write_json(directory / "sentence_bert_config.json", limits)
    if config:
        write_json(directory / _CONFIG, config)


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
    kinds = [kind for kind, _ in _read_modules(directory, route)]
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
        pooling=PIECE_WEIGHTS if kinds[:1] == [SPARSE_STATIC] else "mean",
        normalize=has_norm or bool(normalize),
        max_seq_length=max_seq_length,
        entries=_read_entries(file) if file.exists() else {},
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


def _class_of(kind: str, *, is_pylate: bool) -> str:
    """The full name of a module's class, which every version of sentence-transformers finds."""
    if is_pylate and kind == "Dense":
        return "pylate.models.Dense.Dense"
    if kind == MASK_KIND:
        return "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask." + kind
    if kind in ("MLMTransformer", _SPARSE_KIND):
        return f"sentence_transformers.sparse_encoder.models.{kind}.{kind}"
    return f"{_MODULES}.{kind}"


def _read_entries(file: Path, *, is_late: bool = False) -> dict[str, Any]:
    """The file's content, after a check of its similarity function and its prompts.

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
    return entries

"""Static models, in the layouts of model2vec and of sentence-transformers' `StaticEmbedding`.

A text's vector is the mean of the vectors of its pieces, without special pieces around it.

    config.json            model2vec's: whether vectors have length 1, the most tokens of a text
    model.safetensors      "embeddings", or "embedding.weight" `[vectors, width]`; perhaps "mapping"
                           `[pieces]`, the vector of each piece, and "weights" `[pieces]`, a factor
    tokenizer.json         `text/static_tokenizer.py`
    modules.json           for sentence-transformers, which opens this layout too

Source: Tulkens and van Dongen (2024), "Model2Vec", version 0.10; sentence-transformers 6.2. A text
is truncated at `max_length` tokens (512 if the file has no such entry), counted after unknown
pieces are left out. model2vec counts them, and also truncates at `max_length` times the median
length of a piece, in characters.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CheckpointError, DataError
from ..nn.config import STATIC_SETTINGS, EncoderConfig
from ..nn.part_settings import MAX_ROWS
from ..text import static_tokenizer
from ..text.definition import Definition
from ..text.static_tokenizer import COUNTS_UNKNOWN, DROPS_UNKNOWN
from .bert import bert_classes, bert_keys
from .family import POOLING, Family, key_map
from .router import Route
from .sentence import read_static_sentence
from .sentence_settings import SentenceSettings
from .weight_files import read_json

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = Any  # files of settings and names are read without PyTorch

VECTORS = "embeddings"
_VECTORS_OF_MODULE, _MAPPING, _WEIGHTS = "embedding.weight", "mapping", "weights"
_PIECE_WEIGHTS = "weight"  # of `SparseStaticEmbedding`
_FROZEN = "frozen"  # in its `config.json`: whether its weights are trained
_USUAL_MAX_LENGTH = 512  # of model2vec
_MAX_LENGTH, _NO_LIMIT = "max_length", 1_000_000  # what model2vec writes for no limit

_FIXED_SETTINGS = {
    **{name: value for name, value in STATIC_SETTINGS.items() if name != "family"},
    "max_position_embeddings": MAX_ROWS,
}
_WORDS = "encoder.embeddings.word_embeddings"

STATIC = Family(
    name=COUNTS_UNKNOWN,
    settings={"vocab_size": "vocab_size", "hidden_size": "hidden_dim"},
    keys=key_map(
        {
            f"{_WORDS}.weight": VECTORS,
            **{
                ours: theirs
                for ours, theirs in bert_keys("static").items()
                if not ours.startswith("encoder.")
            },
        }
    ),
    prefix="",
    bare_prefixes=(),
    classes=bert_classes("Static"),
    fixed_settings=_FIXED_SETTINGS,
    defaults={POOLING: STATIC_SETTINGS[POOLING]},
    unused_tensors=((r"(cls\.|classifier\.|qa_outputs\.).*", "the head of another task"),),
)
"""The family of static models; each tensor but the vectors has BERT's name."""


def static_directory(directory: Path) -> Path | None:
    """Return where a static model's tokenizer and vectors are; None if it is another model.

    Raises:
        CheckpointError: a file is damaged.
    """
    try:
        return static_tokenizer.static_directory(directory)
    except DataError as error:
        raise CheckpointError(error.what, where=error.where, fix=error.fix) from None


def static_config(vocab_size: int, width: int) -> EncoderConfig:
    """Return the configuration of a static model."""
    return STATIC.read_config({"vocab_size": vocab_size, "hidden_dim": width}, where=STATIC.name)


def read_static_config(directory: Path) -> dict[str, Any]:
    """Return the content of `config.json`, with the sizes of the vectors, which it need not have.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    file = directory / "config.json"
    raw = read_json(file) if file.exists() else {}
    vectors = read_static_tensors(directory)[VECTORS]
    sizes = {"vocab_size": len(vectors), "hidden_dim": vectors.shape[1]}
    return {**raw, **sizes, "model_type": STATIC.name}


def read_static_tensors(directory: Path) -> dict[str, Tensor]:
    """Read the tensors: a vector for each piece, in float32, and those of heads.

    Raises:
        CheckpointError: a file is missing or damaged, or its tensors do not fit together.
    """
    import torch

    from .weights import read_weights

    module = static_directory(directory)
    assert module is not None, "the directory of a static model"
    tensors = read_weights(module)
    where = str(module)
    if tensors.keys() == {_PIECE_WEIGHTS} and tensors[_PIECE_WEIGHTS].ndim == 1:
        tensors = {VECTORS: tensors[_PIECE_WEIGHTS][:, None]}
    name = VECTORS if VECTORS in tensors else _VECTORS_OF_MODULE
    if name not in tensors:
        raise CheckpointError(f"has no tensor {VECTORS!r} and no {name!r}", where=where)
    vectors = tensors.pop(name)
    if vectors.ndim != 2 or not vectors.numel():
        raise CheckpointError(f"{name!r} has shape {tuple(vectors.shape)}", where=where)
    mapping, weights = tensors.pop(_MAPPING, None), tensors.pop(_WEIGHTS, None)
    if mapping is not None:
        if mapping.ndim != 1 or mapping.is_floating_point() or mapping.dtype is torch.bool:
            raise CheckpointError(f"{_MAPPING!r} is not a list of row numbers", where=where)
        if mapping.numel() and not 0 <= int(mapping.min()) <= int(mapping.max()) < len(vectors):
            what = f"{_MAPPING!r} names rows that {name!r} does not have"
            raise CheckpointError(what, where=where)
        vectors = vectors[mapping.long()]
    vectors = vectors.float()
    if weights is not None:
        if weights.shape != (len(vectors),):
            what = f"{_WEIGHTS!r} has shape {tuple(weights.shape)}, not ({len(vectors)},)"
            raise CheckpointError(what, where=where)
        vectors = vectors * weights.float()[:, None]
    return {VECTORS: vectors, **tensors}


def read_static_settings(
    directory: Path, whole_directory: Path, route: Route = "document"
) -> SentenceSettings:
    """Read how a static model computes the vector of a text.

    Args:
        directory: of its vectors and tokenizer.
        whole_directory: of its `modules.json`; another one if the model is a route of it.

    Raises:
        CheckpointError: a file is damaged, the files contradict each other, or the model has a
            module that is not supported.
    """
    file = directory / "config.json"
    normalize = read_json(file).get("normalize") if file.exists() else None
    if normalize is not None and not isinstance(normalize, bool):
        raise CheckpointError(f"normalize is {normalize!r}", where=str(file))
    limit = read_max_length(directory)
    return read_static_sentence(whole_directory, normalize, limit, route)


def static_entries(
    definition: Definition, settings: SentenceSettings, *, has_modules: bool
) -> dict[str, Any]:
    """Return the entries of `config.json` that describe how texts become vectors.

    Args:
        has_modules: whether the model has modules after its pooling.

    Raises:
        CheckpointError: the layout has no place for them.
    """
    if definition.frame.start or definition.frame.end:
        raise CheckpointError(
            "a static model has no special pieces around a text, and this tokenizer adds them"
        )
    if settings.pooling != "mean":
        raise CheckpointError(
            f"pooling={settings.pooling}: a static model is saved with pooling=mean only"
        )
    if has_modules:
        raise CheckpointError("a static model is saved without modules after its pooling")
    if not settings.include_prompt:
        raise CheckpointError("a static model is saved with include_prompt=true only")
    return {
        "model_type": COUNTS_UNKNOWN if definition.unknown_id is None else DROPS_UNKNOWN,
        "normalize": settings.normalize,
        _MAX_LENGTH: settings.max_seq_length,
        "seq_length": _NO_LIMIT if settings.max_seq_length is None else settings.max_seq_length,
    }


def piece_weight_files(
    tensors: Mapping[str, Tensor],
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return `config.json` and the tensors of a model whose vectors are the weights of pieces."""
    return {_FROZEN: False}, {_PIECE_WEIGHTS: tensors[VECTORS].squeeze(1)}


def read_max_length(directory: Path) -> int | None:
    """Return the most tokens of a text; None if there is no limit.

    Raises:
        CheckpointError: `config.json` is damaged.
    """
    file = directory / "config.json"
    raw = read_json(file) if file.exists() else {}
    if _FROZEN in raw:  # a `SparseStaticEmbedding`, which truncates texts as its tokenizer says
        tokenizer_file = directory / "tokenizer_config.json"
        limit = read_json(tokenizer_file).get("model_max_length")
        is_limit = isinstance(limit, int) and not isinstance(limit, bool) and 0 < limit <= MAX_ROWS
        return limit if is_limit else None
    if raw.get("model_type") != DROPS_UNKNOWN and _MAX_LENGTH not in raw:
        return None
    limit = raw.get(_MAX_LENGTH, _USUAL_MAX_LENGTH)
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise CheckpointError(f"{_MAX_LENGTH} is {limit!r}", where=str(file))
    return limit

"""Models as other tools than Hugging Face's want them: the original TensorFlow release's layout."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from .. import files
from ..errors import CheckpointError
from ..locks import claim
from ..model.config import EncoderConfig
from .bundle import write_bundle
from .families import family_of
from .replacing import check_empty
from .store import keys_of, own_tensors
from .tensorflow import CHECKPOINT, CONFIG, original_tensors

if TYPE_CHECKING:
    from ..text.tokenizer import Tokenizer

_ACTIVATIONS = {"gelu_new": "gelu"}  # the original has one name, and today means the tanh form


def write_tensorflow(
    directory: str | Path, *, network: nn.Module, config: EncoderConfig, tokenizer: Tokenizer
) -> Path:
    """Write `bert_config.json`, `bert_model.ckpt.*` and `vocab.txt`.

    Args:
        directory: where to; it must not exist, or be empty.
        network: BERT, with heads of pre-training or a classifier's, or without.
        config: its geometry.
        tokenizer: the model's.

    Raises:
        CheckpointError: the model is no BERT, or the directory is not empty.
        OutputError: the directory cannot be written, or is being written by another process.
        BertworksError: the package that computes the checksums is not installed.
    """
    directory = Path(directory)
    if config.family != "bert":
        raise CheckpointError(f"the original release's layout has no {config.family} models")
    if not family_of(config).pools_as_published(config):
        raise CheckpointError(
            "the original release's classifiers use the first token alone, not "
            f"classifier_pooling={config.classifier_pooling}"
        )
    family = family_of(config)
    tensors = original_tensors(keys_of(network, family).export(own_tensors(network)))
    raw = family.write_config(config)
    kept = {k: v for k, v in raw.items() if k not in ("model_type", "tie_word_embeddings")}
    kept["hidden_act"] = _ACTIVATIONS.get(kept["hidden_act"], kept["hidden_act"])
    with claim(directory, kind="whole directory"):
        check_empty(directory)
        with files.new_directory(directory, last=CONFIG) as new:
            files.write_json(new / CONFIG, kept)
            write_bundle(new / CHECKPOINT, tensors)
            files.write(new / "vocab.txt", "".join(f"{piece}\n" for piece in tokenizer.pieces))
    return directory

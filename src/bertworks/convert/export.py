"""Export of models for other tools: ONNX, and the layout of the original TensorFlow release.

ONNX is for engines that support neither packs nor PyTorch. The input is a padded batch; outputs
have the names that Hugging Face's models use.

    model.onnx           input_ids, attention_mask (and token_type_ids): [rows, length] of any size;
                         of a sentence encoder also sentence_embedding [rows, hidden_size], with the
                         model's pooling and normalisation
    config.json, tokenizer.json and the tokenizer's other files
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..checkpoints.bundle import write_bundle
from ..checkpoints.card_usage import write_card
from ..checkpoints.families import family_of
from ..checkpoints.heads import CLASSIFIER, MLM, NSP, SPANS
from ..checkpoints.model_card import CARD, ModelCard
from ..checkpoints.network_weights import key_map_of, unique_tensors
from ..checkpoints.sentence_settings import SentenceSettings
from ..checkpoints.tensorflow import CHECKPOINT, CONFIG, TANH_GELU, original_tensors
from ..errors import CheckpointError, import_optional
from ..loading import load
from ..model import Model
from ..nn.encoder import BareEncoder
from ..nn.pooling import pool
from ..nn.vector_modules import VectorModules
from ..packed import Padded
from ..tasks.network import Network, compute_encoder_outputs
from ..tasks.text_network import MultiLabelNetwork
from ..text.tokenizer import Tokenizer
from ..text.wordpiece import MAX_WORD_CHARACTERS, WordPieceDefinition
from ..utils.atomic_writes import write_file
from ..utils.directories import new_directory
from ..utils.json_files import read_json, write_json
from ..utils.outputs import locked_output
from .model_editing import text_limit

_ONNX_USE = """## Use

`model.onnx` is for ONNX Runtime and other engines. Its inputs are padded batches of token ids,
which the tokenizer in this folder makes.

```python
import onnxruntime
from tokenizers import Tokenizer

encoding = Tokenizer.from_file("MODEL/tokenizer.json").encode("The door was open.")
session = onnxruntime.InferenceSession("MODEL/model.onnx")
inputs = {
    "input_ids": [encoding.ids],
    "attention_mask": [encoding.attention_mask],
    "token_type_ids": [encoding.type_ids],
}
names = [one.name for one in session.get_inputs()]
print(session.run(None, {name: inputs[name] for name in names}))
```
"""


_TENSORFLOW_USE = """## Use

This folder has the layout of BERT's original release, whose code reads it, as does bertworks:

```python
import bertworks as bw

print(bw.load("MODEL"))
```
"""


class PaddedNetwork(nn.Module):
    """A network on padded batches.

    Args:
        sentence, modules: how a sentence encoder makes the vector of a text, if the network is one.
    """

    def __init__(
        self,
        network: Network | BareEncoder,
        sentence: SentenceSettings | None = None,
        modules: VectorModules | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.sentence, self.modules_after_pooling = sentence, modules

    def outputs_by_name(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return the network's outputs for `[rows, length]` tensors, by name."""
        padded = Padded.from_tensors(input_ids, attention_mask, token_type_ids)
        if isinstance(self.network, Network):
            outputs = self.network.padded(padded)
        else:
            outputs = compute_encoder_outputs(self.network.encoder, padded)
        if self.sentence is not None and "last_hidden_state" in outputs:
            vectors = pool(
                outputs["last_hidden_state"].flatten(0, 1), padded, self.sentence.pooling
            )
            if self.modules_after_pooling is not None:
                vectors = self.modules_after_pooling(vectors)
            if self.sentence.dimensions is not None:
                vectors = vectors[:, : self.sentence.dimensions]
            if self.sentence.normalize:
                vectors = F.normalize(vectors, dim=-1)
            outputs["sentence_embedding"] = vectors
        return outputs

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Return the same outputs without names."""
        return tuple(self.outputs_by_name(input_ids, attention_mask, token_type_ids).values())


def write_onnx(model: Model, directory: str | Path, *, overwrite: bool = False) -> Path:
    """Write a model as ONNX, with its configuration and tokenizer in the same directory.

    Args:
        model: of any task, or a bare encoder. Each window of a long text is a separate row, and so
            is each order of a pair that is read in both orders: the caller must pool their logits.
        overwrite: replace an existing model in the directory.

    Raises:
        CheckpointError: the model has LSTMs, is two-way, or has weights behind its encoder without
            outputs for padded batches, as for translation.
        OutputError: the directory already exists, cannot be written, or is being written by another
            process.
        BertworksError: a package that is needed is not installed.
    """
    import_optional("onnxscript", "onnx", "The ONNX format")
    config, directory = model.encoder.config, Path(directory)
    if not config.has_heads:
        raise CheckpointError(
            f"a model with mixer={config.mixer} and attention={config.attention} cannot be written "
            "as ONNX"
        )
    _check_outputs(model)
    _check_vectors(model)
    network = PaddedNetwork(model.network, model.sentence, model.modules).eval()
    shape = (2, min(7, config.max_seqlen))
    inputs = {
        "input_ids": torch.ones(shape, dtype=torch.int64),
        "attention_mask": torch.ones(shape, dtype=torch.int64),
    }
    if config.has_segments:
        inputs["token_type_ids"] = torch.zeros(shape, dtype=torch.int64)
    with torch.no_grad():
        names = list(network.outputs_by_name(**inputs))
    rows, length = (torch.export.Dim(name) for name in ("rows", "length"))
    with _new_directory(directory, last="config.json", overwrite=overwrite) as new:
        model.save(new)
        for name in ("model.safetensors", "bertworks.json", CARD):
            (new / name).unlink(missing_ok=True)
        entries = {"library_name": "onnx", "tags": ["bertworks"]}
        write_card(new, directory, _same_card(model.card), entries, _ONNX_USE)
        with warnings.catch_warnings():
            # The exporter warns about itself and about packages that are not needed.
            warnings.simplefilter("ignore")
            logger = logging.getLogger("torch.onnx")
            level = logger.level
            logger.setLevel(logging.ERROR)
            try:
                torch.onnx.export(
                    network,
                    kwargs=inputs,
                    f=new / "model.onnx",
                    input_names=list(inputs),
                    output_names=names,
                    dynamic_shapes={name: {0: rows, 1: length} for name in inputs},
                    dynamo=True,
                    external_data=False,
                    verbose=False,
                )
            finally:
                logger.setLevel(level)
    return directory


def _check_outputs(model: Model) -> None:
    """Refuse a network whose output is that of its encoder alone, although it has more weights."""
    network = model.network
    if isinstance(network, Network) and type(network).padded is Network.padded:
        rest = [name for name in unique_tensors(network) if not name.startswith("encoder.")]
        if rest:
            task = "its task" if model.task is None else model.task.name
            can_be_encoder = model.sentence is None or model.sentence.is_dense
            raise CheckpointError(
                f"a model for {task} cannot be written as ONNX: only its encoder would be, without "
                f"{rest[0]!r}",
                fix="To write the encoder alone: --task encoder." if can_be_encoder else None,
            )


_ORIGINAL = tuple(
    f"{name}." for name in ("encoder", *(h.name for h in (MLM, NSP, CLASSIFIER, SPANS)))
)
"""The beginnings of the names of what the original release has."""


_ENTRIES = ("id2label", "label2id", "problem_type")
"""A task's entries of `config.json` that are also written to `bert_config.json`. The original code
ignores them."""


def write_tensorflow(model: Model, directory: str | Path, *, overwrite: bool = False) -> Path:
    """Write `bert_config.json`, `bert_model.ckpt.*` and `vocab.txt`.

    The names of a task's labels are written too, and a limit on the tokens of a text, in
    `tokenizer_config.json`. See also `missing_settings`.

    Args:
        model: BERT, with pre-training heads, a classification head, or no head.
        directory: where to write.
        overwrite: replace an existing model in the directory.

    Raises:
        CheckpointError: the model is not BERT, or the layout cannot express a setting, its
            classifier or the tokenizer.
        OutputError: the directory already exists, cannot be written, or is being written by another
            process.
    """
    network, config, task, directory = model.network, model.config, model.task, Path(directory)
    if config.family != "bert":
        raise CheckpointError(f"the original release's layout has no {config.family} models")
    family = family_of(config)
    if not family.pools_as_published(config):
        raise CheckpointError(
            "the original release's classifiers use only the first token, not "
            f"classifier_pooling={config.classifier_pooling}"
        )
    if config.attention != "bidirectional":
        raise CheckpointError(
            f"the original release's layout has no attention={config.attention}: its code would "
            "read the model as a bidirectional one"
        )
    if isinstance(network, MultiLabelNetwork):
        raise CheckpointError(
            "the original release's layout has no classifiers of several labels per row: it would "
            "be read as one of exactly one label per row"
        )
    for name in unique_tensors(network):
        if not name.startswith(_ORIGINAL):
            raise CheckpointError(f"the original release's layout has no place for {name!r}")
    tensors = original_tensors(key_map_of(network, family).export(unique_tensors(network)))
    raw = family.write_config(config)
    geometry = {k: v for k, v in raw.items() if k not in ("model_type", "tie_word_embeddings")}
    if geometry["hidden_act"] == "gelu_new":
        geometry |= TANH_GELU
    if task is not None:
        entries = task.config_entries()
        geometry |= {name: entries[name] for name in _ENTRIES if name in entries}
    with _new_directory(directory, last=CONFIG, overwrite=overwrite) as new:
        write_json(new / CONFIG, geometry)
        write_bundle(new / CHECKPOINT, tensors)
        _write_vocabulary(new, model.tokenizer)
        limit = text_limit(model)
        if limit < config.max_seqlen:
            file = new / "tokenizer_config.json"
            casing = read_json(file, CheckpointError) if file.is_file() else {}
            write_json(file, {**casing, "model_max_length": limit})
        entries = {"library_name": "bertworks", "tags": ["bertworks"]}
        write_card(new, directory, _same_card(model.card), entries, _TENSORFLOW_USE)
    return directory


def _same_card(card: ModelCard | None) -> ModelCard | None:
    return None if card is None else card.derive(is_same_model=True)


def _check_vectors(model: Model) -> None:
    """Check that the graph can compute a sentence encoder's vectors."""
    sentence = model.sentence
    if model.query_model is not None:
        raise CheckpointError("a model with other modules for queries cannot be written as ONNX")
    if sentence is None:
        return
    problem = ""
    if sentence.layer_weights is not None:
        problem = "WeightedLayerPooling"
    elif not sentence.include_prompt and any((sentence.entries.get("prompts") or {}).values()):
        problem = "include_prompt=false together with prompts"
    elif not isinstance(model.network, Network) and not sentence.is_dense:
        problem = f"pooling={sentence.pooling}"
    if problem:
        raise CheckpointError(f"a model with {problem} cannot be written as ONNX")


def missing_settings(model: Model, directory: str | Path) -> list[str]:
    """Return the settings of a model that its written form in another layout does not have.

    Args:
        directory: where the model was written; it is loaded and compared.
    """
    reloaded_model = load(directory, device="cpu")
    missing = []
    if type(model.task) is not type(reloaded_model.task):
        assert model.task is not None, "the layout has no task of its own"
        missing.append(f"the task {model.task.name!r} and its settings")
    elif model.task is not None and reloaded_model.task is not None:
        before, after = model.task.to_dict(), reloaded_model.task.to_dict()
        missing += [name for name, value in before.items() if after.get(name, _NONE) != value]
    if model.sentence != reloaded_model.sentence:
        missing.append("how a text's vector is made (pooling, prompts, max_seq_length, …)")
    if model.query_model is not None:
        missing.append("the modules for queries")
    return missing


_NONE = object()


def _write_vocabulary(directory: Path, tokenizer: Tokenizer) -> None:
    """Write `vocab.txt`, and `tokenizer_config.json` where readers would guess another casing.

    Raises:
        CheckpointError: the written files would be loaded as another tokenizer.
    """
    definition = tokenizer.definition
    if isinstance(definition, WordPieceDefinition):
        definition = replace(
            definition,
            # No text holds a special piece, so its place does not matter.
            base_pieces=(
                *definition.base_pieces,
                *(p.content for p in definition.added if p.special),
            ),
            added=tuple(piece for piece in definition.added if not piece.special),
            max_word_characters=MAX_WORD_CHARACTERS,  # the original's
        )
        write_file(directory / "vocab.txt", "".join(f"{piece}\n" for piece in definition.pieces))
        if Tokenizer.load(directory).definition == definition:
            return
        normalization = definition.normalization
        casing = {
            "do_lower_case": normalization.lowercase,
            "strip_accents": normalization.strip_accents,
            "tokenize_chinese_chars": normalization.split_ideographs,
            **({"truncation_side": "left"} if definition.truncation_side == "left" else {}),
        }
        write_json(directory / "tokenizer_config.json", casing)
        if Tokenizer.load(directory).definition == definition:
            return
    raise CheckpointError(
        "the original release's layout has no place for this tokenizer: it has only BERT's "
        "WordPiece, without pieces of several words"
    )


@contextmanager
def _new_directory(directory: Path, *, last: str, overwrite: bool) -> Iterator[Path]:
    """Yield a directory to fill, which becomes `directory` at the end; see `new_directory`.

    Raises:
        OutputError: `directory` already exists, and `overwrite` is false.
    """
    with (
        locked_output(directory, kind="whole directory", overwrite=overwrite),
        new_directory(directory, last=last, replace=True) as new,
    ):
        yield new

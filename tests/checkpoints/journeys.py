"""Exchange of models with other tools in both directions: numbers for the tests."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

import bertworks as bw
from bertworks.checkpoints.families import FAMILIES
from bertworks.convert.export import PaddedNetwork, write_onnx
from bertworks.packed import Packed
from bertworks.tasks.classification import ClassificationSettings, ClassificationTask

from . import oracles
from .oracles import error, geometry

PIECES = [
    "[PAD]",
    *(f"[unused{n}]" for n in range(99)),
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"abcdefgh",
]
TEXT = "a b [c"
ONNX_TOLERANCE = 1e-4
"""In float32, of which another engine adds up the terms in another order."""


class Journey(NamedTuple):
    """From their class to ours and back into their class.

    Attributes:
        in_file: how many tensors their checkpoint has.
        num_used: how many of those ours took.
        new: how many tensors ours had to initialise.
        bits: how many there are in the tensors that came back.
        num_changed: how many of them are not what they were.
        problems: what their class, or a warning, said against what ours had written.
        same_ids: whether their tokenizer gives ours' ids.
    """

    in_file: int
    num_used: int
    new: int
    bits: int
    num_changed: int
    problems: list[str]
    same_ids: bool


def kinds_of(family: str) -> list[str]:
    """The kinds of models that are published; a causal BERT comes from ours alone.

    A head for which they have no class is not among them: the class is then the encoder's.
    """
    classes = FAMILIES[family].classes
    return [
        kind
        for kind, name in classes.items()
        if kind != "causal-lm" and (kind == "encoder" or name != classes["encoder"])
    ]


def saved_by_them(family: str, kind: str, folder: Path, **more: Any) -> Any:
    """Their model, saved with our tokenizer.

    Args:
        more: what else its `config.json` says.
    """
    config = geometry(family, vocab_size=len(PIECES))
    theirs = oracles.theirs_of(config, kind, torch.float32, **more)
    theirs.save_pretrained(folder)
    bw.Tokenizer.from_vocabulary(PIECES).save(folder)
    return theirs


def there_and_back(family: str, kind: str, folder: Path) -> Journey:
    """Their model is saved by them, loaded and saved by us, and loaded by them."""
    theirs = saved_by_them(family, kind, folder / "theirs")
    model = bw.load(folder / "theirs", device="cpu")
    model.save(folder / "ours")
    (class_name,) = transformers.AutoConfig.from_pretrained(folder / "ours").architectures
    with _complaints() as problems:
        reloaded_model, info = getattr(transformers, class_name).from_pretrained(
            folder / "ours", output_loading_info=True
        )
    problems += [f"{what}: {names}" for what, names in info.items() if names]
    expected, actual = theirs.state_dict(), reloaded_model.state_dict()
    problems += sorted(actual.keys() ^ expected.keys())
    if type(reloaded_model) is not type(theirs):
        problems.append(f"it is to be opened as {class_name}")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "ours")
    assert model.report is not None
    in_file = len(load_file(folder / "theirs" / "model.safetensors"))
    return Journey(
        in_file,
        in_file - len(model.report.dropped_tensors),
        len(model.report.new_tensors),
        sum(8 * tensor.nbytes for tensor in expected.values()),
        sum(changed_bits(expected[name], actual[name]) for name in expected.keys() & actual.keys()),
        problems,
        tokenizer(TEXT)["input_ids"] == model.tokenizer.encode(TEXT).input_ids.tolist(),
    )


def changed_bits(one: Tensor, other: Tensor) -> int:
    """How many bits of two tensors are not the same; all, if they are not of one kind."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return 8 * one.nbytes
    bits = [
        tensor.detach().contiguous().numpy().reshape(-1).view(np.uint8) for tensor in (one, other)
    ]
    return int(np.unpackbits(bits[0] ^ bits[1]).sum())


def padded_and_packed(family: str) -> float:
    """The error of what is exported, on a padded batch, from the encoder's on a pack."""
    tokenizer = bw.Tokenizer.from_vocabulary(PIECES)
    model = bw.Model.fresh(geometry(family, vocab_size=len(PIECES)), tokenizer)
    oracles.redraw(model.network)
    packed, inputs, mask = batch_of(model)
    with torch.no_grad():
        hidden = PaddedNetwork(model.network)(**inputs)[0]
        return error(hidden[mask], model.encoder(packed))


def onnx(family: str, folder: Path) -> float:
    """The error of a classifier's logits in ONNX Runtime, in batches of several shapes."""
    tokenizer = bw.Tokenizer.from_vocabulary(PIECES)
    config = geometry(family, vocab_size=len(PIECES))
    task = ClassificationTask(
        tokenizer,
        ClassificationSettings(
            labels=("a", "b", "c"), text_column="t", label_column="l", max_seq_length=20
        ),
    )
    model = bw.Model(tokenizer, task, task.network(config).eval())
    oracles.redraw(model.network)
    write_onnx(model, folder)
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    _, inputs, _ = batch_of(model)
    with torch.no_grad():
        expected = PaddedNetwork(model.network)(**inputs)[0]
    errors = []
    for rows in (slice(None), slice(0, 1), slice(1, 4)):
        longest = int(inputs["attention_mask"][rows].sum(1).max())
        part = {name: value[rows, :longest].numpy() for name, value in inputs.items()}
        (logits,) = session.run(["logits"], part)
        errors.append(error(torch.from_numpy(logits), expected[rows]))
    return max(errors)


def batch_of(model: bw.Model) -> tuple[Packed, dict[str, Tensor], Tensor]:
    """Sequences of several lengths: packed, padded, and which tokens of the padded are real."""
    rng = np.random.default_rng(0)
    config = model.encoder.config
    ids = [rng.integers(5, len(PIECES), length) for length in (1, 3, 3, 9, config.max_seqlen)]
    types = [np.arange(len(row)) >= len(row) // 2 for row in ids]
    if not config.has_segments:
        types = [np.zeros(len(row)) for row in ids]
    packed = Packed.from_arrays(ids, types).to("cpu")
    padded, mask = packed.to_padded()
    inputs = {"input_ids": padded, "attention_mask": mask.long()}
    if config.has_segments:
        inputs["token_type_ids"] = packed.to_padded(packed.token_type_ids)[0]
    return packed, inputs, mask


@contextmanager
def _complaints() -> Iterator[list[str]]:
    """What is logged by their library, or warned of, until the block ends."""
    messages: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    # Their logger does not pass its records to the root logger.
    logger, handler = logging.getLogger("transformers"), Handler(logging.WARNING)
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught_warnings:
            warnings.simplefilter("always")
            yield messages
        messages += [str(warning.message) for warning in caught_warnings]
    finally:
        logger.removeHandler(handler)

"""Every kind of output that a resumable job makes, for tests that hold for all of them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import bertworks as bw
from bertworks.text.tokenizer import Tokenizer

TEXTS = [" ".join("abcdefgh"[at % 8] for at in range(1 + n % 11)) for n in range(30)]
NUM_WINDOWS = 8
ENGINE: Mapping[str, Any] = {"window_rows": 4, "precision": "fp32"}

Write = Callable[..., Any]


@dataclass(frozen=True)
class Output:
    """A kind of output.

    Attributes:
        name: the name of the file or directory.
        write: makes it: takes its path, texts, `part` and further settings.
        other_setting: a setting with another value than the default, and what is said of it.
        other_model: makes the value of the argument `model` that is another than the default.
        is_part: whether only parts of it resume.
    """

    name: str
    write: Write
    other_setting: tuple[str, Any, str]
    other_model: Callable[[], Any]
    model: str = "model"
    is_part: bool = False

    @property
    def part(self) -> str | None:
        """The part with all texts."""
        return "1/1" if self.is_part else None


@cache
def pretrained() -> bw.Model:
    from tests.checkpoints.test_store import tiny

    return tiny()


@cache
def classifier() -> bw.Model:
    from tests.checkpoints.test_store import tiny

    return tiny("classification")


@cache
def change_weight(model: Callable[[], bw.Model]) -> bw.Model:
    """A model with one other weight."""
    other = copy.deepcopy(model())
    other.encoder.embeddings.word_embeddings.weight.data[5] += 1
    return other


@cache
def colbert() -> bw.Model:
    from tests.inference.test_late_interaction import write as write_colbert

    return bw.load(write_colbert(Path(mkdtemp()), layout="original"), device="cpu")


def embed(model: Callable[[], bw.Model], **settings: Any) -> Write:
    def write(out: Path, texts: Sequence[str], **more: Any) -> Any:
        own = more.pop("model", None) or model()
        return own.embed_to(out, texts, **{**ENGINE, **settings, **more})

    return write


def features(out: Path, texts: Sequence[str], **more: Any) -> Any:
    own = more.pop("model", None) or pretrained()
    return own.features_to(out, texts, **{**ENGINE, **more})


def predict(out: Path, texts: Sequence[str], **more: Any) -> Any:
    own = more.pop("model", None) or classifier()
    rows = [{"text": text, "id": number} for number, text in enumerate(texts)]
    return own.predict_to(out, rows, **{**ENGINE, **more})


@cache
def tokenizer() -> Tokenizer:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return Tokenizer.from_vocabulary([*special, *"abcdefgh", *(f"##{x}" for x in "abcdefgh")])


@cache
def other_tokenizer() -> Tokenizer:
    return Tokenizer.from_vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefg"])


def prepare(out: Path, texts: Sequence[str], **more: Any) -> Any:
    """Prepare a corpus with a document for each text; four are a shard, as the others have rows."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "texts.jsonl")
        # The sizes of texts and shards are those of the windows of four.
        path.write_text("".join(json.dumps({"text": text.ljust(30, "!")}) + "\n" for text in texts))
        options = {"tokenizer": tokenizer(), "shard_bytes": 4 * 30, **more}
        return bw.prepare(path, out=out, **options)


POOLING = ("pooling", "cls", "was started with pooling='mean', not 'cls'")
EXACT = ("deterministic", True, "was started with deterministic=False, not True")

PRETRAINED, CLASSIFIER = partial(change_weight, pretrained), partial(change_weight, classifier)

OUTPUTS: dict[str, Output] = {
    "npy": Output("v.npy", embed(pretrained), POOLING, PRETRAINED),
    "parquet": Output("v.parquet", embed(pretrained), POOLING, PRETRAINED),
    "sparse": Output(
        "v.npz",
        embed(pretrained, pooling="splade-max"),
        ("prompt", "a ", "was started with prompt='', not 'a '"),
        PRETRAINED,
    ),
    "matrices": Output("v.safetensors", embed(colbert), EXACT, partial(change_weight, colbert)),
    "features": Output(
        "v.parquet",
        features,
        ("unit", "words", "was started with unit='tokens', not 'words'"),
        PRETRAINED,
    ),
    "predictions": Output("v.tsv", predict, EXACT, CLASSIFIER),
    "predictions in JSON": Output("v.jsonl", predict, EXACT, CLASSIFIER),
    "part of predictions": Output("v.tsv", predict, EXACT, CLASSIFIER, is_part=True),
    "corpus": Output(
        "corpus",
        prepare,
        ("sentences", "lines", "was started with sentences='split', not 'lines'"),
        other_tokenizer,
        model="tokenizer",
    ),
}

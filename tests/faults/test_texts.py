"""Generated texts of every kind through tokenizers, `embed` and `predict`: invariants hold."""

from __future__ import annotations

import json
import math
import random
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..cli.conftest import World
from . import processes
from .conftest import SEED, tries
from .test_mutated import FAMILIES

pytestmark = pytest.mark.slow

_RANGES = (
    *((0, 32), (32, 127), (127, 160), (160, 0x250), (0x250, 0x600), (0x600, 0xE00)),
    *((0xE00, 0x1100), (0x1100, 0x2000), (0x2000, 0x2070), (0x2E80, 0xA000), (0xAC00, 0xD7B0)),
    *((0xD800, 0xE000), (0xE000, 0xF900), (0xF900, 0x10000), (0xFFF0, 0x10010)),
    *((0x1F300, 0x1FB00), (0x10000, 0x20000), (0x20000, 0x30000), (0xE0000, 0xE0200)),
    *((0xF0000, 0x110000), (0x300, 0x370), (0x200B, 0x2010), (0x202A, 0x202F), (0xFE00, 0xFE10)),
)
_PIECES = (
    *("[MASK]", "[SEP]", "[CLS]", "[PAD]", "[UNK]", "</s>", "<mask>", "##", "the door", " "),
    *("\n", "\t", "\r\n", "\0", "\u2028", "\ufeff", "\ufffd", "İ", "ß", "\u0345", "e\u0301"),
    *("\U0001f469\u200d\U0001f469\u200d\U0001f467", "ﷺ", "Ǆ"),
)


def generate_text(draw: random.Random) -> str:
    """A text: runs of characters from a few ranges, pieces that mean something, long words."""
    parts = []
    for _ in range(draw.choice([0, 1, 1, 2, 5, 20])):
        kind = draw.random()
        if kind < 0.3:
            parts.append(draw.choice(_PIECES) * draw.choice([1, 1, 1, 3, 50]))
            continue
        low, high = draw.choice(_RANGES)
        length = draw.choice([1, 1, 2, 5, 20, 100])
        if kind > 0.9995:
            parts.append(chr(draw.randrange(low, high)) * draw.choice([5_000, 100_000, 1_000_000]))
        else:
            parts.append("".join(chr(draw.randrange(low, high)) for _ in range(length)))
        parts.append(draw.choice(["", " "]))
    return "".join(parts)


def has_half(text: str) -> bool:
    """Whether half of a character is in a text, which is refused in a line."""
    return any("\ud800" <= char < "\ue000" for char in text)


def _texts(seed: str, first: int, last: int) -> Iterator[tuple[int, str]]:
    for number in range(first, last):
        yield number, generate_text(random.Random(f"{seed} {number}"))


def tokenize_many(model: Path, seed: str, first: int, last: int, faults: Path) -> None:
    """Offsets lie in the text in order, ids in the vocabulary, and nothing is a special token."""
    import bertworks as bw

    tokenizer = bw.Tokenizer.load(model)
    special = set(tokenizer.special_ids.tolist()) - {tokenizer.unk_id}
    with faults.open("w") as file:
        for number, text in _texts(seed, first, last):
            try:
                encoded = tokenizer.encode(text)
                inner = ~encoded.special_tokens_mask
                ids, spans = encoded.input_ids, encoded.offsets[inner]
                assert ((ids >= 0) & (ids < tokenizer.vocab_size)).all()
                assert (~inner).sum() == tokenizer.num_special_tokens(pair=False)
                assert not special & set(ids[inner].tolist()), "a typed token became a special one"
                assert ((spans[:, 0] >= 0) & (spans[:, 0] <= spans[:, 1])).all()
                assert (spans[:, 1] <= len(text)).all()
                assert (spans[1:, 0] >= spans[:-1, 0]).all()
                tokenizer.decode(ids)
                assert not has_half(text), "half a character was taken"
            except Exception as error:
                if has_half(text) and "lone surrogate" in str(error) and "\n" not in str(error):
                    continue
                file.write(json.dumps([number, traceback.format_exc()]) + "\n")


def use_many(world: World, seed: str, first: int, last: int, faults: Path) -> None:
    """A vector and a prediction depend on one text only, whatever the batch, and are finite."""
    import numpy as np

    import bertworks as bw

    warnings.simplefilter("ignore")  # of texts that are cut
    classifier = bw.load(world.classifier, device="cpu")
    size = 32
    with faults.open("w") as file:
        for start in range(first, last, size):
            drawn = [text[:20_000] for _, text in _texts(seed, start, min(last, start + size))]
            texts = [text for text in drawn if not has_half(text)] or ["a door"]
            try:
                vectors = classifier.embed(texts, precision="fp32")
                assert np.isfinite(vectors).all()
                assert vectors.shape[0] == len(texts)
                alone = classifier.embed(texts[-1:], precision="fp32")
                assert (alone[0] == vectors[-1]).all()
                for answer in classifier.predict(texts, precision="fp32"):
                    total = math.fsum(answer["probabilities"].values())
                    assert abs(total - 1) < 1e-5
            except Exception:
                file.write(json.dumps([start, traceback.format_exc()]) + "\n")


TEXTS_PER_PROCESS = 10_000  # texts of a process, which may take ten minutes

_TOKENIZERS = ("roberta-classification", "albert-choice", "camembert-classification", "tagging")


@pytest.mark.parametrize("name", ["world", *_TOKENIZERS, "openai-gpt-classification"])
def test_tokenizers_accept_any_text(
    world: World, tmp_path: Path, tally: Callable[..., None], name: str
) -> None:
    model = world.vocab if name == "world" else FAMILIES / name
    _try_many(tokenize_many, model, f"{SEED} {name}", tries(500, 150_000), tmp_path, tally)


def test_vectors_and_predictions_of_any_text_are_finite(
    world: World, tmp_path: Path, tally: Callable[..., None]
) -> None:
    _try_many(use_many, world, str(SEED), tries(1000, 100_000), tmp_path, tally)


def _try_many(
    function: Callable[..., None],
    what: object,
    seed: str,
    count: int,
    folder: Path,
    tally: Callable[..., None],
) -> None:
    for first in range(0, count, TEXTS_PER_PROCESS):
        last, faults = min(count, first + TEXTS_PER_PROCESS), folder / "faults"
        status = processes.call(function, what, seed, first, last, faults)
        lines = faults.read_text().splitlines()
        tally(texts=last - first, faults=len(lines))
        assert not lines, "\n".join(json.loads(line)[1] for line in lines[:5])
        assert status == 0, "the process ended early: see its standard error"


def test_megabyte_words_are_tokenized(world: World, tmp_path: Path) -> None:
    """Each kind of character as one word of a megabyte."""
    faults = tmp_path / "faults"
    assert processes.call(_long_words, world.vocab, faults) == 0
    assert not faults.read_text()


def _long_words(vocab: Path, faults: Path) -> None:
    import bertworks as bw

    tokenizer = bw.Tokenizer.load(vocab)
    for low, _ in _RANGES:
        if not 0xD800 <= low < 0xE000:
            tokenizer.encode(chr(low) * 1_000_000)
    faults.write_text("")
    sys.stdout.flush()

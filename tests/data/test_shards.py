"""Corpus: views without copies, strict about damage."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from bertworks.data.overlap import SeenTexts
from bertworks.data.prepare import prepare
from bertworks.data.shards import Corpus, token_type
from bertworks.errors import CheckpointError, DataError
from bertworks.text.tokenizer import Tokenizer


@pytest.fixture
def corpus_dir(tokenizer: Tokenizer, text: Path, tmp_path: Path) -> Path:
    prepare(text, tokenizer=tokenizer, out=tmp_path / "out", shard_bytes=9000)
    return tmp_path / "out"


def test_documents_are_views_of_the_files(corpus_dir: Path) -> None:
    files = len(os.listdir("/proc/self/fd"))
    corpus = Corpus.open(corpus_dir)
    assert len(os.listdir("/proc/self/fd")) == files  # thousands of shards need no open file
    ids, offsets = corpus.document(299)
    assert ids.dtype == np.uint8  # 40 pieces
    assert offsets.dtype == np.int64
    assert not ids.flags.owndata
    assert not ids.flags.writeable
    assert offsets[0] == 0
    assert offsets[-1] == len(ids)
    for number in (-1, 300):
        with pytest.raises(IndexError):
            corpus.document(number)


def test_pickled_corpus_is_small_and_opens_again(corpus_dir: Path) -> None:
    corpus = Corpus.open(corpus_dir)
    pickled_corpus = pickle.dumps(corpus)
    assert len(pickled_corpus) < 1000
    for number in (0, 100, 299):
        for mine, other in zip(
            corpus.document(number), pickle.loads(pickled_corpus).document(number), strict=True
        ):
            np.testing.assert_array_equal(mine, other)
    assert corpus.originals.tolist() == list(range(300))
    assert len(corpus) == 300


@pytest.mark.long
def test_more_copies_than_16_bits_count(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertworks.data.sources.MAX_WEIGHT", 1e5)
    (tmp_path / "f").write_text("a")
    sources, out = [f"{tmp_path}/f@65538", tmp_path / "f"], tmp_path / "out"
    prepare(sources, tokenizer=tokenizer, out=out, sentences="lines")
    assert set(Corpus.open(out).originals.tolist()) == {0, 65538}


def test_tokenizer_travels_with_the_corpus(corpus_dir: Path, tokenizer: Tokenizer) -> None:
    assert Corpus.open(corpus_dir).load_tokenizer().fingerprint == tokenizer.fingerprint
    Tokenizer.from_vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]).save(
        corpus_dir / "tokenizer", overwrite=True
    )
    with pytest.raises(CheckpointError, match="was prepared with another tokenizer than this one"):
        Corpus.open(corpus_dir).load_tokenizer()


def test_token_type_is_the_smallest_for_the_vocabulary() -> None:
    sizes = {256: "uint8", 257: "uint16", 30_522: "uint16", 65_536: "uint16", 65_537: "uint32"}
    assert {size: token_type(size).name for size in sizes} == sizes


@pytest.mark.parametrize("damage", ["missing", "short", "zeros", "footer"])
def test_damaged_shard_is_refused(corpus_dir: Path, damage: str) -> None:
    path = corpus_dir / "shard-00001.arrow"
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "short":
        path.write_bytes(content[:-8])
    elif damage == "zeros":
        path.write_bytes(bytes(len(content)))
    else:
        path.write_bytes(content[:-40] + bytes(40))
    with pytest.raises(CheckpointError, match=r"shard-00001.arrow: .*damaged.*again"):
        Corpus.open(corpus_dir)


def test_flipped_bit_is_found_by_verify(corpus_dir: Path) -> None:
    path = corpus_dir / "shard-00000.arrow"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    Corpus.open(corpus_dir)
    with pytest.raises(CheckpointError, match="checksum"):
        Corpus.open(corpus_dir, verify=True)


def test_bad_manifest_is_refused(corpus_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a prepared corpus"):
        Corpus.open(tmp_path)
    path = corpus_dir / "manifest.json"
    tree = json.loads(path.read_text())
    for content, message in (
        ("{", "damaged"),
        ("[]", r"manifest\.json: written in another format \(none, not 4\)"),
        (json.dumps({**tree, "tokens": "many"}), "damaged .tokens"),
        (json.dumps({**tree, "token_type": "uint16"}), "shard-00000.arrow.*uint8"),
        (json.dumps({**tree, "token_type": "uint7"}), "damaged .token_type"),
    ):
        path.write_text(content)
        with pytest.raises(CheckpointError, match=message):
            Corpus.open(corpus_dir)
    path.unlink()
    path.mkdir()
    with pytest.raises(CheckpointError, match=r"manifest\.json: cannot be read \(Is a dir"):
        Corpus.open(corpus_dir)


def test_seen_texts_equal_a_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertworks.data.overlap._FEW", 3)
    seen_texts, plain = SeenTexts(), set[str]()
    for number in np.random.default_rng(0).integers(0, 500, 2000):
        text = str(number)
        assert seen_texts.add(text) == (text not in plain)
        plain.add(text)
        assert len(seen_texts) == len(plain)

"""Parts of a prepared corpus: merged they are the bytes of one run; mismatches are refused."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bertworks as bw
from bertworks.data import merging
from bertworks.data.prepare import prepare
from bertworks.data.shard_builder import TextBatch, batches
from bertworks.data.shards import Corpus
from bertworks.errors import CheckpointError, DataError, OutputError
from bertworks.text.tokenizer import Tokenizer
from tests.crashes import contents

HARD: dict[str, Any] = {
    "shard_bytes": 9000,
    "drop_duplicates": True,
    "skip_bad": True,
    "seed": 3,
}


@pytest.fixture
def sources(text: Path, tmp_path: Path) -> list[str]:
    """Repeated, thinned, empty and broken documents, and those of evaluation data."""
    lines = [{"text": f"abc {number % 7}"} for number in range(30)]
    lines += [{"text": "\x07"}, {"text": ""}]
    odd = tmp_path / "odd.jsonl"
    odd.write_text("".join(map(json.dumps, lines)).replace("}{", "}\n{") + "\nno JSON\n")
    held = text.read_text("utf-8").split("\n\n")
    longest = max(" ".join(held[5].split("\n")).split(), key=len)
    (tmp_path / "held.txt").write_text(held[5].replace("\n", " ") + f" {longest}\n")
    return [f"{text}@1.5", str(odd)]


@pytest.mark.long
@pytest.mark.parametrize("count", [1, 2, 3, 5, pytest.param(40, marks=pytest.mark.long)])
def test_parts_together_are_one_runs_bytes(
    tokenizer: Tokenizer, sources: list[str], tmp_path: Path, count: int
) -> None:
    options = {**HARD, "tokenizer": tokenizer, "exclude": [tmp_path / "held.txt"]}
    whole = prepare(sources, out=tmp_path / "whole", **options)
    assert 5 < len(whole.shards) < 40
    assert (
        min(whole.duplicate_documents, whole.empty_documents, sum(whole.num_skipped.values())) > 0
    )
    parts = []
    for number in range(1, count + 1):
        parts.append(tmp_path / f"part{number}")
        made = prepare(sources, out=parts[-1], part=f"{number}/{count}", **options)
        assert len(made.shards) == len(whole.shards[number - 1 :: count])
    merged = bw.merge(parts[::-1], tmp_path / "merged")
    assert merged == whole
    assert contents(tmp_path / "merged") == contents(tmp_path / "whole")


@pytest.mark.long
def test_a_damaged_or_foreign_part_is_refused(
    tokenizer: Tokenizer, text: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"tokenizer": tokenizer, "shard_bytes": 9000}
    prepare(text, out=tmp_path / "whole", **options)
    one, two = tmp_path / "1", tmp_path / "2"
    for number, part in enumerate((one, two), 1):
        prepare(text, out=part, part=f"{number}/2", **options)
    pieces = [tokenizer.id_to_token(number) for number in range(tokenizer.vocab_size)]
    larger = Tokenizer.from_vocabulary([*pieces, "zz"])
    foreign = tmp_path / "other"
    prepare(text, out=foreign, part="2/2", **{**options, "tokenizer": larger})
    message = f"{foreign}: does not belong to {one}: made with another tokenizer"
    with pytest.raises(DataError, match=message):
        bw.merge([one, foreign], tmp_path / "out")
    shard = next(two.glob("*.arrow"))
    content = bytearray(shard.read_bytes())
    content[-50] ^= 1
    shard.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"2.shard-00001\.arrow: this shard is damaged"):
        bw.merge([one, two], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    prepare(text, out=two, part="2/2", **options)  # mends it
    bw.merge([one, two], tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.long
def test_shards_are_sorted_by_number_beyond_five_digits(
    tokenizer: Tokenizer, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name, shard 100,000 would come before shard 99,999."""

    def renumber(*arguments: Any) -> Iterator[TextBatch]:
        for batch in batches(*arguments):
            yield replace(batch, number=batch.number + 99_997)

    monkeypatch.setattr("bertworks.data.prepare.batches", renumber)
    options: dict[str, Any] = {"tokenizer": tokenizer, "shard_bytes": 9000}
    whole = prepare(text, out=tmp_path / "whole", **options)
    numbers = [shard.number for shard in whole.shards]
    assert numbers == list(range(99_997, 99_997 + len(numbers)))
    assert numbers[-1] > 100_000
    parts = [tmp_path / "a", tmp_path / "b"]
    for number, part in enumerate(parts, 1):
        prepare(text, out=part, part=f"{number}/2", **options)
    assert bw.merge(parts, tmp_path / "merged") == whole


def test_a_part_is_no_corpus(tokenizer: Tokenizer, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "part"
    prepare(text, tokenizer=tokenizer, out=out, part="2/2", shard_bytes=9000)
    with pytest.raises(DataError, match="is part 2/2 of a corpus"):
        Corpus.open(out)


def test_a_part_whose_corpus_has_changed_since(
    tokenizer: Tokenizer, text: Path, tmp_path: Path
) -> None:
    source = Path(shutil.copy(text, tmp_path / "text.txt"))
    options: dict[str, Any] = {
        "tokenizer": tokenizer,
        "out": tmp_path / "part",
        "shard_bytes": 9000,
    }
    prepare(source, part="2/2", **options)
    content = source.read_text("utf-8")
    source.write_text(content[:100].swapcase() + content[100:], encoding="utf-8")  # of part 1
    with pytest.raises(DataError, match="was started with other texts"):
        prepare(source, part="2/2", **options)


@pytest.mark.long
def test_full_disk_is_an_error_of_one_line(
    sources: list[str], tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = tmp_path / "part"
    prepare(sources, tokenizer=tokenizer, out=part, part="1/1", **HARD)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(merging, "write_definition", full)
    with pytest.raises(OutputError, match=r"merged: cannot be written \(No space left on device\)"):
        bw.merge([part], tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_parts_without_a_token_are_no_corpus(tokenizer: Tokenizer, tmp_path: Path) -> None:
    source = tmp_path / "bells.jsonl"
    source.write_text('{"text": "\\u0007"}\n' * 2)
    parts = [tmp_path / "one", tmp_path / "two"]
    for number, part in enumerate(parts, 1):
        prepare([source], out=part, tokenizer=tokenizer, part=f"{number}/2")
    with pytest.raises(DataError, match="no text gives tokens"):
        bw.merge(parts, tmp_path / "out")
    assert not (tmp_path / "out").exists()

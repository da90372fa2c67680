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
from bertworks.data.manifest import Journal
from bertworks.data.prepare import PrepareProgress, prepare
from bertworks.data.shard_builder import TextBatch, batches
from bertworks.data.shards import Corpus
from bertworks.errors import BertworksError, CheckpointError, DataError, OutputError, SettingsError
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
def test_a_part_is_resumed_and_again_has_nothing_to_do(
    tokenizer: Tokenizer, text: Path, tmp_path: Path
) -> None:
    class StopError(Exception):
        pass

    def stop(now: PrepareProgress) -> None:
        if now.shards == 3:
            raise StopError

    options: dict[str, Any] = {"tokenizer": tokenizer, "shard_bytes": 4000}
    prepare(text, out=tmp_path / "whole", **options)
    parts = [tmp_path / "a", tmp_path / "b"]
    with pytest.raises(StopError):
        prepare(text, out=parts[0], part="1/2", progress=stop, **options)
    with pytest.raises(DataError, match="not finished"):
        bw.merge(parts[:1], tmp_path / "merged")
    assert Journal.path(parts[0]).exists()
    reports: list[PrepareProgress] = []
    prepare(text, out=parts[0], part="1/2", progress=reports.append, **options)
    assert reports[-1].reused_shards == 3
    assert reports[-1].bytes_read == text.stat().st_size
    with pytest.raises(BertworksError, match="part was '1/2' and is now '2/2'"):
        prepare(text, out=parts[0], part="2/2", **options)
    prepare(text, out=parts[1], part="2/2", workers=2, **options)
    before = contents(parts[1])
    prepare(text, out=parts[1], part="2/2", **options)
    assert contents(parts[1]) == before
    bw.merge(parts, tmp_path / "merged")
    assert contents(tmp_path / "merged") == contents(tmp_path / "whole")
    merged_files = contents(tmp_path / "merged")
    assert bw.merge(parts, tmp_path / "merged") == bw.Corpus.open(tmp_path / "merged").manifest
    assert contents(tmp_path / "merged") == merged_files
    shard = next((tmp_path / "merged").glob("*.arrow"))
    shard.unlink()  # it is linked to a part's
    shard.write_bytes(b"damaged")
    with pytest.raises(OutputError, match="merged: already exists"):
        bw.merge(parts, tmp_path / "merged")
    bw.merge(parts, tmp_path / "merged", overwrite=True)
    assert contents(tmp_path / "merged") == merged_files


@pytest.mark.long
def test_parts_of_different_preparations_are_refused(
    tokenizer: Tokenizer, text: Path, tmp_path: Path
) -> None:
    def make(name: str, part: str | None, source: Path = text, **settings: Any) -> Path:
        options: dict[str, Any] = {"tokenizer": tokenizer, "shard_bytes": 9000, **settings}
        prepare(source, out=tmp_path / name, part=part, **options)
        return tmp_path / name

    one, two, three = (make(f"p{number}", f"{number}/3") for number in (1, 2, 3))
    other = make("other", "2/3", sentences="lines")
    changed_file = tmp_path / "changed" / text.name
    changed_file.parent.mkdir()
    changed_file.write_text(text.read_text("utf-8").replace("a", "b"), encoding="utf-8")
    letters = make("letters", "3/3", changed_file)
    whole, half = make("whole", None), make("half", "1/2")
    pieces = [tokenizer.id_to_token(number) for number in range(tokenizer.vocab_size)]
    larger = Tokenizer.from_vocabulary([*pieces, "zz"])
    of_another = make("of another", "1/3", tokenizer=larger)
    for parts, says in (
        ([one, three], "of 3 parts, these are missing: '2/3'"),
        ([two], "of 3 parts, these are missing: '1/3', '3/3'"),
        ([one, two, two, three], f"{two}: is part 2/3, as {two} is"),
        ([one, two, other, three], f"{other}: is part 2/3, as {two} is"),
        ([one, other, three], f"{other}: does not belong to {one}: sentences was 'split'"),
        ([one, two, letters], f"{letters}: does not belong to {one}: the text has changed"),
        ([of_another, two, three], f"{two}: does not belong to {of_another}: the tokenizer"),
        ([whole, two, three], f"{whole}: is not a part"),
        ([half, two, three], f"{two}: is part 2/3, and {half} is part 1/2"),
        ([one, tmp_path, three], f"{tmp_path}: no manifest.json here"),
    ):
        with pytest.raises(DataError) as error:
            bw.merge(parts, tmp_path / "out")
        assert says in str(error.value)
        assert "\n" not in str(error.value)
        assert not (tmp_path / "out").exists()
    shard = next(two.glob("*.arrow"))
    content = bytearray(shard.read_bytes())
    content[-50] ^= 1
    shard.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"p2.shard-00001\.arrow: this shard is damaged"):
        bw.merge([one, two, three], tmp_path / "out")
    prepare(text, tokenizer=tokenizer, shard_bytes=9000, out=two, part="2/3")  # mends it
    bw.merge([one, two, three], tmp_path / "out")
    assert contents(tmp_path / "out") == contents(whole)


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
    numbers = [int(shard.file.removeprefix("shard-").split(".")[0]) for shard in whole.shards]
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
    for wrong in ("0/2", "3/2", "1", "a/b", "1/0", "-1/2"):
        with pytest.raises(SettingsError, match="is not valid"):
            prepare(text, tokenizer=tokenizer, out=tmp_path / "no", part=wrong)


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
    with pytest.raises(DataError, match="its text has changed since"):
        prepare(source, part="2/2", **options)


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

"""prepare: the tokenizer's ids, the same bytes every time, after kills and faults too."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from bertworks.data.documents import read_documents
from bertworks.data.manifest import Manifest
from bertworks.data.prepare import PrepareProgress, prepare
from bertworks.data.shards import Corpus
from bertworks.errors import BertworksError, CheckpointError, DataError, OutputError, SettingsError
from bertworks.text.sentences import split_sentences
from bertworks.text.tokenizer import Tokenizer
from tests.crashes import contents


def as_lists(corpus: Corpus) -> list[list[list[int]]]:
    documents = []
    for number in range(corpus.num_documents):
        ids, offsets = corpus.document(number)
        documents.append([part.tolist() for part in np.split(ids, offsets[1:-1])])
    return documents


def expected(
    tokenizer: Tokenizer, path: Path, rule: str = "split", **settings: Any
) -> list[list[list[int]]]:
    """The ids by the plainest way: a sentence at a time."""
    documents = []
    for document in read_documents(path, **settings):
        sentences = [
            tokenizer.piece_ids([sentence])[0].tolist()
            for paragraph in document.paragraphs
            for sentence in ([paragraph] if rule == "lines" else split_sentences(paragraph))
        ]
        documents.append([ids for ids in sentences if ids])
    return [document for document in documents if document]


@pytest.mark.long
@pytest.mark.parametrize("rule", ["split", "lines"])
@hypothesis_settings(deadline=None)
@given(
    documents=st.lists(
        st.lists(st.text("abz.! é\x07力", max_size=12), max_size=4), min_size=1, max_size=6
    ),
    shard_bytes=st.integers(1, 100),
)
def test_ids_are_the_tokenizers(
    tokenizer: Tokenizer,
    tmp_path_factory: pytest.TempPathFactory,
    rule: Any,
    documents: list[list[str]],
    shard_bytes: int,
) -> None:
    folder = tmp_path_factory.mktemp("prepare")
    path = folder / "f.jsonl"
    path.write_text("".join(json.dumps({"text": "\n".join(d)}) + "\n" for d in documents))
    expected_ids = expected(tokenizer, path, rule)
    settings: dict[str, Any] = {"tokenizer": tokenizer, "out": folder / "out", "sentences": rule}
    if not expected_ids:
        with pytest.raises(DataError, match="no text"):
            prepare(path, shard_bytes=shard_bytes, **settings)
        return
    manifest = prepare(path, shard_bytes=shard_bytes, **settings)
    corpus = Corpus.open(folder / "out", verify=True)
    assert as_lists(corpus) == expected_ids
    assert corpus.manifest == manifest
    assert manifest.documents == corpus.num_documents == len(expected_ids)
    assert manifest.documents + manifest.empty_documents == len(documents)
    assert manifest.sentences == sum(map(len, expected_ids))
    assert manifest.tokens == corpus.document_lengths.sum()
    flat = [piece for document in expected_ids for sentence in document for piece in sentence]
    assert manifest.unknown_tokens == flat.count(tokenizer.unk_id)
    assert corpus.document_lengths.tolist() == [
        sum(map(len, document)) for document in expected_ids
    ]


def test_damaged_tokenizer_of_a_finished_corpus_is_written_again(
    tokenizer: Tokenizer, text: Path, tmp_path: Path
) -> None:
    """Its `vocab.txt`, which is for other tools, has no checksum."""
    out = tmp_path / "out"
    prepare(text, tokenizer=tokenizer, out=out)
    whole = contents(out)
    (out / "tokenizer" / "vocab.txt").write_text("other\n")
    prepare(text, tokenizer=tokenizer, out=out)
    assert contents(out) == whole


@pytest.mark.long
def test_bytes_do_not_depend_on_workers(tokenizer: Tokenizer, text: Path, tmp_path: Path) -> None:
    reports: list[tuple[int, ...]] = []

    def note(now: PrepareProgress) -> None:
        reports.append((now.documents, now.tokens, now.bytes_read, now.shards))
        assert now.bytes_total == text.stat().st_size
        assert 0 <= now.unknown_rate <= 1

    one = prepare(text, tokenizer=tokenizer, out=tmp_path / "1", shard_bytes=9000, progress=note)
    tokenizer.save(tmp_path / "saved")
    two = prepare(
        [text],
        tokenizer=tmp_path / "saved",
        out=tmp_path / "2",
        workers=2,
        shard_bytes=9000,
        progress=note,
    )
    assert one == two
    assert len(one.shards) > 3
    assert contents(tmp_path / "1") == contents(tmp_path / "2")
    assert set(contents(tmp_path / "1")) >= {"manifest.json", "tokenizer/vocab.txt"}
    assert as_lists(Corpus.open(tmp_path / "2")) == expected(tokenizer, text)
    end = (one.documents, one.tokens, text.stat().st_size, len(one.shards))
    assert reports[len(reports) // 2 - 1] == reports[-1] == end
    machine = [str(tmp_path), str(text.parent)]
    assert not any(word in (tmp_path / "1" / "manifest.json").read_text() for word in machine)


class StopError(Exception):
    pass


def stop_after(shards: int) -> Any:
    def stop(now: PrepareProgress) -> None:
        if now.shards == shards:
            raise StopError

    return stop


@pytest.mark.long
def test_damaged_shards_of_a_finished_corpus_are_prepared_again(
    tokenizer: Tokenizer, text: Path, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"tokenizer": tokenizer, "out": tmp_path, "shard_bytes": 9000}
    prepare(text, **settings)
    whole = contents(tmp_path)
    first, second, *others = sorted(tmp_path.glob("*.arrow"))
    first.write_bytes(b"")
    second.unlink()
    reports: list[int] = []
    prepare(text, workers=2, progress=lambda n: reports.append(n.reused_shards), **settings)
    assert reports[-1] == len(others)
    assert contents(tmp_path) == whole


def test_preparation_resumes_after_the_text_is_corrected(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    path, settings = tmp_path / "f", {"tokenizer": tokenizer, "shard_bytes": 50}
    good = b"\n\n".join(b"Abc def %d." % n for n in range(40))
    path.write_bytes(good + b"\n\n\xff more text.")
    with pytest.raises(DataError, match="f:81: not UTF-8"):
        prepare(path, out=tmp_path / "out", **settings)
    path.write_bytes(good)
    reports: list[int] = []
    prepare(
        path, out=tmp_path / "out", progress=lambda n: reports.append(n.reused_shards), **settings
    )
    assert reports[-1] > 5
    prepare(path, out=tmp_path / "unbroken", **settings)
    assert contents(tmp_path / "out") == contents(tmp_path / "unbroken")


@pytest.mark.long
def test_directory_with_another_corpus_is_refused(
    tokenizer: Tokenizer, text: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    settings: dict[str, Any] = {"tokenizer": tokenizer, "shard_bytes": 9000}
    prepare(text, out=out, **settings)
    with pytest.raises(DataError, match=r"was started with another corpus"):
        prepare([text, text], out=out, **settings)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").write_text("x")
    for place, message in (("full", "full: already exists"), ("full/precious", "not a directory")):
        with pytest.raises(BertworksError, match=message):
            prepare(text, tokenizer=tokenizer, out=tmp_path / place)


def test_second_run_in_a_directory_is_refused(
    tokenizer: Tokenizer, text: Path, tmp_path: Path
) -> None:
    def second(now: PrepareProgress) -> None:
        with pytest.raises(OutputError, match="is being written by process"):
            prepare(text, tokenizer=tokenizer, out=tmp_path / "out")
        raise StopError

    with pytest.raises(StopError):
        prepare(text, tokenizer=tokenizer, out=tmp_path / "out", progress=second)
    prepare(text, tokenizer=tokenizer, out=tmp_path / "out")


def test_manifest_counts_documents_and_skipped_lines(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "f.jsonl").write_text(
        "\n".join(
            json.dumps({"text": text}) for text in ["Ab. \x07", "Ab. \x07", "\x07", "", "Zz!"]
        )
        + '\n{"text": 1}\n{"text"'
    )
    manifest = prepare(
        f"{tmp_path}/f.jsonl@2",
        tokenizer=tokenizer,
        out=tmp_path / "out",
        skip_bad=True,
        drop_duplicates=True,
    )
    assert (manifest.documents, manifest.duplicate_documents) == (4, 1)
    assert manifest.num_skipped == {"bad JSON": 1, "value is not a string": 1}
    assert manifest.empty_documents == 3  # one blank, and two copies of one without a piece
    assert manifest.unknown_rate == 2 / manifest.tokens
    assert manifest.vocabulary_hash == tokenizer.fingerprint
    corpus = Corpus.open(tmp_path / "out")
    assert corpus.originals.tolist() == [0, 0, 2, 2]
    assert manifest == Manifest.read(tmp_path / "out")


def test_bad_text_and_settings_are_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"Good.\n\nBad \xff.")
    for workers in (1, 2):
        with pytest.raises(DataError, match="f:3: not UTF-8"):
            prepare(tmp_path / "f", tokenizer=tokenizer, out=tmp_path / "out", workers=workers)
    for language in ("English!", "sv", "xx"):
        with pytest.raises(DataError, match=r"no rules for the language .* Give one of am, ar"):
            prepare(tmp_path / "f", tokenizer=tokenizer, out=tmp_path / "out", language=language)
    with pytest.raises(SettingsError, match="language='de' does nothing without sentences=split"):
        prepare(
            tmp_path / "f",
            tokenizer=tokenizer,
            out=tmp_path / "out",
            language="de",
            sentences="lines",
        )
    with pytest.raises(SettingsError, match="workers=0"):
        prepare(tmp_path / "f", tokenizer=tokenizer, out=tmp_path / "out", workers=0)


@pytest.mark.long
def test_full_disk_keeps_finished_shards(tokenizer: Tokenizer, text: Path, tmp_path: Path) -> None:
    """Files may not grow beyond a limit that a later shard needs: as a full disk, an OSError."""
    settings: dict[str, Any] = {
        "tokenizer": tokenizer,
        "out": tmp_path / "out",
        "shard_bytes": 9000,
    }
    longer = tmp_path / "f"
    longer.write_bytes(text.read_bytes() + b"\n\n" + b"abcdefghi " * 9_000)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        written = r"out/shard-\d+\.arrow: cannot be written .*What is finished is kept"
        with pytest.raises(OutputError, match=written):
            prepare(longer, **settings)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    reports: list[int] = []
    prepare(longer, progress=lambda now: reports.append(now.reused_shards), **settings)
    assert reports[-1] > 3


@pytest.mark.long
def test_a_part_without_shards_is_made_again_after_a_failure(
    tokenizer: Tokenizer, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(own: Manifest, directory: Path) -> None:
        assert (directory / "tokenizer").exists()
        raise OutputError("cannot be written")

    options: dict[str, Any] = {"tokenizer": tokenizer, "exclude": [text], "part": "999/999"}
    with monkeypatch.context() as patched:
        patched.setattr(Manifest, "write", fail)
        with pytest.raises(OutputError, match="cannot be written"):
            prepare(text, out=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
    assert not prepare(text, out=tmp_path / "out", **options).shards


@pytest.mark.long
def test_a_corpus_in_another_format_is_refused(
    tokenizer: Tokenizer, text: Path, tmp_path: Path
) -> None:
    out = tmp_path / "data"
    options: dict[str, Any] = {"tokenizer": tokenizer, "out": out}
    prepare(text, **options)
    whole = contents(out)
    path = out / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 2}))
    for read in (lambda: Corpus.open(out), lambda: prepare(text, **options)):
        with pytest.raises(CheckpointError) as error:
            read()
        assert str(error.value) == (
            f"{path}: written in another format (2, not 4). "
            "Prepare the corpus again, with --overwrite (overwrite=True) in the same directory."
        )
    prepare(text, **options, overwrite=True)
    assert contents(out) == whole

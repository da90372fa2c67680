"""prepare: the tokenizer's ids, the same bytes every time, after kills and faults too."""

from __future__ import annotations

import json
import random
import re
import resource
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from bertworks.data.documents import read_documents
from bertworks.data.manifest import Journal, Manifest
from bertworks.data.prepare import PrepareProgress, prepare
from bertworks.data.shards import Corpus
from bertworks.errors import BertworksError, CheckpointError, DataError, OutputError, SettingsError
from bertworks.text.sentences import split_sentences
from bertworks.text.tokenizer import Tokenizer
from bertworks.utils.line_files import LineFile
from tests.crashes import contents, crashing, needs_proc


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


SCRIPT = """
import sys
from bertworks.data.prepare import prepare
text, tokenizer, out, workers = sys.argv[1:]  # as people write scripts: workers do not run them
prepare(text, tokenizer=tokenizer, out=out, workers=int(workers), shard_bytes=2000)
"""


@pytest.mark.long
@pytest.mark.parametrize(("workers", "kills"), [(1, 4), (2, 2)])
def test_killed_preparation_resumes_with_the_same_bytes(
    tokenizer: Tokenizer, text: Path, tmp_path: Path, workers: int, kills: int
) -> None:
    prepare(text, tokenizer=tokenizer, out=tmp_path / "unbroken", shard_bytes=2000)
    tokenizer.save(tmp_path / "saved")
    (tmp_path / "script.py").write_text(SCRIPT)
    out = tmp_path / "killed"
    command = [sys.executable, str(tmp_path / "script.py"), str(text), str(tmp_path / "saved")]
    draw, lines = random.Random(workers), 0
    for _ in range(kills):
        with subprocess.Popen([*command, str(out), str(workers)]) as process:
            wanted = lines + draw.randint(0, 8)
            while process.poll() is None and lines <= wanted:
                journal = Journal.path(out)
                lines = journal.read_bytes().count(b"\n") if journal.exists() else 0
                time.sleep(0.0005)
            time.sleep(draw.random() * 0.01)
            process.send_signal(signal.SIGKILL)
    if not (out / "manifest.json").exists():
        with pytest.raises(DataError, match="not finished"):
            Corpus.open(out)
    reports = []
    prepare(
        text,
        tokenizer=tokenizer,
        out=out,
        shard_bytes=2000,
        progress=lambda now: reports.append(now.reused_shards),
    )
    assert reports[-1] >= lines - 1 > 0
    assert contents(out) == contents(tmp_path / "unbroken")


class StopError(Exception):
    pass


def stop_after(shards: int) -> Any:
    def stop(now: PrepareProgress) -> None:
        if now.shards == shards:
            raise StopError

    return stop


def test_shards_that_are_damaged_or_unfinished_are_prepared_again(
    tokenizer: Tokenizer, text: Path, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"tokenizer": tokenizer, "shard_bytes": 9000}
    prepare(text, out=tmp_path / "unbroken", **settings)
    unbroken = contents(tmp_path / "unbroken")
    out = tmp_path / "out"
    with pytest.raises(StopError):
        prepare(text, out=out, progress=stop_after(3), **settings)
    # A line cut short, a damaged shard, a missing one, and files half written.
    with open(Journal.path(out), "ab") as journal:
        journal.write(b'{"file": "shard-0')
    shards = sorted(out.glob("*.arrow"))
    shards[0].write_bytes(shards[0].read_bytes()[:-1] + b"!")
    shards[1].unlink()
    (out / ".shard-00009.arrow.new").write_bytes(b"half")
    reports: list[int] = []
    prepare(text, out=out, progress=lambda now: reports.append(now.reused_shards), **settings)
    assert reports[-1] == 1
    assert contents(out) == unbroken
    # Once more on the finished corpus: nothing to do; and damage is mended.
    prepare(text, out=out, progress=lambda now: reports.append(now.reused_shards), **settings)
    assert reports[-1] == len(list(out.glob("*.arrow")))
    shards[0].write_bytes(b"")
    prepare(text, out=out, workers=2, **settings)
    assert contents(out) == unbroken


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


def test_directory_with_another_preparation_is_refused(
    tokenizer: Tokenizer, text: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    settings: dict[str, Any] = {"tokenizer": tokenizer, "out": out, "shard_bytes": 9000}
    for stop in (stop_after(2), None):  # an unfinished and a finished one
        if stop:
            with pytest.raises(StopError):
                prepare(text, progress=stop, **settings)
        else:
            prepare(text, **settings)
        files_before = contents(out)
        for other, message in (
            ({"sentences": "lines"}, "sentences was 'split' and is now 'lines'"),
            ({"shard_bytes": 1}, "shard_bytes was 9000"),
            (
                {
                    "tokenizer": Tokenizer.from_vocabulary(
                        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
                    )
                },
                "the tokenizer differs",
            ),
        ):
            with pytest.raises(BertworksError, match=f"another preparation.*{message}.*--out"):
                prepare(text, **{**settings, **other})
        with pytest.raises(BertworksError, match=r"another preparation.*the corpus differs"):
            prepare([text, text], **settings)
        assert contents(out) == files_before
    changed_file = text.with_name("other") / text.name
    changed_file.parent.mkdir()
    changed_file.write_text(text.read_text(encoding="utf-8").replace("a", "b"), encoding="utf-8")
    with pytest.raises(DataError, match="its text has changed"):
        prepare(changed_file, **settings)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").write_text("x")
    for place, message in (("full", "not empty"), ("full/precious", "not a directory")):
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
    with pytest.raises(SettingsError, match="language='de' is for sentences='split'"):
        prepare(
            tmp_path / "f",
            tokenizer=tokenizer,
            out=tmp_path / "out",
            language="de",
            sentences="lines",
        )
    with pytest.raises(SettingsError, match="workers=0"):
        prepare(tmp_path / "f", tokenizer=tokenizer, out=tmp_path / "out", workers=0)


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
        written = r"out/shard-\d+\.arrow: cannot be written .*\d finished shards"
        with pytest.raises(OutputError, match=written):
            prepare(longer, **settings)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    reports: list[int] = []
    prepare(longer, progress=lambda now: reports.append(now.reused_shards), **settings)
    assert reports[-1] > 3


def test_a_disk_that_is_full_after_the_first_shard(
    tokenizer: Tokenizer, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shard is not in the journal: it is removed with it, and the command can run again."""
    append, lines = LineFile.append, 0

    def append_or_fail(file: LineFile, line: bytes) -> None:
        nonlocal lines
        lines += 1
        if lines == 2:  # after the job
            raise OutputError("cannot be written (No space left on device)", where=str(file.path))
        append(file, line)

    with monkeypatch.context() as patched:
        patched.setattr(LineFile, "append", append_or_fail)
        with pytest.raises(OutputError, match="No space left"):
            prepare(text, tokenizer=tokenizer, out=tmp_path / "out", shard_bytes=9000)
    assert not (tmp_path / "out").exists()
    prepare(text, tokenizer=tokenizer, out=tmp_path / "out", shard_bytes=9000)


@pytest.mark.parametrize("room", [30, 150])
def test_a_disk_that_is_full_in_the_middle_of_a_journal_s_line(
    tokenizer: Tokenizer, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """The finished shards are kept, whatever of the line was written."""
    settings: dict[str, Any] = {"tokenizer": tokenizer, "out": tmp_path / "out"}
    append, lines = LineFile.append, 0

    def append_with_limit(file: LineFile, line: bytes) -> None:
        nonlocal lines
        lines += 1
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        if lines == 4:  # the job and two shards are there
            resource.setrlimit(resource.RLIMIT_FSIZE, (file.size + room, limits[1]))
        try:
            append(file, line)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    with monkeypatch.context() as patched:
        patched.setattr(LineFile, "append", append_with_limit)
        with pytest.raises(
            OutputError, match=r"journal\.jsonl: cannot .* 2 finished shards are kept"
        ):
            prepare(text, shard_bytes=9000, **settings)
    reports: list[int] = []
    prepare(
        text, shard_bytes=9000, progress=lambda now: reports.append(now.reused_shards), **settings
    )
    assert reports[-1] == 2


@pytest.mark.long
@needs_proc
def test_machine_crash_at_any_write_is_resumed_with_the_same_bytes(
    tokenizer: Tokenizer, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"tokenizer": tokenizer, "shard_bytes": 40_000}
    prepare(text, out=tmp_path / "whole", **settings)
    whole = contents(tmp_path / "whole")
    (tmp_path / "root").mkdir()

    def resumes(left: Path) -> bool:
        prepare(text, out=left / "out", **settings)
        return contents(left / "out") == whole

    with crashing(monkeypatch, tmp_path / "root", resumes) as disk:
        prepare(text, out=tmp_path / "root" / "out", **settings)
        assert disk.crashes > 10
        assert not disk.num_damaged
        assert disk.is_new()


def test_a_changed_number_in_the_journal_is_found(
    tokenizer: Tokenizer, text: Path, tmp_path: Path
) -> None:
    """Of what an unfinished `prepare` has done."""
    manifest = prepare(text, tokenizer=tokenizer, out=tmp_path / "data")
    whole = manifest.job, list(manifest.shards)

    def read() -> Any:
        with closing(Journal(tmp_path)) as journal:
            return journal.read()

    with closing(Journal(tmp_path)) as journal:
        journal.restart(manifest.job)
        for shard in manifest.shards:
            journal.append(shard)
    assert read() == whole
    file = Journal.path(tmp_path)
    content = file.read_bytes()
    for changed_content in (
        content.replace(b'"unknown_tokens":', b'"unknown_tokens":1', 1),
        re.sub(rb',"crc32":"\w{8}"', b"", content),
    ):
        file.write_bytes(changed_content)
        with pytest.raises(CheckpointError, match="the checksum of a line is wrong"):
            read()


def is_refused_in_one_line(error: BaseException, path: Path) -> bool:
    """Whether an error says that a file has another format, and what to do."""
    return str(error) == (
        f"{path}: written in another format (2, not 3). "
        "Prepare the corpus again, with --overwrite (overwrite=True) in the same directory."
    )


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
        assert is_refused_in_one_line(error.value, path)
    prepare(text, **options, overwrite=True)
    assert contents(out) == whole


def test_an_unfinished_corpus_in_another_format_is_refused(
    tokenizer: Tokenizer, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {
        "tokenizer": tokenizer,
        "out": tmp_path / "data",
        "shard_bytes": 3000,
    }
    prepare(text, tokenizer=tokenizer, out=tmp_path / "whole", shard_bytes=3000)
    with monkeypatch.context() as patched:
        patched.setattr("bertworks.data.manifest.FORMAT_VERSION", 2)
        with pytest.raises(StopError):
            prepare(text, progress=stop_after(2), **options)
    with pytest.raises(CheckpointError) as error:
        prepare(text, **options)
    assert is_refused_in_one_line(error.value, tmp_path / "data" / "journal.jsonl")
    prepare(text, **options, overwrite=True)
    assert contents(tmp_path / "data") == contents(tmp_path / "whole")


def test_a_resumed_preparation_has_a_whole_tokenizer(
    tokenizer: Tokenizer, text: Path, tmp_path: Path
) -> None:
    prepare(text, tokenizer=tokenizer, out=tmp_path / "whole", shard_bytes=3000)

    def stop(progress: PrepareProgress) -> None:
        if progress.shards == 2:
            raise KeyboardInterrupt

    options: dict[str, Any] = {
        "tokenizer": tokenizer,
        "out": tmp_path / "data",
        "shard_bytes": 3000,
    }
    with pytest.raises(KeyboardInterrupt):
        prepare(text, progress=stop, **options)
    (tmp_path / "data" / "tokenizer" / "vocab.txt").write_bytes(b"damaged")
    prepare(text, **options)
    assert contents(tmp_path / "data") == contents(tmp_path / "whole")


def test_a_preparation_without_a_finished_shard_leaves_the_directory_free(
    tokenizer: Tokenizer, text: Path, tmp_path: Path
) -> None:
    """Nothing of it can be used again, so the next one may have other settings."""
    out = tmp_path / "out"
    job = prepare(text, out=tmp_path / "other", tokenizer=tokenizer, shard_bytes=9000).job
    out.mkdir()
    with closing(Journal(out)) as journal:
        journal.restart(job)
    prepare(text, out=out, tokenizer=tokenizer, shard_bytes=8000)
    prepare(text, out=tmp_path / "unbroken", tokenizer=tokenizer, shard_bytes=8000)
    assert contents(out) == contents(tmp_path / "unbroken")

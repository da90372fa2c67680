"""Corpora, tables, models and vectors on S3: moto's server on this machine."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

import bertworks as bw
from bertworks.data.documents import read_documents
from bertworks.data.shards import Corpus
from bertworks.data.tables import read_rows
from bertworks.errors import DataError, OutputError
from bertworks.utils import remote
from bertworks.utils.remote import (
    _file_system_and_path,
    fetch_folder,
    is_remote,
    local_output,
    remote_files,
)


@pytest.mark.parametrize("path", ["s3://bucket/file", "gs://bucket", "fsspec+memory://x"])
def test_a_scheme_makes_a_path_remote(path: str) -> None:
    assert is_remote(path)
    assert is_remote(Path(path)), "which keeps one slash of two"


@pytest.mark.parametrize("path", ["file.txt", "/s3/x", "C:/x", "hf:name/of#train", "a b://c", None])
def test_other_paths_are_here(path: str | None) -> None:
    assert not is_remote(path)


@pytest.mark.long
def test_a_folder_without_folders_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    bw.load("mini").save(tmp_path / "model")
    memory = pytest.importorskip("fsspec").filesystem("memory")
    memory.put(str(tmp_path / "model"), "/bucket/model", recursive=True)
    model = bw.load("memory://bucket/model", device="cpu")
    assert model.tokenizer.fingerprint == bw.load("mini").tokenizer.fingerprint


def test_a_copy_that_another_process_made_meanwhile_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be reading it: the processes of a team open one corpus at the same time."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("one\n")
    url, copy_files, numbers = f"file://{tmp_path}/texts", fs.copy_files, []

    def overtaken(*args: Any, **more: Any) -> None:
        copy_files(*args, **more)
        monkeypatch.setattr(fs, "copy_files", copy_files)
        numbers.append((fetch_folder(url) / "a.txt").stat().st_ino)

    monkeypatch.setattr(fs, "copy_files", overtaken)
    assert [(fetch_folder(url) / "a.txt").stat().st_ino] == numbers


def test_a_path_object_is_the_same_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = pytest.importorskip("fsspec").filesystem("memory")
    memory.pipe("/bucket/texts/a.txt", b"one two\n")
    memory.pipe("/bucket/texts/b.txt", b"three\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    texts = [document.text for document in read_documents("memory://bucket/texts")]
    assert texts == ["one two", "three"]
    assert [document.text for document in read_documents(Path("memory://bucket/texts"))] == texts
    copy = fetch_folder(str(Path("memory://bucket/texts")))
    assert sorted(file.name for file in copy.iterdir()) == ["a.txt", "b.txt"]
    (tmp_path / "c.txt").write_text("four\n")
    one_slash = f"file:{tmp_path}/c.txt"  # which is a whole address
    assert [document.text for document in read_documents(one_slash)] == ["four"]


def test_a_name_is_that_of_the_file(tmp_path: Path) -> None:
    """Not a part of it: `#` ended a name, and another file was read."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in ("a", "a#b", "a b", "é#"):
        (folder / name).write_text(f"text of {name}\n")
    names = ["text of a", "text of a b", "text of a#b", "text of é#"]
    assert [document.text for document in read_documents(f"file://{folder}")] == names
    assert remote_files(f"file:{folder}/a#b") == [f"file:{folder}/a#b"]
    with local_output(f"file://{folder}/new#1") as file:
        file.write_text("new\n")
    assert (folder / "new#1").read_text() == "new\n"
    memory = pytest.importorskip("fsspec").filesystem("memory")
    memory.pipe("/bucket/names/a#b %41", b"from memory\n")
    for scheme in ("memory", "fsspec+memory"):
        (document,) = read_documents(f"{scheme}://bucket/names/a#b %41")
        assert document.text == "from memory"


@pytest.mark.parametrize("name", ["a#b", "a b", "a%20b", "é/x@2+y=z", "[1]"])
def test_a_name_in_a_bucket_is_its_key(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    region = "?region=us-east-1"  # else it is requested from the server
    assert _file_system_and_path(f"s3://bucket/{name}{region}")[1] == f"bucket/{name}"


def check_parts_are_merged_at(place: str, tmp_path: Path) -> None:
    """Make the parts of vectors there, and merge them: the bytes are those of one run."""
    model = bw.load("mini", device="cpu")
    file = tmp_path / "texts.txt"
    file.write_text(
        "".join(f"{word} a text\n" for word in ("the", "old", "a", "to", "in", "of", "at"))
    )
    model.embed_to(tmp_path / "whole.npy", file)
    parts = [f"{place}/v-{number}.npy" for number in (1, 2, 3)]
    for number, part in enumerate(parts, 1):
        model.embed_to(part, file, part=f"{number}/3")
    for out in (f"{place}/all/vectors.npy", tmp_path / "vectors.npy"):
        result = bw.merge(parts, out)
        assert result.rows == 7
    whole = (tmp_path / "whole.npy").read_bytes()
    copy = fetch_folder(f"{place}/all")
    assert (copy / "vectors.npy").read_bytes() == whole
    assert (copy / "vectors.npy.json").read_bytes() == (
        (tmp_path / "whole.npy.json").read_bytes()
    ), "its manifest, too"
    assert (tmp_path / "vectors.npy").read_bytes() == whole
    with pytest.raises(OutputError, match=r"all/vectors\.npy: already exists"):
        bw.merge(parts, f"{place}/all/vectors.npy")
    with pytest.raises(DataError, match="missing 1 part of 3: '3/3'"):
        bw.merge(parts[:2], tmp_path / "two.npy")
    name = f"{place.replace('//', '/')}/v-4.npy"
    with pytest.raises(DataError, match=f"{name}: no such file"):
        bw.merge([*parts, f"{place}/v-4.npy"], tmp_path / "four.npy")


@pytest.mark.long
def test_parts_on_another_file_system_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fsspec")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    check_parts_are_merged_at("memory://parts", tmp_path)


@pytest.mark.long
def test_parts_of_a_corpus_on_another_file_system_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = pytest.importorskip("fsspec").filesystem("memory")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "a.txt").write_text("the old man walked.\nthe river was wide.\n\nanother text.\n")
    tokenizer = bw.load("mini").tokenizer
    parts = []
    for number in (1, 2):
        folder = tmp_path / f"part-{number}"
        bw.prepare(tmp_path / "a.txt", tokenizer=tokenizer, out=folder, part=f"{number}/2")
        memory.put(str(folder), f"/corpora/part-{number}", recursive=True)
        parts.append(f"memory://corpora/part-{number}")
    bw.merge(parts, tmp_path / "merged")
    assert Corpus.open(tmp_path / "merged").num_documents == 2
    with pytest.raises(OutputError, match="is on another file system"):
        bw.merge(parts, "memory://corpora/merged")


def test_local_outputs_refuse_other_file_systems(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one two\n")
    tokenizer = bw.load("mini").tokenizer
    with pytest.raises(OutputError, match=r"s3:/.*: is on another file system"):
        bw.prepare(tmp_path / "a.txt", tokenizer=tokenizer, out="s3://bucket/data")


def test_an_unknown_scheme_is_named() -> None:
    with pytest.raises(DataError, match="nowhere://bucket/texts: cannot be read"):
        list(read_documents("nowhere://bucket/texts"))


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """An empty bucket of a server that ends with the tests."""
    boto3 = pytest.importorskip("boto3", reason="needs bertworks[test-s3]")
    moto = pytest.importorskip("moto.server", reason="needs bertworks[test-s3]")
    server = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for key, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "anyone",
            "AWS_SECRET_ACCESS_KEY": "anything",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            patch.setenv(key, value)
        boto3.client("s3").create_bucket(Bucket="bucket")
        yield "s3://bucket"
    server.stop()


def upload(folder: Path, prefix: str) -> None:
    """Put files there as another tool does."""
    import boto3

    client = boto3.client("s3")
    for file in folder.rglob("*"):
        if file.is_file():
            name = file.relative_to(folder).as_posix()
            client.upload_file(str(file), "bucket", f"{prefix}/{name}")


@pytest.mark.slow  # a server, and a model that is copied
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of moto's and boto's
def test_a_whole_cycle_reads_and_writes_s3(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    corpus = tmp_path / "corpus"
    (corpus / "more").mkdir(parents=True)
    (corpus / "a.txt").write_text("the old man walked.\nthe river was wide.\n\nanother text.\n")
    (corpus / "more" / "b.jsonl.gz").write_bytes(gzip.compress(b'{"text": "from a line"}\n' * 3))
    (corpus / ".hidden.txt").write_text("never read\n")
    pq.write_table(pa.table({"text": ["from a table", "and a row"]}), corpus / "c.parquet")
    upload(corpus, "corpus")

    # Corpora: the same documents, and the same shards.
    texts = [document.text for document in read_documents(f"{bucket}/corpus")]
    assert texts == [document.text for document in read_documents(corpus)]
    assert len(texts) == 7
    tokenizer = bw.load("mini").tokenizer
    for name, source in (("here", corpus), ("there", f"{bucket}/corpus")):
        bw.prepare(source, tokenizer=tokenizer, out=tmp_path / name)
    shards = [
        {file.name: file.read_bytes() for file in (tmp_path / name).glob("*.arrow")}
        for name in ("here", "there")
    ]
    assert shards[0]
    assert shards[0] == shards[1]

    # Shards are copied here, once.
    upload(tmp_path / "here", "data")
    assert Corpus.open(f"{bucket}/data").num_documents == 7
    copy = fetch_folder(f"{bucket}/data")
    assert fetch_folder(f"{bucket}/data/") == copy
    (corpus / "a.txt").write_text("changed\n")
    upload(corpus, "data")
    assert fetch_folder(f"{bucket}/data") != copy

    # Tables, and models.
    rows = [{"text": "a river", "label": "x"}, {"text": "an old man", "label": "y"}]
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    upload(tmp_path / "tables", "tables")
    found = [row.values for row in read_rows(f"{bucket}/tables/rows.jsonl")]
    assert found == rows
    bw.load("mini").save(tmp_path / "model")
    upload(tmp_path / "model", "model")
    model = bw.load(f"{bucket}/model")
    expected = bw.load("mini").embed([row["text"] for row in rows])
    np.testing.assert_array_equal(model.embed([row["text"] for row in rows]), expected)

    # Vectors are put there when they are whole, and never over others.
    out = f"{bucket}/vectors/of.npy"
    model.embed_to(out, f"{bucket}/tables/rows.jsonl", column="text")
    np.testing.assert_array_equal(np.load(fetch_folder(f"{bucket}/vectors") / "of.npy"), expected)
    with pytest.raises(OutputError, match=r"of\.npy: already exists"):
        model.embed_to(out, f"{bucket}/tables/rows.jsonl", column="text")

    check_parts_are_merged_at(f"{bucket}/parts", tmp_path)

    for missing in (f"{bucket}/nothing", "s3://another-bucket/x"):
        with pytest.raises(DataError, match="no such file or folder"):
            list(read_documents(missing))
        with pytest.raises(DataError, match="no such file"):
            read_rows(f"{missing}.tsv")
        with pytest.raises(DataError, match="no such folder"):
            bw.load(missing)


def test_a_folder_is_copied_with_few_file_systems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    urls: list[str] = []

    def count(url: str) -> Any:
        urls.append(url)
        return _file_system_and_path(url)

    monkeypatch.setattr(remote, "_file_system_and_path", count)
    (tmp_path / "texts #1" / "more").mkdir(parents=True)
    names = [f"more/{number} %41.txt" for number in range(20)]
    for name in names:
        (tmp_path / "texts #1" / name).write_text(name)
    copy = fetch_folder(f"file://{quote(str(tmp_path))}/{quote('texts #1')}/")
    assert [(copy / name).read_text() for name in names] == names
    assert len(urls) <= 2

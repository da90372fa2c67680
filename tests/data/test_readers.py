"""Readers: every format gives back the documents that were written, and names bad input."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertworks import errors
from bertworks.data import documents, sources
from bertworks.data.document_formats import read_text, read_wiki
from bertworks.data.documents import read_documents
from bertworks.data.lines import read_lines
from bertworks.data.reading import ReadCounts, Reading
from bertworks.data.sources import CorpusSource
from bertworks.data.tables import read_rows
from bertworks.errors import BertworksError, BertworksWarning, DataError

from .files import zstd

DOCUMENTS = [["One.", "Two, ä 力."], ["Three."], ["Four.", "Five.", "Six."]]


def paragraphs(*sources: Any, **settings: Any) -> list[list[str]]:
    return [list(document.paragraphs) for document in read_documents(sources, **settings)]


def as_text(documents: list[list[str]]) -> bytes:
    return "\n\n".join("\n".join(document) for document in documents).encode()


def as_wiki(documents: list[list[str]]) -> bytes:
    return "".join(
        f'<doc id="{number}" url="u" title="T{number}">\nT{number}\n\n'
        + "\n".join(document)
        + "\n</doc>\n"
        for number, document in enumerate(documents)
    ).encode()


def as_json_lines(documents: list[list[str]]) -> bytes:
    return "".join(
        json.dumps({"id": number, "text": "\n".join(document)}) + "\n"
        for number, document in enumerate(documents)
    ).encode()


def as_parquet(documents: list[list[str]]) -> bytes:
    sink = pa.BufferOutputStream()
    texts = ["\n".join(document) for document in documents]
    pq.write_table(pa.table({"id": range(len(texts)), "text": texts}), sink)
    return sink.getvalue().to_pybytes()


WRITERS = {"text": as_text, "wiki": as_wiki, "jsonl": as_json_lines, "parquet": as_parquet}

line = st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), min_size=1, max_size=12
).filter(lambda text: not text.startswith(("<doc ", "</doc>", "{", "\ufeff")))
some_documents = st.lists(st.lists(line, min_size=1, max_size=4), min_size=1, max_size=5)


@pytest.mark.long
@pytest.mark.parametrize("format", WRITERS)
@given(documents=some_documents)
def test_documents_are_read_back_in_every_format(
    tmp_path_factory: pytest.TempPathFactory, format: str, documents: list[list[str]]
) -> None:
    path = tmp_path_factory.mktemp("corpus") / "file"
    path.write_bytes(WRITERS[format](documents))
    counts = ReadCounts()
    assert paragraphs(path, counts=counts) == documents
    assert counts.formats == {str(path): format}
    assert counts.bytes_read == counts.bytes_total == path.stat().st_size


@pytest.mark.parametrize("format", ["text", "wiki", "jsonl"])
@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".zst", zstd)])
def test_compressed_files_are_read(
    tmp_path: Path, format: str, suffix: str, compress: Callable[[bytes], bytes]
) -> None:
    content = WRITERS[format](DOCUMENTS)
    # Two members one after the other are one file, as `cat a.gz b.gz` makes it.
    middle = content.index(b"\n") + 1
    packed = compress(content[:middle]) + compress(content[middle:])
    for name in ("named" + suffix, "unnamed"):
        (tmp_path / name).write_bytes(packed)
        counts = ReadCounts()
        assert paragraphs(tmp_path / name, counts=counts) == DOCUMENTS
        assert counts.bytes_read == len(packed)


def test_documents_have_their_location(tmp_path: Path) -> None:
    places = {
        "text": ["file:1", "file:4", "file:6"],
        "wiki": ["file:1", "file:7", "file:12"],
        "jsonl": ["file:1", "file:2", "file:3"],
        "parquet": ["file, row 1", "file, row 2", "file, row 3"],
    }
    for format, locations in places.items():
        path = tmp_path / "file"
        path.write_bytes(WRITERS[format](DOCUMENTS))
        assert [d.where for d in read_documents(path)] == [f"{tmp_path}/{at}" for at in locations]


def test_original_sample_has_three_documents(data_dir: Path) -> None:
    documents = list(read_documents(data_dir / "google-bert" / "sample_text.txt"))
    assert [len(document.paragraphs) for document in documents] == [3, 13, 15]
    assert "力加勝北区" in documents[0].text


def test_wikipedia_file_has_its_documents(data_dir: Path) -> None:
    counts = ReadCounts()
    path = data_dir / "wiki" / "wiki_00"
    first, *others = read_documents(path, counts=counts)
    text = path.read_text(encoding="utf-8")
    assert first.paragraphs[0].startswith("Anarchism is a political philosophy")
    assert counts.documents + counts.empty == 1 + len(others) + counts.empty == text.count("<doc ")


def test_folders_and_globs_are_read_in_order(tmp_path: Path) -> None:
    for name in ("b.txt", "a/c.txt", "a/b.txt", ".hidden", "a/.git/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert paragraphs(tmp_path) == [["a/b.txt"], ["a/c.txt"], ["b.txt"]]
    assert paragraphs(tmp_path / "a" / "*.txt") == [["a/b.txt"], ["a/c.txt"]]
    assert paragraphs(f"{tmp_path}/**/*.txt") == [["a/b.txt"], ["a/c.txt"], ["b.txt"]]
    assert paragraphs(f"{tmp_path}/*") == [["a/b.txt"], ["a/c.txt"], ["b.txt"]], "as a shell's"
    assert paragraphs(f"{tmp_path}/**") == [["a/b.txt"], ["a/c.txt"], ["b.txt"]]
    assert paragraphs(tmp_path / "b.txt", tmp_path / "a") == [["b.txt"], ["a/b.txt"], ["a/c.txt"]]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_record_with_a_repeated_key_is_skipped_alone(tmp_path: Path, name: str) -> None:
    records = ['{"text": "A", "text": "B"}', '{"text": "C", "meta": {"k": 1, "k": 2}}']
    content = "\n".join(records) if name == "a.jsonl" else f"[{','.join(records)}]"
    (tmp_path / name).write_text(content)
    counts = ReadCounts()
    assert paragraphs(tmp_path / name, skip_bad=True, counts=counts) == [["C"]]
    assert counts.num_skipped_by_kind == {"bad JSON": 1}
    with pytest.raises(DataError, match="the key 'text' occurs twice"):
        paragraphs(tmp_path / name)


def test_special_files_in_a_folder_are_refused_or_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A")
    os.mkfifo(tmp_path / "b.txt")
    (tmp_path / "c.txt").symlink_to("nothing")
    (tmp_path / "d.txt").symlink_to("d.txt")
    (tmp_path / "e.txt").symlink_to("a.txt")
    for settings in ({}, {"format": "text"}):
        with pytest.raises(DataError, match=r"b\.txt: neither a regular file nor a folder"):
            paragraphs(tmp_path, **settings)
        counts = ReadCounts()
        assert paragraphs(tmp_path, skip_bad=True, counts=counts, **settings) == [["A"], ["A"]]
        assert counts.num_skipped_by_kind == {"no file": 3}
        assert counts.bytes_read == counts.bytes_total == 2
    (tmp_path / "b.txt").unlink()
    with pytest.raises(DataError, match=r"c\.txt: the link leads nowhere"):
        paragraphs(tmp_path)


def test_a_folder_that_links_lead_back_into_is_read_once(tmp_path: Path) -> None:
    for name in ("b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f.txt").write_text(name)
        (tmp_path / name / "up").symlink_to(tmp_path)
    (tmp_path / "a").symlink_to("c")
    files = CorpusSource(str(tmp_path)).files()
    assert files == [f"{tmp_path}/{name}" for name in ("a/f.txt", "b/f.txt")]
    assert paragraphs(tmp_path) == [["c"], ["b"]]


def test_windows_lines_and_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\xef\xbb\xbfOne.\r\nTwo.\r\n\r\n \t\r\nThree.")
    assert paragraphs(tmp_path / "f") == [["One.", "Two."], ["Three."]]


@pytest.mark.parametrize("format", ["text", "wiki", "jsonl"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32", "latin-1"])
def test_the_format_is_detected_in_other_encodings(
    tmp_path: Path, format: str, encoding: str
) -> None:
    documents = [["One.", "Zwei, ä."], ["Three."]]
    file = tmp_path / "file"
    file.write_bytes(WRITERS[format](documents).decode().encode(encoding))
    counts = ReadCounts()
    assert paragraphs(file, encoding=encoding, counts=counts) == documents
    assert counts.formats == {str(file): format}
    if format == "jsonl":
        assert paragraphs(file, encoding=encoding, column="text") == documents
        if encoding == "utf-16":
            with pytest.raises(DataError, match=r"file:1: not UTF-8.*--encoding utf-16"):
                paragraphs(file, column="text")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
def test_a_long_first_line_of_many_bytes_a_character_is_json(tmp_path: Path, encoding: str) -> None:
    """Only the beginning of a file is looked at."""
    text = "力" * 30_000
    line = json.dumps({"text": text}, ensure_ascii=False)
    (tmp_path / "file").write_bytes(f"{line}\n".encode(encoding))
    assert paragraphs(tmp_path / "file", encoding=encoding) == [[text]]


def test_weights_repeat_or_omit_documents(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("\n\n".join(map(str, range(2000))))
    (tmp_path / "g@2").write_text("g")
    originals = paragraphs(tmp_path / "f")
    counts = ReadCounts()
    twice = list(read_documents(f"{tmp_path}/f@2", counts=counts))
    assert [list(d.paragraphs) for d in twice] == [text for text in originals for _ in range(2)]
    assert [document.copy for document in twice] == [0, 1] * 2000
    half = paragraphs(f"{tmp_path}/f@0.5", counts=counts)
    assert counts.left_out == 2000 - len(half)
    assert 850 < len(half) < 1150
    assert half == paragraphs(f"{tmp_path}/f@.5".replace("@.", "@0."))
    assert half != paragraphs(f"{tmp_path}/f@0.5", seed=1)
    more = paragraphs(CorpusSource(str(tmp_path / "f"), 1.5))
    assert len(more) == 2000 + len(half)
    assert paragraphs(tmp_path / "g@2") == [["g"]]  # a name that exists has no weight
    for weight in (0.0, -1.0, float("nan"), float("inf"), 1e18):
        with pytest.raises(DataError, match="weight"):
            CorpusSource("f", weight)


def test_an_at_sign_in_a_name_that_exists_is_no_weight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = pytest.importorskip("fsspec").filesystem("memory")
    memory.pipe("/weights/x@2/a.txt", b"one\n")
    memory.pipe("/weights/y/a.txt", b"two\n")
    (tmp_path / "x@2").mkdir()
    (tmp_path / "x@2" / "a.txt").write_text("one\n")
    (tmp_path / "y").mkdir()
    (tmp_path / "y" / "a.txt").write_text("two\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    for top in ("memory://weights", str(tmp_path), "~"):
        assert paragraphs(f"{top}/x@2") == [["one"]]
        assert paragraphs(f"{top}/x@2@3") == [["one"]] * 3
        assert paragraphs(f"{top}/y@2") == [["two"]] * 2
        with pytest.raises(DataError, match=r"no such file or folder\. A number after the last @"):
            paragraphs(f"{top}/z@2")
        with pytest.raises(DataError, match=r"weight 1e\+18 is more than 1000, .*NAME@2@1"):
            paragraphs(f"{top}/y@1000000000000000000")
        with pytest.raises(DataError, match=r"no such file or folder\. A number after the last @"):
            paragraphs(f"{top}/y@10^18")
    (tmp_path / "q").write_text("three\n")
    assert paragraphs(f"{tmp_path}/q*@2") == [["three"]] * 2
    assert paragraphs(f"{tmp_path}/*@2") == [["one"]], "the folder x@2"
    (tmp_path / "q@2").write_text("four\n")
    assert paragraphs(f"{tmp_path}/*@2") == [["four"], ["one"]]


def test_settings_of_a_source_override_general_settings():
    own = CorpusSource("f", 2.0, "wiki", "body")
    assert CorpusSource.parse(own, format="text", column="text") == own
    given = CorpusSource.parse(CorpusSource("f", 2.0), format="text", column="text")
    assert given == CorpusSource("f", 2.0, "text", "text")
    assert CorpusSource.parse("f@2", format="text", column="text") == given


def test_duplicates_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertworks.data.overlap._FEW", 7)  # so that the array is merged into
    texts = [str(number % 300) for number in range(1000)]
    (tmp_path / "f").write_text("\n\n".join(texts))
    (tmp_path / "g").write_text("1\n\n2\n3\n\n999")
    counts = ReadCounts()
    found = paragraphs(tmp_path / "f", f"{tmp_path}/g@2", drop_duplicates=True, counts=counts)
    new = [["2", "3"], ["2", "3"], ["999"], ["999"]]
    assert found == [[str(number)] for number in range(300)] + new
    assert counts.duplicates == 701
    assert counts.documents == 304


WIKI = b'<doc id="1" url="u" title="T">\n'
BAD = {
    "utf8 text": ("f", b"Good.\nBad \xff.\nGood.", "f:2: not UTF-8", [["Good.", "Good."]]),
    "utf-16": ("f", "A\nB".encode("utf-16"), "f:1: not UTF-8.*--encoding utf-16", None),
    "utf8 wiki": ("f", WIKI + b"A\n\xe4\nB\n</doc>", "f:3: not UTF-8", [["A", "B"]]),
    "utf8 json": ("f.jsonl", b'{"text": "\xe4"}\n{"text": "B"}', "f.jsonl:1: not UTF-8", [["B"]]),
    "unclosed": ("f", WIKI + b"A\n", "f:1: .*not closed: the file ends", []),
    "nested": ("f", WIKI + b"A\n" + WIKI + b"B\n</doc>", "f:1: .*not closed.*line 3", [["B"]]),
    "outside": ("f", WIKI + b"A\n</doc>\nB\n", "f:4: text outside", [["A"]]),
    "unopened": ("f", WIKI + b"A\n</doc>\n</doc>\n", "f:4: </doc> without", [["A"]]),
    "no column": (
        "f.jsonl",
        b'{"text": "A"}\n\n{"x": "B"}',
        "f.jsonl:3: no column 'text'.*'x'",
        [["A"]],
    ),
    "no string": ("f.jsonl", b'{"text": 1}\n{"text": "B"}', "f.jsonl:1: .*'text'.*int", [["B"]]),
    "null": (
        "f.jsonl",
        b'{"text": null}\n{"text": "B"}',
        "f.jsonl:1: the value of 'text' is missing",
        [["B"]],
    ),
    "bad json": ("f.jsonl", b'{"text": "A"}\n{"text": "B"', "f.jsonl:2: not valid JSON", [["A"]]),
    "json array": ("f.json", b'["A", {"text": "B"}]', "f.json, row 1: a JSON str", [["B"]]),
    "deep json": ("f.json", b"[" * 200_000, "f.json: .* nested more than 100 levels", []),
    "deep line": ("f.jsonl", b'{"a": ' * 200_000, "f.jsonl:1: JSON .* more than 100 levels", []),
    "deep value": (
        "f.jsonl",
        b'{"text": "A", "a": ' + b"[" * 400 + b"]" * 400 + b'}\n{"text": "B"}',
        "f.jsonl:1: JSON .* more than 100 levels",
        [["B"]],
    ),
    "csv": ("f.csv", b"text,n\nA,1\nB\nC,3\n", r"f.csv:3: 1 field\(s\)", [["A"], ["C"]]),
    "open quote": ("f.csv", b'text,n\nA,1\n"B,2\n', "f.csv:3: a quote is opened", [["A"]]),
    "words": ("f.conll", b"a O\n", "f.conll:1: no column 'text'", []),
    "surrogate": (
        "f.jsonl",
        b'{"text": "a\\ud800"}\n{"text": "B"}',
        "f.jsonl:1: .*surrogate",
        [["B"]],
    ),
    "only a mark": ("f.jsonl", "\ufeff".encode(), "f.jsonl: the file holds no text", []),
    "empty": ("f", b"", "f: the file holds no text", []),
    "blank": ("f", b"\n \n", "f: the file holds no text", []),
    "not gzip": ("f.gz", b"text", "f.gz: cannot be read .*not gzip", []),
    "cut gzip": ("f.gz", gzip.compress(os.urandom(500))[:9], "f.gz: cannot be read", []),
    "no parquet": ("f.parquet", b"text", "f.parquet: cannot be read as Parquet", []),
    "cut parquet": ("f", as_parquet(DOCUMENTS)[:-20], "f: cannot be read as Parquet", []),
    "parquet in gzip": ("f.parquet.gz", gzip.compress(as_parquet(DOCUMENTS)), "Decompress", []),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_refused_or_skipped(tmp_path: Path, case: str) -> None:
    name, content, message, rest = BAD[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        paragraphs(tmp_path / name)
    assert "\n" not in str(error.value)
    counts = ReadCounts()
    documents = paragraphs(tmp_path / name, skip_bad=True, counts=counts)
    assert counts.num_skipped >= 1
    assert str(error.value) in counts.first_skipped.values()
    assert rest is None or documents == rest


@pytest.mark.long
def test_late_damage_in_gzip_is_refused_or_skipped(tmp_path: Path) -> None:
    content = b"".join(b"%d %s\n\n" % (n, os.urandom(40).hex().encode()) for n in range(50_000))
    (tmp_path / "f.gz").write_bytes(gzip.compress(content, 1)[:-1_000_000])
    with pytest.raises(DataError, match=r"f\.gz:\d+: cannot be read further"):
        paragraphs(tmp_path / "f.gz")
    counts = ReadCounts()
    assert len(paragraphs(tmp_path / "f.gz", skip_bad=True, counts=counts)) > 1000
    assert counts.num_skipped_by_kind == {"damaged file": 1}


def test_missing_sources_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for source, message in {
        "nothing": "nothing: no such file or folder",
        "*.txt": r"\*\.txt: no file matches",
        "empty": "empty: the folder holds no files",
    }.items():
        with pytest.raises(DataError, match=message):  # at once, before the first document is read
            read_documents(f"{tmp_path}/{source}", skip_bad=True)
    with pytest.raises(DataError, match="no corpus"):
        read_documents([])


def test_invalid_parquet_values_are_refused(tmp_path: Path) -> None:
    invalid_strings = pa.Array.from_buffers(
        pa.string(), 2, [None, *pa.array([b"ok", b"\xff\xfe"]).buffers()[1:]]
    )
    pq.write_table(pa.table({"a": invalid_strings}), tmp_path / "broken.parquet")
    pq.write_table(pa.table({"a": ["A", None, "B"]}), tmp_path / "null.parquet")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "number.parquet")
    pq.write_table(pa.table({"a": ["A"], "b": ["B"]}), tmp_path / "two.parquet")
    for name, message in {
        "broken": "row 2: the value of 'a' is not UTF-8",
        "null": "row 2: the value of 'a' is missing",
        "two": "no other candidate.*'a', 'b'.*--column",
    }.items():
        with pytest.raises(DataError, match=message):
            paragraphs(tmp_path / f"{name}.parquet")
    with pytest.raises(DataError, match="the column 'a' holds int64"):
        paragraphs(tmp_path / "number.parquet", column="a")
    assert paragraphs(tmp_path / "null.parquet", skip_bad=True) == [["A"], ["B"]]
    assert paragraphs(tmp_path / "two.parquet", column="b") == [["B"]]


def test_only_what_is_read_of_a_parquet_file_may_be_too_long(tmp_path: Path) -> None:
    notes = [f"{number} " * 100 for number in range(10)]
    file = tmp_path / "f.parquet"
    pq.write_table(pa.table({"text": ["A"] * 10, "note": notes}), file)
    assert paragraphs(file, max_line_bytes=50) == [["A"]] * 10
    # Its size is known before it is read, and so is of no row.
    with pytest.raises(DataError, match=r"f\.parquet: a value of 'note' is longer than 50 bytes"):
        paragraphs(file, column="note", max_line_bytes=50)


def test_only_string_column_is_chosen(tmp_path: Path) -> None:
    (tmp_path / "f.jsonl").write_text('{"id": 1, "body": "A"}\n{"id": 2, "body": "B"}')
    assert paragraphs(tmp_path / "f.jsonl") == [["A"], ["B"]]


def test_a_named_column_shows_that_a_table_has_a_header(tmp_path: Path) -> None:
    (tmp_path / "f.tsv").write_text("no\tbody\na\tB\nc\tD\n")
    assert paragraphs(tmp_path / "f.tsv", column="body") == [["B"], ["D"]]


@pytest.mark.parametrize(
    ("content", "advice"),
    [
        ("title,body\nA,B c\n", r"give --no-header \(header=false\)$"),
        ("Ab c,d e\nFg h,i j\n", r"give --header \(header=true\)$"),
    ],
)
def test_a_doubtful_header_of_a_corpus_is_named_with_the_option(
    tmp_path: Path, content: str, advice: str
) -> None:
    (tmp_path / "f.csv").write_text(content)
    with pytest.warns(BertworksWarning, match=advice):
        paragraphs(tmp_path / "f.csv", skip_bad=True)


@pytest.mark.parametrize(("header", "texts"), [(True, [["b"]]), (False, [["text"], ["b"]])])
def test_the_header_of_a_corpus_can_be_given(
    tmp_path: Path, header: bool, texts: list[list[str]]
) -> None:
    (tmp_path / "f.csv").write_text("text\nb\n")
    assert paragraphs(tmp_path / "f.csv", header=header, column=None if header else "1") == texts
    (tmp_path / "f.txt").write_text("b\n")
    with pytest.raises(DataError, match="is for tsv and csv, and no file is one"):
        paragraphs(tmp_path / "f.txt", header=header)


def test_prose_in_a_tsv_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "f.tsv").write_text("A river rose.\nIt fell.\n")
    says = r"f\.tsv: lines without a tab are a document each\. If it is prose, give --format text"
    with pytest.warns(BertworksWarning, match=says):
        assert paragraphs(tmp_path / "f.tsv") == [["A river rose."], ["It fell."]]
    assert paragraphs(tmp_path / "f.tsv", format="text") == [["A river rose.", "It fell."]]


def test_data_sets_of_the_hub_are_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    table = {"id": [1, 2], "text": ["A\nB", "C"]}
    one = datasets.Dataset.from_dict(table)
    one.save_to_disk(tmp_path / "one")
    datasets.DatasetDict(train=one, test=one.select([1])).save_to_disk(tmp_path / "two")
    assert paragraphs(tmp_path / "one") == [["A", "B"], ["C"]]
    assert paragraphs(f"hf:{tmp_path}/two") == [["A", "B"], ["C"]]
    assert paragraphs(f"hf:{tmp_path}/two#test") == [["C"]]
    with pytest.raises(DataError, match=r"no split 'dev'. The splits are: train, test"):
        paragraphs(f"hf:{tmp_path}/two#dev")
    with pytest.raises(DataError, match="no column 'x'"):
        paragraphs(f"hf:{tmp_path}/one", column="x")


class _BrokenStream:
    """A data set whose connection is lost after its first row."""

    features: Mapping[str, Any] = {}

    def __iter__(self) -> Iterator[dict[str, str]]:
        yield {"text": "A"}
        raise TimeoutError


@pytest.mark.parametrize("read", [read_documents, read_rows])
def test_a_lost_connection_to_the_hub_is_an_error_in_the_data(
    read: Callable[[str], Iterable[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    library = SimpleNamespace(load_dataset=lambda *_, **more: {"train": _BrokenStream()})
    monkeypatch.setattr(sources, "import_optional", lambda *_: library)
    with pytest.raises(DataError, match=r"^hf:name: cannot be read further \(TimeoutError\)$"):
        list(read("hf:name"))


def test_missing_datasets_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(module: str, extra: str, what: str) -> None:
        raise BertworksError("not installed", fix=f"bertworks[{extra}]")

    monkeypatch.setattr(sources, "import_optional", missing)
    assert errors.import_optional is not missing
    with pytest.raises(BertworksError, match=r"bertworks\[data\]"):
        paragraphs("hf:name")


@pytest.mark.parametrize("most", [31, 40])
@pytest.mark.parametrize("read", [read_text, read_wiki])
def test_endless_text_is_cut_and_counted(tmp_path: Path, read: Any, most: int) -> None:
    text = "\n".join(["ten chars."] * 10)
    around = "{}" if read is read_text else '<doc id="1" url="u" title="T">\n{}\n</doc>\n'
    (tmp_path / "f").write_text(around.format(text))
    counts = ReadCounts()
    reading = Reading(counts, max_document_characters=most)
    found = read(read_lines(str(tmp_path / "f"), reading), "f", reading)
    assert [len(document.paragraphs) for document in found] == [4, 4, 2]
    assert counts.num_splits == 2


@pytest.mark.long
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    peaks = []
    for name, count in (("small", 20_000), ("large", 100_000)):
        path = tmp_path / name
        path.write_text(f"{'word ' * 20}\n\n" * count)
        tracemalloc.start()
        assert sum(1 for _ in documents.read_documents(path)) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 200_000


def test_a_column_whose_name_is_damaged(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a", "b"]}), file)
    file.write_bytes(file.read_bytes().replace(b"text", b"te\xe3t"))
    with pytest.raises(DataError, match=r"a\.parquet: cannot be read as Parquet .*not UTF-8"):
        list(read_documents([str(file)]))


def test_each_positive_of_a_query_is_a_row(tmp_path: Path) -> None:
    """FlagEmbedding's files: lists of positives and negatives, with a teacher's scores."""
    record = {"query": "q", "pos": ["a", "b"], "neg": ["c", "d"]}
    scores = {"pos_scores": [3.0, 2.0], "neg_scores": [1.0, 0.0]}
    file = tmp_path / "pairs.jsonl"
    file.write_text(json.dumps(record | scores) + "\n")
    expected = [
        {"query": "q", "pos": "a", "neg": ["c", "d"], "scores": [3.0, 1.0, 0.0]},
        {"query": "q", "pos": "b", "neg": ["c", "d"], "scores": [2.0, 1.0, 0.0]},
    ]
    assert [row.values for row in read_rows(file)] == expected
    document = tmp_path / "pairs.json"
    document.write_text(json.dumps([record | scores]))
    assert [row.values for row in read_rows(document)] == expected
    assert [row.values for row in read_rows([record | scores])] == expected
    other = [{"query": "q", "positive": "a"}, {"query": "q", "tags": ["x"], "pos": ["NOUN"]}]
    assert [row.values for row in read_rows(other)] == other
    (row,) = read_rows([{"query": "q", "pos": [], "neg": []}])  # not left out in silence
    assert row.values == {"query": "q", "pos": None, "neg": []}

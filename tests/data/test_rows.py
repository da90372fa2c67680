"""Labelled tables: real ones with the right counts, round trips, and every malformed row."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertworks.data.rows import NoLabel
from bertworks.data.schema import RoleColumns, find_text_columns
from bertworks.data.tables import read_rows, reiterable
from bertworks.errors import BertworksWarning, DataError
from bertworks.inference.prediction_files import write_predictions

from .files import write


def columns_of(path: Path, **given_columns: str) -> RoleColumns:
    rows = read_rows(path)
    return find_text_columns(rows, **given_columns)


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "count", "has_header", "columns"),
    [
        ("glue/sst2/train.tsv", 67_349, True, "sentence||label"),
        ("glue/sst2/dev.tsv", 872, True, "sentence||label"),
        ("glue/mrpc/train.tsv", 3_668, True, "#1 String|#2 String|Quality"),
        ("glue/mrpc/dev.tsv", 408, True, "#1 String|#2 String|Quality"),
        ("glue/cola/train.tsv", 8_551, False, "4||2"),
        ("glue/cola/dev.tsv", 1_043, False, "4||2"),
        ("glue/rte/train.tsv", 2_490, True, "sentence1|sentence2|label"),
        ("glue/rte/dev.tsv", 277, True, "sentence1|sentence2|label"),
        ("glue/qnli/dev.tsv", 5_463, True, "question|sentence|label"),
        ("sst2-tutorial/train.tsv", 6_920, False, "1||2"),
    ],
)
def test_real_tables_are_read(
    data_dir: Path, file: str, count: int, has_header: bool, columns: str
) -> None:
    rows = read_rows(data_dir / file)
    assert rows.has_header is has_header
    text, pair, label = columns.split("|")
    assert find_text_columns(rows) == {"text": text, "pair": pair or None, "label": label}
    for number, row in enumerate(rows, 1 + has_header):
        assert row.where == f"{data_dir / file}:{number}"
        assert row.values[text]
        assert row.values[label] in {"0", "1", "entailment", "not_entailment"}
    assert number == count + has_header


def test_rows_are_the_same_in_every_format(tmp_path: Path) -> None:
    rows = [{"text": f"text {i}", "label": "ab"[i % 2]} for i in range(30)]
    plain = "text\tlabel\n" + "".join(f"{row['text']}\t{row['label']}\n" for row in rows)
    files = [
        write(tmp_path / "a.tsv", plain),
        write(tmp_path / "crlf.tsv", plain.replace("\n", "\r\n")),
        write(tmp_path / "bom.tsv", b"\xef\xbb\xbf" + plain.encode()),
        write(tmp_path / "no-last-newline.tsv", plain[:-1]),
        write(tmp_path / "blank-end.tsv", plain + "\n\n"),
        write(tmp_path / "a.tsv.gz", gzip.compress(plain.encode())),
        write(tmp_path / "a.csv", plain.replace("\t", ",")),
        write(
            tmp_path / "quoted.csv",
            plain.replace("\t", '","').replace("\n", '"\n"')[:-1].join('""')[:-1],
        ),
        write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows))),
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    for file in [*files, tmp_path / "a.parquet"]:
        read = read_rows(file)
        assert [row.values for row in read] == rows, file
        assert [row.values for row in read] == rows, "a second pass"
        assert columns_of(file) == {"text": "text", "pair": None, "label": "label"}
    assert [row.values for row in read_rows(rows)] == rows
    assert read_rows(iter(rows)).columns == ("text", "label")


def test_named_labels_of_a_data_set_are_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"])}
    )
    data = datasets.Dataset.from_dict(
        {"text": ["x", "y", "z"], "label": [0, 1, -1]}, features=features
    )
    data.save_to_disk(tmp_path / "data")
    for table in (data, tmp_path / "data"):
        labels = [row.values["label"] for row in read_rows(table)]
        assert labels == ["bad", "good", "-1"]
        assert [isinstance(label, NoLabel) for label in labels] == [False, False, True]


def test_numbers_of_named_labels_that_name_none_are_not_known() -> None:
    datasets = pytest.importorskip("datasets")
    label = datasets.ClassLabel(names=["O", "B-X"])
    features = datasets.Features({"tags": datasets.Sequence(label)})
    # What tools put at pieces without a tag: Python would take -1 for the last.
    data = datasets.Dataset.from_dict({"tags": [[1, -1, -100, None]]}, features=features)
    (row,) = read_rows(data)
    assert row.values["tags"] == ["B-X", None, None, None]


def test_iterators_are_read_repeatedly(tmp_path: Path) -> None:
    rows = [{"text": "a"}, {"text": "b"}]
    table = read_rows(reiterable(row for row in rows))
    for _ in range(3):
        assert [row.values for row in table] == rows
    assert reiterable(rows) is rows  # a data set keeps the names of its labels
    assert reiterable(tmp_path) is tmp_path


def test_standard_input_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    content = "text\tlabel\n" + "".join(f"a text {i}\t{i % 3}\n" for i in range(2000))

    class Input:
        buffer = io.BytesIO(content.encode())

    monkeypatch.setattr(sys, "stdin", Input)
    rows = read_rows("-")
    assert rows.columns == ("text", "label")
    assert [row.values["text"] for row in rows] == [f"a text {i}" for i in range(2000)]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "text\tlabel\nx\ty\nz\n", ":3: 1 field(s), where the header has 2"),
        ("a.tsv", "text\tlabel\nx\ty\nz\t1\t2\n", ":3: 3 field(s), where the header has 2"),
        ("a.tsv", "text\tlabel\n\nx\ty\n", ":2: 1 field(s)"),
        ("a.tsv", "text\ttext\n", ":1: 2 columns are called 'text'"),
        ("a.tsv", b"text\tlabel\nx\ty\n\xff\t1\n", ":3: not UTF-8 (byte 0xff at byte 1"),
        ("a.tsv", "text\tlabel\n".encode("utf-16"), ":1: not UTF-8"),
        ("a.tsv", "", ": the file is empty"),
        ("a.csv", 'text,label\nx,1\n"a quote,1\nb,0\n', ":3: a quote is opened here and never"),
        (
            "a.csv",
            'text,label\n"a,1\nb,"x",0\n',
            ":2: the quote that is opened here ends in line 3",
        ),
        ("a.csv", 'text,label\n"a" b,1\n', ":2: the quote that is opened here ends in line 2"),
        ("a.csv", 'text,label\n"a\nb",1\nc\n', ":4: 1 field(s), where the header has 2"),
        ("a.csv", "id|text|label\n1|a b|x\n", ": its fields seem to be separated by '|'. Separate"),
        (
            "a.tsv",
            "text,label\na,x\nb,y\n",
            ": its fields seem to be separated by ','. --format csv",
        ),
        ("a.tsv", "text\tlabel\ra\tx\rb\ty\r", ": its lines end only with carriage returns"),
        ("a.conllu", "_\ta" + "\t_" * 8, ":1: the id '_' is not the id of a word"),
        ("a.jsonl", '{"text": "x"}\n{"text": \n', ":2: not valid JSON"),
        (
            "a.jsonl",
            '{"a": "x"}\n{"a": "y", "a": "z"}\n',
            ":2: the key 'a' occurs twice. Keep one of them.",
        ),
        ("a.json", '[{"a": "y", "a": "z"}]', ", row 1: the key 'a' occurs twice. Keep one"),
        ("a.jsonl", '{"text": "x"}\n["y"]\n', ":2: a JSON list, not an object"),
        ("a.jsonl", "[" * 100_000, ":1: JSON that cannot be read"),
        ("a.jsonl", "\n", ": the file is empty"),
        (
            "a.jsonl",
            '{"label": ' + "9" * 5000 + "}",
            ":1: JSON that cannot be read: a number",
        ),
        ("a.parquet", "no parquet", ": cannot be read as Parquet"),
        ("a.tsv.gz", "no gzip", ": cannot be read"),
        ("a.xlsx", "x", ": neither its suffix '.xlsx' nor its content shows its format; its first"),
    ],
)
def test_malformed_files_are_refused(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    with pytest.raises(DataError) as caught:
        list(read_rows(write(tmp_path / name, content)))
    assert str(caught.value).startswith(f"{tmp_path / name}{message}")


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_repeated_keys_of_values_that_nobody_reads_are_allowed(tmp_path: Path, name: str) -> None:
    record = '{"text": "a b", "meta": {"k": 1, "k": 2}}'
    content = record + "\n" if name == "a.jsonl" else f'{{"data": [{record}], "v": 1, "v": 2}}'
    file = write(tmp_path / name, content)
    assert [row.values["text"] for row in read_rows(file)] == ["a b"]


def test_two_columns_of_one_name_in_parquet(tmp_path: Path) -> None:
    table = pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: 2 columns are called 'text'"):
        read_rows(tmp_path / "a.parquet")


def test_a_first_text_with_a_rare_label_is_no_header(tmp_path: Path) -> None:
    other_rows = "".join(f"some words, and the number {at}\t{'ab'[at % 2]}\n" for at in range(12))
    text = write(tmp_path / "a.tsv", f"a text, the only one of its class\tc\n{other_rows}")
    assert len(list(read_rows(text))) == 13
    names = write(tmp_path / "b.tsv", f"What they wrote\tc\n{other_rows}")
    with pytest.warns(BertworksWarning, match="are read as column names"):
        assert read_rows(names).columns == ("What they wrote", "c")


def test_a_column_that_is_wanted_by_its_number_is_no_header(tmp_path: Path) -> None:
    scores = write(tmp_path / "scores.tsv", "2\ta text\n3\tanother\n")
    assert read_rows(scores, columns=["1", "2"]).has_header is False
    assert read_rows(scores, columns=["another", "a text"]).has_header is True


@pytest.mark.parametrize(
    "lines", [["text, she said", "no", "a, b"], ["a; b", "c; d"], ["text;"], ["text", "a;b", "c;d"]]
)
def test_separators_in_texts_do_not_make_columns(tmp_path: Path, lines: list[str]) -> None:
    texts = write(tmp_path / "texts.tsv", "".join(f"{line}\n" for line in lines))
    assert len(read_rows(texts).columns) == 1


def test_missing_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.tsv")
    with pytest.raises(DataError, match="a pipe, but tables are read more than once"):
        read_rows(tmp_path / "pipe.tsv")
    with pytest.raises(DataError, match="no such file"):
        read_rows(tmp_path / "none.tsv")
    with pytest.raises(DataError, match="a folder, not a table"):
        read_rows(tmp_path)


def test_columns_are_named_or_guessed(tmp_path: Path) -> None:
    lines = [f"{i}\tsome longer text, number {i}\t{'pos' if i % 2 else 'neg'}\n" for i in range(40)]
    unknown = write(tmp_path / "unknown.tsv", "nr\ttweet\tmood\n" + "".join(lines))
    assert columns_of(unknown) == {"text": "tweet", "pair": None, "label": "mood"}
    headless = write(tmp_path / "headless.tsv", "".join(lines))
    assert columns_of(headless) == {"text": "2", "pair": None, "label": "3"}
    assert columns_of(headless, text="2", label="1") == {"text": "2", "pair": None, "label": "1"}
    assert columns_of(unknown, text="2", label="mood") == {
        "text": "tweet",
        "pair": None,
        "label": "mood",
    }
    with pytest.raises(
        DataError, match=r"no column 'tweets'; its columns are 'nr', 'tweet', 'mood'"
    ):
        columns_of(unknown, text="tweets")
    vague = write(tmp_path / "vague.tsv", "a\tb\tc\nlong enough\tlong as well\tx\n")
    with (
        pytest.warns(BertworksWarning, match="'a', 'b', 'c' are read as data"),
        pytest.raises(DataError, match="which column holds the text; its columns are"),
    ):
        columns_of(vague)
    with pytest.raises(DataError, match=r"cannot tell which column holds the label"):
        columns_of(write(tmp_path / "t.tsv", "text\tnotes\nx\ty\n"))


fields = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
tables = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.lists(fields, min_size=width, max_size=width), min_size=1, max_size=8)
)
HEADER = ["text", "label", "c", "d"]


def as_rows(table: list[list[str]]) -> list[dict[str, str]]:
    return [dict(zip(HEADER, row, strict=False)) for row in table]


@pytest.mark.long
@settings(max_examples=50, deadline=None)
@given(tables)
def test_csv_is_what_python_writes(tmp_path_factory: pytest.TempPathFactory, table: list) -> None:
    file = tmp_path_factory.getbasetemp() / "round-trip.csv"
    with file.open("w", newline="", encoding="utf-8") as handle:
        csv.writer(handle).writerows([HEADER[: len(table[0])], *table])
    assert [row.values for row in read_rows(file, header=True)] == as_rows(table)


@pytest.mark.long
@settings(max_examples=50, deadline=None)
@given(tables, st.sampled_from(["tsv", "csv", "jsonl"]))
def test_written_predictions_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, table: list, suffix: str
) -> None:
    file = tmp_path_factory.getbasetemp() / f"round-trip.{suffix}"
    rows = [(row, {"label": "x"}) for row in as_rows(table)]
    if suffix == "tsv" and any(set(value) & set("\t\r\n") for row in table for value in row):
        with pytest.raises(DataError, match="tab or line end"):
            write_predictions(file, rows, overwrite=True)
        return
    write_predictions(file, rows, overwrite=True)
    header = None if suffix == "jsonl" else True
    read = [dict(row.values) for row in read_rows(file, header=header)]
    key = "prediction" if suffix == "jsonl" else "prediction.label"
    written = {"label": "x"} if suffix == "jsonl" else "x"
    assert [row.pop(key) for row in read] == [written] * len(rows)
    assert read == as_rows(table)


def test_a_header_is_for_lines_of_fields(tmp_path: Path) -> None:
    """`header=false` is true of JSON Lines, which may be the dev part of a table without header."""
    file = write(tmp_path / "a.jsonl", '{"text": "a", "label": "b"}\n')
    said = "a.jsonl: header=true is for tsv, csv and conll; jsonl has no header"
    with pytest.raises(DataError, match=said):
        read_rows(file, header=True)
    assert len(list(read_rows(file))) == len(list(read_rows(file, header=False))) == 1


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_semicolons_of_spreadsheets_separate_fields(tmp_path: Path, end: str) -> None:
    """As spreadsheet programs write CSV where the decimal sign is a comma."""
    file = tmp_path / "a.csv"
    lines = ["text;label", '"one; ""two""";3,5', "a, b;1", ""]
    file.write_bytes(end.join(lines).encode())
    with pytest.warns(BertworksWarning, match="read as separated by ';', not by commas"):
        rows = read_rows(file)
    values = [row.values for row in rows]
    assert values == [{"text": 'one; "two"', "label": "3,5"}, {"text": "a, b", "label": "1"}]
    file.write_text('text;label\n"a" b;x\n')
    with (
        pytest.warns(BertworksWarning, match="separated by ';'"),
        pytest.raises(DataError, match="before ' b;x', which is no ';'"),
    ):
        list(read_rows(file))
    file.write_text('Frage;Kategorie\nWie geht es, gut?;"a;b"\n')  # names that are not known
    with pytest.warns(BertworksWarning, match="separated by ';'"):
        (row,) = read_rows(file, header=True)
    assert row.values == {"Frage": "Wie geht es, gut?", "Kategorie": "a;b"}
    for text in ("text;label,x\n1;2,3\n", "a text; of one column\nanother\n"):
        file.write_text(text)
        (row,) = read_rows(file, header=True)
        assert list(row.values) == text.partition("\n")[0].split(",")


def test_quoted_fields_between_tabs_are_reported_and_read_as_csv(tmp_path: Path) -> None:
    """As pandas and spreadsheets write TSV; GLUE's files have no quoted fields."""
    table = pd.DataFrame({"text": ['he said "hi"', '"', "plain"], "label": ["a", "b", "a"]})
    file = tmp_path / "a.tsv"
    table.to_csv(file, sep="\t", index=False)
    with pytest.warns(
        BertworksWarning, match=r"a\.tsv:2: a field is quoted as in CSV.*--format csv"
    ):
        assert next(row.values["text"] for row in read_rows(file)) == '"he said ""hi"""'
    with warnings.catch_warnings(record=True) as reports:
        warnings.simplefilter("default")  # Python's own rule
        rows = read_rows(file)
        assert len([*rows]) == len([*rows]) == len(table)
    assert len(reports) == 1, "the file is passed over three times"
    expected = table.to_dict("records")
    with pytest.warns(BertworksWarning, match=r"separated by '\\t', not by commas"):
        assert [row.values for row in read_rows(file, format="csv")] == expected
    table.loc[3] = ["one\nof, two\tlines", "b"]
    table.to_csv(file, sep="\t", index=False)
    with (
        pytest.warns(BertworksWarning, match="quoted as in CSV"),
        pytest.raises(DataError, match=r":5: 1 field.*quoted field continue.*--format csv"),
    ):
        list(read_rows(file))
    with pytest.warns(BertworksWarning, match="separated by"):
        assert [row.values for row in read_rows(file, format="csv")] == table.to_dict("records")


@pytest.mark.parametrize("field", ['"a" b', '""', '"a', 'a ""b"" c', '"" a ""', '"a "" b" c"'])
def test_quotes_that_are_none_of_csv_are_not_reported(tmp_path: Path, field: str) -> None:
    file = tmp_path / "a.tsv"
    file.write_text(f"text\tlabel\n{field}\tx\n")
    (row,) = read_rows(file)
    assert row.values == {"text": field, "label": "x"}


@pytest.mark.parametrize("quote", ["", '"'])
@pytest.mark.parametrize("separator", [";", ",", "|", "\t"])
def test_first_line_of_csv_may_name_the_separator(
    tmp_path: Path, separator: str, quote: str
) -> None:
    """As Excel reads it: sep=; was the first row."""
    file = tmp_path / "a.csv"
    lines = [f"{quote}sep=;{quote}", "text;label", '"one; two";x', "a, b;y", ""]
    file.write_text("\r\n".join(lines).replace(";", separator).replace("a, b", "a b"))
    rows = read_rows(file)
    values = [row.values for row in rows]
    texts = [f"one{separator} two", "a b"]
    assert values == [
        {"text": text, "label": label} for text, label in zip(texts, "xy", strict=True)
    ]
    assert [row.where for row in rows] == [f"{file}:3", f"{file}:4"]


def test_a_blank_line_in_tsv_names_conll(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_text("Hi\tO\n\nJohn\tNAME\n")
    with pytest.raises(DataError, match=r":2: 1 field.*blank.*end sentences, give --format conll"):
        list(read_rows(file, header=False))


def test_a_line_that_begins_a_document_ends_a_sentence(tmp_path: Path) -> None:
    """Without blank lines around it, words of two documents were one sentence."""
    file = tmp_path / "a.conll"
    file.write_text("EU B-ORG\n-DOCSTART- O\nHe O\nran O\n\n-DOCSTART- O\n\nx O\n")
    rows = [(row.where[-1], row.values["1"], row.values["document"]) for row in read_rows(file)]
    assert rows == [("1", ["EU"], 0), ("3", ["He", "ran"], 1), ("8", ["x"], 2)]


def test_a_pointer_of_git_lfs_is_no_table(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    with pytest.raises(DataError, match="git lfs pull"):
        read_rows(file)


@pytest.mark.parametrize("orient", ["columns", "index"])
def test_a_table_in_one_object_names_the_remedy(tmp_path: Path, orient: Any) -> None:
    """As pandas' to_json writes it by default: it was one row whose cells are mappings."""
    table = pd.DataFrame({"text": ["one", "two"], "label": ["a", "b"]})
    table.to_json(tmp_path / "a.json", orient=orient)
    with pytest.raises(DataError, match='orient="records", lines=True'):
        read_rows(tmp_path / "a.json")
    table.to_json(tmp_path / "b.json", orient="records", lines=True)
    assert [row.values for row in read_rows(tmp_path / "b.json")] == table.to_dict("records")
    cells = {"text": {"en": "a"}, "label": {"en": "b"}}
    assert [row.values for row in read_rows([cells])] == [cells]

"""Real-world tables: formats are detected by content, and errors name the fix."""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertworks.data.parquet import open_parquet, read_batches
from bertworks.data.rows import Rows
from bertworks.data.schema import find_text_columns
from bertworks.data.tables import read_rows
from bertworks.data.text_inputs import read_texts
from bertworks.errors import (
    BertworksWarning,
    DataError,
    SettingsError,
    did_you_mean,
    shorten_list,
    truncate_repr,
)
from bertworks.inference.prediction_files import write_predictions
from bertworks.tasks.labels import read_label_names
from bertworks.tasks.tagging.columns import SCHEMA as WORDS

from .files import write

ROWS = [{"text": f"this is text number {i}", "label": "ab"[i % 2]} for i in range(30)]
TSV = "text\tlabel\n" + "".join(f"{row['text']}\t{row['label']}\n" for row in ROWS)
CONLL = "EU B-ORG\nrejects O\nGerman B-MISC\ncalls O\n\n" * 10
LABEL_TEXT = "".join(f"{row['label'].upper()}:x {row['text']}\n" for row in ROWS)


def values_of(rows: Rows) -> list[dict[str, Any]]:
    return [row.values for row in rows]


@pytest.mark.parametrize(
    "name", ["eng.testb", "emerging.test.annotated", "noext", "train.txt", "a.tsv", "b.conll.txt"]
)
@pytest.mark.parametrize("blank", [" ", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.filterwarnings("ignore:.* by its content")
def test_conll_is_seen(tmp_path: Path, name: str, blank: str, end: str) -> None:
    file = write(tmp_path / name, CONLL.replace(" ", blank).replace("\n", end))
    rows = read_rows(file)
    assert len(list(rows)) == 10
    assert rows.sample[0]["1"] == ["EU", "rejects", "German", "calls"]
    assert WORDS.find(rows, labelled=True)["tag"] == "2"
    with pytest.raises(DataError, match=r"lists of words: \['EU', .*Use them for tagging"):
        find_text_columns(rows)


def test_a_format_against_the_suffix_is_reported(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", CONLL)
    says = r"a\.txt: read as conll, by its content\. If it is not, .* \(format=F\), such as tsv"
    with pytest.warns(BertworksWarning, match=says):
        read_rows(file)
    read_rows(file, format="conll")
    read_rows(write(tmp_path / "a.conll", CONLL))
    read_rows(write(tmp_path / "b.txt", '{"text": "a"}\n' * 2))


@pytest.mark.filterwarnings("ignore:.* by its content")
def test_conll_by_its_marks_or_tags(tmp_path: Path) -> None:
    four = "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\n\nPeter NNP B-NP B-PER\n"
    assert len(list(read_rows(write(tmp_path / "eng.train", four)))) == 2
    between = "EU B-ORG x\nrejects O y\n"
    (row,) = read_rows(write(tmp_path / "between", between))
    assert row.values["2"] == ["B-ORG", "O"]
    tags = "".join(f"w{i} NOUN\n" + "\n" * (i % 5 == 4) for i in range(20))
    assert len(list(read_rows(write(tmp_path / "a.pos", tags)))) == 4


@pytest.mark.parametrize(
    "content",
    [
        TSV,
        "text\tlabel\nO\t1\nB-x\t2\n",
        "hello world\n\nfoo bar\n\nan apple\n",
        "one\n\ntwo\n\nthree\n",
        "a text\tO\nanother\tO\n",
    ],
)
def test_other_tables_are_not_taken_for_conll(tmp_path: Path, content: str) -> None:
    rows = read_rows(write(tmp_path / "a.txt", content), header=None)
    assert all(isinstance(value, str) for row in rows.sample for value in row.values())


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.* by its content")
def test_real_files_are_read_under_other_names(data_dir: Path, tmp_path: Path) -> None:
    for source, name in (("wnut17/dev.conll", "emerging.dev"), ("wnut17/dev.conll", "dev.txt")):
        file = write(tmp_path / name, (data_dir / source).read_bytes())
        assert values_of(read_rows(file)) == values_of(read_rows(data_dir / source))
    source = data_dir / "ud-ewt" / "en_ewt-ud-dev.conllu"
    rows = read_rows(write(tmp_path / "en.dev", source.read_bytes()))
    assert "upos" in rows.columns
    assert sum(1 for _ in rows) == 2001
    trec = data_dir / "trec" / "TREC.train.all"
    with pytest.raises(DataError, match=r"TREC\.train\.all:\d+: not UTF-8 .*--encoding latin-1"):
        list(read_rows(trec))
    with pytest.raises(DataError, match="--format label-text"):
        read_rows(trec, encoding="latin-1")
    rows = read_rows(trec, encoding="latin-1", format="label-text")
    assert sum(1 for _ in rows) == 5452
    assert find_text_columns(rows)["label"] == "label"


def test_json_documents_are_read_in_every_layout(tmp_path: Path) -> None:
    for number, content in enumerate(
        [
            json.dumps(ROWS),
            json.dumps(ROWS, indent=1),
            json.dumps({"data": ROWS}),
            json.dumps({"data": ROWS}, indent=1),
        ]
    ):
        for name in (f"{number}.json", f"{number}.jsonl", f"{number}.txt"):
            if "data" in content[:20] and name.endswith("txt"):
                continue
            rows = read_rows(write(tmp_path / name, content))
            assert values_of(rows) == ROWS, (name, content[:40])
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    for name in ("lines.json", "lines.tsv", "lines"):
        assert values_of(read_rows(write(tmp_path / name, lines))) == ROWS
    deep = write(tmp_path / "deep.json", "[" * 100_000 + "\n" + "]")
    with pytest.raises(DataError, match="nested more than 100 levels deep"):
        read_rows(deep)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", TSV.replace("\t", ","), "separated by ','. --format csv"),
        (
            "a.txt",
            LABEL_TEXT,
            "begins 'A:x this is text number 0'. Its lines seem to be a label, a",
        ),
        ("a.all", LABEL_TEXT, "nor its content shows its format; its first line is 'A:x this is"),
        ("a.en", "one two\nthree\n", "Give --format F"),
        ("a.jsonl", TSV, ":1: not valid JSON: .*Each line must hold one object"),
        ("a.tsv", "x" * 10_000_000, "begins 'x{60}'….*Are its fields separated by something"),
    ],
)
def test_messages_name_the_fix(tmp_path: Path, name: str, content: str, message: str) -> None:
    file = write(tmp_path / name, content)

    def open_columns() -> None:
        rows = read_rows(file)
        find_text_columns(rows)

    with pytest.raises(DataError, match=message) as caught:
        open_columns()
    assert len(str(caught.value)) < 500


def test_format_argument_overrides_the_file_name(tmp_path: Path) -> None:
    assert values_of(read_rows(write(tmp_path / "a.csv", TSV), format="tsv")) == ROWS
    (row, *_) = read_rows(write(tmp_path / "a.bin", CONLL), format="conll")
    assert row.values["2"] == ["B-ORG", "O", "B-MISC", "O"]
    texts = read_texts(write(tmp_path / "a.en", "one\ttwo\n\nthree"), format="text")
    assert [text for _, text in texts] == ["one\ttwo", "", "three"]
    with pytest.raises(SettingsError, match="format='xml'"):
        read_rows(tmp_path / "a.en", format="xml")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=r"encoding='latin-17'.*nearest valid name is"):
        read_rows(tmp_path / "a.en", encoding="latin-17")


@pytest.mark.parametrize(
    ("content", "options", "rows"),
    [
        ("B:x a text\n", {"format": "label-text"}, [("B:x", "a text")]),
        (
            "__label__a __label__b one two\n__label__a three\n\n",
            {},
            [(["a", "b"], "one two"), ("a", "three")],
        ),
        (
            "__label__a\tone two\n__label__a  __label__b\t three\tfour\n",
            {},
            [("a", "one two"), (["a", "b"], "three\tfour")],
        ),
        ("a __label__ is\n", {"format": "label-text"}, [("a", "__label__ is")]),
        ("a text\nb\n", {"format": "label-text"}, "there is no text after the label 'b'"),
        ("__label__a one\n__label__a __label__b\n", {}, "no text after the label '__label__b'"),
    ],
)
@pytest.mark.filterwarnings("ignore:.* by its content")
def test_labels_before_texts_are_read(
    tmp_path: Path, content: str, options: Any, rows: list[tuple[Any, str]] | str
) -> None:
    file = write(tmp_path / "a.tsv", content)
    if isinstance(rows, str):
        with pytest.raises(DataError, match=rf"a\.tsv:2: .*{rows}"):
            list(read_rows(file, **options))
    else:
        expected = [{"label": label, "text": text} for label, text in rows]
        assert values_of(read_rows(file, **options)) == expected


def test_a_comma_in_a_label_of_fasttext_is_part_of_it(tmp_path: Path) -> None:
    commas = write(tmp_path / "a.yw", "__label__a,b one\n__label__a,b __label__c two\n")
    names = [read_label_names(row.values, "label", row.where, ",") for row in read_rows(commas)]
    assert names == [["a,b"], ["a,b", "c"]]
    plain = read_rows(write(tmp_path / "a.yv", "a,b one\n"), format="label-text")
    assert read_label_names(values_of(plain)[0], "label", None, ",") == ["a", "b"]


def test_max_line_bytes_limits_records_sentences_and_documents(tmp_path: Path) -> None:
    record = write(tmp_path / "a.csv", 'text,label\na,b\n"' + '","\n' * 1000)
    with pytest.raises(DataError, match=r"a\.csv:3: the record .* longer than 6,400 characters"):
        read_rows(record, max_line_bytes=6400)
    words = write(tmp_path / "a.conll", "a O\n\n" + "a O\n" * 1000)
    with pytest.raises(
        DataError, match=r"a\.conll:3: the sentence .* longer than 6,400 characters"
    ):
        list(read_rows(words, max_line_bytes=6400))
    assert len(list(read_rows(words, max_line_bytes=64_000))) == 2
    document = write(tmp_path / "a.json", json.dumps(ROWS, indent=1))
    with pytest.raises(DataError, match=r"a\.json: the document .* longer than 500 characters"):
        read_rows(document, max_line_bytes=500)


@pytest.mark.long
def test_columns_that_are_not_there(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", json.dumps({f"c{i}": "x" for i in range(20_000)}))
    with pytest.raises(DataError, match=r"'c11' and 19,988 more") as caught:
        find_text_columns(read_rows(file))
    assert len(str(caught.value)) < 400
    with pytest.raises(DataError, match=r"no column 'titel'; .* The nearest name is 'title'"):
        read_texts([{"title": "a", "label": "x"}], column="titel")
    with pytest.raises(DataError, match="lines of text have no columns"):
        read_texts(["a", "b"], column="title")
    wide = write(tmp_path / "b.tsv", "\t".join(["x"] * 20_000))
    with pytest.raises(DataError, match="20000 columns are called 'x'"):
        read_rows(wide, header=True)


def test_values_in_messages_are_short() -> None:
    assert len(truncate_repr("x" * 10_000_000)) < 80
    assert len(truncate_repr([["x" * 100] * 1000] * 1000)) < 300
    assert shorten_list(["a"]) == "'a'"
    assert shorten_list([]) == "none"
    assert did_you_mean("zzz", ["a", "x, y", "o p"]) == "Valid: 'a', 'x, y', 'o p'"
    assert did_you_mean("zzz", [f"n{i}" for i in range(50)]).endswith("n11 and 38 more")
    assert did_you_mean("colour", ["color" + "x" * 10_000, "colours"]).endswith("'colours'")


def test_huge_parquet_value_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["x", "y" * 5000], "label": ["a", "b"]}), file)
    with pytest.raises(DataError, match=r"a value of 'text' is longer than 1,000 bytes"):
        list(read_rows(file, max_line_bytes=1000))
    many = [*["x"] * 5000, "y" * 5000]
    pq.write_table(pa.table({"text": many}), file)
    with pytest.raises(DataError, match=r"a\.parquet, row 5001: a value of 'text' is longer"):
        list(read_rows(file, max_line_bytes=1000))
    assert [row.values["text"] for row in read_rows(file)] == many


def test_a_dictionary_of_parquet_is_not_expanded(tmp_path: Path) -> None:
    """A value of 2 MiB for a thousand rows takes some kilobytes on disk."""
    value = "w " * (1 << 20)
    file = tmp_path / "a.parquet"
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), [value])
    pq.write_table(pa.table({"text": texts}), file, compression="zstd", store_schema=False)
    assert file.stat().st_size < 10_000
    with open_parquet(str(file)) as opened:
        batches = list(read_batches(opened, str(file), 1 << 22))
    assert sum(len(batch) for batch in batches) == 1000
    assert max(len(batch) for batch in batches) <= 8
    assert batches[0].to_pylist()[0] == {"text": value}


def test_json_never_holds_nan(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    frame = pd.DataFrame({"text": ["a", "b"], "price": [1.5, None], "n": [[1.0, float("inf")], []]})
    frame.to_parquet(file)
    rows = [(row.values, {"label": "x", "value": float("nan")}) for row in read_rows(file)]
    write_predictions(tmp_path / "out.jsonl", rows)

    def strict(constant: str) -> None:
        raise AssertionError(constant)

    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    first, second = (json.loads(line, parse_constant=strict) for line in lines)
    assert first["n"] == [1.0, None]
    assert first["prediction"] == {"label": "x", "value": None}
    assert second["price"] is None
    write_predictions(tmp_path / "out.csv", rows)
    assert "[1.0, null]" in (tmp_path / "out.csv").read_text()


def test_csv_holds_what_tsv_cannot(tmp_path: Path) -> None:
    row = {"text": 'a\tb, "c"\nd', "n": 1}
    write_predictions(tmp_path / "out.csv", [(row, {"label": "x"})])
    expected = 'text,n,prediction.label\n"a\tb, ""c""\nd",1,x\n'
    assert (tmp_path / "out.csv").read_text() == expected
    (read,) = read_rows(tmp_path / "out.csv")
    assert read.values == {"text": row["text"], "n": "1", "prediction.label": "x"}


def test_a_carriage_return_in_csv_is_quoted(tmp_path: Path) -> None:
    """To most readers of CSV it ends a row, wherever it is."""
    texts = ["a\rb", "\r", "c\r\nd", "e"]
    write_predictions(tmp_path / "out.csv", [({"text": text}, {"label": "x"}) for text in texts])
    written = (tmp_path / "out.csv").read_bytes()
    assert written == b'text,prediction.label\n"a\rb",x\n"\r",x\n"c\r\nd",x\ne,x\n'
    with (tmp_path / "out.csv").open(newline="") as file:
        assert [row["text"] for row in csv.DictReader(file)] == texts
    assert [row.values["text"] for row in read_rows(tmp_path / "out.csv")] == texts


def test_a_wide_record_with_quotes_takes_linear_time(tmp_path: Path) -> None:
    count = 100_000
    (tmp_path / "a.csv").write_text(",".join(['"a ""b"', "c"] * (count // 2)) + "\n")
    begin = time.process_time()
    (row,) = read_rows(tmp_path / "a.csv", header=False)
    assert list(row.values.values()) == ['a "b', "c"] * (count // 2)
    assert time.process_time() - begin < 4

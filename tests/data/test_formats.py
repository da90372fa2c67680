"""The allowed formats of tables and corpora are those that have a reader."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from bertworks.data.documents import read_documents
from bertworks.data.formats import FORMATS, detect_format
from bertworks.data.reading import ReadCounts
from bertworks.data.sources import CorpusSource
from bertworks.data.text_inputs import read_texts
from bertworks.errors import DataError, SettingsError
from bertworks.settings.literals import DataFormat

pytestmark = pytest.mark.light


def test_each_format_is_listed() -> None:
    assert ["auto", *FORMATS] == list(get_args(DataFormat))


CONTENTS = {
    "tsv": "text\tlabel\none text\ta\nanother\tb\n",
    "csv": 'text,label\n"one text",a\nanother,b\n',
    "jsonl": '{"text": "one text", "label": "a"}\n{"text": "another", "label": "b"}\n',
    "json": '[{"text": "one text", "label": "a"},\n{"text": "another", "label": "b"}]\n',
    "label-text": "a one text\nb another\n",
    "wiki": '<doc id="1" title="T">\nT\n\none text\n</doc>\n<doc id="2">\nanother\n</doc>\n',
}


@pytest.mark.parametrize("format", CONTENTS)
@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_each_format_is_read_as_documents_and_as_texts(
    tmp_path: Path, format: DataFormat, compress: Callable[[bytes], bytes]
) -> None:
    needs_name = format == "label-text"
    path = tmp_path / f"a.{format}{'.gz' if compress is gzip.compress else ''}"
    path.write_bytes(compress(CONTENTS[format].encode()))
    options: dict[str, Any] = {"format": format} if needs_name else {}
    counts, column = ReadCounts(), "text" if needs_name else None
    documents = list(read_documents(path, column=column, counts=counts, **options))
    assert [document.text for document in documents] == ["one text", "another"]
    assert counts.formats == {str(path): format}
    assert counts.bytes_read == counts.bytes_total == path.stat().st_size
    texts = list(read_texts(path, column="text", **options))
    assert texts == [(document.where, document.text) for document in documents]


@pytest.mark.parametrize(
    ("name", "content", "as_table", "as_corpus"),
    [
        ("a.txt", '{"text": "a"}\n{"text": "b"}\n', "jsonl", "text"),
        ("a", '{"text": "a"}\n{"text": "b"}\n', "jsonl", "jsonl"),
        ("a", '{"text": "a"}\n', "jsonl", "jsonl"),
        ("a", '{\n"text": "a"}\n', "json", "text"),
        ("a.json", '[{"text": "a"}]', "json", "json"),
        ("a.json", '{"text": "a"}\n', "jsonl", "jsonl"),
        ("a.json", '{"data": [{"text": "a"}]}', "json", "json"),
        ("a.jsonl", '{"data": "of a corpus"}', "jsonl", "jsonl"),
        ("a.txt", '<doc id="1">\na\n</doc>\n', "wiki", "wiki"),
        ("a.txt", "a\tb\nc\td\n", "tsv", "text"),
        ("a.tsv", "a\tb\nc\td\n", "tsv", "tsv"),
        ("a.TSV.gz", "a\tb\nc\td\n", "tsv", "tsv"),
        ("a.en", "a\tb\nc\td\n", "tsv", "text"),
        ("a.txt", "a O\nb B-X\n\nc O\n", "conll", "text"),
        ("a.tsv", "__label__a b\n", "label-text", "tsv"),
        ("a.csv", "a\tb\nc\td\n", "csv", "csv"),
    ],
)
@pytest.mark.filterwarnings("ignore:.* by its content")
def test_the_format_is_that_of_the_first_rule(
    name: str, content: str, as_table: DataFormat, as_corpus: DataFormat
) -> None:
    lines = list(enumerate(content.splitlines(keepends=True), 1))
    assert detect_format(name, lines) == as_table
    assert detect_format(name, lines, is_corpus=True) == as_corpus
    assert detect_format(name, lines, "conllu") == "conllu"


def test_an_unknown_option_of_a_corpus_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a text\n")
    with pytest.raises(SettingsError, match=r"format='xml'.* 'auto', 'text', "):
        read_documents(str(tmp_path), format="xml")  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"the format 'xml' is unknown\. It is one of auto, text, "):
        CorpusSource("a.txt", format="xml")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=r"'colum'.*'column'"):
        read_documents(str(tmp_path), colum="text")  # type: ignore[call-arg]

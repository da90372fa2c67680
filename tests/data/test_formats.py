"""The allowed formats of tables and corpora are those that have a reader."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from bertworks.data.documents import READERS as DOCUMENT_READERS
from bertworks.data.documents import read_documents
from bertworks.data.separated_tables import SEPARATED_FORMATS
from bertworks.data.table_detection import SUFFIXES
from bertworks.data.table_formats import READERS
from bertworks.errors import DataError
from bertworks.settings.literals import CorpusFormat, TableFormat


def test_each_table_format_has_one_reader() -> None:
    """`tables` opens Parquet, `separated_tables` lines of fields, `table_formats` the others."""
    formats = sorted(["auto", "parquet", *SEPARATED_FORMATS, *READERS])
    assert formats == sorted(get_args(TableFormat))
    without_suffix = {"auto", "label-text", "text"}
    assert set(SUFFIXES.values()) == set(formats) - without_suffix


def test_each_corpus_format_has_a_reader() -> None:
    assert sorted(["auto", *DOCUMENT_READERS]) == sorted(get_args(CorpusFormat))


def test_an_unknown_corpus_format_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a text\n")
    with pytest.raises(DataError, match=r"the format 'xml' is unknown\. It is one of auto, text, "):
        read_documents(str(tmp_path), format="xml")  # type: ignore[arg-type]

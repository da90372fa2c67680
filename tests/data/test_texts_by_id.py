"""Tables that name texts by their ids, as MS MARCO's triples and qrels do."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from bertworks.data.tables import read_rows
from bertworks.data.texts_by_id import read_texts_with_ids, with_texts
from bertworks.errors import DataError

QUERIES = {"7": "which river?", "10": "who won?"}
PASSAGES = {"1": "The Thames.", "2": 'A "team', "33": "Nobody."}


def write_texts(path: Path, texts: dict[str, str]) -> str:
    if path.suffix == ".jsonl":
        lines = (json.dumps({"_id": key, "title": "", "text": text}) for key, text in texts.items())
    else:
        lines = (f"{key}\t{text}" for key, text in texts.items())
    data = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


@pytest.mark.parametrize("name", ["c.tsv", "c.tsv.gz", "c.jsonl"])
def test_ids_are_replaced_by_their_texts(tmp_path: Path, name: str) -> None:
    triples = tmp_path / "triples.tsv"
    triples.write_text("7\t1\t2\n10\t2\t33\n7\t33\t1\n")
    files = {
        "1": write_texts(tmp_path / f"q{name}", QUERIES),
        "2": write_texts(tmp_path / name, PASSAGES),
    }
    rows = with_texts(read_rows(triples, header=False), {**files, "3": files["2"]})
    expected = [
        (QUERIES[query], PASSAGES[passage], PASSAGES[other])
        for query, passage, other in (("7", "1", "2"), ("10", "2", "33"), ("7", "33", "1"))
    ]
    for _ in range(2):
        assert [tuple(row.values.values()) for row in rows] == expected
    assert [tuple(row.values()) for row in rows.sample] == expected


def test_lists_of_ids_become_lists_of_texts(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "c.tsv", PASSAGES)
    rows = with_texts(read_rows([{"query": "a", "negatives": [1, "33"]}]), {"negatives": path})
    assert [row.values for row in rows] == [{"query": "a", "negatives": ["The Thames.", "Nobody."]}]


@pytest.mark.parametrize(
    ("value", "says"), [("4", r"the id '4' is not in .*c\.tsv"), (None, "has no id")]
)
def test_an_id_without_a_text_is_an_error(tmp_path: Path, value: Any, says: str) -> None:
    path = write_texts(tmp_path / "c.tsv", PASSAGES)
    with pytest.raises(DataError, match=says):
        with_texts(read_rows([{"passage": value}, {"passage": "1"}]), {"passage": path})


def test_an_id_with_two_texts_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "c.tsv").write_text("1\ta\n2\tb\n1\ta\n2\tc\n3\td\n3\te\n")
    rows = with_texts(read_rows([{"passage": "1"}]), {"passage": tmp_path / "c.tsv"})
    assert [row.values for row in rows] == [{"passage": "a"}]
    with pytest.raises(DataError, match=r"c\.tsv:4: the id '2' has another text before"):
        with_texts(read_rows([{"passage": "2"}]), {"passage": tmp_path / "c.tsv"})


def test_an_optional_column_may_be_empty(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "c.tsv", PASSAGES)
    table = read_rows([{"negative": ""}, {"negative": None}, {"negative": "33"}])
    rows = with_texts(table, {"negative": path}, optional_columns=("negative",))
    assert [row.values["negative"] for row in rows] == ["", None, "Nobody."]


def test_a_file_in_another_layout_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.tsv").write_text("1\ta\tb\n2\tc\td\n")
    with pytest.raises(DataError, match="has no column '_id'"):
        read_texts_with_ids(tmp_path / "c.tsv")

"""BEIR's folders, TREC's judgements and runs: what is read, written and refused."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest

from bertworks.analysis.retrieval.evaluation import evaluate_retrieval
from bertworks.analysis.retrieval.judgements import (
    JudgedCorpus,
    read_judgements,
    read_run,
    write_run,
)
from bertworks.analysis.retrieval.store import read_rows_to_add
from bertworks.analysis.retrieval.text_index import open_texts
from bertworks.analysis.scoring import score
from bertworks.data.text_inputs import read_texts
from bertworks.errors import DataError, SettingsError


def write_lines(file: Path, *rows: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_lines(
        tmp_path / "corpus.jsonl",
        {"_id": "d1", "title": "A title", "text": "a text", "metadata": {}},
        {"_id": "d2", "title": "", "text": "another"},
        {"_id": "d3", "title": "", "text": " "},
    )
    write_lines(
        tmp_path / "queries.jsonl",
        {"_id": "q1", "text": "which?"},
        {"_id": "q2", "text": "not judged"},
    )
    write_lines(tmp_path / "qrels/test.tsv", "query-id\tcorpus-id\tscore", "q1\td1\t2", "q1\td2\t0")
    return tmp_path


def test_a_folder_is_read_with_titles_and_judged_queries(folder: Path) -> None:
    corpus = JudgedCorpus.read(folder)
    assert corpus.document_ids == ["d1", "d2"]
    assert [text for _, text in corpus.texts] == ["A title a text", "another"]
    assert corpus.queries == {"q1": "which?"}
    assert corpus.judgements == {"q1": {"d1": 2, "d2": 0}}


def test_corpus_has_the_same_texts_wherever_it_is_read(folder: Path, tmp_path: Path) -> None:
    expected = [text for _, text in JudgedCorpus.read(folder).texts]
    rows = [json.loads(line) for line in (folder / "corpus.jsonl").read_text().splitlines()]
    collection = tmp_path / "other" / "collection.tsv"
    write_lines(collection, "d1\tA title a text", "d2\tanother", "d3\t ")
    for data in (folder, folder / "corpus.jsonl", rows, collection.parent, collection):
        texts = open_texts(data, None)
        assert [text for _, text in texts.without_blank()] == expected
        assert open_texts(texts, None) is texts
        contents = read_rows_to_add(data, None, None)
        assert contents == {"d1": expected[0], "d2": expected[1], "d3": ""}
    assert next(iter(open_texts(folder, "title")))[1] == "A title"
    write_lines(folder / "plain.jsonl", {"text": "a"}, {"text": "b"})
    places = [f"{folder}/plain.jsonl:{line}" for line in (1, 2)]
    assert read_rows_to_add(folder / "plain.jsonl", None, None) == dict(
        zip(places, "ab", strict=True)
    )


@pytest.mark.parametrize(
    ("file", "rows", "message"),
    [
        ("qrels/test.tsv", ["q1\td9\t1"], r"'d9' is relevant to 'q1', but not in"),
        ("qrels/test.tsv", ["q1\td3\t1"], r"'d3' is relevant to 'q1', but not in"),
        ("qrels/test.tsv", ["q9\td1\t1"], r"the judged query 'q9' is not in"),
        ("qrels/test.tsv", ["q1\td1\tgood"], r"test\.tsv:1: 'good' is not a relevance"),
        ("qrels/test.tsv", ["q1\td1\t0.5"], r"test\.tsv:1: '0.5' is not a relevance. A .* whole"),
        ("qrels/test.tsv", ["q1\td1\t1", "q1\td1\t2"], r"test\.tsv:2: .*occurs twice"),
        ("qrels/test.tsv", ["q1 d1"], r"test\.tsv:1: has 2 fields"),
        ("corpus.jsonl", [{"_id": "d1", "text": "a"}] * 2, r"corpus\.jsonl:2: .*also that of"),
        (
            "queries.jsonl",
            [{"_id": "q1", "text": "a"}, {"_id": "q1", "text": "b"}],
            r"queries\.jsonl:2: the id 'q1' has another text before",
        ),
        ("corpus.jsonl", [{"id": "d1", "text": "a"}], r"corpus\.jsonl:1: has no _id"),
        ("corpus.jsonl", [{"_id": "d1", "text": 3}], r"corpus\.jsonl:1: .*is not a text"),
    ],
)
def test_faults_of_a_folder_are_named_with_file_and_line(
    folder: Path, file: str, rows: list[Any], message: str
) -> None:
    write_lines(folder / file, *rows)
    with pytest.raises(DataError, match=message):
        JudgedCorpus.read(folder)


def test_relevant_documents_outside_the_corpus_count_as_not_found(folder: Path) -> None:
    write_lines(folder / "qrels/test.tsv", "q1\td1\t1", "q1\td9\t1", "q1\td3\t1", "q1\td8\t0")
    (stage,) = evaluate_retrieval({"words": "bm25"}, folder, metrics=["recall@5"])
    found = sum(document == "d1" for document in stage.run["q1"])
    assert stage.evaluation.metrics == {"recall@5": pytest.approx(found / 3)}
    assert "2 relevant documents of queries are not in the corpus" in stage.evaluation.notes[0]


def test_ids_may_have_spaces_between_tabs(folder: Path, tmp_path: Path) -> None:
    write_lines(folder / "corpus.jsonl", {"_id": "d 1", "text": "a"}, {"_id": "1", "text": "b"})
    write_lines(folder / "qrels/test.tsv", "q1\td 1\t1.0", "q1\t1\t0 ")
    assert JudgedCorpus.read(folder).judgements == {"q1": {"d 1": 1, "1": 0}}
    with pytest.raises(DataError, match="the id 'd 1' has white space"):
        write_run(tmp_path / "a.run", {"q1": {"1": 2.0, "d 1": 1.0}}, "a model")


def test_ids_of_a_run_are_checked_before_the_evaluation(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lines(folder / "queries.jsonl", {"_id": "q1", "text": "another"})
    (stage,) = evaluate_retrieval({"words": "bm25"}, folder, run_file=tmp_path / "a.run")
    ranks = {query: [*scores] for query, scores in stage.run.items()}
    assert {query: [*scores] for query, scores in read_run(tmp_path / "a.run").items()} == ranks
    write_lines(folder / "corpus.jsonl", {"_id": "d 1", "text": "a"}, {"_id": "1", "text": "b"})
    write_lines(folder / "qrels/test.tsv", "q1\td 1\t1", "q1\t1\t0")
    monkeypatch.delattr("bertworks.analysis.retrieval.evaluation.open_index")
    with pytest.raises(DataError, match=f"{folder}: the id 'd 1' has white space"):
        evaluate_retrieval({"words": "bm25"}, folder, run_file=tmp_path / "b.run")


def test_an_id_with_a_space_that_no_query_finds_is_not_in_the_run(
    folder: Path, tmp_path: Path
) -> None:
    documents = [{"_id": name, "text": name[-1] * 3} for name in ("d1", "d 2", "d3")]
    write_lines(folder / "corpus.jsonl", *documents)
    write_lines(folder / "queries.jsonl", {"_id": "q1", "text": "111"})
    write_lines(folder / "qrels/test.tsv", "q1\td1\t1", "q1\td 9\t0")
    evaluate_retrieval({"words": "bm25"}, folder, run_file=tmp_path / "a.run")
    assert read_run(tmp_path / "a.run")["q1"].keys() == {"d1"}
    write_lines(folder / "queries.jsonl", {"_id": "q1", "text": "111 222"})
    with pytest.raises(DataError, match="the id 'd 2' has white space"):
        evaluate_retrieval({"words": "bm25"}, folder, run_file=tmp_path / "b.run")


@pytest.mark.parametrize("line", ["1 0 d1 1\t", "1\t0 d1 1", "1 0\td1\t1", "1\t0\t\td1\t1"])
def test_tabs_and_spaces_separate_fields(line: str, tmp_path: Path) -> None:
    path = tmp_path / "qrels"
    path.write_text(f"{line}\n")
    assert read_judgements(path) == {"1": {"d1": 1}}


def test_judgements_are_chosen_by_name(folder: Path) -> None:
    write_lines(folder / "qrels/dev.tsv", "q2\td2\t1")
    assert list(JudgedCorpus.read(folder).queries) == ["q1"]
    assert list(JudgedCorpus.read(folder, "dev").queries) == ["q2"]
    with pytest.raises(DataError, match=r"has no train\.tsv.*qrels=dev or qrels=test"):
        JudgedCorpus.read(folder, "train")
    (folder / "qrels/test.tsv").unlink()
    assert list(JudgedCorpus.read(folder).queries) == ["q2"]


def test_runs_are_written_as_they_are_read(tmp_path: Path) -> None:
    run = {"q1": {"d1": 0.1234567, "d2": 3.0}, "q2": {"d9": -1e-7}}
    write_run(tmp_path / "a.run", run, "a model")
    assert read_run(tmp_path / "a.run") == run
    first = (tmp_path / "a.run").read_text().splitlines()[0]
    assert first == "q1 Q0 d2 1 3 a_model"


def test_trec_files_are_scored(tmp_path: Path) -> None:
    judgements = write_lines(tmp_path / "qrels", "1 0 a 1", "1 0 b 0", "2 0 c 1")
    run = write_lines(tmp_path / "run", "1 Q0 b 1 2.5 x", "1 Q0 a 2 2 x", "3 Q0 a 1 1 x")
    evaluation = score("retrieval", str(judgements), predictions=run, metrics=["mrr", "recall@5"])
    assert evaluation.metrics == {"mrr": 0.25, "recall@5": 0.5}
    assert evaluation.notes == [
        "not judged, and ignored: 1 query of the run",
        "1 judged query without a retrieved document, counted as 0",
    ]
    assert read_judgements(judgements)["1"] == {"a": 1, "b": 0}
    for line, message in (("1 Q0 b 1 nan x", "is not a score"), ("1 Q0 b 1 2", "has 5 fields")):
        write_lines(run, line)
        with pytest.raises(DataError, match=message):
            score("retrieval", str(judgements), predictions=run)
    with pytest.raises(SettingsError, match="no_label is not for retrieval"):
        score("retrieval", str(judgements), predictions=run, no_label="x")
    with pytest.raises(SettingsError, match="metrics is not for tagging, but for retrieval"):
        score("tagging", str(judgements), metrics=["mrr"])


@pytest.mark.parametrize("end", ["", ".gz"])
def test_a_folder_in_the_layout_of_ms_marco_is_read(tmp_path: Path, end: str) -> None:
    files = {
        "collection.tsv": 'd1\tA "text\nd2\tanother\n',
        "queries.dev.small.tsv": "q1\twhich?\nq2\tnot judged\n",
        "qrels.dev.small.tsv": "q1 0 d1 1\n",
        "qrels.train.tsv": "q3\t0\td2\t1\n",
        "queries.tsv": "q3\tand now?\n",
    }
    for name, content in files.items():
        data = content.encode()
        (tmp_path / f"{name}{end}").write_bytes(gzip.compress(data) if end else data)
    corpus = JudgedCorpus.read(tmp_path, "dev.small")
    assert corpus.document_ids == ["d1", "d2"]
    assert [text for _, text in corpus.texts] == ['A "text', "another"]
    assert (corpus.queries, corpus.judgements) == ({"q1": "which?"}, {"q1": {"d1": 1}})
    assert JudgedCorpus.read(tmp_path, "train").queries == {"q3": "and now?"}
    with pytest.raises(DataError, match=r"has no qrels.test.tsv.*qrels=dev.small or qrels=train"):
        JudgedCorpus.read(tmp_path)
    (tmp_path / f"collection.tsv{end}").unlink()
    with pytest.raises(DataError, match=r"has none of corpus.jsonl, collection.tsv"):
        JudgedCorpus.read(tmp_path, "train")


def test_options_of_tables_change_no_ids(tmp_path: Path) -> None:
    write_lines(tmp_path / "collection.tsv", "0\ta text", "1\tanother")
    expected = {"0": "a text", "1": "another"}
    for options in ({}, {"encoding": "utf-8"}, {"header": False}):
        assert read_rows_to_add(tmp_path, None, None, **options) == expected
    with pytest.raises(DataError, match="has no column '_id'"):
        read_rows_to_add(tmp_path, None, None, header=True)
    file = write_lines(tmp_path / "collection.tsv", "_id\ttitle\ttext", "7\tTitle\ta text")
    assert read_rows_to_add(file, None, None) == {"7": "Title a text"}


def test_texts_whose_column_was_chosen_stay(folder: Path) -> None:
    texts = read_texts(folder / "corpus.jsonl", column="title")
    assert open_texts(texts, None) is texts


def test_texts_that_are_read_once_may_come_from_standard_input(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(DataError, match="cannot be read from standard input"):
        open_texts("-", None)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a text\nanother\n")))
    assert [*read_rows_to_add("-", None, None).values()] == ["a text", "another"]

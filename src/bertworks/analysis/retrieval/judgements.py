"""Data of retrieval as the field publishes it: BEIR's folders, and TREC's judgements and runs.

    corpus.jsonl         {"_id": "d1", "title": "…", "text": "…"}
    queries.jsonl        {"_id": "q1", "text": "…"}
    qrels/test.tsv       query-id, corpus-id, score, with a header
    TREC judgements      query, 0, document, relevance, separated by white space
    TREC runs            query, Q0, document, rank, score, name of the system

Sources: Thakur et al. (2021), "BEIR"; the README of `trec_eval`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ...data.lines import read_lines
from ...data.reading import Reading
from ...data.rows import LocatedRow, Rows, is_missing, text_of
from ...data.tables import read_rows
from ...data.text_inputs import Texts
from ...errors import DataError
from ...utils.atomic_writes import write_file
from .metrics import Judgements, Run, sort_documents
from .text_index import id_of

_CORPUS, _QUERIES, _JUDGEMENTS = "corpus.jsonl", "queries.jsonl", "qrels"
_HEADER = ("query-id", "corpus-id", "score")

ValueT = TypeVar("ValueT", int, float)


@dataclass(frozen=True)
class JudgedCorpus:
    """A corpus, queries, and judgements of which documents are relevant to them.

    Attributes:
        name: the folder.
        texts: the documents that are not blank, titles first.
        document_ids: their ids, in their order.
        queries: texts by id, of the judged queries.
    """

    name: str
    texts: Texts
    document_ids: Sequence[str]
    queries: Mapping[str, str]
    judgements: Judgements

    @classmethod
    def read(cls, folder: str | os.PathLike[str], qrels: str | None = None) -> JudgedCorpus:
        """Read a folder in BEIR's layout.

        Args:
            qrels: the name of a file in `qrels`, without its suffix; the only one, or test, if
                omitted.

        Raises:
            DataError: a file is missing or invalid, an id occurs twice, or a judged query has no
                text, or a relevant document is not in the corpus.
        """
        path = Path(folder)
        file = _judgement_file(path, qrels)
        judgements = read_judgements(file)
        corpus = read_rows(path / _CORPUS)
        document_ids = _unique_ids(corpus)
        corpus_ids = set(document_ids)
        for query, grades in judgements.items():
            missing = [
                one for one, relevance in grades.items() if relevance > 0 and one not in corpus_ids
            ]
            if missing:
                what = f"{missing[0]!r} is relevant to {query!r}, but not in {path / _CORPUS}"
                raise DataError(what, where=str(file), fix="Or its text is blank.")
        queries = {
            _id_of(row): text_of(row.values, "text", row.where)
            for row in read_rows(path / _QUERIES)
            if _id_of(row) in judgements
        }
        if without_text := [query for query in judgements if query not in queries]:
            what = f"the judged query {without_text[0]!r} is not in {path / _QUERIES}"
            raise DataError(what, where=str(file))
        texts = Texts(_with_titles(corpus), "text", is_repeatable=True)
        return cls(str(folder), texts, document_ids, queries, judgements)


def _judgement_file(folder: Path, qrels: str | None) -> Path:
    files = {file.stem: file for file in sorted((folder / _JUDGEMENTS).glob("*.tsv"))}
    where = str(folder / _JUDGEMENTS)
    if not files:
        raise DataError("has no judgements (SPLIT.tsv)", where=where)
    name = qrels or (next(iter(files)) if len(files) == 1 else "test")
    if name not in files:
        raise DataError(
            f"has no {name}.tsv", where=where, fix=f"Choose qrels={' or qrels='.join(files)}."
        )
    return files[name]


def _id_of(row: LocatedRow) -> str:
    identifier = id_of(row.values.get("_id"))
    if identifier is None:
        raise DataError("has no _id", where=row.where)
    return identifier


def _text_with_title(row: LocatedRow) -> str:
    title = row.values.get("title")
    text = row.values.get("text")
    parts = [part for part in (title, text) if part is not None and not is_missing(part)]
    if not all(isinstance(part, str) for part in parts):
        raise DataError("its title or text is not a text", where=row.where)
    return " ".join(map(str, parts))


def _with_titles(corpus: Rows) -> Rows:
    def rows() -> Iterator[LocatedRow]:
        for row in corpus:
            if text := _text_with_title(row):
                yield LocatedRow(row.where, {"text": text})

    return Rows(corpus.name, ("text",), None, (), rows)


def _unique_ids(corpus: Rows) -> list[str]:
    """Return the ids of the documents that are not blank."""
    places: dict[str, str] = {}
    blank = set()
    for row in corpus:
        identifier = _id_of(row)
        if identifier in places:
            what = f"the _id {identifier!r} is also that of {places[identifier]}"
            raise DataError(what, where=row.where)
        places[identifier] = row.where
        if not _text_with_title(row):
            blank.add(identifier)
    return [identifier for identifier in places if identifier not in blank]


def read_judgements(path: str | os.PathLike[str]) -> Judgements:
    """Read judgements in BEIR's or TREC's format.

    Raises:
        DataError: the file cannot be read, a line is invalid, or a document is judged twice.
    """
    judgements: dict[str, dict[str, int]] = {}
    for where, fields in _fields_of(path):
        if tuple(fields) == _HEADER:
            continue
        if len(fields) not in (3, 4):
            what = f"has {len(fields)} fields"
            fix = (
                "Judgements have a query, a document and its relevance; in TREC's format a query, "
            )
            raise DataError(what, where=where, fix=f"{fix}0, a document and its relevance.")
        query, document, relevance = fields[0], fields[-2], fields[-1]
        _add(judgements, query, document, _number(int, relevance, "relevance", where), where)
    if not judgements:
        raise DataError("has no judgements", where=os.fspath(path))
    return judgements


def read_run(path: str | os.PathLike[str]) -> Run:
    """Read a run in TREC's format; the order of its documents is that of their scores.

    Raises:
        DataError: the file cannot be read, a line is invalid, or a query has a document twice.
    """
    run: dict[str, dict[str, float]] = {}
    for where, fields in _fields_of(path):
        if len(fields) != 6:
            fix = "A run has a query, Q0, a document, its rank, its score and the system's name."
            raise DataError(f"has {len(fields)} fields", where=where, fix=fix)
        _add(run, fields[0], fields[2], _number(float, fields[4], "score", where), where)
    if not run:
        raise DataError("the run is empty", where=os.fspath(path))
    return run


def write_run(path: str | os.PathLike[str], run: Run, system: str) -> None:
    """Write a run in TREC's format; the file replaces an existing one when it is complete.

    Scores have nine digits, which float32 needs.
    """
    name = "_".join(system.split()) or "run"
    lines = [
        f"{query} Q0 {document} {rank} {scores[document]:.9g} {name}\n"
        for query, scores in run.items()
        for rank, document in enumerate(sort_documents(scores), 1)
    ]
    write_file(path, "".join(lines).encode())


def _fields_of(path: str | os.PathLike[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the places and the fields of lines that are not blank."""
    name = os.fspath(path)
    if not Path(path).is_file():
        raise DataError("no such file", where=name)
    for number, line in read_lines(name, Reading()):
        if fields := line.split():
            yield f"{name}:{number}", fields


def _number(kind: Callable[[str], ValueT], text: str, what: str, where: str) -> ValueT:
    try:
        value = kind(text)
    except ValueError:
        raise DataError(f"{text!r} is not a {what}", where=where) from None
    if not math.isfinite(value):
        raise DataError(f"{text!r} is not a {what}", where=where)
    return value


def _add(
    table: dict[str, dict[str, ValueT]], query: str, document: str, value: ValueT, where: str
) -> None:
    values = table.setdefault(query, {})
    if document in values:
        raise DataError(f"the document {document!r} occurs twice for {query!r}", where=where)
    values[document] = value

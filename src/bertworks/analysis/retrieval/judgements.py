"""Data of retrieval as the field publishes it: folders of BEIR and MS MARCO, and TREC's files.

    BEIR                 corpus.jsonl, queries.jsonl (`data/texts_by_id.py`), and qrels/test.tsv:
                         query-id, corpus-id, score, with a header
    MS MARCO             collection.tsv, queries.dev.tsv, and qrels.dev.tsv, as TREC judgements; all
                         may end in .gz
    TREC judgements      query, 0, document, relevance, separated by white space
    TREC runs            query, Q0, document, rank, score, name of the system
    candidates           query, document, and the texts of both, separated by tabs, in no order
                         (MS MARCO's top1000.dev.tsv)

Sources: Thakur et al. (2021), "BEIR"; the README of `trec_eval`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeVar

from ...data.lines import read_lines
from ...data.reading import Reading
from ...data.rows import LocatedRow, Rows, id_of, text_of
from ...data.text_inputs import Texts
from ...data.texts_by_id import (
    CORPUS_FILES,
    ID,
    TEXT,
    add_text,
    corpus_file,
    read_texts_with_ids,
    text_with_title,
    with_titles,
)
from ...errors import DataError
from ...utils.atomic_writes import write_file
from ...utils.formatting import format_count
from .metrics import Judgements, Run, sort_documents

_ENDS = ("", ".gz")
_HEADER = ("query-id", "corpus-id", "score")
_NUMBERS = {
    "relevance": "A relevance is a whole number: 0 is not relevant, 1 and more are.",
    "score": "A score is a finite number.",
}

ValueT = TypeVar("ValueT", int, float)


@dataclass(frozen=True)
class JudgedCorpus:
    """A corpus, queries, and judgements of which documents are relevant to them.

    Attributes:
        name: the folder.
        texts: the documents that are not blank, titles first.
        document_ids: their ids, in their order.
        queries: texts by id, of the judged queries.
        num_missing: the number of relevant documents that are not in the corpus, or are blank:
            no ranking has them, which lowers its metrics as in `trec_eval`.
    """

    name: str
    texts: Texts
    document_ids: Sequence[str]
    queries: Mapping[str, str]
    judgements: Judgements
    num_missing: int = 0

    @classmethod
    def read(cls, folder: str | os.PathLike[str], qrels: str | None = None) -> JudgedCorpus:
        """Read a folder in BEIR's or MS MARCO's layout.

        Args:
            qrels: the name of the judgements: NAME of `qrels/NAME.tsv` or `qrels.NAME.tsv`; the
                only ones, or test, if omitted.

        Raises:
            DataError: a file is missing or invalid, an id of the corpus occurs twice, a judged
                query has no text, or several, or no relevant document is in the corpus.
        """
        files = _list_files(Path(folder), qrels)
        judgements = read_judgements(files.judgements)
        corpus = read_texts_with_ids(files.corpus)
        document_ids = _unique_ids(corpus)
        corpus_ids = set(document_ids)
        relevant = [
            (query, document)
            for query, grades in judgements.items()
            for document, relevance in grades.items()
            if relevance > 0
        ]
        missing = [pair for pair in relevant if pair[1] not in corpus_ids]
        if missing and len(missing) == len(relevant):
            query, document = missing[0]
            what = f"{document!r} is relevant to {query!r}, but not in {files.corpus}"
            fix = "Or its text is blank. The same holds for all other relevant documents."
            raise DataError(what, where=str(files.judgements), fix=fix)
        queries: dict[str, str] = {}
        for row in read_texts_with_ids(files.queries):
            name = _id_of(row)
            if name in judgements:
                add_text(queries, name, text_of(row.values, TEXT, row.where), row.where)
        if without_text := [query for query in judgements if query not in queries]:
            what = f"the judged query {without_text[0]!r} is not in {files.queries}"
            raise DataError(what, where=str(files.judgements))
        texts = Texts(with_titles(corpus), TEXT, is_repeatable=True).without_blank()
        return cls(str(folder), texts, document_ids, queries, judgements, len(missing))


class _Files(NamedTuple):
    """The files of a folder."""

    corpus: Path
    queries: Path
    judgements: Path


def _list_files(folder: Path, qrels: str | None) -> _Files:
    """Return the files of a folder, with the judgements of a name."""
    corpus = corpus_file(folder)
    if corpus is None:
        raise DataError(f"has none of {', '.join(CORPUS_FILES)}", where=str(folder))
    is_beir = corpus.suffix == ".jsonl"
    place, prefix = (folder / "qrels", "") if is_beir else (folder, "qrels.")
    files = {
        file.name.removeprefix(prefix).partition(".tsv")[0]: file
        for end in _ENDS
        for file in sorted(place.glob(f"{prefix}*.tsv{end}"))
    }
    if not files:
        raise DataError(f"has no judgements ({prefix}SPLIT.tsv)", where=str(place))
    name = qrels or (next(iter(files)) if len(files) == 1 else "test")
    if name not in files:
        fix = f"Choose qrels={' or qrels='.join(files)}."
        raise DataError(f"has no {prefix}{name}.tsv", where=str(place), fix=fix)
    query_names = ("queries.jsonl",) if is_beir else (f"queries.{name}.tsv", "queries.tsv")
    candidates = [folder / f"{one}{end}" for one in query_names for end in _ENDS]
    queries = next((file for file in candidates if file.is_file()), None)
    if queries is None:
        raise DataError(f"has no {' or '.join(query_names)}", where=str(folder))
    return _Files(corpus, queries, files[name])


def _id_of(row: LocatedRow) -> str:
    identifier = id_of(row.values.get(ID))
    if identifier is None:
        raise DataError("has no _id", where=row.where)
    return identifier


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
        if not text_with_title(row):
            blank.add(identifier)
    return [identifier for identifier in places if identifier not in blank]


def read_judgements(path: str | os.PathLike[str]) -> Judgements:
    """Read judgements in BEIR's or TREC's format.

    Raises:
        DataError: the file cannot be read, a line is invalid, or a document is judged twice.
    """
    judgements: dict[str, dict[str, int]] = {}
    for where, fields in _fields_of(path, (3, 4)):
        if tuple(fields) == _HEADER:
            continue
        if len(fields) not in (3, 4):
            what = f"has {format_count(len(fields), 'field')}"
            fix = (
                "Judgements have a query, a document and its relevance; in TREC's format a query, "
            )
            raise DataError(what, where=where, fix=f"{fix}0, a document and its relevance.")
        query, document, relevance = fields[0], fields[-2], fields[-1]
        _add(judgements, query, document, _number(_whole, relevance, "relevance", where), where)
    if not judgements:
        raise DataError("has no judgements", where=os.fspath(path))
    return judgements


def read_run(path: str | os.PathLike[str]) -> Run:
    """Read a run in TREC's format; the order of its documents is that of their scores.

    Raises:
        DataError: the file cannot be read, a line is invalid, or a query has a document twice.
    """
    run: dict[str, dict[str, float]] = {}
    for where, fields in _fields_of(path, (6,)):
        if len(fields) != 6:
            fix = "A run has a query, Q0, a document, its rank, its score and the system's name."
            raise DataError(f"has {format_count(len(fields), 'field')}", where=where, fix=fix)
        _add(run, fields[0], fields[2], _number(float, fields[4], "score", where), where)
    if not run:
        raise DataError("the run is empty", where=os.fspath(path))
    return run


def read_candidates(path: str | os.PathLike[str]) -> tuple[Run, bool]:
    """Read a run in TREC's format, or candidates in MS MARCO's, which have no order.

    Returns:
        The documents' scores, and whether the file has any: those of candidates are 0.

    Raises:
        DataError: as `read_run`.
    """
    run: dict[str, dict[str, float]] = {}
    for where, fields in _fields_of(path, None):
        if len(fields) != 4 and not run:
            break
        if len(fields) != 4:
            what = f"has {format_count(len(fields), 'field')}, unlike earlier lines"
            raise DataError(what, where=where)
        _add(run, fields[0], fields[1], 0.0, where)
    return (run, False) if run else (read_run(path), True)


def check_ids_of_run(ids: Iterable[str], where: str | None = None) -> None:
    """Check that no id has white space, which separates the fields of TREC's format.

    Args:
        where: the place that messages name.

    Raises:
        DataError: one has.
    """
    for name in ids:
        if len(name.split()) != 1:
            what = f"the id {name!r} has white space, which separates the fields of TREC's format"
            raise DataError(what, where=where, fix="Rename it, or leave the run out.")


def write_run(path: str | os.PathLike[str], run: Run, system: str) -> None:
    """Write a run in TREC's format; the file replaces an existing one when it is complete.

    Scores have nine digits, which float32 needs.

    Raises:
        DataError: an id has white space.
    """
    check_ids_of_run(chain(run, *run.values()))
    name = "_".join(system.split()) or "run"
    lines = [
        f"{query} Q0 {document} {rank} {scores[document]:.9g} {name}\n"
        for query, scores in run.items()
        for rank, document in enumerate(sort_documents(scores), 1)
    ]
    write_file(path, "".join(lines).encode())


def _fields_of(
    path: str | os.PathLike[str], counts: Sequence[int] | None
) -> Iterator[tuple[str, list[str]]]:
    """Yield the places and the fields of lines that are not blank.

    Args:
        counts: the possible numbers of fields. If tabs separate as many, ids may have spaces; else
            white space separates them. None: tabs alone do.
    """
    name = os.fspath(path)
    if not Path(path).is_file():
        raise DataError("no such file", where=name)
    for number, line in read_lines(name, Reading()):
        if line.strip():
            yield f"{name}:{number}", _split_fields(line, counts)


def _split_fields(line: str, counts: Sequence[int] | None) -> list[str]:
    fields, words = [field.strip() for field in line.split("\t")], line.split()
    if counts is None:
        return fields
    is_trec = len(words) == 4 and words[1] == "0"
    return fields if len(fields) in counts and all(fields) and not is_trec else words


def _whole(text: str) -> int:
    """Return a whole number; tables of numbers are often written as 1.0."""
    value = float(text)
    if not value.is_integer():
        raise ValueError
    return int(value)


def _number(kind: Callable[[str], ValueT], text: str, what: str, where: str) -> ValueT:
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not math.isfinite(value):
        raise DataError(f"{text!r} is not a {what}", where=where, fix=_NUMBERS[what])
    return value


def _add(
    table: dict[str, dict[str, ValueT]], query: str, document: str, value: ValueT, where: str
) -> None:
    values = table.setdefault(query, {})
    if document in values:
        raise DataError(f"the document {document!r} occurs twice for {query!r}", where=where)
    values[document] = value

"""The formats of files, and which format a file has.

`FORMATS` lists all formats; each is read as a table and as documents. A file's format is, in every
verb, that of the first rule that applies:

  1. The user names it.
  2. Parquet, if the file begins like one, or its name ends so.
  3. That of the suffix: `.csv`, `.json`, `.conll`, `.bio`, `.iob`, `.conllu`; `.tsv` and `.txt` too
     if the user says whether a table has a header.
  4. `.jsonl` and `.ndjson` are JSON Lines, unless the file is one JSON document.
  5. Wiki or JSON Lines, if the first line that is not blank shows it (JSON Lines not in a `.txt`
     file of a corpus); for a table also one JSON document, CoNLL-U, CoNLL, lines that begin with
     labels of fastText, or TSV, if all of the first lines have its form.
  6. For a corpus, `.tsv` is TSV and all else plain text. For a table, files with `.tsv`, `.txt` or
     without a suffix are TSV; for others the user must name it.

A table's format that its content shows (5), against its suffix, is reported with the option that
says otherwise, unless no other format begins so (JSON, wiki). A JSON file (3, or named by the user)
is read as JSON Lines if an object fills its first line. Where texts are read (`embed`, `search`;
`text_inputs`), a `.txt` file is `text`, one text a line, before these rules. Column names are
guessed by `headers`, roles of columns by `schema`. An encoding is never guessed: an error names the
likely one.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, get_args

from ..errors import BertworksWarning, DataError, first_line, truncate_repr
from ..settings.literals import DataFormat
from ..utils.memory import is_memory_short
from .document_formats import WIKI_DOCUMENT, Document, read_text, read_wiki
from .headers import names_word_columns
from .lines import Lines, decode_lines, first_lines
from .reading import ReadCounts, Reading
from .record_formats import (
    CONLLU_COLUMNS,
    DOCUMENT_START,
    FASTTEXT_PREFIX,
    conll_fields,
    read_conll,
    read_conllu,
    read_json_document,
    read_json_lines,
    read_label_text,
    read_texts,
)
from .rows import LocatedRow
from .schema import LABEL_TEXT_FIX, are_labelled_texts
from .separated_tables import Record, split_csv, split_tsv
from .streams import COMPRESSION_SUFFIXES, check_text, open_stream, suffix_of


class Format(NamedTuple):
    """A format of files.

    The readers get the lines of a file, its name and options. `parquet`, which has none, is read
    from bytes.

    Attributes:
        suffixes: of the names of its files.
        records: reads records that name their columns.
        fields: reads records without names; the first may be the header of the others.
        documents: reads documents, if a document is not one record.
    """

    suffixes: tuple[str, ...] = ()
    records: Callable[[Lines, str, Reading], Iterator[LocatedRow]] | None = None
    fields: Callable[[Lines, str, Reading], Iterator[Record]] | None = None
    documents: Callable[[Lines, str, Reading], Iterator[Document]] | None = None


FORMATS: dict[DataFormat, Format] = {
    "text": Format(records=read_texts, documents=read_text),
    "tsv": Format((".tsv", ".txt"), fields=split_tsv),
    "csv": Format((".csv",), fields=split_csv),
    "jsonl": Format((".jsonl", ".ndjson"), read_json_lines),
    "json": Format((".json",), read_json_document),
    "parquet": Format((".parquet", ".pq")),
    "conll": Format((".conll", ".bio", ".iob"), read_conll),
    "conllu": Format((".conllu",), read_conllu),
    "label-text": Format(records=read_label_text),
    "wiki": Format(documents=read_wiki),
}
"""All formats. A new one is also entered in `DataFormat`."""

_SUFFIXES = {suffix: name for name, format in FORMATS.items() for suffix in format.suffixes}
_AMBIGUOUS_SUFFIXES = (
    ".tsv",
    ".txt",
    ".jsonl",
    ".ndjson",
    "",
)  # suffixes of files with other formats too
_LINES = 400
_CERTAIN_FORMATS = ("json", "jsonl", "wiki")  # no other format begins so
_TAG = re.compile(r"O|[BIESLUM]-\S+")
_DOCUMENT = re.compile(r'^\[|"(data|paragraphs|qas)"\s*:\s*\[')  # the beginning of a JSON document


def detect_file_format(
    path: str,
    reading: Reading,
    format: DataFormat = "auto",
    *,
    is_corpus: bool = False,
    header: bool | None = None,
) -> DataFormat:
    """Return the format of a file, by the rules of this module.

    Args:
        format: the format that the user names.
        is_corpus: whether the file is read as documents, not as a table.
        header: whether the user says that the file has a header, or none.

    Raises:
        DataError: no rule applies, or the file cannot be read, or is Parquet inside gzip or zstd.
    """
    if format not in ("auto", "json"):
        return format
    try:
        with open_stream(path, ReadCounts()) as stream:
            is_parquet = _SUFFIXES.get(suffix_of(path)) == "parquet"
            if format == "auto" and (is_parquet or stream.peek(4).startswith(b"PAR1")):
                if path.endswith(COMPRESSION_SUFFIXES):
                    what, fix = "Parquet inside gzip or zstd", "Decompress it first."
                    raise DataError(what, where=path, fix=fix)
                return "parquet"
            check_text(stream)
            lines = decode_lines(stream, path, reading.with_other_counts())
            return detect_format(path, lines, format, is_corpus=is_corpus, header=header)
    except OSError as error:
        if is_memory_short(error):
            raise
        raise DataError(f"cannot be read ({first_line(error)})", where=path) from None


def detect_format(
    name: str,
    lines: Lines,
    format: DataFormat = "auto",
    *,
    is_corpus: bool = False,
    header: bool | None = None,
) -> DataFormat:
    """Return the format of lines, of which the first are read; see `detect_file_format`."""
    suffix = suffix_of(name)
    suffix_format = _SUFFIXES.get(suffix)
    if (
        format == "auto"
        and suffix_format
        and (header is not None or suffix not in _AMBIGUOUS_SUFFIXES)
    ):
        format = suffix_format
    if format not in ("auto", "json"):
        return format
    if is_corpus:
        lines = ((number, line) for number, line in lines if not line.isspace())
    first = first_lines(lines, 2 if is_corpus else _LINES)
    is_guess = format == "auto"
    if is_guess:
        format = _guess_format(name, first, suffix_format, is_corpus=is_corpus)
    if format == "json" and not _is_one_document(first):
        format = "jsonl"
    expected = suffix_format or (None if suffix else "tsv")
    if is_guess and not is_corpus and expected and format not in (expected, *_CERTAIN_FORMATS):
        what = f"{name}: read as {format}, by its content"
        fix = f"If it is not, give --format F (format=F), such as {expected}"
        warnings.warn(f"{what}. {fix}", BertworksWarning, stacklevel=3)
    return format


def _guess_format(
    name: str, first: Sequence[str], suffix_format: DataFormat | None, *, is_corpus: bool
) -> DataFormat:
    """Apply the rules from the fourth on."""
    format = _format_of_first_line(first)
    if suffix_format == "jsonl":
        return "json" if format == "json" else "jsonl"
    if is_corpus:
        is_text = format != "wiki" and suffix_of(name) == ".txt"
        if is_text or (format == "json" and _is_one_document(first)):
            format = None
        return format or ("tsv" if suffix_of(name) == ".tsv" else "text")
    format = format or _format_of_lines(first) or suffix_format
    if format is not None or not suffix_of(name):
        return format or "tsv"
    nonblank = [line for line in first if line.strip()]
    if are_labelled_texts(nonblank):
        fix = LABEL_TEXT_FIX
    else:
        formats = ", ".join(name for name in get_args(DataFormat) if name != "auto")
        fix = f"Give --format F (format=F), F one of {formats}."
    line = f"; its first line is {truncate_repr(nonblank[0])}" if nonblank else ""
    raise DataError(
        f"neither its suffix {suffix_of(name)!r} nor its content shows its format{line}",
        where=name,
        fix=fix,
    )


def _format_of_first_line(lines: Sequence[str]) -> DataFormat | None:
    """Return the format that the first line that is not blank shows: wiki, jsonl or json."""
    nonblank = [line.strip() for line in lines if line.strip()][:2]
    if not nonblank:
        return None
    first = nonblank[0]
    if WIKI_DOCUMENT.match(first):
        return "wiki"
    if first in ("[", "{") or first.startswith("[{"):
        return "json"
    is_object = first.startswith("{") and isinstance(_json_value(first), dict)
    return ("jsonl" if len(nonblank) > 1 else "json") if is_object else None


def _is_one_document(lines: Sequence[str]) -> bool:
    """Whether a JSON file is a single document rather than one object per line."""
    nonblank = [line.strip() for line in lines if line.strip()][:2]
    if len(nonblank) == 1:
        return _DOCUMENT.search(nonblank[0][:1000]) is not None
    return bool(nonblank) and not isinstance(_json_value(nonblank[0]), dict)


def _json_value(line: str) -> object:
    """Return the JSON value of a line; None if it is not JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _format_of_lines(lines: Sequence[str]) -> DataFormat | None:
    """Return the format of a table whose first lines all have its form; None if it is not sure."""
    nonblank = [line for line in lines if line.strip()]
    if not nonblank:
        return None
    if _is_conllu(nonblank):
        return "conllu"
    if _is_conll(lines):
        return "conll"
    if all(line.startswith(FASTTEXT_PREFIX) for line in nonblank):
        return "label-text"
    widths = {line.count("\t") for line in nonblank}
    return "tsv" if len(widths) == 1 and widths != {0} else None


def _is_conllu(nonblank: Sequence[str]) -> bool:
    words = [line.split("\t") for line in nonblank if not line.startswith("#")]
    return bool(words) and all(
        len(fields) == len(CONLLU_COLUMNS) and re.fullmatch(r"\d+([-.]\d+)?", fields[0])
        for fields in words
    )


def _is_conll(lines: Sequence[str]) -> bool:
    """Whether lines are words with tags: equal numbers of fields, blank lines between sentences."""
    starts = sum(line.startswith(DOCUMENT_START) for line in lines)
    words = [
        conll_fields(line)
        for line in lines
        if line.strip(" \t") and not line.startswith(DOCUMENT_START)
    ]
    if words and names_word_columns(words[0]):
        words = words[1:]
    if len(words) < 2 or len(words[0]) < 2 or any(len(word) != len(words[0]) for word in words):
        return False
    if any(" " in field for word in words for field in word):
        return False  # a table whose fields are texts
    columns = [set(column) for column in zip(*words, strict=True)]
    if starts or any("O" in tags and all(map(_TAG.fullmatch, tags)) for tags in columns):
        return True
    # Without tags of spans, blank lines must separate sentences of three words or more on average:
    # tables have no such blank lines.
    ends = sum(not line.strip() for line in lines[1:-1])
    return 0 < 3 * ends <= len(words) and len(words) >= 10

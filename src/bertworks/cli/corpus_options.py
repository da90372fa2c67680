"""The corpus that a verb reads: its files, and how they are read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..settings import literals
from ..utils.progress import Update
from .option_groups import OptionGroup
from .options import Lines

if TYPE_CHECKING:
    from ..data.manifest import Manifest

Corpus = Annotated[
    list[str],
    typer.Argument(
        metavar="CORPUS…",
        help="Files, folders, globs, or hf:NAME; PATH@WEIGHT repeats or samples one. Plain "
        "text has a blank line between documents.",
        show_default=False,
    ),
]
Format = Annotated[
    literals.CorpusFormat,
    typer.Option("--format", help="File format; auto detects it for each file."),
]
Column = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Text column (JSON Lines, Parquet, hf:)."),
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Skip and count unreadable input.")]


def _reading(
    *,
    format: Format = "auto",
    column: Column = None,
    lines: Lines,
    skip_bad: SkipBad = False,
) -> dict[str, Any]:
    return {"format": format, "column": column, "skip_bad": skip_bad, **lines}


Reading = Annotated[dict[str, Any], OptionGroup(_reading)]
"""Options for reading a corpus, as keyword arguments of `prepare`."""

DropDuplicates = Annotated[
    bool, typer.Option("--drop-duplicates", help="Drop documents whose text occurred before.")
]

Exclude = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE",
        help="Leave out documents that share 13 consecutive words with this evaluation data (a "
        "table, SQuAD JSON, CoNLL, text); may be repeated.",
    ),
]


class CorpusInput:
    """A corpus given on the command line, to read its paragraphs once.

    Attributes:
        paths: the files that are read.
        counts: counts of the input read so far.
    """

    def __init__(self, corpus: list[str], reading: dict[str, Any], **options: Any) -> None:
        from ..data.documents import ReadCounts, read_documents
        from ..data.sources import parse_sources, paths_of

        named = {key: reading[key] for key in ("format", "column")}
        sources = parse_sources(corpus, **named)
        others = {key: value for key, value in reading.items() if key not in named}
        self.paths, self.counts = paths_of(sources), ReadCounts()
        self._documents = read_documents(sources, counts=self.counts, **others, **options)

    def paragraphs(self, update: Update) -> Iterator[str]:
        """Yield the paragraphs of all documents, and update the progress after each document."""
        for document in self._documents:
            yield from document.paragraphs
            update(self.counts.bytes_read, self.counts.bytes_total)


def corpus_facts(manifest: Manifest) -> dict[str, object]:
    """The facts to show about a prepared corpus."""
    return {
        "documents": f"{manifest.documents:,}",
        "sentences": f"{manifest.sentences:,}",
        "tokens": f"{manifest.tokens:,}",
        "unknown": f"{manifest.unknown_rate:.3%} of the tokens",
    }

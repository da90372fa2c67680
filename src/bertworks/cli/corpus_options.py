"""The corpus that a verb reads: its files, and how they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from ..utils.formatting import format_count
from ..utils.progress import Update
from .display import Display

if TYPE_CHECKING:
    from ..data.manifest import Manifest
    from ..data.reading import ReadCounts
    from ..settings.keywords import CorpusKeywords

Corpus = Annotated[
    list[str],
    typer.Argument(
        metavar="CORPUS…",
        help="Files, folders, globs, or hf:NAME; PATH@WEIGHT repeats or samples one. Plain "
        "text has a blank line between documents.",
    ),
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

    def __init__(
        self,
        corpus: list[str],
        *,
        exclude: Sequence[str] | None = None,
        **options: Unpack[CorpusKeywords],
    ) -> None:
        from ..data.documents import read_documents
        from ..data.overlap import SharedSequences
        from ..data.reading import ReadCounts
        from ..data.sources import parse_sources, paths_of

        encoding = options.get("encoding", "utf-8")
        shared = SharedSequences(exclude, encoding=encoding) if exclude else None
        self.paths, self.counts = paths_of(parse_sources(corpus)), ReadCounts()
        self._documents = read_documents(corpus, exclude=shared, counts=self.counts, **options)

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


def show_read_counts(display: Display, counts: ReadCounts) -> None:
    """Print what a user should know about the reading of a corpus: dropped and skipped input."""
    num_excluded = len(counts.excluded_documents)
    documents = format_count(num_excluded, "document")
    rows = [
        ("duplicates", f"{format_count(counts.duplicates, 'document')} dropped", counts.duplicates),
        ("excluded", f"{documents} with text of --exclude's files", num_excluded),
        ("left out", f"{format_count(counts.left_out, 'document')}, by weight", counts.left_out),
        ("empty", format_count(counts.empty, "document"), counts.empty),
        (
            "split",
            f"{counts.num_splits:,} times: a very long document was split",
            counts.num_splits,
        ),
    ]
    display.facts({name: text for name, text, count in rows if count})
    for kind, count in counts.num_skipped_by_kind.items():
        display.text(f"  skipped {count:,} × {kind}; the first: {counts.first_skipped[kind]}")

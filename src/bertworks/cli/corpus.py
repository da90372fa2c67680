"""From text: `vocab`, `prepare`, `tokenize`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from .. import literals
from ..errors import DataError
from ..wording import duration
from . import show
from .app import AsJson, Encoding, MaxLineBytes, line_options, lines_of, output, verb

Corpus = Annotated[
    list[str],
    typer.Argument(
        metavar="CORPUS…",
        help="Files, folders, globs, or hf:NAME; PATH@WEIGHT repeats or thins one. Plain text has "
        "a blank line between documents.",
        show_default=False,
    ),
]
Format = Annotated[
    literals.CorpusFormat, typer.Option("--format", help="What the files are; auto looks at each.")
]
Column = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The column of the text (JSON Lines, Parquet, hf:)."),
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Skip and count what cannot be read.")]
DropDuplicates = Annotated[
    bool, typer.Option("--drop-duplicates", help="Drop documents whose text has come before.")
]

Exclude = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE",
        help="Leave out documents that share 13 words in a row with this evaluation data (a "
        "table, SQuAD's JSON, CoNLL, text); may be given again.",
    ),
]


@verb("vocab", "bertworks vocab 'wiki/*.txt' --out vocab --size 8000")
def vocab(
    corpus: Corpus,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the tokenizer is written.")],
    size: Annotated[
        int, typer.Option(min=1, metavar="N", help="Pieces, the special ones included.")
    ] = 30522,
    cased: Annotated[
        bool, typer.Option("--cased", help="Keep case and accents, as the cased models do.")
    ] = False,
    min_frequency: Annotated[
        int, typer.Option(min=1, metavar="N", help="How often a pair must occur to be learned.")
    ] = 2,
    max_word_characters: Annotated[
        int, typer.Option(min=1, metavar="N", help="Longer words become [UNK].")
    ] = 200,
    format: Format = "auto",
    column: Column = None,
    encoding: Encoding = "utf-8",
    max_line_bytes: MaxLineBytes = None,
    skip_bad: SkipBad = False,
    drop_duplicates: DropDuplicates = False,
    exclude: Exclude = None,
) -> None:
    """Train a WordPiece vocabulary from a corpus.

    The same corpus gives the same vocabulary, byte for byte.
    """
    from ..corpus.overlap import SharedSequences
    from ..corpus.readers import ReadCounts, read_documents
    from ..corpus.sources import parse_sources, paths_of
    from ..text.vocabulary import train_vocabulary

    sources = parse_sources(corpus, format=format, column=column)
    counts = ReadCounts()
    documents = read_documents(
        sources,
        skip_bad=skip_bad,
        drop_duplicates=drop_duplicates,
        exclude=SharedSequences(exclude) if exclude else None,
        counts=counts,
        **line_options(encoding, max_line_bytes),
    )

    def paragraphs() -> Iterator[str]:
        for document in documents:
            yield from document.paragraphs
            reading(counts.bytes_read, counts.bytes_total)

    with (
        output(out, paths_of(sources), kind="whole directory"),
        show.stopwatch() as seconds,
    ):
        for name in ("vocab.txt", "tokenizer.json", "config.json"):
            if (out / name).exists():
                raise DataError(
                    f"the directory has a {name} already",
                    where=str(out),
                    fix="Give another --out, or remove it.",
                )
        with show.bar("reading") as reading, show.bar("learning", "pieces") as learning:
            tokenizer = train_vocabulary(
                paragraphs(),
                size=size,
                lowercase=not cased,
                min_frequency=min_frequency,
                max_word_characters=max_word_characters,
                progress=lambda stage, done: learning(done, size) if stage == "pieces" else None,
            )
        tokenizer.save(out)
        pieces = f"{tokenizer.vocab_size:,}"
        if tokenizer.vocab_size < size:
            pieces += f" (fewer than {size:,}: no more pairs occur {min_frequency} times)"
        show.facts({"pieces": pieces, "documents": f"{counts.documents:,}"})
        show.read_counts(counts)
        show.facts({"time": duration(seconds()), "written to": out})


@verb("prepare", "bertworks prepare 'wiki/*.txt' --tokenizer vocab --out prepared")
def prepare(
    corpus: Corpus,
    tokenizer: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="What `vocab` wrote, or a model: its directory or its name on the hub.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the shards are written.")],
    workers: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Processes; all cores if left out."),
    ] = None,
    sentences: Annotated[
        literals.Sentences,
        typer.Option(help="split: by rules; lines: each line is one sentence already."),
    ] = "split",
    language: Annotated[
        str, typer.Option(metavar="CODE", help="The language whose rules split sentences.")
    ] = "en",
    spans: Annotated[
        literals.SpanSource,
        typer.Option(
            help="Mark phrases and names, for masking.unit=knowledge. given: documents carry them "
            'as "spans": [[start, end], …]; rules: and where they do not, rules find some.'
        ),
    ] = "none",
    format: Format = "auto",
    column: Column = None,
    encoding: Encoding = "utf-8",
    max_line_bytes: MaxLineBytes = None,
    skip_bad: SkipBad = False,
    drop_duplicates: DropDuplicates = False,
    exclude: Exclude = None,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Draws what a corpus weight's fraction takes.")
    ] = 0,
) -> None:
    """Make a corpus ready for `pretrain`: sentences, token ids.

    Killed and run again, it resumes where it stopped. The number of workers changes nothing in
    what is written. Each worker's memory grows with its longest document, by 10 to 30 bytes a
    character; with tokenizers other than WordPiece also with its longest sentence, by 100 (a line
    without a full stop is one sentence).
    """
    import os

    from ..corpus.prepare import PrepareProgress
    from ..corpus.prepare import prepare as run

    last = PrepareProgress()

    def told(now: PrepareProgress) -> None:
        nonlocal last
        last = now
        update(now.bytes_read, now.bytes_total)

    with show.bar("preparing") as update:
        manifest = run(
            corpus,
            tokenizer=_files_of(tokenizer),
            out=out,
            workers=workers or os.cpu_count() or 1,
            format=format,
            column=column,
            sentences=sentences,
            language=language,
            spans=spans,
            skip_bad=skip_bad,
            drop_duplicates=drop_duplicates,
            exclude=exclude or (),
            seed=seed,
            progress=told,
            **line_options(encoding, max_line_bytes),
        )
    facts = {
        "documents": f"{manifest.documents:,}",
        "sentences": f"{manifest.sentences:,}",
        "tokens": f"{manifest.tokens:,}",
        "unknown": f"{manifest.unknown_rate:.3%} of the tokens",
    }
    if spans != "none":
        facts["spans"] = f"{manifest.spans:,}"
    show.facts(facts)
    show.read_counts(last.read)
    if last.new_tokens:
        rate = f"{duration(last.seconds)} ({last.tokens_per_second:,.0f} tokens/s)"
    else:
        rate = "nothing left to do: all of it was there already"
    show.facts({"time": rate, "written to": out})


@verb("tokenize", 'bertworks tokenize vocab "a visually stunning rumination on love"')
def tokenize(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL",
            help="A directory of a vocabulary, corpus, run or model; its file; or a hub name.",
        ),
    ],
    texts: Annotated[
        list[str], typer.Argument(metavar="TEXT…", help="Texts; - reads lines.", show_default=False)
    ],
    pair: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The second text of a pair.")
    ] = None,
    typed_mask: Annotated[
        bool, typer.Option("--typed-mask", help="Take [MASK] in a text for the mask.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Show a text's pieces, ids, types, word numbers and offsets."""
    from ..text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(_files_of(model))
    for text in lines_of(texts):
        encoding = tokenizer.encode(text, pair, typed_mask=typed_mask)
        pieces = tokenizer.tokens(encoding.input_ids)
        if json:
            columns = {
                name: getattr(encoding, name).tolist()
                for name in ("input_ids", "token_type_ids", "word_ids", "offsets")
            }
            show.as_json({"text": text, "tokens": pieces, **columns})
            continue
        rows = []
        left = len(tokenizer.segments([text], typed_mask=typed_mask)[0])
        for piece, number, kind, word, (start, end) in zip(
            pieces,
            encoding.input_ids.tolist(),
            encoding.token_type_ids.tolist(),
            encoding.word_ids.tolist(),
            encoding.offsets.tolist(),
            strict=True,
        ):
            source = text if left > 0 or pair is None else pair
            left -= word >= 0
            place = ("", "", "") if word < 0 else (word, f"{start}–{end}", source[start:end])
            rows.append((piece, number, kind, *place))
        show.table(("piece", "id", "type", "word", "offsets", "text"), rows, right="id type word")


def _files_of(directory: Path) -> Path:
    """A tokenizer's files: in a run, in a prepared corpus, in a directory of theirs, on the hub."""
    if not directory.exists():
        from ..checkpoints.locate import locate

        return locate(directory, weights=False)
    inner = [directory / name for name in ("model", "tokenizer")]
    return next((path for path in inner if path.is_dir()), directory)

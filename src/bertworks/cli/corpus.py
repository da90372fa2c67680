"""Process text: `vocab`, `prepare`, `tokenize`; `merge` the parts of several machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..utils.directories import new_directory, output_exists
from ..utils.formatting import format_duration
from ..utils.progress import Progress
from .application import verb
from .corpus_options import (
    Corpus,
    CorpusInput,
    Exclude,
    corpus_facts,
    show_read_counts,
)
from .devices import WorkerOptions
from .display import JsonDisplay, TextDisplay, stopwatch
from .options import Overwrite, Part, SettingsOption
from .outputs import output
from .texts import RequiredTexts, lines_of

if TYPE_CHECKING:
    from ..text.tokenizer import Tokenizer


@verb("vocab", "bertworks vocab 'wiki/*.txt' --out vocab size=8000")
def vocab(
    corpus: Corpus,
    *,
    out: Path,
    overwrite: Overwrite = False,
    workers: WorkerOptions,
    settings: SettingsOption,
    cased: bool = False,
    exclude: Exclude = None,
    display: TextDisplay,
) -> None:
    """Train a WordPiece vocabulary from a corpus.

    The same corpus gives the same vocabulary, byte for byte.

    Args:
        out (DIR): Output directory of the tokenizer.
        cased: Keep case and accents (lowercase=false).
    """
    from ..data.settings import VocabularySettings
    from ..text.vocabulary import train_vocabulary

    own, reading = VocabularySettings.split(settings)
    options = VocabularySettings.parse(own | ({"lowercase": False} if cased else {}))
    texts = CorpusInput(corpus, exclude=exclude, **reading)
    with (
        output(out, texts.paths, folders=True, kind="whole directory", overwrite=overwrite),
        stopwatch() as seconds,
    ):
        with Progress() as progress:
            tokenizer = train_vocabulary(
                texts.paragraphs(progress.counter("reading", "MB")),
                **workers,
                progress=progress.counter("learning", "pieces"),
                **options.model_dump(),
            )
        with new_directory(out, last="tokenizer.json", replace=True) as new:
            tokenizer.save(new)
        pieces = f"{tokenizer.vocab_size:,}"
        if tokenizer.vocab_size < options.size:
            pieces += (
                f" (fewer than {options.size:,}: no more pairs occur {options.min_frequency} times)"
            )
        display.facts({"pieces": pieces, "documents": f"{texts.counts.documents:,}"})
        show_read_counts(display, texts.counts)
        display.facts({"time": format_duration(seconds()), "written to": out})


@verb("prepare", "bertworks prepare 'wiki/*.txt' --tokenizer vocab --out prepared")
def prepare(
    corpus: Corpus,
    *,
    tokenizer: str,
    out: Path,
    overwrite: Overwrite = False,
    workers: WorkerOptions,
    part: Part = None,
    settings: SettingsOption,
    exclude: Exclude = None,
    display: TextDisplay,
) -> None:
    """Prepare a corpus for `pretrain`: sentences and token ids.

    If interrupted, the same command resumes. The output does not depend on the number of workers.
    The memory of a worker grows by 10 to 30 bytes per character of its longest document and, with
    tokenizers other than WordPiece, 100 per character of its longest sentence (a line without a
    full stop is one sentence).

    Args:
        tokenizer (DIR): Output of `vocab`, or a model: its directory, its name on the hub, or mini.
        out (DIR): Output directory of the shards.
    """
    from ..data.prepare import PrepareProgress
    from ..data.prepare import prepare as run
    from ..data.shards import Corpus as PreparedCorpus

    last = PrepareProgress()

    def record_progress(now: PrepareProgress) -> None:
        nonlocal last
        last = now
        update(now.bytes_read, now.bytes_total)

    with Progress() as progress:
        update = progress.counter("preparing", "MB")
        manifest = run(
            corpus,
            tokenizer=_files_of(tokenizer),
            out=out,
            part=part,
            overwrite=overwrite,
            progress=record_progress,
            **workers,
            exclude=exclude or (),
            **settings,
        )
    facts = corpus_facts(manifest)
    if settings.get("spans", "none") != "none":
        facts["spans"] = f"{manifest.spans:,}"
    display.facts(facts)
    if part is None:
        display.notes(PreparedCorpus.open(out).notes)
    show_read_counts(display, last.read)
    if last.new_tokens:
        rate = f"{format_duration(last.seconds)} ({last.tokens_per_second:,.0f} tokens/s)"
    else:
        rate = "nothing to do: already finished"
    display.facts({"time": rate, "written to": out})


@verb("tokenize", 'bertworks tokenize vocab "a visually stunning rumination on love"')
def tokenize(
    model: str,
    texts: RequiredTexts,
    *,
    pair: str | None = None,
    typed_mask: bool = False,
    display: JsonDisplay,
) -> None:
    """Show a text's pieces, ids, types, word numbers and offsets.

    Args:
        model (MODEL): A directory of a vocabulary, corpus, run or model; a tokenizer file; a hub
            name; or mini.
        pair (TEXT): Second text of a pair.
        typed_mask: Read [MASK] in a text as the mask token.
    """
    tokenizer = _tokenizer_of(model)
    for text in lines_of(texts):
        encoding = tokenizer.encode(text, pair, typed_mask=typed_mask)
        pieces = tokenizer.tokens(encoding.input_ids)
        names = ("input_ids", "token_type_ids", "word_ids", "offsets")
        columns = {name: getattr(encoding, name).tolist() for name in names}
        display.json({"text": text, "tokens": pieces, **columns})
        rows = []
        left = len(tokenizer.segments([text], typed_mask=typed_mask)[0])
        for piece, number, kind, word, (start, end) in zip(pieces, *columns.values(), strict=True):
            source = text if left > 0 or pair is None else pair
            left -= word >= 0
            place = ("", "", "") if word < 0 else (word, f"{start}–{end}", source[start:end])
            rows.append((piece, number, kind, *place))
        display.table(
            ("piece", "id", "type", "word", "offsets", "text"), rows, right="id type word"
        )


def _tokenizer_of(name: str) -> Tokenizer:
    """The tokenizer of a model, of a prepared corpus, or by itself."""
    from ..checkpoints.sentence_directory import read_tokenizer

    return read_tokenizer(_files_of(name))


def _files_of(name: str) -> Path:
    """The directory or file of a tokenizer."""
    from ..checkpoints.locate import BUNDLED_MODELS, locate

    directory = Path(name)
    if name in BUNDLED_MODELS or not directory.exists():
        return locate(name, weights=False)
    inner = [directory / name for name in ("model", "tokenizer")]
    return next((path for path in inner if path.is_dir()), directory)


@verb(
    "merge",
    "bertworks merge parts/* --out prepared",
    "bertworks merge vectors-*.parquet --out vectors.parquet",
    "bertworks merge answers-*.tsv --out answers.tsv",
)
def merge(
    parts: list[str], *, out: str, overwrite: Overwrite = False, display: TextDisplay
) -> None:
    """Merge all parts of a corpus, of vectors or of predictions.

    The result equals that of a single machine, byte for byte, for any number of parts. Missing,
    damaged or duplicate parts, and parts with other inputs or settings, are an error.

    Args:
        parts (PART…): Outputs of prepare, embed, features or predict with --part I/N.
        out (PATH): Output: a directory for a corpus, else a file.
    """
    from ..data.manifest import Manifest
    from ..inference.merging import merge as run

    is_present = not overwrite and output_exists(out)
    result = run(parts, out, overwrite=overwrite)
    if isinstance(result, Manifest):
        display.facts(corpus_facts(result))
    elif isinstance(result, int):
        display.facts({"rows": f"{result:,}"})
    else:
        display.facts({"texts": f"{result.rows:,}", "width": f"{result.width:,}"})
    if is_present:
        display.facts({"time": "nothing to do: already finished"})
    display.facts({"written to": out})

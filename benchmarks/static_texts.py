"""Texts that a static model is trained on, none of which is measured.

    python benchmarks/static_texts.py --out FOLDER

`train.txt` and `heldout.txt` have one text per line: sentences and passages of Wikipedia, image
captions, questions, sentences of STS-B's train, and SQuAD's paragraphs with their questions. Left
out are the sentences of STS-B's dev; SQuAD's articles that have one of the measured paragraphs; and
texts that share 13 words in a row with one of them. Evaluation sets are those of `BERTWORKS_DATA`
(default `../shared/data`); docs/static.md has the figures.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

from bertworks.data.documents import read_documents
from bertworks.text.sentences import split_sentences
from mini_sentences import DATA, WORDS, normal, scored_pairs, squad

SHARED_WORDS = 13
"""Texts that share as many words in a row overlap."""
PASSAGE = range(40, 91)
"""Words of a passage: a paragraph, cut after the last."""


def word_sequences(text: str) -> Iterator[str]:
    """Each sequence of words of a text."""
    words = normal(text).split()
    for start in range(len(words) - SHARED_WORDS + 1):
        yield " ".join(words[start : start + SHARED_WORDS])


def wikipedia(files: int) -> tuple[list[str], list[str]]:
    """Sentences and passages of the first files."""
    sentences, passages = [], []
    for file in sorted((DATA / "wiki").rglob("*"))[:files]:
        if not file.is_file():
            continue
        for document in read_documents(str(file)):
            for paragraph in document.paragraphs:
                words = paragraph.split()
                if len(words) >= PASSAGE[0]:
                    passages.append(" ".join(words[: PASSAGE[-1]]))
                sentences += [
                    one for one in split_sentences(paragraph) if len(one.split()) in WORDS
                ]
    return sentences, passages


def squad_texts(measured_paragraphs: set[str]) -> tuple[list[str], list[str]]:
    """Questions and paragraphs of articles without measured paragraphs."""
    questions, paragraphs = [], []
    for article in json.loads((DATA / "squad/train.json").read_text("utf-8"))["data"]:
        if any(paragraph["context"] in measured_paragraphs for paragraph in article["paragraphs"]):
            continue
        for paragraph in article["paragraphs"]:
            paragraphs.append(paragraph["context"])
            questions += [row["question"] for row in paragraph["qas"]]
    return questions, paragraphs


def remove_overlap(
    texts: Iterable[str], excluded_texts: set[str], sequences: set[str]
) -> list[str]:
    """The distinct texts that do not overlap with a measured one; white space is single spaces."""
    result: dict[str, str] = {}
    for text in texts:
        key = normal(text)
        if key and key not in excluded_texts and sequences.isdisjoint(word_sequences(text)):
            result.setdefault(key, " ".join(text.split()))
    return [*result.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--files", type=int, default=30, help="files of Wikipedia")
    parser.add_argument("--sentences", type=int, default=50_000, help="of Wikipedia")
    parser.add_argument("--passages", type=int, default=15_000, help="of Wikipedia")
    parser.add_argument("--captions", type=int, default=10_000)
    parser.add_argument("--heldout", type=int, default=2_000)
    options = parser.parse_args()
    benchmark_paragraphs, questions, _ = squad(500)
    stsb = {
        name: [row[column] for row in scored_pairs(name) for column in ("sentence1", "sentence2")]
        for name in ("train.tsv", "dev.tsv")
    }
    excluded_texts = {
        normal(text) for text in (*benchmark_paragraphs, *questions, *stsb["dev.tsv"])
    }
    sequences = {one for text in benchmark_paragraphs for one in word_sequences(text)}
    draw = random.Random(0)
    sentences, passages = wikipedia(options.files)
    captions = gzip.decompress((DATA / "multi30k/train.en.gz").read_bytes()).decode().splitlines()
    for texts in (sentences, passages, captions):
        draw.shuffle(texts)
    trec = (DATA / "trec/TREC.train.all").read_text("latin-1").splitlines()
    others, paragraphs = squad_texts(set(benchmark_paragraphs))
    parts = {
        "Wikipedia, sentences": sentences[: options.sentences],
        "Wikipedia, passages": passages[: options.passages],
        "captions": captions[: options.captions],
        "STS-B, train": stsb["train.tsv"],
        "TREC, questions": [line.partition(" ")[2] for line in trec],
        "SQuAD, questions": others,
        "SQuAD, paragraphs": paragraphs,
    }
    result: dict[str, None] = {}
    for name, texts in parts.items():
        new = dict.fromkeys(remove_overlap(texts, excluded_texts, sequences))
        print(f"{name}: {len(texts):,}, of which used {len(new):,}")
        result |= new
    shuffled_texts = [*result]
    draw.shuffle(shuffled_texts)
    options.out.mkdir(parents=True, exist_ok=True)
    for name, part in (
        ("heldout", shuffled_texts[: options.heldout]),
        ("train", shuffled_texts[options.heldout :]),
    ):
        (options.out / f"{name}.txt").write_text("\n".join(part) + "\n", encoding="utf-8")
        print(f"{name}.txt: {len(part):,}")


if __name__ == "__main__":
    main()

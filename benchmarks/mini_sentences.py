"""`mini-sentences`: the texts that it was trained on, and how good its vectors are.

    python benchmarks/mini_sentences.py texts CORPUS --out FOLDER
    python benchmarks/mini_sentences.py measure MODEL…

The card is docs/mini-sentences.md. Evaluation sets are those of `BERTWORKS_DATA` (default
`../shared/data`).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr

import bertworks as bw
from bertworks.data.documents import read_documents
from bertworks.data.overlap import SharedSequences
from bertworks.data.reading import ReadCounts
from bertworks.errors import BertworksWarning
from bertworks.text.sentences import split_sentences

DATA = Path(os.environ.get("BERTWORKS_DATA", "../shared/data"))
EVALUATION = (
    *("squad/train.json", "squad/dev.json", "squad/dev-v2.0-half.json", "xquad/xquad.en.json"),
    *(
        f"glue/{name}/{part}.tsv"
        for name in ("sst2", "mrpc", "rte", "cola", "stsb")
        for part in ("train", "dev")
    ),
    *("glue/qnli/dev.tsv", "wnut17/train.conll", "wnut17/dev.conll", "codah/train.tsv"),
    *("codah/dev.tsv", "ud-ewt/en_ewt-ud-train.conllu", "ud-ewt/en_ewt-ud-dev.conllu"),
)
"""They were removed from `mini`'s text, too."""
WORDS = range(4, 21)
"""Of a sentence."""
PASSAGE = range(40, 91)
"""Words of a passage: a paragraph, cut after the last."""
COUNT = 340_000
PASSAGES = 30_000
QUERIES = (
    "The river is very long.",
    "He became a professor of physics.",
    "The team lost the final.",
    "Dogs are kept as pets.",
    "The war ended with a peace treaty.",
)
"""Chosen before the model was tried; searched in the held-out sentences."""


def normal(text: str) -> str:
    """A text in lower case, with single spaces."""
    return " ".join(text.lower().split())


def scored_pairs(name: str) -> list[dict[str, str]]:
    """The rows of STS-B: `sentence1`, `sentence2`, `score`."""
    with (DATA / "glue/stsb" / name).open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))


def write_texts(corpus: str, out: Path, counts: Sequence[int], dev: int, seed: int) -> None:
    """Sample sentences of 4 to 20 words and passages of 40 to 90, without repetition.

    Documents that share 13 words in a row with an evaluation set are excluded, and sentences of
    STS-B. `dev.txt` has only sentences.
    """
    files = [str(DATA / name) for name in EVALUATION]
    read = ReadCounts()
    sentences: dict[str, str] = {}
    passages: dict[str, None] = {}
    for document in read_documents(corpus, exclude=SharedSequences(files), counts=read):
        for paragraph in document.paragraphs:
            words = paragraph.split()
            if len(words) >= PASSAGE[0]:
                passages[" ".join(words[: PASSAGE[-1]])] = None
            for sentence in split_sentences(paragraph):
                text = " ".join(sentence.split())
                if len(text.split()) in WORDS:
                    sentences.setdefault(normal(text), text)
    rows = [row for name in ("train.tsv", "dev.tsv") for row in scored_pairs(name)]
    test_sentences = {normal(row[column]) for row in rows for column in ("sentence1", "sentence2")}
    distinct = [text for key, text in sentences.items() if key not in test_sentences]
    print(f"{read.documents:,} documents, {len(read.excluded_documents):,} left out")
    print(f"{len(distinct):,} sentences; {len(sentences) - len(distinct)} more are in STS-B")
    print(f"{len(passages):,} passages")
    draw = random.Random(seed)
    draw.shuffle(distinct)
    train = distinct[dev : dev + counts[0]]
    train += draw.sample(list(passages), min(counts[1], len(passages)))
    draw.shuffle(train)
    out.mkdir(parents=True, exist_ok=True)
    for name, part in (("dev", distinct[:dev]), ("train", train)):
        (out / f"{name}.txt").write_text("\n".join(part) + "\n", encoding="utf-8")
        print(f"{out / name}.txt: {len(part):,}")


def squad(paragraphs: int) -> tuple[list[str], list[str], list[int]]:
    """Paragraphs, those of dev first; the questions of dev; and which paragraph each is of."""
    texts: dict[str, int] = {}
    questions, indices = [], []
    for name in ("dev.json", "train.json"):
        for article in json.loads((DATA / "squad" / name).read_text("utf-8"))["data"]:
            for paragraph in article["paragraphs"]:
                index = texts.setdefault(paragraph["context"], len(texts))
                if name == "dev.json":
                    questions += [row["question"] for row in paragraph["qas"]]
                    indices += [index] * len(paragraph["qas"])
    return list(texts)[:paragraphs], questions, indices


def evaluate(model: bw.Model, paragraphs: int) -> dict[str, float]:
    """Spearman's correlation on STS-B's dev rows, and the share of SQuAD's questions that find
    their paragraph first, and among the first ten."""
    rows = scored_pairs("dev.tsv")
    pairs = ([row[column] for row in rows] for column in ("sentence1", "sentence2"))
    one, other = (model.embed(texts, normalize=True, precision="fp32") for texts in pairs)
    scores = [float(row["score"]) for row in rows]
    texts, questions, indices = squad(paragraphs)
    similarities = model.similarity(questions, texts, precision="fp32")
    own = similarities[np.arange(len(indices)), indices]
    rank = (similarities > own[:, None]).sum(1)
    return {
        "STS-B dev, Spearman": spearmanr((one * other).sum(1), scores).statistic,
        "SQuAD, recall@1": float((rank < 1).mean()),
        "SQuAD, recall@10": float((rank < 10).mean()),
    }


def nearest(model: bw.Model, queries: Sequence[str], file: Path) -> None:
    """The sentences of a file that are nearest to some queries."""
    sentences = file.read_text("utf-8").splitlines()
    for query, row in zip(queries, model.similarity(list(queries), sentences), strict=True):
        best = row.argsort()[::-1][:2]
        print(query, *(f"    {row[at]:.2f} {sentences[at]}" for at in best), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    texts = verbs.add_parser("texts")
    texts.add_argument("corpus")
    texts.add_argument("--out", type=Path, required=True)
    texts.add_argument("--sentences", type=int, default=COUNT)
    texts.add_argument("--passages", type=int, default=PASSAGES)
    texts.add_argument("--dev", type=int, default=2_000, help="held-out sentences")
    texts.add_argument("--seed", type=int, default=0)
    measure = verbs.add_parser("measure")
    measure.add_argument("models", nargs="+", help="models; random: mini with random weights")
    measure.add_argument("--paragraphs", type=int, default=500)
    measure.add_argument("--nearest", type=Path, help="sentences, one a line, to search")
    options = parser.parse_args()
    if options.verb == "texts":
        counts = options.sentences, options.passages
        write_texts(options.corpus, options.out, counts, options.dev, options.seed)
        return
    for name in options.models:
        model = bw.load("mini" if name == "random" else name, device="cpu")
        if name == "random":
            torch.manual_seed(0)
            model = bw.Model.fresh(model.encoder.config, model.tokenizer)
        with warnings.catch_warnings():  # paragraphs are cut where a model's texts end
            warnings.simplefilter("ignore", BertworksWarning)
            metrics = evaluate(model, options.paragraphs)
        print(name, *(f"{metric}: {value:.3f}" for metric, value in metrics.items()), sep="\n    ")
        if options.nearest is not None:
            nearest(model, QUERIES, options.nearest)


if __name__ == "__main__":
    main()

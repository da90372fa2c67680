"""Documents that share 13 words in a row with evaluation data: all are found, and no others."""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertworks.data.documents import read_documents
from bertworks.data.overlap import SharedSequences
from bertworks.data.prepare import prepare
from bertworks.data.reading import ReadCounts
from bertworks.errors import BertworksError, DataError
from bertworks.text.tokenizer import Tokenizer

SENTENCE = "The old woman went to the store in the rain and bought a pair of shoes."
"""16 words; any 13 in a row of them make a document one to exclude."""


def sequences(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"[a-z0-9]+", text.lower())
    return {tuple(words[start : start + 13]) for start in range(len(words) - 12)}


def test_shared_sequences_are_those_of_a_full_comparison(tmp_path: Path) -> None:
    draw = random.Random(5)
    evaluation = [" ".join(draw.choices("abcdefg", k=40)) for _ in range(5)]
    (tmp_path / "dev.txt").write_text("\n\n".join(evaluation))
    shared_sequences = SharedSequences([tmp_path / "dev.txt"])
    all_sequences = set().union(*map(sequences, evaluation))
    assert len(shared_sequences) == len(all_sequences)
    outcomes = []
    for _ in range(300):
        taken, start = draw.choice(evaluation).split(), draw.randrange(28)
        length = draw.choice((11, 12, 13, 14, 20))
        text = " ".join(["x", *taken[start : start + length], "y, Z!"])
        count = sum(one in all_sequences for one in sequences(text))
        overlap = shared_sequences.find(text)
        assert (overlap.sequences if overlap else 0) == count, text
        if overlap:
            assert tuple(overlap.words.split()) in all_sequences
        outcomes.append(bool(overlap))
    assert 50 < sum(outcomes) < 250


def squad(text: str) -> str:
    answer = {"text": "the store", "answer_start": 0}
    question = {"question": "Where?", "id": "1", "answers": [answer]}
    return json.dumps({"data": [{"paragraphs": [{"context": text, "qas": [question]}]}]}, indent=1)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("dev.txt", f"Another line of text.\n{SENTENCE}\n"),
        ("wrapped.txt", SENTENCE.replace("store ", "store\n")),
        ("short.txt", re.sub(r"((\S+ ){4})", r"\1\n", SENTENCE)),
        ("short.lines", re.sub(r"((\S+ ){3})", r"\1\n", SENTENCE)),
        ("ends_short.txt", SENTENCE.replace("a pair", "\na pair")),
        ("bracket.txt", f"[1] A line of a reference.\n{SENTENCE}\n"),
        ("brace", f"{{sic}} A line.\n{SENTENCE}\n"),
        ("bracket.tsv", f"[sentence]\tlabel\n{SENTENCE}\t1\n"),
        ("json.txt", json.dumps({"text": SENTENCE}) + "\n" + json.dumps({"text": "short"})),
        ("dev.tsv", f"sentence\tlabel\n{SENTENCE}\t1\n"),
        ("dev.jsonl", json.dumps({"text": SENTENCE}) + "\n" + json.dumps({"text": "short"}) + "\n"),
        ("tokens.jsonl", json.dumps({"words": SENTENCE.split(), "tags": ["O"]}) + "\n"),
        ("squad.json", squad(SENTENCE)),
        ("dev.conll", "".join(f"{word}\tO\n" for word in SENTENCE.split()) + "\n"),
        ("spaces.conll", "".join(f"{word} NN O\n" for word in SENTENCE.split())),
        (
            "dev.conllu",
            "# sent_id = 1\n"
            + "".join(f"{n}\t{word}\t_\tX\n" for n, word in enumerate(SENTENCE.split())),
        ),
    ],
)
def test_evaluation_files_of_every_kind_are_read(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with gzip.open(tmp_path / f"{name}.gz", "wt") as file:
        file.write(content)
    for path in (tmp_path / name, tmp_path / f"{name}.gz"):
        shared_sequences = SharedSequences([path])
        overlap = shared_sequences.find(f"Once upon a time, {SENTENCE.upper()}")
        assert overlap is not None
        assert overlap.sequences == 4
        assert overlap.words.startswith("the old woman went")
        assert (
            shared_sequences.find(
                "Once upon a time there was something else, and it was quite long."
            )
            is None
        )


@pytest.mark.parametrize("name", ["dev.txt", "dev.tsv", "dev.jsonl", "dev.json", "squad.json"])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32", "utf-16-le", "cp1252"])
def test_evaluation_files_in_other_encodings_are_read(
    tmp_path: Path, name: str, encoding: str
) -> None:
    text = SENTENCE.replace("old", "ölde")
    content = {
        "dev.txt": f"{text}\n",
        "dev.tsv": f"sentence\tlabel\n{text}\t1\n",
        "dev.jsonl": json.dumps({"text": text}, ensure_ascii=False) + "\n{}\n",
        "dev.json": json.dumps([{"text": text}], ensure_ascii=False),
        "squad.json": squad(text),
    }[name]
    (tmp_path / name).write_bytes(content.encode(encoding))
    has_mark = encoding in ("utf-8-sig", "utf-16", "utf-32")
    options = {} if has_mark else {"encoding": encoding}
    shared = SharedSequences([tmp_path / name], **options).find(text)
    assert shared is not None
    assert shared.sequences == 4
    if not has_mark and not content.isascii():
        with pytest.raises(DataError, match=r"--encoding (utf-16-le|latin-1|cp1252)|not UTF-8"):
            SharedSequences([tmp_path / name])


def test_utf_8_evaluation_file_is_read_with_a_corpus_in_another_encoding(tmp_path: Path) -> None:
    text = SENTENCE.replace("old", "ölde")
    (tmp_path / "dev.txt").write_text(text, encoding="utf-8")
    assert SharedSequences([tmp_path / "dev.txt"], encoding="latin-1").find(text)


def test_parquet_is_read(tmp_path: Path) -> None:
    table = pa.table({"label": [1], "inner": [{"texts": ["short", SENTENCE]}]})
    pq.write_table(table, tmp_path / "dev.parquet")
    assert SharedSequences([tmp_path / "dev.parquet"]).find(SENTENCE)


def test_a_file_that_cannot_help_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "short.tsv").write_text("good\t1\nbad\t0\n")
    with pytest.raises(DataError, match=r"short\.tsv: no text of 13 words"):
        SharedSequences([tmp_path / "short.tsv"])
    with pytest.raises(DataError, match=r"missing\.tsv"):
        SharedSequences([tmp_path / "missing.tsv"])
    for name in ("broken.json", "broken.jsonl", "broken"):
        (tmp_path / name).write_text('{"text": "a"}\n{"text": "b\n')
        with pytest.raises(DataError, match=rf"{name}:2: not valid JSON"):
            SharedSequences([tmp_path / name])


def test_prepare_leaves_out_and_lists_what_is_shared(tmp_path: Path, tokenizer: Tokenizer) -> None:
    corpus, dev = tmp_path / "corpus.txt", tmp_path / "dev.txt"
    corpus.write_text(f"A first document.\n\nTitle\nIt begins. {SENTENCE}\n\nA third document.\n")
    dev.write_text(SENTENCE)
    manifest = prepare(corpus, tokenizer=tokenizer, out=tmp_path / "out", exclude=[dev])
    assert (manifest.documents, manifest.excluded_documents) == (2, 1)
    (line,) = (tmp_path / "out" / "excluded.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "where": f"{corpus}:3",
        "beginning": "Title",
        "shared_sequences": 4,
        "first_shared": "the old woman went to the store in the rain and bought a",
    }
    counts = ReadCounts()
    kept = list(read_documents(corpus, exclude=SharedSequences([dev]), counts=counts))
    assert [document.text for document in kept] == ["A first document.", "A third document."]
    again = prepare(corpus, tokenizer=tokenizer, out=tmp_path / "out", exclude=[dev])
    assert again == manifest
    dev.write_text(SENTENCE + " Indeed.")
    with pytest.raises(BertworksError, match="another text of the files to exclude"):
        prepare(corpus, tokenizer=tokenizer, out=tmp_path / "out", exclude=[dev])

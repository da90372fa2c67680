"""The texts and tables that the fixtures are made from: a language of a few dozen words.

Everything is drawn from seeded generators, so that the files are the same wherever they are made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

NAMES = ("Anna Berg", "Ben", "Clara Holm", "David", "Eva Lind")
PLACES = ("Rome", "Oslo", "New York", "Paris")
NOUNS = ("door", "train", "river", "letter", "garden", "window", "bridge")
VERBS = {"opened": "open", "painted": "art", "closed": "open", "drew": "art", "lost": "loss"}

Row = dict[str, Any]


def sentence(random: Random) -> str:
    """A sentence of about eight words."""
    verb = random.choice(tuple(VERBS))
    where = random.choice((f"in {random.choice(PLACES)}", "at night", "with care"))
    noun, other = random.sample(NOUNS, 2)
    return f"{random.choice(NAMES)} {verb} the {noun} near the {other} {where}."


def corpus(documents: int = 40) -> str:
    """Documents of five to nine sentences, a sentence a line, with a blank line between them."""
    random = Random(1)
    made = [[sentence(random) for _ in range(random.randrange(5, 10))] for _ in range(documents)]
    return "\n\n".join("\n".join(lines) for lines in made) + "\n"


def single(random: Random) -> Row:
    """The label is what kind of verb the text has."""
    verb = random.choice(tuple(VERBS))
    return {
        "text": f"{random.choice(NAMES)} {verb} the {random.choice(NOUNS)}",
        "label": VERBS[verb],
    }


def pair(random: Random) -> Row:
    """Whether both texts are about the same thing."""
    one, other = random.choice(NOUNS), random.choice(NOUNS[:2])
    return {
        "sentence1": f"the {one} was {random.choice(tuple(VERBS))}",
        "sentence2": f"{random.choice(NAMES)} saw the {other}",
        "label": "same" if one == other else "other",
    }


def several(random: Random) -> Row:
    """A label for each of the nouns; some rows have none."""
    nouns = random.sample(NOUNS[:4], random.randrange(3))
    return {"text": " and ".join(["something", *nouns]), "label": ",".join(sorted(nouns))}


def scored(random: Random) -> Row:
    """The score is how many words the text has."""
    count = random.randrange(1, 6)
    return {"text": " ".join(random.choice(NOUNS) for _ in range(count)), "score": count / 2}


def words(random: Random, document: int) -> Row:
    """Words of a sentence; names and places are spans."""
    found: list[tuple[str, str]] = []
    for phrase, kind in (
        (random.choice(NAMES), "PER"),
        (random.choice(tuple(VERBS)), ""),
        (f"the {random.choice(NOUNS)}", ""),
        ("in", ""),
        (random.choice(PLACES), "LOC"),
    ):
        for at, word in enumerate(phrase.split()):
            found.append((word, f"{'I' if at else 'B'}-{kind}" if kind else "O"))
    return {
        "words": [word for word, _ in found],
        "tags": [tag for _, tag in found],
        "document": document,
    }


def question(random: Random, *, answerable: bool) -> Row:
    """Who did something to something, if the passage says so."""
    name, verb, noun = random.choice(NAMES), random.choice(tuple(VERBS)), random.choice(NOUNS)
    before = f"It was night in {random.choice(PLACES)}. "
    answers = [{"text": name, "answer_start": len(before)}] if answerable else []
    asked = noun if answerable else "moon"
    return {
        "context": f"{before}{name} {verb} the {noun} with care.",
        "question": f"who {verb} the {asked}",
        "answers": answers,
    }


def choice(random: Random) -> Row:
    """The right one of three has the prompt's noun."""
    nouns = random.sample(NOUNS, 3)
    label = random.randrange(3)
    return {
        "prompt": f"{random.choice(NAMES)} wants the {nouns[label]}",
        "choices": [f"the {noun} is here" for noun in nouns],
        "label": label,
    }


def query(random: Random, number: int) -> Row:
    """A query, and a passage about the same noun; a negative is about another."""
    noun, other = NOUNS[number % len(NOUNS)], NOUNS[(number + 3) % len(NOUNS)]
    return {
        "query": f"where is the {noun}",
        "positive": f"{random.choice(NAMES)} keeps the {noun} in {random.choice(PLACES)}",
        "negative": f"the {other} is far",
    }


def likeness(random: Random) -> Row:
    """Two texts and how alike they are."""
    one, other = random.choice(NOUNS), random.choice(NOUNS[:3])
    return {
        "sentence1": f"the {one} in {random.choice(PLACES)}",
        "sentence2": f"a {other} in {random.choice(PLACES)}",
        "score": 4.0 if one == other else random.randrange(3) / 2,
    }


def write_tables(folder: Path) -> None:
    """Write every table, for training (`…-train`) and for measuring (`…-dev`)."""
    folder.mkdir()
    makers: dict[str, Callable[[Random, int], Row]] = {
        "single": lambda random, _: single(random),
        "pair": lambda random, _: pair(random),
        "several": lambda random, _: several(random),
        "scored": lambda random, _: scored(random),
        "words": lambda random, number: words(random, number // 4),
        "choice": lambda random, _: choice(random),
    }
    for name, make in makers.items():
        for part, count, seed in (("train", 32, 1), ("dev", 10, 2)):
            random = Random(f"{name} {seed}")
            _write_rows(folder / f"{name}-{part}.jsonl", [make(random, at) for at in range(count)])
    random = Random(3)
    _write_rows(folder / "query-train.jsonl", [query(random, at) for at in range(28)])
    _write_rows(folder / "query-dev.jsonl", [likeness(random) for _ in range(10)])
    for version in (1, 2):
        for part, count, seed in (("train", 32, 1), ("dev", 10, 2)):
            random = Random(f"squad {version} {seed}")
            rows = [question(random, answerable=version == 1 or at % 3 > 0) for at in range(count)]
            _write_squad(folder / f"squad{version}-{part}.json", rows)
    _write_conll(folder / "words.conll", [words(Random(at), 0) for at in range(24)])


def write_glue(folder: Path) -> None:
    """Write the official files of two of GLUE's tasks."""
    random = Random(4)
    for name, texts, label, values in (
        ("MRPC", ("#1 String", "#2 String"), "Quality", ("0", "1")),
        ("RTE", ("sentence1", "sentence2"), "label", ("not_entailment", "entailment")),
    ):
        (folder / name).mkdir(parents=True)
        heading = [label, "#1 ID", "#2 ID", *texts] if name == "MRPC" else ["index", *texts, label]
        for part, count in (("train", 16), ("dev", 6), ("test", 3)):
            lines = [["index", *heading[1:]] if name == "MRPC" and part == "test" else heading]
            if name == "RTE" and part == "test":
                lines = [heading[:-1]]
            for at in range(count):
                row = pair(random)
                given = [row["sentence1"], row["sentence2"]]
                gold = values[row["label"] == "same"]
                if name == "MRPC":
                    first = str(at) if part == "test" else gold
                    lines.append([first, str(at), str(at + 100), *given])
                else:
                    lines.append([str(at), *given, *([] if part == "test" else [gold])])
            text = "".join("\t".join(line) + "\n" for line in lines)
            (folder / name / f"{part}.tsv").write_text(text, encoding="utf-8")


def _write_rows(file: Path, rows: Sequence[Row]) -> None:
    lines = (json.dumps(row, ensure_ascii=False) for row in rows)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _write_squad(file: Path, rows: Sequence[Row]) -> None:
    paragraphs = [
        {
            "context": row["context"],
            "qas": [
                {
                    "id": f"q{number}",
                    "question": row["question"],
                    "answers": row["answers"],
                    "is_impossible": not row["answers"],
                }
            ],
        }
        for number, row in enumerate(rows)
    ]
    document = {"version": "1", "data": [{"title": "made", "paragraphs": paragraphs}]}
    file.write_text(json.dumps(document), encoding="utf-8")


def _write_conll(file: Path, rows: Sequence[Row]) -> None:
    text = "-DOCSTART- O\n\n"
    for row in rows:
        text += "".join(f"{w} {t}\n" for w, t in zip(row["words"], row["tags"], strict=True)) + "\n"
    file.write_text(text, encoding="utf-8")

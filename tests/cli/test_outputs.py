"""Outputs of every verb: complete files, one writer, inputs untouched, no temporary files."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import bertworks as bw
from bertworks.data.prepare import prepare
from bertworks.utils.locks import OutputKind
from bertworks.utils.outputs import locked_output

from ..crashes import contents
from .conftest import CPU, SMALL, World, bertworks, fails, succeeds

Words = tuple[object, ...]


def words_file(world: World) -> Path:
    file = world.corpus.with_name("words.txt")
    file.write_text("zyzzyva\n", encoding="utf-8")
    return file


def scored_table(world: World) -> Path:
    file = world.corpus.with_name("scored.tsv")
    file.write_text("label\tprediction\nwet\twet\ndry\twet\n", encoding="utf-8")
    return file


def pairs_table(world: World) -> Path:
    file = world.corpus.with_name("pairs.jsonl")
    rows = [{"query": f"the {noun}", "positive": f"a {noun}"} for noun in ("door", "river", "sea")]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return file


def tagged_file(world: World) -> Path:
    file = world.corpus.with_name("tagged.conll")
    file.write_text("the O\nriver B-PLACE\n\na O\ndoor O\n\n" * 4, encoding="utf-8")
    return file


def glue_data(world: World) -> Path:
    folder = world.corpus.with_name("glue")
    (folder / "CoLA").mkdir(parents=True, exist_ok=True)
    rows = [f"s\t{at % 2}\t*\tthe {'door' if at % 2 else 'river'} was opened" for at in range(8)]
    for name in ("train.tsv", "dev.tsv"):
        (folder / "CoLA" / name).write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


def prepared_parts(world: World) -> list[Path]:
    folders = [world.corpus.with_name(f"part{number}") for number in (1, 2)]
    for number, folder in enumerate(folders, 1):
        prepare(world.corpus, tokenizer=world.vocab, out=folder, part=f"{number}/2")
    return folders


def parts_of_vectors(world: World) -> list[Path]:
    files = [world.corpus.with_name(f"part{number}.npy") for number in (1, 2)]
    for number, file in enumerate(files, 1):
        bw.load(world.pretrained, device="cpu").embed_to(file, world.dev, part=f"{number}/2")
    return files


def finetune(world: World, task: str = "classification") -> Words:
    tables = ("--train", world.train, "--dev", world.dev)
    return ("finetune", task, "--model", world.pretrained, *tables, "epochs=1", "max_seq_length=32")


def glue(world: World) -> Words:
    model = ("--model", world.pretrained, "max_seq_length=32")
    return ("glue", *model, "--data", glue_data(world), *CPU)


def ablate(world: World) -> Words:
    tables = ("--train", tagged_file(world), "--dev", tagged_file(world))
    return ("ablate", "features", "--model", world.pretrained, *tables, *CPU)


Verb = tuple[str, OutputKind, Callable[[World, Path], Words]]
WHOLE: OutputKind = "whole directory"
ANSWERING = Path(__file__).parents[1] / "saved_models" / "answering"


def verb(
    name: str, kind: OutputKind, words: Callable[[World], Words], option: str = "--out"
) -> Verb:
    """The name of a verb's output, what that is, and the command line, which ends with it."""
    return name, kind, lambda world, out: (*words(world), *filter(None, [option]), out)


def to_model(words: Callable[[World], Words]) -> Verb:
    return verb("model", WHOLE, words)


def convert(layout: str) -> Verb:
    return verb("model", WHOLE, lambda w: ("convert", w.pretrained, "--to", layout), "")


SHORT = ("probe.epochs=1", "probe.lstm_hidden_size=4", "finetune.epochs=1", "max_seq_length=32")
SIZE = ("--size", 250)

VERBS: dict[str, Verb] = {
    "vocab": verb("vocab", WHOLE, lambda w: ("vocab", w.corpus, *SIZE)),
    "prepare": verb(
        "prepared",
        "directory",
        lambda w: ("prepare", w.corpus, "--tokenizer", w.vocab, "--workers", 1),
    ),
    "pretrain": verb(
        "run", "directory", lambda w: ("pretrain", "tiny", *SMALL, f"data={w.data}", *CPU)
    ),
    "finetune": verb("run", "directory", lambda w: (*finetune(w), *CPU)),
    "grid": verb(
        "grid", "directory", lambda w: (*finetune(w), *CPU, "--grid", "learning_rate=1e-3,1e-4")
    ),
    "glue": verb("glue", "directory", lambda w: (*glue(w), "epochs=1")),
    "ablate": verb("table", "directory", lambda w: (*ablate(w), *SHORT)),
    "evaluate": verb(
        "page.html",
        "file",
        lambda w: ("evaluate", w.classifier, "--data", w.dev, *CPU),
        "--report",
    ),
    "predict": verb(
        "answers.tsv", "file", lambda w: ("predict", w.classifier, "--data", w.dev, *CPU)
    ),
    "score": verb(
        "page.html",
        "file",
        lambda w: ("score", "classification", "--data", scored_table(w)),
        "--report",
    ),
    "check-labels": verb(
        "checked.tsv",
        "file",
        lambda w: ("check-labels", "--model", w.pretrained, "--data", w.dev, "folds=2", *CPU),
    ),
    "explain": verb("page.html", "file", lambda w: ("explain", w.classifier, "the river", *CPU)),
    "embed": verb("vectors.npy", "file", lambda w: ("embed", w.pretrained, "--data", w.dev, *CPU)),
    "features": verb(
        "vectors.parquet", "file", lambda w: ("features", w.pretrained, "--data", w.dev, *CPU)
    ),
    "search": verb(
        "index",
        "directory",
        lambda w: ("search", w.pretrained, w.corpus, "a door", *CPU),
        "--index",
    ),
    "answer": verb(
        "index",
        "directory",
        lambda w: (
            *("answer", "which river?", "--corpus", w.corpus, "--reader", ANSWERING, *CPU),
            *("--retriever", w.pretrained),
        ),
        "--index",
    ),
    "mine": verb("negatives.jsonl", "file", lambda w: ("mine", w.pretrained, pairs_table(w), *CPU)),
    "merge": verb("prepared", WHOLE, lambda w: ("merge", *prepared_parts(w))),
    "merge of vectors": verb("vectors.npy", "file", lambda w: ("merge", *parts_of_vectors(w))),
    "neighbours": verb("vectors.txt", "file", lambda w: ("neighbours", w.pretrained)),
    "neighbours to a model": to_model(lambda w: ("neighbours", w.pretrained)),
    "convert": convert("hf"),
    "convert to tensorflow": convert("tensorflow"),
    "convert to onnx": convert("onnx"),
    "quantize": to_model(lambda w: ("quantize", w.classifier)),
    "distil": to_model(lambda w: ("distil", "static", w.pretrained, "width=8")),
    "distil on texts": to_model(lambda w: ("distil", "static", w.pretrained, "--data", w.train)),
    "add-tokens": to_model(lambda w: ("add-tokens", w.pretrained, words_file(w))),
    "shrink": to_model(lambda w: ("shrink", w.pretrained, w.corpus)),
    "extend": to_model(lambda w: ("extend", w.pretrained, "--positions", 100)),
}
"""Each verb that writes."""

CLOCK = {"journal.jsonl", "sessions.jsonl", "report.html"}
"""Files of a run that depend on the time; so do a checkpoint's state and its checksum."""


def same_bytes(folder: Path) -> dict[str, bytes]:
    """The bytes of files that do not depend on the time."""
    return {
        name: content
        for name, content in contents(folder).items()
        if Path(name).name not in CLOCK
        and not ("checkpoints/" in name and name.endswith(".json"))
        and "tensorboard/" not in name
    }


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """As a full disk: no file may grow beyond a size, and a real write fails half-way."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.long
@pytest.mark.parametrize(
    "verb",
    [pytest.param(verb, marks=[pytest.mark.slow] * ("onnx" in verb)) for verb in VERBS],
)
def test_a_full_disk_names_the_file_and_the_next_run_is_whole(
    world: World, tmp_path: Path, verb: str
) -> None:
    name, _, words = VERBS[verb]
    whole = tmp_path / "whole"
    whole.mkdir()
    succeeds(*words(world, whole / name))
    largest = max(map(len, contents(whole).values()))
    folder = tmp_path / "full"  # what each run leaves is there for the next
    folder.mkdir()
    command = words(world, folder / name)
    for limit in (64, 400, largest - 1):
        with largest_file(limit):
            result = bertworks(*command)
        assert result.exit_code == 1, (limit, result.output, result.exception)
        error = result.stderr.splitlines()[-1]
        assert error.startswith("error: "), result.stderr
        assert str(folder / name) in error
        assert "ile too large" in error
    succeeds(*command)
    assert same_bytes(folder) == same_bytes(whole)


@pytest.mark.long
@pytest.mark.parametrize("verb", VERBS)
def test_second_writer_is_refused_and_changes_nothing(
    world: World, tmp_path: Path, verb: str
) -> None:
    name, kind, words = VERBS[verb]
    with locked_output(tmp_path / name, kind=kind):
        files_before = contents(tmp_path)
        fails(*words(world, tmp_path / name), says=f"{name}: is being written by process ")
        assert contents(tmp_path) == files_before
    assert not list(tmp_path.iterdir())


# Outputs that are inputs, contain one, or are inside of one.
INPUT_OVERWRITES: dict[str, Callable[[World], Words]] = {
    "vocab into its corpus": lambda w: ("vocab", w.corpus.parent, "--out", w.corpus.parent / "new"),
    "vocab over its corpus": lambda w: ("vocab", w.corpus, "--out", w.corpus.parent),
    "prepare into its corpus": lambda w: prepare_words(w, w.corpus.parent, w.corpus.parent / "new"),
    "prepare over its tokenizer": lambda w: prepare_words(w, w.corpus, w.vocab),
    "pretrain into its corpus": lambda w: VERBS["pretrain"][2](w, w.data / "run"),
    "finetune over its model": lambda w: VERBS["finetune"][2](w, w.pretrained / "model"),
    "grid over its rows": lambda w: (*finetune(w), *CPU, "--out", w.train.parent, "--seeds", 2),
    "evaluate over its rows": lambda w: VERBS["evaluate"][2](w, w.dev),
    "predict over its rows": lambda w: VERBS["predict"][2](w, w.dev),
    "predict over its model": lambda w: (
        *("predict", w.classifier, "a", "--out", w.classifier / "model" / "config.json"),
    ),
    "embed over its texts": lambda w: VERBS["embed"][2](w, w.dev),
    "features into its model": lambda w: (
        *("features", w.pretrained, "a", "--out", w.pretrained / "model" / "f.parquet"),
    ),
    "search over its texts": lambda w: VERBS["search"][2](w, w.corpus.parent),
    "convert onto its source": lambda w: ("convert", w.pretrained, w.pretrained / "model"),
    "convert onto the source itself": lambda w: (
        *("convert", w.pretrained / "model", w.pretrained / "model"),
    ),
    "convert into its source": lambda w: VERBS["convert to onnx"][2](w, w.pretrained / "model/sub"),
    "add-tokens onto its source": lambda w: VERBS["add-tokens"][2](w, w.pretrained / "model"),
    "shrink onto its source": lambda w: VERBS["shrink"][2](w, w.pretrained / "model"),
    "extend onto its source": lambda w: VERBS["extend"][2](w, w.pretrained / "model"),
    "ablate over its rows": lambda w: VERBS["ablate"][2](w, w.corpus.parent),
    "glue over its data": lambda w: VERBS["glue"][2](w, glue_data(w) / "CoLA"),
}


def prepare_words(world: World, corpus: Path, out: Path) -> Words:
    return ("prepare", corpus, "--tokenizer", world.vocab, "--out", out)


@pytest.mark.long
@pytest.mark.parametrize("case", INPUT_OVERWRITES)
def test_no_input_is_written_over(world: World, case: str) -> None:
    words = INPUT_OVERWRITES[case](world)
    files_before = contents(world.corpus.parent)
    fails(*words, says=" input")
    assert contents(world.corpus.parent) == files_before


# Refusals that come when a verb has begun already.
REFUSALS: dict[str, tuple[Callable[[World, Path], Words], str]] = {
    "prepare a bad file": (
        lambda w, t: ("prepare", t / "bad.txt", "--tokenizer", w.vocab, "--out", t / "new" / "x"),
        "bad.txt:1: not UTF-8",
    ),
    "prepare nothing": (
        lambda w, t: ("prepare", t / "empty.txt", "--tokenizer", w.vocab, "--out", t / "new"),
        "holds no text",
    ),
    "prepare what gives no token": (
        lambda w, t: (
            *("prepare", t / "bell.jsonl", "--tokenizer", w.vocab, "--out", t / "new"),
            *("--workers", 1),
        ),
        "no text gives tokens",
    ),
    "prepare with two workers": (
        lambda w, t: (
            *("prepare", t / "bad.txt", "--tokenizer", w.vocab, "--out", t / "new"),
            *("--workers", 2),
        ),
        "bad.txt:1: not UTF-8",
    ),
    "pretrain from no teacher": (
        lambda w, t: (
            *("pretrain", "tiny", *SMALL, *CPU, f"data={w.data}", "--out", t / "new"),
            "objective=distillation",
            "distillation={teacher: nowhere/at/all}",
        ),
        "nowhere",
    ),
    "finetune in parts that do not add up": (
        lambda w, t: (
            *("finetune", "retrieval", "--model", w.pretrained, "--train", t / "pairs.jsonl"),
            *("--out", t / "new", *CPU, "max_seq_length=32", "micro_batch_size=2"),
        ),
        "micro_batch_size",
    ),
    "grid of it": (
        lambda w, t: (
            *("finetune", "classification", "--model", w.pretrained, "--train", w.train),
            *("--dev", t / "unseen.jsonl", "--out", t / "new", *CPU, "--seeds", 2),
            "max_seq_length=32",
        ),
        "the label 'unseen'",
    ),
    "embed with no such layer": (
        lambda w, t: (
            *("embed", w.pretrained, "--data", w.dev, "--out", t / "v.npy", *CPU),
            *("--layers", 9),
        ),
        "no layer 9",
    ),
    "embed a bad row": (
        lambda w, t: ("embed", w.pretrained, "--data", t / "half.jsonl", "--out", t / "v.npy"),
        "half.jsonl:2",
    ),
    "features of a bad row": (
        lambda w, t: (*("features", w.pretrained, "-", "--out", t / "v.parquet", *CPU),),
        "standard input:2",
    ),
    "predict a bad row": (
        lambda w, t: ("predict", w.classifier, "--data", t / "half.jsonl", "--out", t / "p.tsv"),
        "half.jsonl:2",
    ),
    "search a bad file": (
        lambda w, t: ("search", w.pretrained, t / "bad.txt", "a", "--index", t / "new" / "i"),
        "bad.txt:1: not UTF-8",
    ),
    "convert to what it cannot be": (
        lambda w, t: ("extend", w.pretrained, "--positions", 2, "--out", t / "new" / "m"),
        "already has 64 positions",
    ),
    "add no words": (
        lambda w, t: ("add-tokens", w.pretrained, t / "empty.txt", "--out", t / "new" / "m"),
        "is empty",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("case", REFUSALS)
def test_a_refusal_leaves_nothing(world: World, tmp_path: Path, case: str) -> None:
    (tmp_path / "bad.txt").write_bytes(b"\xff\n")
    (tmp_path / "empty.txt").touch()
    (tmp_path / "bell.jsonl").write_text(json.dumps({"text": "\x07"}) + "\n")
    (tmp_path / "half.jsonl").write_text('{"text": "a"}\n{"text": 3}\n')
    (tmp_path / "unseen.jsonl").write_text('{"text": "a", "label": "unseen"}\n')
    pairs = [json.dumps({"query": f"a {at}", "passage": f"b {at}"}) for at in range(8)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(pairs))
    files_before = sorted(tmp_path.rglob("*"))
    words, says = REFUSALS[case]
    result = bertworks(*words(world, tmp_path), stdin=b"fine\n\xff\n")
    assert result.exit_code == 1, (result.output, result.exception)
    assert says in result.stderr.splitlines()[-1]
    assert sorted(tmp_path.rglob("*")) == files_before


@pytest.mark.long
def test_a_file_that_somebody_put_into_a_runs_model_stays(world: World, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = (*finetune(world), *CPU, "--out", out)
    succeeds(*words)
    model = contents(out / "model")
    for name in ("README.md", "notes/of/mine.txt"):
        (out / "model" / name).parent.mkdir(parents=True, exist_ok=True)
        (out / "model" / name).write_text("mine")
    (out / "model" / "config.json").write_text("{}")
    result = succeeds(*words)
    mine = {"README.md": b"mine", "notes/of/mine.txt": b"mine"}
    assert contents(out / "model") == model | mine
    words = ("extend", world.pretrained, "--positions", 100, "--out", out / "model")
    assert "already exists" in bertworks(*words).stderr
    result = bertworks(*words, "--overwrite")
    assert "holds 'README.md', which is no file that bertworks writes" in result.stderr

"""Odd values of every argument and option: an error of one line, and no endless work."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import random
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.main import get_command

import bertworks as bw
from bertworks.analysis.inspection import inspect as inspect_model
from bertworks.cli import app
from bertworks.errors import BertworksError, SettingsError
from bertworks.settings.base import Settings
from bertworks.settings.yaml_values import read_yaml

from ..crashes import contents
from .conftest import CPU, World, bertworks, fails
from .test_outputs import VERBS, Words

VERB_TABLE: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
HUGE = 10**18

BASES: dict[str, Words] = {
    "probe": ("--model", "MODEL", "--train", "ROWS", "--dev", "ROWS", *CPU),
    "fill-mask": ("MODEL", "a [MASK]", *CPU),
    "next-sentence": ("MODEL", "a", "b", *CPU),
    "generate": ("MODEL", "a", *CPU),
    "estimate": ("tiny", "--machine", "h100"),
    "tokenize": ("MODEL", "a"),
    "inspect": ("MODEL",),
    "settings": ("embed",),
    "index": ("MODEL", "STORE", "--add", "ROWS", *CPU),
    "push": ("MODEL", "me/model"),
    "report-environment": (),
}
"""The arguments of verbs without an output."""
LONG = {"demo", "lab", "serve", "glue", "ablate", "pretrain", "finetune"}


def base(verb: str, world: World, out: Path) -> list[str]:
    """A valid and short command line of a verb."""
    if verb in BASES:
        named = {"MODEL": world.pretrained, "ROWS": world.dev, "STORE": out}
        return [verb, *(str(named.get(str(word), word)) for word in BASES[verb])]
    return list(map(str, VERBS[verb][2](world, out)))


def integer_options() -> Iterator[Any]:
    for name, verb in VERB_TABLE.items():
        for parameter in verb.params:
            kind = parameter.type_descriptor.annotation
            if int in (kind, *get_args(kind)):
                yield pytest.param(name, parameter.opts[0], id=f"{name} {parameter.opts[0]}")


@pytest.mark.parametrize(("verb", "option"), list(integer_options()))
def test_every_integer_option_has_an_upper_bound(verb: str, option: str) -> None:
    result = bertworks(verb, option, HUGE)
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: invalid value for ")
    assert option in line


def settings_classes() -> list[type[Settings]]:
    for module in pkgutil.walk_packages(bw.__path__, "bertworks."):
        if module.name.rpartition(".")[2] in ("settings", "recipe", "config", "features"):
            importlib.import_module(module.name)
    classes, todo = set[type[Settings]](), [Settings]
    while todo:
        for one in todo.pop().__subclasses__():
            todo.append(one)
            if one.__module__.startswith("bertworks."):
                classes.add(one)
    complete = [
        one
        for one in classes
        if not any(field.is_required() for field in one.model_fields.values())
    ]
    return sorted(complete, key=lambda one: one.__qualname__)


@pytest.mark.parametrize("schema", settings_classes(), ids=lambda one: one.__qualname__)
def test_every_integer_setting_has_an_upper_bound(schema: type[Settings]) -> None:
    for name, field in schema.model_fields.items():
        if int in (field.annotation, *get_args(field.annotation)):
            with pytest.raises(SettingsError, match=name):
                schema.parse({name: 2 * 10**18 if "seed" not in name else 2**63})


@pytest.mark.parametrize("weight", ["10000.5", "1000000000000000000", "1" + "0" * 400])
def test_weight_of_a_source_is_bounded(world: World, tmp_path: Path, weight: str) -> None:
    words = ("prepare", f"{world.corpus}@{weight}", "--tokenizer", world.vocab)
    fails(*words, "--out", tmp_path / "p", says="weight")
    assert not (tmp_path / "p").exists()


def test_numbers_of_processes_and_positions_are_bounded() -> None:
    from bertworks.convert.model_editing import extend_positions
    from bertworks.jobs.parallel import Workers
    from bertworks.tuning.grid import seed_list

    with pytest.raises(SettingsError, match="at most 1,024 processes"):
        next(Workers(100_000).map(abs, [1]))
    with pytest.raises(SettingsError, match="at most 10,000 runs"):
        seed_list(HUGE)
    with pytest.raises(SettingsError, match="at most 1,000,000"):
        extend_positions(bw.load("mini", device="cpu"), HUGE)


MODELS = Path(bw.__file__).parent / "checkpoints" / "bundled"
MODEL_FILES = [
    (folder, file.relative_to(MODELS / folder).as_posix())
    for folder in ("mini", "mini_sentences")
    for file in sorted((MODELS / folder).rglob("*"))
    if file.is_file() and file.name not in ("README.md", "vocab.txt")  # which is a copy
]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["pipe", "/dev/zero", "directory"])
@pytest.mark.parametrize(("model", "name"), MODEL_FILES)
def test_file_of_a_model_that_is_no_regular_file_is_refused(
    tmp_path: Path, model: str, name: str, kind: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(MODELS / model, folder)
    (folder / name).unlink()
    if kind == "pipe":
        os.mkfifo(folder / name)
    elif kind == "directory":
        (folder / name).mkdir()
    else:
        (folder / name).symlink_to(kind)
    for read in (lambda: bw.load(folder, device="cpu"), lambda: inspect_model(str(folder))):
        with pytest.raises(BertworksError, match=Path(name).name):
            read()


@pytest.mark.parametrize("path", ["pipe", "/dev/zero"])
def test_settings_and_keys_are_read_from_regular_files(
    world: World, tmp_path: Path, path: str
) -> None:
    file = tmp_path / path
    if path == "pipe":
        os.mkfifo(file)
    questions = tmp_path / "questions.json"
    answered = {"id": "1", "question": "who?", "answers": [{"text": "Ada", "answer_start": 0}]}
    paragraphs = [{"context": "Ada left.", "qas": [answered]}]
    questions.write_text(json.dumps({"version": "1.1", "data": [{"paragraphs": paragraphs}]}))
    for words in (
        ("predict", world.classifier, "a", "--settings", file),
        ("pretrain", file, "--out", tmp_path / "run"),
        ("serve", "mini", "--api-keys", file, "--port", 0),
        ("score", "answering", "--data", questions, "--predictions", file),
    ):
        result = bertworks(*words)
        assert result.exit_code == 1, result.output
        assert "regular file" in result.stderr or "no such" in result.stderr, result.stderr


@pytest.mark.long
def test_huge_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "settings.yaml"
    with file.open("wb") as opened:
        opened.truncate(1 << 40)  # a hole, which takes no space
    with pytest.raises(SettingsError, match="larger than 268,435,456 bytes"):
        read_yaml(file)


@pytest.mark.long
def test_pipe_without_reader_is_refused(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertworks.utils.outputs._PIPE_SECONDS", 0.2)
    os.mkfifo(tmp_path / "page.html")
    fails(
        *("explain", "mini", "a river", "--out", tmp_path / "page.html", *CPU),
        says="page.html: is a pipe that no process reads",
    )


def test_checks_come_before_work(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = tmp_path / "missing.tsv"

    def load(*_: object, **__: object) -> None:
        raise AssertionError("a model is loaded")

    monkeypatch.setattr("bertworks.loading.load", load)
    out = ("--out", tmp_path / "out")
    for words in (
        ("quantize", world.classifier, *out, "--data", missing),
        ("quantize", world.classifier, *out, "--texts", missing),
        ("quantize", world.classifier, *out, "--calibrate", missing),
        ("evaluate", world.classifier, "--data", world.dev, "--data", missing),
        ("predict", world.classifier, "--data", missing),
        ("embed", world.classifier, "--data", missing, "--out", tmp_path / "v.npy"),
        ("distil", "static", world.classifier, *out, "--words", missing),
        ("distil", "static", world.classifier, *out, "--data", missing),
        ("add-tokens", world.classifier, missing, *out),
        ("lab", "compare", "mini", "--data", missing),
        ("probe", "--model", "mini", "--train", world.train, "--dev", missing),
    ):
        fails(*words, says="missing.tsv: no such file")
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["my--model", "a" * 97, "a..b", "x/" + "y" * 95, "-m", "a/b/c"])
def test_name_that_no_hub_has_is_a_line(name: str) -> None:
    with pytest.raises(BertworksError, match="no such"):
        bw.load(name)


def test_page_of_the_hub_is_not_a_name() -> None:
    for page in ("https://huggingface.co/a/b", "https://hf.co/a/b/tree/main"):
        with pytest.raises(BertworksError, match=r"is a page of the hub.* Give the name: a/b\."):
            bw.load(page)
    with pytest.raises(BertworksError, match=r"Give the name: bert-base-uncased\."):
        bw.load("https://huggingface.co/bert-base-uncased/tree/main")
    with pytest.raises(BertworksError, match="is a page of the hub") as error:
        bw.load("https://huggingface.co/datasets/a/b")
    assert "Give the name" not in str(error.value)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("fill-mask", "mini", "he", "was"), "fill-mask takes MODEL and TEXT, and 'was' is one"),
        (("push", "mini", "a/b", "c"), "push takes MODEL and OWNER/NAME, and 'c' is one more"),
        (("fill-mask", "mini", "a", "--", "a=b"), "fill-mask takes MODEL and TEXT, and 'a=b' is"),
        (("report-environment", "a"), "report-environment takes no arguments, but got 'a'"),
    ],
)
def test_word_that_is_one_too_many_is_named(words: tuple[str, ...], says: str) -> None:
    result = bertworks(*words)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: {says}")


@pytest.mark.parametrize("option", ["--texts", "--calibrate", "--data"])
def test_table_without_rows_leaves_no_quantized_model(
    world: World, tmp_path: Path, option: str
) -> None:
    (tmp_path / "a.tsv").write_text("text\tlabel\n")
    words = ("quantize", world.classifier, "--out", tmp_path / "model", option, tmp_path / "a.tsv")
    fails(*words, says="a.tsv: ")
    assert not (tmp_path / "model").exists()


def test_run_is_not_an_unfinished_corpus(world: World, tmp_path: Path) -> None:
    run = shutil.copytree(world.classifier, tmp_path / "run")
    files_before = contents(run)
    pretrain = ("pretrain", "tiny", f"data={run}", "--out", tmp_path / "new")
    fails(*pretrain, says="this is not a prepared corpus")
    prepare = ("prepare", world.corpus, "--tokenizer", world.vocab, "--out", run)
    fails(*prepare, says="run: already exists")
    assert contents(run) == files_before


@pytest.mark.parametrize("verb", ["vocab", "prepare"])
def test_columns_of_one_name_are_a_line(world: World, tmp_path: Path, verb: str) -> None:
    texts = pa.array(["a river", "a door"])
    file = tmp_path / "twice.parquet"
    pq.write_table(pa.Table.from_arrays([texts, texts], names=["text", "text"]), file)
    more = ("--tokenizer", world.vocab) if verb == "prepare" else ()
    fails(
        *(verb, file, *more, "--out", tmp_path / "out"),
        says="twice.parquet: several columns are called 'text'",
    )


def test_text_file_as_a_corpus_is_named_as_one(world: World, tmp_path: Path) -> None:
    fails(
        *("pretrain", "tiny", f"data={world.corpus}", "--out", tmp_path / "run"),
        says="corpus.txt: is a file, not a prepared corpus. Prepare it with",
    )


ODD = (
    *("", " ", "..", "/", "-", "--", "=", "a=b", "loop", "/dev/null", "nowhere/at/all", "a" * 97),
    *("a" * 300, "my--model", "hf:", "s3:", "x" * 5000, "\udcff", "\u200b", "0", "-1", "1e999"),
    *("nan", "1/0", "2/1", "*", "[", "~", "%s", "{}", "file.py:X", "a.yaml", "𝔘"),
)


@pytest.mark.long
@pytest.mark.parametrize("count", [3, pytest.param(15, marks=pytest.mark.slow)])
@pytest.mark.parametrize("verb", sorted(VERB_TABLE.keys() - LONG - {"merge"}))
def test_odd_values_are_a_line_or_an_answer(
    world: World, tmp_path: Path, verb: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    walk, rglob = os.walk, Path.rglob  # `/` is an input, too: a part of it is enough
    monkeypatch.setattr(os, "walk", lambda *place, **how: islice(walk(*place, **how), 100))
    monkeypatch.setattr(Path, "rglob", lambda *place: islice(rglob(*place), 1000))
    (tmp_path / "loop").symlink_to("loop")
    words = base(verb, world, tmp_path / "page.html")
    options = [
        one.opts[0]
        for one in VERB_TABLE[verb].params
        if one.param_type_name == "option" and not one.is_flag and one.name != "cluster"
    ]
    draw = random.Random(verb)
    lines = [
        [*words[:at], odd, *words[at + 1 :]]
        for at in range(1, len(words))
        for odd in draw.sample(ODD, count)
    ]
    lines += [[*words, option, odd] for option in options for odd in draw.sample(ODD, count // 3)]
    for line in lines:
        result = bertworks(*line)
        is_known = result.exception is None or isinstance(result.exception, SystemExit)
        assert is_known, (line, result.exc_info)
        if result.exit_code:
            errors = [one for one in result.stderr.splitlines() if one.startswith("error: ")]
            assert len(errors) == 1, (line, result.stderr)


OUTPUTS = {"--out", "--report", "--index", "--vectors", "--run"}


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Interrupt what waits, or has no end."""

    def stop(*_: object) -> None:
        raise AssertionError(f"more than {seconds} seconds")

    handler = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)


@pytest.mark.long
@pytest.mark.parametrize("odd", ["pipe", "/dev/zero", "loop"])
@pytest.mark.parametrize("title", sorted({*VERBS, *BASES} - {"report-environment", "settings"}))
def test_input_that_is_no_regular_file_is_a_line(
    world: World, tmp_path: Path, title: str, odd: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    os.mkfifo("pipe")
    Path("loop").symlink_to("loop")
    words = base(title, world, tmp_path / VERBS.get(title, ("store",))[0])
    options = [
        one.opts[0]
        for one in VERB_TABLE[words[0]].params
        if one.param_type_name == "option"
        and {*re.findall(r"\w+", one.metavar or "")} & {"FILE", "DIR", "MODEL"}
        and not {*OUTPUTS, *words} & {*one.opts}
    ]
    lines = [
        [*words[:at], odd, *words[at + 1 :]]
        for at, word in enumerate(words)
        if os.path.exists(word) and words[at - 1] not in OUTPUTS
    ]
    for line in [*lines, *([*words, option, odd] for option in options)]:
        with at_most(60):
            result = bertworks(*line)
        assert isinstance(result.exception, SystemExit), (line, result.exc_info)
        pattern = re.escape(odd)
        if line not in lines:  # an option that the others leave no use for is named instead
            option = line[-2]
            pattern += rf"|{option}\b|Leave {option[2:]} out|is not for .* Leave it out"
        assert re.search(f"error: .*({pattern})", result.stderr.splitlines()[-1]), (line, pattern)


@pytest.mark.long
@pytest.mark.parametrize("title", VERBS)
def test_output_that_is_a_link_to_itself_is_a_line(
    world: World, tmp_path: Path, title: str
) -> None:
    out = tmp_path / VERBS[title][0]
    out.symlink_to(out)
    fails(*VERBS[title][2](world, out), says=f"{out}: is a link to itself")

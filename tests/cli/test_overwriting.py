"""One rule for existing outputs, in every verb: refused, resumed, or replaced."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import bertworks as bw
from bertworks.cli import app
from bertworks.errors import OutputError
from bertworks.lab.demo import cycle

from ..crashes import contents
from .conftest import CPU, World, bertworks, fails, succeeds
from .test_outputs import VERBS, Words, same_bytes

OUTPUTS = {"out", "report", "index", "target"}
"""The parameters that name an output."""
WITHOUT_OUTPUT = {
    *("probe", "fill-mask", "next-sentence", "generate", "serve", "estimate", "tokenize"),
    *("inspect", "settings", "index", "push", "report-environment"),
}
LARGE = ("demo", "lab")  # take minutes
TITLES = [*VERBS, *LARGE]


def command(title: str, world: World, out: Path) -> Words:
    """The command line of a verb."""
    if title == "demo":
        return ("demo", "--out", out, "--quick")
    if title == "lab":
        return ("lab", "run", "order", "--out", out, "--model", world.pretrained, *CPU)
    return VERBS[title][2](world, out)


def is_file(title: str) -> bool:
    return title in VERBS and VERBS[title][1] == "file"


def output_of(title: str, folder: Path) -> Path:
    return folder / (VERBS[title][0] if title in VERBS else "out")


def existing(title: str, out: Path, world: World) -> None:
    """Write an output that bertworks may have written: a file, or a tokenizer."""
    if is_file(title):
        out.write_bytes(b"old")
    else:
        shutil.copytree(world.vocab, out)
        (out / "merges.txt").write_bytes(b"old")


@pytest.mark.long
def test_every_verb_with_an_output_is_tested(world: World) -> None:
    verbs: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    tested_verbs = {str(command(title, world, Path("out"))[0]) for title in TITLES}
    assert tested_verbs == verbs.keys() - WITHOUT_OUTPUT
    for name, verb in verbs.items():
        parameters = {parameter.name for parameter in verb.params}
        assert bool(parameters & OUTPUTS) == (name in tested_verbs), name
        assert ("overwrite" in parameters) == (name in tested_verbs), name


@pytest.mark.long
@pytest.mark.parametrize("title", TITLES)
def test_output_of_others_is_refused(world: World, tmp_path: Path, title: str) -> None:
    out = output_of(title, tmp_path)
    if is_file(title):
        out.write_bytes(b"precious")
    else:
        (out / "docs").mkdir(parents=True)
        (out / "docs" / "precious.txt").write_bytes(b"precious")
    files_before = contents(tmp_path)
    ways = [()] if is_file(title) else [(), ("--overwrite",)]
    for way in ways:
        result = bertworks(*command(title, world, out), *way)
        assert result.exit_code == 1, (result.output, result.exception)
        (line,) = result.stderr.splitlines()
        assert line.startswith("error: "), line
        assert str(out) in line
        assert contents(tmp_path) == files_before


@pytest.mark.long
@pytest.mark.parametrize(
    "title",
    [pytest.param(title, marks=[pytest.mark.slow] * ("onnx" in title)) for title in VERBS],
)
def test_output_is_replaced_with_overwrite_and_the_same_command_is_finished(
    world: World, tmp_path: Path, title: str
) -> None:
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    result = succeeds(*command(title, world, output_of(title, fresh)))
    folder = tmp_path / "again"
    folder.mkdir()
    out = output_of(title, folder)
    words = command(title, world, out)
    existing(title, out, world)
    files_before = contents(folder)
    result = bertworks(*words)
    assert result.exit_code == 1, (result.output, result.exception)
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert contents(folder) == files_before
    result = succeeds(*words, "--overwrite")
    new_files = same_bytes(folder)
    assert new_files == same_bytes(fresh)
    result = succeeds(*words)
    assert same_bytes(folder) == new_files
    if VERBS[title][1] != "directory":
        changed_file = out if is_file(title) else min(one for one in out.iterdir() if one.is_file())
        changed_file.write_bytes(b"changed")
        result = bertworks(*words)
        assert result.exit_code == 1, (result.output, result.exception)
        assert changed_file.read_bytes() == b"changed"


@pytest.mark.long
@pytest.mark.parametrize("title", ["predict", "convert", "vocab", "merge", "merge of vectors"])
def test_finished_command_is_not_repeated(world: World, tmp_path: Path, title: str) -> None:
    words = command(title, world, output_of(title, tmp_path))
    succeeds(*words)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    result = succeeds(*words)
    assert "nothing to do: already finished" in result.stdout
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == times


@pytest.mark.long
def test_neighbours_of_a_bundled_model_are_written(tmp_path: Path) -> None:
    words = ("neighbours", "mini", "--out", tmp_path / "n.txt")
    succeeds(*words)
    assert "already finished" in bertworks(*words).stdout
    result = bertworks(*words[:2], "river", *words[2:], "--layout", "glove", "--overwrite")
    assert "stream" in result.stdout or "sea" in result.stdout or "lake" in result.stdout
    again = bertworks(*words[:2], "river", *words[2:], "--layout", "glove")
    assert again.stdout == result.stdout


def test_changed_input_makes_another_command(world: World, tmp_path: Path) -> None:
    table = tmp_path / "table.tsv"
    table.write_text("text\na river\n")
    words = ("predict", world.classifier, "--data", table, "--out", tmp_path / "a.tsv", *CPU)
    succeeds(*words)
    succeeds(*words)
    table.write_text("text\na door\n")
    fails(*words, says="a.tsv: was started with other texts")


def test_vocabulary_does_not_go_into_the_parent_directory(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    result = bertworks("vocab", world.corpus, "--out", "..", "--size", 250)
    assert (result.exit_code, result.stderr.split(". ")[0]) == (1, "error: ..: already exists")
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_overwriting_empties_the_demo_and_the_lab(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class StopError(Exception):
        pass

    def stop(*_: object, **__: object) -> None:
        raise StopError

    monkeypatch.setattr(cycle._Demo, "run", stop)
    monkeypatch.setattr("bertworks.lab.bench.Lab.__init__", stop)
    for title, mark in zip(LARGE, ("data/corpus.txt", "lab.json"), strict=True):
        out = output_of(title, tmp_path / title)
        existing(title, out, world)
        result = bertworks(*command(title, world, out))
        assert "already exists" in result.stderr
        (out / mark).parent.mkdir(exist_ok=True)
        (out / mark).write_text("{}")
        result = bertworks(*command(title, world, out))
        assert isinstance(result.exception, StopError), result.output
        assert contents(out)
        result = bertworks(*command(title, world, out), "--overwrite")
        assert isinstance(result.exception, StopError), result.output
        assert not contents(out)


@pytest.mark.long
def test_model_is_saved_over_its_own_files_only_with_overwrite(
    tmp_path: Path, world: World
) -> None:
    model = bw.load(world.classifier, device="cpu")
    model.save(tmp_path / "m")
    files_before = contents(tmp_path / "m")
    model_copy = bw.load(tmp_path / "m", device="cpu")
    with pytest.raises(OutputError, match=r"m: already exists\. .* \(overwrite=True\)"):
        model_copy.save(tmp_path / "m")
    model_copy.save(tmp_path / "m", overwrite=True)
    assert contents(tmp_path / "m") == files_before
    (tmp_path / "m" / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"m: holds 'notes\.txt'"):
        model_copy.save(tmp_path / "m", overwrite=True)
    model_copy.save(tmp_path / "m", overwrite=True, keep_others=True)
    assert contents(tmp_path / "m") == files_before | {"notes.txt": b"mine"}


def test_a_run_is_not_overwritten_by_several_processes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    from bertworks.runs.run_directory import RunDirectory

    with pytest.raises(OutputError, match="several processes"):
        RunDirectory.open(world.pretrained, {}, overwrite=True)


def test_foreign_directories_are_refused_before_they_are_listed(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign, out = tmp_path / "foreign", tmp_path / "out.tsv"
    (foreign / "folder").mkdir(parents=True)
    (foreign / "folder" / "file.txt").write_text("a")
    walk = Path.rglob

    def fail_if_listed(path: Path, pattern: str) -> Any:
        assert not path.is_relative_to(foreign), "the directory is listed"
        return walk(path, pattern)

    monkeypatch.setattr(Path, "rglob", fail_if_listed)
    monkeypatch.setattr(os, "walk", lambda *_, **__: pytest.fail("a directory is listed"))
    for words, message in [
        (("extend", foreign, "--positions", 64, "--out", out), "there is no config.json"),
        (("predict", world.classifier, "--data", foreign, "--out", out), "a folder, not a table"),
        (("extend", world.pretrained, "--positions", 64, "--out", foreign), "already exists"),
    ]:
        fails(*words, says=message)


def test_overwrite_is_false_by_default() -> None:
    def parameters(group: Any) -> Iterator[Any]:
        for verb in group.commands.values():
            yield from parameters(verb) if hasattr(verb, "commands") else verb.params

    options = [one for one in parameters(get_command(app)) if one.name == "overwrite"]
    assert options
    assert [one.default for one in options] == [False] * len(options)

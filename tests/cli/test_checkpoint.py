"""`inspect`, `convert`, `add-tokens`, `shrink` and `extend`, as a user types them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from typer.testing import Result

import bertworks as bw

from ..crashes import contents
from .conftest import World, bertworks, fails, json_of, succeeds


def test_inspect_shows_the_model_and_its_tensors(world: World) -> None:
    text = bertworks("inspect", world.classifier).stdout
    assert "family      bert" in text
    assert "task        classification" in text
    assert "heads       pooler, classifier" in text
    assert "16 wide, 2 heads" in text
    assert max(map(len, text.splitlines())) <= 80
    values = json_of("inspect", world.pretrained)
    model = bw.load(world.pretrained, device="cpu")
    assert values["parameters"]["total"] == sum(p.numel() for p in model.network.parameters())
    assert values["vocabulary"]["size"] == model.tokenizer.vocab_size
    assert values["dropped_tensors"] == {}
    assert set(values["used_tensors"]) <= set(model.network.state_dict())
    assert "used     encoder.pooler" in bertworks("inspect", world.pretrained, "--tensors").stdout


@pytest.mark.parametrize("layout", ["hf", "safetensors", "tensorflow"])
def test_convert_keeps_every_weight(world: World, tmp_path, layout: str) -> None:
    succeeds("convert", world.pretrained, tmp_path / "m", "--to", layout)
    one, two = (bw.load(path, device="cpu") for path in (world.pretrained, tmp_path / "m"))
    for name, tensor in one.network.state_dict().items():
        assert tensor.equal(two.network.state_dict()[name]), name


def test_add_tokens_uses_unused_entries(world: World, tmp_path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("Zyzzyva\n\nzyzzyvas\n", encoding="utf-8")
    result = bertworks("add-tokens", world.pretrained, words, "--out", tmp_path / "m")
    assert "2 words, 2 of them in unused entries" in result.stdout
    model = bw.load(tmp_path / "m", device="cpu")
    ids = model.tokenizer.piece_ids(["A zyzzyva of zyzzyvas"])[0]
    assert {"zyzzyva", "zyzzyvas"} <= set(model.tokenizer.tokens(ids))


def test_add_tokens_reads_tables(world: World, tmp_path) -> None:
    table = tmp_path / "words.csv"
    table.write_text("word,count\nzyzzyva,3\n机器学习,2\n", encoding="utf-8")
    out = tmp_path / "m"
    succeeds("add-tokens", world.pretrained, table, "--column", "word", "--header", "--out", out)
    tokenizer = bw.load(out, device="cpu").tokenizer
    assert {"zyzzyva", "机器学习"} <= set(tokenizer.pieces)
    assert "3" not in tokenizer.pieces[-2:]
    text = tmp_path / "table.txt"
    text.write_text("zyzzyva\t3\nquux\t4\n", encoding="utf-8")
    fails(
        *("add-tokens", world.pretrained, text, "--out", tmp_path / "n"),
        says="table.txt:1: 'zyzzyva\\t3' has a tab. Read it as a table",
    )


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("text,label\nA fine zyzzyva.,pos\nNo quux.,neg\n", "which column holds the words; "),
        ("term,word\nNo quux,zyzzyva\n", None),
        ("text,token\nNo quux,zyzzyva\n", None),
        ("word\nzyzzyva\n", None),
        ("term\nzyzzyva\nA quux and a door and a river of words\n", "is a text of 10 words"),
    ],
)
def test_words_are_read_from_the_column_of_words(
    world: World, tmp_path, table: str, says: str | None
) -> None:
    file, out = tmp_path / "words.csv", tmp_path / "m"
    file.write_text(table, encoding="utf-8")
    command = ("add-tokens", world.pretrained, file, "--header", "--out", out)
    if says is not None:
        fails(*command, says=says)
        assert not out.exists()
        return
    assert "1 word, " in succeeds(*command).stdout
    assert "zyzzyva" in bw.load(out, device="cpu").tokenizer.pieces


def test_terms_of_several_words_are_counted(world: World, tmp_path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("zyzzyva\nan open door\nriver bed\n", encoding="utf-8")
    result = succeeds("add-tokens", world.pretrained, words, "--out", tmp_path / "m")
    assert "3 words" in result.stdout
    assert "2 of them of several words, which become one piece" in result.stdout


def test_shrink_keeps_the_vectors_of_the_text(world: World, tmp_path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The door was opened.\n\nA river.\n", encoding="utf-8")
    result = succeeds("shrink", world.pretrained, text, "--out", tmp_path / "m")
    large, small = (bw.load(path, device="cpu") for path in (world.pretrained, tmp_path / "m"))
    assert small.tokenizer.vocab_size < large.tokenizer.vocab_size
    assert f"{small.tokenizer.vocab_size} of {large.tokenizer.vocab_size}" in result.stdout
    assert "documents   2" in result.stdout
    before, after = (model.embed(["The door was opened."]) for model in (large, small))
    assert np.array_equal(before, after)


def test_extend_adds_positions_and_keeps_vectors(world: World, tmp_path) -> None:
    result = succeeds("extend", world.pretrained, "--positions", 100, "--out", tmp_path / "m")
    assert "100, before 64" in result.stdout
    model = bw.load(tmp_path / "m", device="cpu")
    assert model.encoder.config.max_seqlen == 100
    before = bw.load(world.pretrained, device="cpu").embed(["The door was opened."])
    assert np.array_equal(before, model.embed(["The door was opened."]))
    assert "max_seq_length" not in result.stdout
    result = bertworks("extend", world.classifier, "--positions", 100, "--out", tmp_path / "n")
    assert "limit       32 tokens of a text, as before" in result.stdout


@pytest.mark.long
@pytest.mark.parametrize("is_calibrated", [False, True])
def test_quantize_changes_vectors_little(world: World, is_calibrated: bool, tmp_path) -> None:
    (tmp_path / "some.txt").write_text("The door was opened.\nA river\n")
    words = ["quantize", world.classifier, "--out", tmp_path / "m"]
    words += ["--calibrate", tmp_path / "some.txt"] * is_calibrated
    result = succeeds(*words, "--texts", tmp_path / "some.txt", "--data", world.dev)
    worst = re.search(r"cosine +(\S+) at worst, (\S+) on average", result.stdout)
    assert worst is not None and 0.9 < float(worst[1]) <= float(worst[2]) <= 1
    was = bw.load(world.classifier, device="cpu").evaluate(world.dev, precision="fp32").metrics
    assert f"before {was['accuracy']:.4f}" in result.stdout
    full, quantized = (
        bw.load(path, device="cpu").embed(["The door was opened."], precision="int8")
        for path in (world.classifier, tmp_path / "m")
    )
    assert np.abs(full - quantized).max() < 0.05
    assert any(
        name.endswith(".calibrated_shift") for name in load_file(tmp_path / "m/model.safetensors")
    ) == (is_calibrated)


@pytest.mark.long
def test_invalid_arguments_are_refused(world: World, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "bad.txt").write_bytes(b"fine\n\xff\n")
    (tmp_path / "pieces.txt").write_text("fine\n\n##ing\n")
    for verb, *words, says in (
        ("convert", tmp_path, "--to", "tensorflow", "already exists"),
        ("convert", tmp_path, "--overwrite", "holds 'bad.txt', which is no file"),
        ("shrink", world.corpus, "--out", tmp_path, "already exists"),
        ("shrink", "no.txt", "--out", "m", "no such file or folder"),
        ("shrink", "empty.txt", "--out", "m", "holds no text"),
        ("add-tokens", "empty.txt", "--out", "m", "is empty"),
        ("add-tokens", "bad.txt", "--out", "m", "bad.txt:2: not UTF"),
        ("add-tokens", "pieces.txt", "--out", "m", "pieces.txt:3 ('##ing'): begins with ##"),
        ("add-tokens", "no.txt", "--out", "m", "no such file"),
        ("extend", "--positions", 64, "--out", "m", "already has 64 positions"),
    ):
        fails(verb, world.pretrained, *words, says=says)
    fails("inspect", "nowhere/at/all", says="no such directory")
    fails("convert", world.pretrained, "x", "--to", "onyx", says="onyx", status=2)
    fails("extend", world.pretrained, "--out", "m", says="--positions", status=2)


@pytest.mark.long
def test_distil_computes_its_teachers_vectors_once(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def distil(name: str, *more: object) -> Result:
        out = tmp_path / name
        return bertworks(
            *("distil", "static", world.pretrained, "--out", out, "--data", world.train), *more
        )

    def without_card(name: str) -> dict[str, bytes]:
        """A model's files but its card, which has its name as the title."""
        files = contents(tmp_path / name)
        return {name: content for name, content in files.items() if name != "README.md"}

    vectors = tmp_path / "v.npy"
    result = distil("whole", "--vectors", vectors)
    assert result.exit_code == 0, (result.output, result.exception)
    assert "trained on" in result.stdout

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("bertworks.convert.static_training.train_static", interrupt)
        assert distil("m").exit_code
    left = {file.name: file.read_bytes() for file in tmp_path.glob("m*")}
    assert sorted(left) == ["m.teacher.npy", "m.teacher.npy.json"]
    assert left["m.teacher.npy"] == vectors.read_bytes()
    assert distil("m").exit_code == 0
    assert [file.name for file in tmp_path.glob("m*")] == ["m"]
    assert without_card("m") == without_card("whole")
    for file, content in left.items():  # a process was killed after it had written the model
        (tmp_path / file).write_bytes(content)
        os.utime(tmp_path / file, (0, 0))
    assert distil("m").exit_code == 0
    assert [file.name for file in tmp_path.glob("m*")] == ["m"]
    time = vectors.stat().st_mtime_ns
    assert distil("n", "--vectors", vectors).exit_code == 0
    assert vectors.stat().st_mtime_ns == time
    assert without_card("n") == without_card("whole")


@pytest.mark.parametrize(
    ("words", "says", "status"),
    [
        (("ridge=1",), "ridge=1.0 does nothing without texts. Give --data.", 1),
        (("--vectors", "v.npy"), "--vectors needs --data FILE", 2),
        (("--column", "text"), "--column needs --data FILE", 2),
        (("--data", "-"), "texts to train on are read twice", 1),
    ],
)
def test_distil_names_what_does_not_fit_together(
    world: World, tmp_path: Path, words: tuple[str, ...], says: str, status: int
) -> None:
    command = ("distil", "static", world.pretrained, "--out", tmp_path / "m", *words)
    fails(*command, stdin="a door\n", says=says, status=status)
    assert not (tmp_path / "m").exists()

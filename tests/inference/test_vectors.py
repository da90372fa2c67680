"""Vectors in files: those of `embed`, in bounded memory, and the same file after a kill."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.checkpoints.test_store import tiny

import bertworks as bw
from bertworks.errors import DataError, OutputError, SettingsError
from bertworks.utils.json_files import verify_checksum, with_checksum

WINDOW = {"window_rows": 4}
TEXTS = [" ".join("abcdefgh"[at % 8] for at in range(n % 11)) for n in range(30)]


@pytest.fixture(scope="module")
def model():
    return tiny()


@pytest.fixture(params=["npy", "parquet"])
def out(tmp_path, request) -> Path:
    return tmp_path / f"vectors.{request.param}"


def read(file: Path) -> np.ndarray:
    if file.suffix == ".npy":
        return np.load(file, mmap_mode="r")
    return np.stack(pq.read_table(file)["vector"].to_numpy(zero_copy_only=False))


def test_files_hold_what_embed_gives(model, out):
    progress = []
    result = model.embed_to(
        out, TEXTS, **WINDOW, progress=lambda *done: progress.append(done), pooling="max"
    )
    assert (result.rows, result.width, result.new, result.num_truncated) == (30, 48, 30, 0)
    np.testing.assert_allclose(read(out), model.embed(TEXTS, pooling="max"), atol=1e-6)
    assert progress[-1] == (30, 30)
    assert progress == sorted(progress)
    assert sorted(path.name for path in out.parent.iterdir()) == [out.name, f"{out.name}.json"]
    if out.suffix == ".parquet":
        table = pq.read_table(out)
        assert table["text"].to_pylist() == TEXTS
        assert table["row"].to_pylist() == list(range(30))
        assert table.schema.field("vector").type.list_size == 48


def test_a_finished_file_that_was_cut_is_not_done(model, tmp_path):
    out = tmp_path / "vectors.npy"
    model.embed_to(out, TEXTS)
    out.write_bytes(out.read_bytes()[:-4])
    with pytest.raises(DataError, match=r"vectors\.npy: has 5,884 bytes instead of 5,888"):
        model.embed_to(out, TEXTS)


def test_a_finished_file_that_was_damaged_is_not_done(model, out):
    model.embed_to(out, TEXTS)
    content = bytearray(out.read_bytes())
    content[len(content) // 2] ^= 1
    out.write_bytes(content)
    with pytest.raises(DataError, match=rf"{out.name}: is damaged: its checksum is wrong"):
        model.embed_to(out, TEXTS)


def test_changed_number_in_a_manifest_is_found(model, out):
    model.embed_to(out, TEXTS, **WINDOW)
    manifest = out.with_name(f"{out.name}.json")
    content = manifest.read_text()
    for was, now in (('"num_truncated": 0', '"num_truncated": 1'), ('"crc32"', '"crc33"')):
        manifest.write_text(content.replace(was, now))
        with pytest.raises(DataError, match=r"\.json: is damaged, or not a manifest"):
            model.embed_to(out, TEXTS, **WINDOW)


def test_vectors_in_another_format_are_refused(model, out):
    model.embed_to(out, TEXTS, **WINDOW)
    manifest = out.with_name(f"{out.name}.json")
    tree = verify_checksum(json.loads(manifest.read_text()))
    manifest.write_text(json.dumps(with_checksum({**tree, "format_version": 1})))
    with pytest.raises(DataError) as error:
        model.embed_to(out, TEXTS, **WINDOW)
    assert str(error.value) == (
        f"{manifest}: written in another format (1, not 3). "
        "Make its file again, with --overwrite (overwrite=True) under the same name."
    )
    assert model.embed_to(out, TEXTS, **WINDOW, overwrite=True).new == 30


class StopError(Exception):
    pass


def read_until_stop(texts: list[str], count: int) -> Iterator[str]:
    yield from texts[:count]
    raise StopError


def test_file_of_another_program_is_refused(model, out, tmp_path):
    out.write_bytes(b"precious")
    with pytest.raises(OutputError, match="already exists"):
        model.embed_to(out, TEXTS)
    assert out.read_bytes() == b"precious"
    manifest = out.with_name(f"{out.name}.json")
    manifest.write_text('{"mine": 1}')
    with pytest.raises(DataError, match="is damaged, or not a manifest"):
        model.embed_to(out, TEXTS)
    with pytest.raises(StopError):
        model.embed_to(tmp_path / f"half-{out.name}", read_until_stop(TEXTS, 9), **WINDOW)
    (tmp_path / f"half-{out.name}").write_bytes(b"precious")
    with pytest.raises(OutputError, match="already exists"):
        model.embed_to(tmp_path / f"half-{out.name}", TEXTS, **WINDOW)
    with pytest.raises(DataError, match=r"\.txt: unknown file format"):
        model.embed_to(tmp_path / "a.txt", TEXTS)
    with pytest.raises(OutputError, match="cannot be written"):
        model.embed_to(tmp_path / "no" / out.name, TEXTS)
    assert model.embed_to(out, TEXTS, overwrite=True).new == len(TEXTS)
    assert model.embed_to(out, TEXTS).new == 0
    assert model.embed_to(out, TEXTS[:1], overwrite=True, normalize=True).rows == 1


def test_texts_are_read_from_files(model, out, tmp_path):
    lines, table = tmp_path / "texts.txt", tmp_path / "texts.csv"
    lines.write_text("a b\n\nc\td\n")
    table.write_text("n,title\n1,a b\n2,\n3,c d\n")
    expected = model.embed(["a b", "", "c d"])
    model.embed_to(out, lines)
    np.testing.assert_allclose(read(out), expected, atol=1e-6)
    other = out.with_name(f"other{out.suffix}")
    model.embed_to(other, table, column="title")
    np.testing.assert_allclose(read(other), expected, atol=1e-6)
    new = out.with_name(f"new{out.suffix}")
    with pytest.raises(DataError, match="no column 'titel'; its columns are 'n', 'title'"):
        model.embed_to(new, table, column="titel")
    with pytest.raises(DataError, match="lines of text have no columns"):
        model.embed_to(new, lines, column="text")
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"text": 3}\n')
    with pytest.raises(DataError, match=r"bad\.jsonl:2: .*not a text"):
        model.embed_to(new, tmp_path / "bad.jsonl")
    (tmp_path / "empty.txt").touch()
    for nothing in (tmp_path / "empty.txt", []):
        with pytest.raises(DataError, match=r"no texts|the file is empty"):
            model.embed_to(new, nothing)
    with pytest.raises(SettingsError, match="no layer 9"):
        model.embed_to(new, lines, layers=[9])
    assert not list(tmp_path.glob("new*"))


def test_a_file_is_ended_in_its_precision(model, out, monkeypatch):
    with pytest.raises(StopError):
        model.embed_to(out, read_until_stop(TEXTS, 9), **WINDOW)
    monkeypatch.setattr("bertworks.nn.device.is_fast_at_bfloat16", lambda _: True)
    assert model.embed_to(out, TEXTS, **WINDOW).new == 30 - 8
    exact, fast = (model.embed(TEXTS, precision=name) for name in ("fp32", "auto"))
    np.testing.assert_allclose(read(out), exact, atol=1e-6)
    assert not np.allclose(fast, exact, atol=1e-6)
    manifest = json.loads(out.with_name(f"{out.name}.json").read_text())
    assert manifest["provenance"]["precision"] == "fp32"
    assert model.embed_to(out, TEXTS, **WINDOW).new == 0
    with pytest.raises(DataError, match="precision='fp32', not 'bf16'"):
        model.embed_to(out, TEXTS, **WINDOW, precision="bf16")


@pytest.mark.parametrize("unit", ["tokens", "words"])
def test_windows_of_texts_without_tokens_are_merged(model, tmp_path, unit):
    texts = ["a b", "", "", "", *[""] * 4, "c"]
    settings = {**WINDOW, "unit": unit}
    model.features_to(whole := tmp_path / "whole.parquet", texts, **settings)
    parts = [tmp_path / f"{number}.parquet" for number in (1, 2)]
    for number, part in enumerate(parts, 1):
        model.features_to(part, texts, part=f"{number}/2", **settings)
    bw.merge(parts, merged := tmp_path / "merged.parquet")
    assert merged.read_bytes() == whole.read_bytes()


def test_rows_of_a_part_have_their_texts_numbers(model, tmp_path):
    out = tmp_path / "part.parquet"
    assert model.embed_to(out, TEXTS, part="2/2", **WINDOW).rows == 15
    assert pq.read_table(out)["row"].to_pylist() == list(range(15, 30))
    with pytest.raises(DataError, match="read twice"):
        model.embed_to(tmp_path / "v.npy", iter(TEXTS), part="1/2")


@pytest.mark.parametrize("width", [-1, 1 << 40])
def test_manifest_with_an_impossible_width_is_refused(model, tmp_path, width):
    part = tmp_path / "1.parquet"
    model.embed_to(part, TEXTS, part="1/1", **WINDOW)
    manifest = tmp_path / "1.parquet.json"
    tree = verify_checksum(json.loads(manifest.read_text()))
    manifest.write_text(json.dumps(with_checksum({**tree, "width": width})))
    with pytest.raises(DataError, match=r"1\.parquet\.json: is damaged, or not a manifest"):
        bw.merge([part], tmp_path / "out.parquet")


@pytest.mark.filterwarnings("ignore:.* were truncated")
def test_counts_are_those_of_all_runs_and_parts(model, tmp_path, out):
    settings = {**WINDOW, "max_seq_length": 7}
    result = model.embed_to(out, TEXTS, **settings)
    assert result.num_truncated > 0
    with pytest.raises(StopError):
        model.embed_to(tmp_path / f"resumed{out.suffix}", read_until_stop(TEXTS, 17), **settings)
    resumed = model.embed_to(tmp_path / f"resumed{out.suffix}", TEXTS, **settings)
    assert (resumed.rows, resumed.new, resumed.num_truncated) == (30, 14, result.num_truncated)
    parts = [tmp_path / f"{number}{out.suffix}" for number in (1, 2)]
    for number, part in enumerate(parts, 1):
        model.embed_to(part, TEXTS, part=f"{number}/2", **settings)
    merged = bw.merge(parts, tmp_path / f"merged{out.suffix}")
    assert (merged.rows, merged.num_truncated) == (30, result.num_truncated)


@pytest.mark.long
def test_progress_does_not_depend_on_workers(model, tmp_path):
    progress = []
    model.embed_to(
        *(tmp_path / "v.npy", iter(TEXTS)),
        workers=2,
        progress=lambda *done: progress.append(done),
        **WINDOW,
    )
    assert progress == [(min(30, done), 0) for done in range(4, 36, 4)]


@pytest.mark.parametrize("normalize", [False, True])
def test_shortened_vectors_are_the_first_numbers(model, out, normalize):
    whole = model.embed(TEXTS[1:9], normalize=normalize)
    expected = whole[:, :5]
    if normalize:
        expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    settings = {"dimensions": 5, "normalize": normalize}
    np.testing.assert_allclose(model.embed(TEXTS[1:9], **settings), expected, atol=1e-6)
    assert model.embed_to(out, TEXTS[1:9], **settings).width == 5
    np.testing.assert_allclose(read(out), expected, atol=1e-6)


def test_vectors_are_not_shortened_to_more_than_they_have(model):
    for dimensions in (49, "49", "99999"):
        with pytest.raises(SettingsError, match=f"dimensions={dimensions} is more than the 48 num"):
            model.embed(["a"], dimensions=dimensions)
    assert model.embed(["a"], dimensions="16").shape == (1, 16)
    native = bw.load("mini", backend="native")
    assert native.embed(["a"], dimensions="16").shape == (1, 16)
    with pytest.raises(SettingsError, match="dimensions=99999 is more than"):
        native.embed(["a"], dimensions="99999")
    with pytest.raises(SettingsError, match="dimensions: sparse vectors"):
        bw.load("mini", device="cpu").embed(["a"], pooling="splade-max", dimensions=4)

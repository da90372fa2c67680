"""Vectors in files: those of `embed`, in bounded memory, and the same file after a kill."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.checkpoints.test_store import tiny
from tests.crashes import contents, crashing, needs_proc

import bertworks as bw
from bertworks.errors import DataError, OutputError, SettingsError
from bertworks.inference import vector_files, vectors
from bertworks.inference.vector_files import vector_format_of
from bertworks.inference.vectors import _finish
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


def test_done_is_done(model, out):
    model.embed_to(out, TEXTS, **WINDOW)
    content = out.read_bytes()
    again = model.embed_to(out, iter(TEXTS), **WINDOW)
    assert (again.rows, again.new) == (30, 0)
    assert out.read_bytes() == content
    with pytest.raises(DataError, match="finished with 30 rows, but there are more"):
        model.embed_to(out, [*TEXTS, "a"], **WINDOW)
    with pytest.raises(DataError, match="other texts"):
        model.embed_to(out, TEXTS[:-1], **WINDOW)


class StopError(Exception):
    pass


def read_until_stop(texts: list[str], count: int) -> Iterator[str]:
    yield from texts[:count]
    raise StopError


@pytest.mark.long
@pytest.mark.parametrize("count", [0, 4, 11, 29])
def test_unfinished_file_is_resumed(model, out, tmp_path, count):
    whole = tmp_path / "whole" / out.name
    whole.parent.mkdir()
    model.embed_to(whole, TEXTS, **WINDOW)
    with pytest.raises(StopError):
        model.embed_to(out, read_until_stop(TEXTS, count), **WINDOW)
    assert not out.exists()
    part = out.with_name(f"{out.name}.part")
    if part.exists():
        with part.open("ab") as file:
            file.write(b"half a window")
    assert model.embed_to(out, TEXTS, **WINDOW).new == 30 - count // 4 * 4
    assert out.read_bytes() == whole.read_bytes()


def test_kill_between_the_last_row_and_the_end_loses_nothing(model, out, monkeypatch):
    def stop(self, part, out, rows):
        raise StopError

    with monkeypatch.context() as patched:
        for kind in ("Npy", "Parquet"):
            patched.setattr(getattr(vector_files, kind), "finished_file", stop)
        with pytest.raises(StopError):
            model.embed_to(out, TEXTS, **WINDOW)
    assert model.embed_to(out, TEXTS, **WINDOW).new == 0
    np.testing.assert_allclose(read(out), model.embed(TEXTS), atol=1e-6)
    assert not out.with_name(f"{out.name}.part").exists()


def flip(file: Path, position: int) -> None:
    content = bytearray(file.read_bytes())
    content[position] ^= 1
    file.write_bytes(content)


def test_flipped_bit_between_file_and_manifest_is_found(model, out, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(vectors, "_finish", lambda *given: [_finish(*given), 1 / 0])
        with pytest.raises(ZeroDivisionError):
            model.embed_to(out, TEXTS, **WINDOW)
    assert json.loads(out.with_name(f"{out.name}.json").read_text())["unfinished_checksum"]
    flip(out, 30)
    with pytest.raises(DataError, match=r"is damaged: its checksum is wrong\. Remove vectors"):
        model.embed_to(out, TEXTS, **WINDOW)
    flip(out, 30)
    assert model.embed_to(out, TEXTS, **WINDOW).new == 0
    whole = out.with_name(f"whole{out.suffix}")
    model.embed_to(whole, TEXTS, **WINDOW)
    manifests = [path.with_name(f"{path.name}.json").read_bytes() for path in (out, whole)]
    assert manifests[0] == manifests[1]


@pytest.mark.parametrize("position", [12, 40, 90, 200])
def test_the_head_of_an_unfinished_file_is_written_again(model, out, position):
    with pytest.raises(StopError):
        model.embed_to(out, read_until_stop(TEXTS, 9), **WINDOW)
    flip(
        out.with_name(f"{out.name}.part"), min(position, len(vector_format_of(out, 48).head()) - 1)
    )
    model.embed_to(out, TEXTS, **WINDOW)
    np.testing.assert_allclose(read(out), model.embed(TEXTS), atol=1e-6)


def test_changed_number_in_a_manifest_is_found(model, out):
    model.embed_to(out, TEXTS, **WINDOW)
    manifest = out.with_name(f"{out.name}.json")
    content = manifest.read_text()
    for was, now in (('"num_truncated": 0', '"num_truncated": 1'), ('"crc32"', '"crc33"')):
        manifest.write_text(content.replace(was, now))
        with pytest.raises(DataError, match=r"\.json: is damaged, or does not describe vectors"):
            model.embed_to(out, TEXTS, **WINDOW)


@pytest.mark.parametrize("is_finished", [True, False])
def test_vectors_in_another_format_are_refused(model, out, is_finished):
    if is_finished:
        model.embed_to(out, TEXTS, **WINDOW)
    else:
        with pytest.raises(StopError):
            model.embed_to(out, read_until_stop(TEXTS, 9), **WINDOW)
    manifest = out.with_name(f"{out.name}.json")
    tree = verify_checksum(json.loads(manifest.read_text()))
    manifest.write_text(json.dumps(with_checksum({**tree, "format_version": 1})))
    with pytest.raises(DataError) as error:
        model.embed_to(out, TEXTS, **WINDOW)
    assert str(error.value) == (
        f"{manifest}: written in another format (1, not 2). "
        "Make its file again, with --overwrite (overwrite=True) under the same name."
    )
    assert model.embed_to(out, TEXTS, **WINDOW, overwrite=True).new == 30


def test_file_of_another_run_is_refused(model, out):
    with pytest.raises(StopError):
        model.embed_to(out, read_until_stop(TEXTS, 9), **WINDOW)
    other = tiny()
    other.encoder.embeddings.word_embeddings.weight.data[5] += 1
    for changed_model, texts, settings, says in (
        (other, TEXTS, {}, "started with another model"),
        (model, TEXTS, {"pooling": "cls"}, "with pooling='mean', not 'cls'"),
        (model, TEXTS, {"layers": [-2]}, r"with layers=\[-1\], not \[-2\]"),
        (model, TEXTS, {"prompt": "a "}, "with prompt='', not 'a '"),
        (model, TEXTS, {"deterministic": True}, "with deterministic=False, not True"),
        (model, TEXTS[1:], {}, "started with other texts"),
        (model, TEXTS[:3], {}, "started with other texts"),
    ):
        with pytest.raises(DataError, match=says):
            changed_model.embed_to(out, texts, **WINDOW, **settings)
    assert model.embed_to(out, TEXTS, **WINDOW).new == 22


def test_file_of_another_program_is_refused(model, out, tmp_path):
    out.write_bytes(b"precious")
    with pytest.raises(OutputError, match="already exists"):
        model.embed_to(out, TEXTS)
    assert out.read_bytes() == b"precious"
    manifest = out.with_name(f"{out.name}.json")
    manifest.write_text('{"mine": 1}')
    with pytest.raises(DataError, match="does not describe vectors"):
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


def test_rows_are_streamed(model, out):
    """When row N is drawn, all windows before it are on disk."""
    manifest = out.with_name(f"{out.name}.json")

    def texts() -> Iterator[str]:
        for at in range(5 * 4):
            written = json.loads(manifest.read_text())["rows"] if manifest.exists() else 0
            assert at - written < 2 * WINDOW["window_rows"]
            yield "a b"

    assert model.embed_to(out, texts(), **WINDOW).rows == 20


SLOWLY = """
import sys, time
import bertworks as bw
texts = ["a b c d e f g h"[: at % 16] for at in range(400)]
model = bw.load(sys.argv[1], device="cpu")
wait = lambda rows, total: time.sleep(0.01)
model.embed_to(sys.argv[2], texts, window_rows=8, precision="fp32", progress=wait)
"""


@pytest.mark.long
def test_a_killed_process_ends_with_the_same_file(model, out, tmp_path):
    model.save(tmp_path / "m")
    process = subprocess.Popen([sys.executable, "-c", SLOWLY, tmp_path / "m", out])
    manifest = out.with_name(f"{out.name}.json")
    deadline = time.monotonic() + 120
    while not (manifest.exists() and json.loads(manifest.read_text())["rows"] >= 40):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.kill()
    process.wait()
    assert 40 <= json.loads(manifest.read_text())["rows"] < 400
    texts = ["a b c d e f g h"[: at % 16] for at in range(400)]
    second_model = bw.load(tmp_path / "m", device="cpu")
    assert second_model.embed_to(out, texts, window_rows=8, precision="fp32").new <= 360
    whole = tmp_path / f"whole{out.suffix}"
    second_model.embed_to(whole, texts, window_rows=8)
    assert out.read_bytes() == whole.read_bytes()


@needs_proc
def test_file_is_the_same_after_any_crash_of_the_machine(model, tmp_path, monkeypatch):
    for name in ("vectors.npy", "vectors.parquet"):
        root = tmp_path / name.replace(".", "-")
        root.mkdir()
        model.embed_to(tmp_path / name, TEXTS[:10], **WINDOW)
        whole = {file: (tmp_path / file).read_bytes() for file in (name, f"{name}.json")}

        def resumes(left: Path, name: str = name, whole: dict[str, bytes] = whole) -> bool:
            model.embed_to(left / name, TEXTS[:10], **WINDOW)
            (left / f".{name}.lock").unlink(missing_ok=True)  # of the process that is no more
            return contents(left) == whole

        with crashing(monkeypatch, root, resumes) as disk:
            model.embed_to(root / name, TEXTS[:10], **WINDOW)
            assert disk.crashes > 6
            assert not disk.num_damaged
            assert disk.is_new()


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

"""Parts of a file of vectors: merged they are the bytes of one run; mismatches are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.checkpoints.test_store import tiny
from tests.crashes import contents

import bertworks as bw
from bertworks.errors import DataError, OutputError, SettingsError

WINDOW: Any = {"window_rows": 4}
TEXTS = [" ".join("abcdefgh"[at % 8] for at in range(n % 11)) for n in range(30)]


class StopError(Exception):
    pass


@pytest.fixture(scope="module")
def model():
    return tiny()


@pytest.fixture(params=["npy", "parquet", "tokens", "words"])
def kind(request) -> str:
    return request.param


def write(model, kind: str, out: Path, texts: Any = TEXTS, **settings: Any):
    if kind in ("tokens", "words"):
        return model.features_to(out, texts, unit=kind, **WINDOW, **settings)
    return model.embed_to(out, texts, **WINDOW, **settings)


def name(kind: str) -> str:
    return f"v.{kind if kind == 'npy' else 'parquet'}"


@pytest.mark.long
@pytest.mark.parametrize("count", [1, 2, 3, 5, 11])
def test_parts_together_are_one_runs_bytes(model, kind, tmp_path, count):
    folders = [tmp_path / f"part{number}" for number in range(count)]
    (whole := tmp_path / "whole").mkdir()
    (out_folder := tmp_path / "merged").mkdir()
    result = write(model, kind, whole / name(kind), max_seq_length=7)
    assert result.num_truncated > 0
    rows = 0
    for number, folder in enumerate(folders, 1):
        folder.mkdir()
        part = f"{number}/{count}"
        part_result = write(model, kind, folder / name(kind), part=part, max_seq_length=7)
        again = write(model, kind, folder / name(kind), part=part, max_seq_length=7)
        assert (again.rows, again.new) == (part_result.rows, 0)
        rows += part_result.rows
    assert rows == result.rows == len(TEXTS)  # of 8 windows: with 11 parts some are empty
    parts = [folder / name(kind) for folder in folders]
    joined = bw.merge(parts[::-1], out_folder / name(kind))
    assert (joined.rows, joined.width, joined.num_truncated) == (
        result.rows,
        result.width,
        result.num_truncated,
    )
    assert contents(out_folder) == contents(whole)
    assert write(model, kind, out_folder / name(kind), max_seq_length=7).new == 0  # as one run's


def test_windows_of_texts_without_tokens_are_merged(model, kind, tmp_path):
    texts = ["a b", "", "", "", *[""] * 4, "c"]
    write(model, kind, whole := tmp_path / name(kind), texts)
    parts = [tmp_path / f"{number}{name(kind)}" for number in (1, 2)]
    for number, part in enumerate(parts, 1):
        write(model, kind, part, texts, part=f"{number}/2")
    bw.merge(parts, merged := tmp_path / f"merged{name(kind)}")
    assert merged.read_bytes() == whole.read_bytes()


@pytest.mark.long
def test_a_stopped_part_is_resumed(model, kind, tmp_path):
    parts = [tmp_path / f"{at}{name(kind)}" for at in (1, 2)]
    write(model, kind, tmp_path / name(kind))

    def stop(num_done, _):
        if num_done >= 6:
            raise StopError

    with pytest.raises(StopError):
        write(model, kind, parts[1], part="2/2", progress=stop)
    with pytest.raises(DataError, match="is not finished"):
        bw.merge([parts[1]], tmp_path / f"merged.{parts[1].suffix}")
    assert write(model, kind, parts[1], part="2/2").new == 10
    write(model, kind, parts[0], part="1/2")
    out = tmp_path / f"merged{parts[0].suffix}"
    bw.merge(parts, out)
    assert out.read_bytes() == (tmp_path / name(kind)).read_bytes()
    whole = out.read_bytes()
    bw.merge(parts, out)  # is finished
    out.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(OutputError, match="already exists"):
        bw.merge(parts, out)
    bw.merge(parts, out, overwrite=True)
    assert out.read_bytes() == whole


def test_rows_of_a_part_have_their_texts_numbers(model, tmp_path):
    write(model, "parquet", tmp_path / "part.parquet", part="2/2")
    assert pq.read_table(tmp_path / "part.parquet")["row"].to_pylist() == list(range(16, 30))


def test_parts_of_different_texts_or_models_are_refused(model, tmp_path):
    def make(
        stem: str, part: str | None, texts: Any = TEXTS, source=model, **settings: Any
    ) -> Path:
        write(source, "npy", tmp_path / f"{stem}.npy", texts, part=part, **settings)
        return tmp_path / f"{stem}.npy"

    one, two, three = (make(f"p{number}", f"{number}/3") for number in (1, 2, 3))
    other = tiny()
    other.encoder.embeddings.word_embeddings.weight.data[5] += 1
    of_model = make("model", "3/3", source=other)
    pooled = make("pooled", "2/3", pooling="cls")
    other_prompt = make("prompted", "2/3", prompt="a ")
    texts = make("texts", "3/3", ["b", *TEXTS[1:]])
    last = make("last", "3/3", [*TEXTS[:-1], "b"])
    more = make("more", "3/3", [*TEXTS, "a"])
    whole, half = make("whole", None), make("half", "2/2")
    no_manifest = tmp_path / "no.npy"
    no_manifest.write_bytes(one.read_bytes())
    for parts, says in (
        ([one, three], "of 3 parts, these are missing: '2/3'"),
        ([one, two, three, two], f"{two}: is part 2/3, as {two} is"),
        ([one, two, of_model], f"{of_model}: does not belong to {one}: of another model"),
        ([one, pooled, three], f"{pooled}: does not belong to {one}: pooling='cls', not 'mean'"),
        (
            [one, other_prompt, three],
            f"{other_prompt}: does not belong to {one}: prompt='a ', not ''",
        ),
        ([one, two, texts], f"{texts}: does not belong to {one}: of other texts"),
        ([one, two, last], f"{last}: does not belong to {one}: of other texts"),
        ([one, two, more], f"{more}: does not belong to {one}: of other texts"),
        ([one, two, whole], f"{whole}: is not a part"),
        ([one, half, three], f"{half}: is part 2/2, and {one} is part 1/3"),
        ([one, no_manifest, three], f"{no_manifest}: is not a part, or its manifest is missing"),
    ):
        with pytest.raises(DataError) as error:
            bw.merge(parts, tmp_path / "out.npy")
        assert says in str(error.value)
        assert "\n" not in str(error.value)
    two.write_bytes(two.read_bytes()[:-4])
    with pytest.raises(DataError, match=r"p2\.npy: has 2,428 bytes instead of 2,432"):
        bw.merge([one, two, three], tmp_path / "out.npy")
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("width", [-1, 1 << 40])
def test_manifest_with_an_impossible_width_is_refused(model, tmp_path, width):
    part = tmp_path / "1.parquet"
    write(model, "parquet", part, part="1/1")
    manifest = tmp_path / "1.parquet.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "width": width}))
    with pytest.raises(DataError, match=r"1\.parquet: is not a part, or its manifest is missing"):
        bw.merge([part], tmp_path / "out.parquet")


def test_damaged_part_of_parquet_is_refused(model, tmp_path):
    parts = [tmp_path / "1.parquet", tmp_path / "2.parquet"]
    for number, part in enumerate(parts, 1):
        write(model, "parquet", part, part=f"{number}/2")
    parts[1].write_bytes(parts[1].read_bytes()[:-1])
    with pytest.raises(DataError, match=r"2\.parquet: is damaged"):
        bw.merge(parts, tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()


def flip(file: Path, position: int) -> None:
    content = bytearray(file.read_bytes())
    content[position] ^= 4
    file.write_bytes(content)


@pytest.mark.long
def test_a_flipped_byte_of_a_part_is_found(model, kind, tmp_path):
    parts = [tmp_path / f"{at}{name(kind)}" for at in (1, 2)]
    for number, part in enumerate(parts, 1):
        write(model, kind, part, part=f"{number}/2")
    size = parts[1].stat().st_size
    for position in range(0, size, size // 40):
        flip(parts[1], position)
        with pytest.raises(DataError, match=rf"2{name(kind)}: is damaged: its checksum is wrong"):
            bw.merge(parts, tmp_path / f"merged{parts[0].suffix}")
        flip(parts[1], position)
    bw.merge(parts, tmp_path / f"merged{parts[0].suffix}")


def test_a_flipped_byte_of_what_is_unfinished_is_found(model, kind, tmp_path):
    def stop(num_done, _):
        if num_done >= 6:
            raise StopError

    out = tmp_path / name(kind)
    with pytest.raises(StopError):
        write(model, kind, out, progress=stop)
    part = tmp_path / f"{out.name}.part"
    for back in (1, 40, 90):  # from the end of the windows
        position = json.loads((tmp_path / f"{out.name}.json").read_bytes())["size"] - back
        flip(part, position)
        with pytest.raises(DataError, match=r"\.part: is damaged: its checksum is wrong"):
            write(model, kind, out)
        flip(part, position)
    assert write(model, kind, out).rows == len(TEXTS)


def test_parts_that_cannot_be(model, tmp_path):
    out = tmp_path / "v.npy"
    with pytest.raises(SettingsError, match="part='2/1' is not valid"):
        write(model, "npy", out, part="2/1")
    with pytest.raises(DataError, match="read twice"):
        write(model, "npy", out, iter(TEXTS), part="1/2")
    write(model, "npy", out, part="1/2")
    with pytest.raises(DataError, match="was started as 1/2, not 2/2"):
        write(model, "npy", out, part="2/2")
    with pytest.raises(DataError, match="was started as 1/2, not no part"):
        write(model, "npy", out)


@pytest.mark.long
def test_bytes_do_not_depend_on_workers(model, kind, tmp_path):
    single, progress = write(model, kind, tmp_path / name(kind), max_seq_length=7), []
    with_workers = tmp_path / f"helped{name(kind)}"
    result = write(
        *(model, kind, with_workers, iter(TEXTS)),
        workers=2,
        max_seq_length=7,
        progress=lambda *done: progress.append(done),
    )
    assert result == single
    assert progress == [(min(30, done), 0) for done in range(4, 36, 4)]
    assert with_workers.read_bytes() == (tmp_path / name(kind)).read_bytes()
    assert with_workers.with_name(f"{with_workers.name}.json").read_bytes() == (
        (tmp_path / f"{name(kind)}.json").read_bytes()
    )

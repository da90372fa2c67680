"""Outputs that a job makes window by window: the same bytes after any interruption, and merged."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import bertworks as bw
from bertworks.errors import BertworksError, DataError, OutputError, SettingsError
from bertworks.inference.window_files import FileJob
from bertworks.jobs import journal
from bertworks.jobs.journal import Journal, WindowRecord
from bertworks.jobs.parallel import Workers
from bertworks.jobs.parts import order_parts
from bertworks.utils.atomic_writes import writing
from bertworks.utils.line_files import LineFile
from tests.crashes import contents, crashing, needs_proc

from .outputs import NUM_WINDOWS, OUTPUTS, TEXTS, Output


class StopError(Exception):
    pass


@pytest.fixture(params=OUTPUTS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def output(name: str) -> Output:
    return OUTPUTS[name]


_WHOLE: dict[str, dict[str, bytes]] = {}


@pytest.fixture
def whole(name: str, output: Output, tmp_path: Path) -> dict[str, bytes]:
    """The files of an output that was made without interruption; made once for all tests."""
    if name not in _WHOLE:
        (tmp_path / "whole").mkdir()
        output.write(tmp_path / "whole" / output.name, TEXTS, part=output.part)
        _WHOLE[name] = contents(tmp_path / "whole")
        shutil.rmtree(tmp_path / "whole")
    return _WHOLE[name]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


@pytest.fixture
def new_windows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the windows that are made."""
    numbers: list[int] = []
    append = Journal.append

    def note(own: Any, record: Any) -> None:
        numbers.append(record.number)
        append(own, record)

    monkeypatch.setattr(Journal, "append", note)
    return numbers


def stop(
    monkeypatch: pytest.MonkeyPatch,
    output: Output,
    out: Path,
    count: int,
    *,
    is_recorded: bool = True,
    part: str | None = "",
) -> None:
    """Have a job interrupted when some windows are made; the last one may lack its record."""
    num_made, append = 0, Journal.append

    def append_or_stop(own: Any, record: Any) -> None:
        nonlocal num_made
        if num_made == count - (not is_recorded):
            raise StopError
        append(own, record)
        num_made += 1
        if num_made == count and is_recorded:
            raise StopError

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "append", append_or_stop)
        with pytest.raises(StopError):
            output.write(out, TEXTS, part=output.part if part == "" else part)


def flip(file: Path, position: int) -> None:
    content = bytearray(file.read_bytes())
    content[position] ^= 4
    file.unlink()  # it may be linked
    file.write_bytes(content)


def data_files(folder: Path) -> list[Path]:
    """The files with the finished windows of an unfinished output."""
    return sorted(path for path in folder.rglob("*") if path.suffix in (".part", ".arrow"))


def journal_of(folder: Path) -> Path:
    (path,) = (path for path in folder.rglob("*") if "journal" in path.name)
    return path


@pytest.mark.parametrize(("count", "is_recorded"), [(1, False), (3, True), (3, False), (8, True)])
def test_an_interrupted_output_ends_with_the_same_bytes(
    output: Output,
    whole: dict[str, bytes],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    new_windows: list[int],
    count: int,
    is_recorded: bool,
) -> None:
    stop(monkeypatch, output, folder / output.name, count, is_recorded=is_recorded)
    assert not (folder / output.name).is_file()
    num_kept = count - (not is_recorded)
    assert bool(list(folder.iterdir())) == bool(num_kept)
    new_windows.clear()
    output.write(folder / output.name, TEXTS, part=output.part)
    assert new_windows == list(range(num_kept, NUM_WINDOWS))
    assert contents(folder) == whole


def test_a_kill_before_the_journal_is_removed_leaves_a_finished_output(
    output: Output,
    whole: dict[str, bytes],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    new_windows: list[int],
) -> None:
    remove, is_first = Journal.remove, True

    def stop_first(own: Any) -> None:
        nonlocal is_first
        if is_first:
            is_first = False
            raise StopError
        remove(own)

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "remove", stop_first)
        with pytest.raises(StopError):
            output.write(folder / output.name, TEXTS, part=output.part)
    assert journal_of(folder)
    new_windows.clear()
    output.write(folder / output.name, TEXTS, part=output.part)
    assert not new_windows
    assert contents(folder) == whole


@pytest.mark.long
@needs_proc
@pytest.mark.parametrize("name", ["npy", "parquet", "predictions", "corpus"], indirect=True)
def test_an_output_is_the_same_after_any_crash_of_the_machine(
    output: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = TEXTS[:10]
    for name in ("whole", "root"):
        (tmp_path / name).mkdir()
    output.write(tmp_path / "whole" / output.name, texts, part=output.part)
    whole = contents(tmp_path / "whole")

    def resumes(left: Path) -> bool:
        output.write(left / output.name, texts, part=output.part)
        for lock in left.glob(".*.lock"):  # of the process that is no more
            lock.unlink()
        return contents(left) == whole

    with crashing(monkeypatch, tmp_path / "root", resumes, at_fsync=True) as disk:
        output.write(tmp_path / "root" / output.name, texts, part=output.part)
        assert disk.crashes > 10
        assert not disk.num_damaged
        assert disk.is_new()


def test_a_finished_output_is_not_made_again(
    output: Output, whole: dict[str, bytes], folder: Path, new_windows: list[int]
) -> None:
    output.write(folder / output.name, TEXTS, part=output.part)
    assert new_windows == list(range(NUM_WINDOWS))
    output.write(folder / output.name, TEXTS, part=output.part)
    assert len(new_windows) == NUM_WINDOWS
    assert contents(folder) == whole
    with pytest.raises(DataError, match="was started with other texts"):
        output.write(folder / output.name, [*TEXTS, "a"], part=output.part)
    output.write(folder / output.name, TEXTS[:3], part=output.part, overwrite=True)
    assert len(new_windows) == NUM_WINDOWS + 1


@pytest.mark.long
@pytest.mark.parametrize("is_finished", [False, True])
def test_an_output_of_another_job_is_refused(
    output: Output, folder: Path, monkeypatch: pytest.MonkeyPatch, is_finished: bool
) -> None:
    out = folder / output.name
    if is_finished:
        output.write(out, TEXTS, part=output.part)
    else:
        stop(monkeypatch, output, out, 3)
    files_before = contents(folder)
    name, value, difference = output.other_setting
    for texts, settings, says in (
        (TEXTS, {name: value}, difference),
        (TEXTS, {output.model: output.other_model()}, f"was started with another {output.model}"),
        (TEXTS, {"part": "2/3"}, r"was started with.*part.*, not .*'2/3'"),
        (["b", *TEXTS[1:]], {}, "was started with other texts"),
        (TEXTS[:3], {}, "was started with other texts"),
    ):
        with pytest.raises(DataError, match=says) as error:
            output.write(out, texts, **{"part": output.part, **settings})
        assert str(error.value).startswith(f"{out}: ")
        assert "--overwrite" in str(error.value)
        assert "\n" not in str(error.value)
    assert contents(folder) == files_before


@pytest.mark.long
def test_a_corrected_text_is_made_again(
    output: Output,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    new_windows: list[int],
) -> None:
    """In an unfinished output; the text must not be in its first window."""
    texts = [*TEXTS[:22], "h g", *TEXTS[23:]]
    out = folder / output.name
    if output.part is None:
        stop(monkeypatch, output, out, 7)
        new_windows.clear()
        output.write(out, texts)
        assert 0 < len(new_windows) < NUM_WINDOWS
    else:  # the texts of all parts must be the same
        stop(monkeypatch, output, out, 7)
        with pytest.raises(DataError, match="was started with other texts"):
            output.write(out, texts, part=output.part)
        output.write(out, texts, part=output.part, overwrite=True)
    (tmp_path / "new").mkdir()
    output.write(tmp_path / "new" / output.name, texts, part=output.part)
    assert contents(folder) == contents(tmp_path / "new")


@pytest.mark.parametrize("name", ["npy"], indirect=True)
def test_windows_after_a_corrected_one_are_made_again(
    output: Output,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    new_windows: list[int],
) -> None:
    """Workers read ahead: window 2, whose content window 1 had, is asked for before 1 is made."""

    def read_ahead(_: Workers, make: Callable[[Any], Any], windows: Iterable[Any]) -> Iterator[Any]:
        yield from [make(window) for window in windows]

    texts = [*("a b", "c", "d", "e"), *("f", "g", "h", "a") * 2, "b"]
    append = Journal.append

    def append_or_stop(own: Any, record: Any) -> None:
        append(own, record)
        if record.number == 2:
            raise StopError

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "append", append_or_stop)
        with pytest.raises(StopError):
            output.write(folder / output.name, texts)
    texts[4] = "b a"
    new_windows.clear()
    monkeypatch.setattr(Workers, "map", read_ahead)
    output.write(folder / output.name, texts)
    assert new_windows == [1, 2, 3]
    (tmp_path / "new").mkdir()
    output.write(tmp_path / "new" / output.name, texts)
    assert contents(folder) == contents(tmp_path / "new")


def test_texts_that_change_while_a_part_is_made_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The texts of a part are read twice: first to count the windows."""
    make, output, data = FileJob._make, OUTPUTS["npy"], tmp_path / "texts.txt"

    def change_and_make(own: FileJob[Any], *args: Any) -> Any:
        data.write_text("a\nb\nc\nd\n" * 2 + "e\n")
        return make(own, *args)

    monkeypatch.setattr(FileJob, "_make", change_and_make)
    for part in ("1/3", "3/3"):
        data.write_text("a\nb\nc\nd\n" * 3)
        with pytest.raises(DataError, match="was started with other texts"):
            output.write(tmp_path / f"{part[0]}.npy", data, part=part)
        assert not (tmp_path / f"{part[0]}.npy").exists()


@pytest.mark.long
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_damaged_window_of_an_unfinished_output_is_made_again(
    output: Output,
    whole: dict[str, bytes],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    new_windows: list[int],
    share: float,
) -> None:
    stop(monkeypatch, output, folder / output.name, 6)
    file = data_files(folder)[-1]
    flip(file, int(share * (file.stat().st_size - 1)))
    new_windows.clear()
    output.write(folder / output.name, TEXTS, part=output.part)
    assert set(new_windows) >= {6, 7}
    assert contents(folder) == whole


@pytest.mark.long
def test_missing_and_unfinished_windows_are_made_again(
    output: Output,
    whole: dict[str, bytes],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop(monkeypatch, output, folder / output.name, 3)
    with journal_of(folder).open("ab") as file:
        file.write(b'{"number": 3, "te')
    with data_files(folder)[-1].open("ab") as file:
        file.write(b"half a window")
    output.write(folder / output.name, TEXTS, part=output.part)
    assert contents(folder) == whole
    (other_folder := folder.with_name("other")).mkdir()
    stop(monkeypatch, output, other_folder / output.name, 3)
    for path in data_files(other_folder):
        path.unlink()
    output.write(other_folder / output.name, TEXTS, part=output.part)
    assert contents(other_folder) == whole


@pytest.mark.long
def test_a_damaged_or_former_journal_is_refused(
    output: Output, whole: dict[str, bytes], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = folder / output.name
    stop(monkeypatch, output, out, 3)
    file = journal_of(folder)
    content = file.read_bytes()
    damaged = content.replace(b'"number":1', b'"number":2'), content.replace(b'"crc32"', b'"crc"')
    for changed in damaged:
        file.write_bytes(changed)
        with pytest.raises(DataError, match=r"journal.*: damaged .the checksum of a line is wrong"):
            output.write(out, TEXTS, part=output.part)
    file.write_bytes(content)
    with monkeypatch.context() as patched:
        patched.setattr(journal, "FORMAT_VERSION", journal.FORMAT_VERSION + 1)
        with pytest.raises(DataError, match=r"journal.*: written in another format \(1, not 2\)"):
            output.write(out, TEXTS, part=output.part)
    output.write(out, TEXTS, part=output.part, overwrite=True)
    assert contents(folder) == whole


@pytest.mark.long
@pytest.mark.parametrize(
    ("count", "number", "says"),
    [
        (1, errno.ENOSPC, "No space left.*. Make room, and run the same command again.$"),
        (3, errno.ENOSPC, "Make room, and run the same command again. What is finished is kept."),
        (3, errno.EACCES, "denied.*. Run the same command again. What is finished is kept."),
    ],
)
def test_a_failure_to_write_keeps_what_is_finished(
    output: Output,
    whole: dict[str, bytes],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    new_windows: list[int],
    count: int,
    number: int,
    says: str,
) -> None:
    append, num_lines = LineFile.append, 0

    def append_or_fail(own: LineFile, line: bytes) -> None:
        nonlocal num_lines
        num_lines += 1
        if num_lines == 1 + count:  # the first has the settings
            with writing(own.path):
                raise OSError(number, os.strerror(number))
        append(own, line)

    with monkeypatch.context() as patched:
        patched.setattr(LineFile, "append", append_or_fail)
        with pytest.raises(OutputError, match=says):
            output.write(folder / output.name, TEXTS, part=output.part)
    assert bool(list(folder.iterdir())) == (count > 1)
    new_windows.clear()
    output.write(folder / output.name, TEXTS, part=output.part)
    assert new_windows == list(range(count - 1, NUM_WINDOWS))
    assert contents(folder) == whole


def make_parts(output: Output, folder: Path, count: int, **settings: Any) -> list[Path]:
    paths = [folder / f"{number} of {count}" / output.name for number in range(1, count + 1)]
    for number, path in enumerate(paths, 1):
        path.parent.mkdir()
        output.write(path, TEXTS, part=f"{number}/{count}", **settings)
    return paths


def rows_of(path: Path) -> int | None:
    """The number of rows of a file; None of a corpus."""
    manifest = path.with_name(f"{path.name}.json")
    return json.loads(manifest.read_text())["rows"] if manifest.exists() else None


@pytest.mark.long
@pytest.mark.parametrize("count", [3, 11, 40])  # of 8 windows and 30 rows: some of 40 are empty
def test_merged_parts_have_the_bytes_of_one_run(
    output: Output, tmp_path: Path, folder: Path, count: int, new_windows: list[int]
) -> None:
    (tmp_path / "whole").mkdir()
    output.write(tmp_path / "whole" / output.name, TEXTS)
    new_windows.clear()
    parts = make_parts(output, tmp_path, count)
    num_rows = [rows for path in parts if (rows := rows_of(path)) is not None]
    if num_rows:  # each part has its share, whatever the size of windows
        assert sum(num_rows) == len(TEXTS)
        assert max(num_rows) - min(num_rows) <= 1
        assert set(new_windows) == set(range(NUM_WINDOWS))
    else:
        assert sorted(new_windows) == list(range(NUM_WINDOWS))
    bw.merge(parts[::-1], folder / output.name)
    whole = contents(tmp_path / "whole")
    assert contents(folder) == whole
    bw.merge(parts, folder / output.name)  # is finished
    assert contents(folder) == whole
    (file,) = data_files(folder)[:1] or [folder / output.name]
    flip(file, file.stat().st_size // 2)
    with pytest.raises(OutputError, match="already exists"):
        bw.merge(parts, folder / output.name)
    bw.merge(parts, folder / output.name, overwrite=True)
    assert contents(folder) == whole


@pytest.mark.long
def test_an_interrupted_part_is_not_merged_and_resumes(
    output: Output,
    tmp_path: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    new_windows: list[int],
) -> None:
    (tmp_path / "2").mkdir()
    one, two = folder / output.name, tmp_path / "2" / output.name
    output.write(one, TEXTS, part="1/2")
    stop(monkeypatch, output, two, 2, part="2/2")
    with pytest.raises(DataError, match="not finished"):
        bw.merge([one, two], tmp_path / f"merged {output.name}")
    new_windows.clear()
    output.write(two, TEXTS, part="2/2")
    assert len(new_windows) == (2 if rows_of(two) is None else 3)  # a part of rows begins anywhere
    bw.merge([one, two], tmp_path / f"merged {output.name}")


@pytest.mark.long
def test_parts_of_several_jobs_are_refused(output: Output, tmp_path: Path) -> None:
    one, two, three = make_parts(output, tmp_path, 3)
    name, value, _ = output.other_setting

    def make(folder: str, part: str | None, texts: list[str] = TEXTS, **settings: Any) -> Path:
        (tmp_path / folder).mkdir()
        output.write(tmp_path / folder / output.name, texts, part=part, **settings)
        return tmp_path / folder / output.name

    other = make("other setting", "2/3", **{name: value})
    cases = [
        ([one, three], "missing 1 part of 3: '2/3'"),
        ([one, two, three, two], f"{two}: is part 2/3, as {two} is"),
        ([one, other, three], f"{other}: does not belong to {one}: made with {name}="),
        ([one, make("half", "2/2"), three], f"half/{output.name}: is part 2/2, and {one} is part"),
        ([one, two, make("whole", None)], f"whole/{output.name}: is not a part"),
        ([one, two, tmp_path / "none" / output.name], f"none/{output.name}: "),
    ]
    changes = [("first", ["b", *TEXTS[1:]]), ("last", [*TEXTS[:-1], "b"]), ("more", [*TEXTS, "a"])]
    for folder, texts in changes:
        path = make(folder, "3/3", texts)
        cases.append(([one, two, path], f"{path}: does not belong to {one}: made with other texts"))
    for parts, says in cases:
        with pytest.raises(BertworksError) as error:
            bw.merge(parts, tmp_path / f"merged {output.name}")
        assert says in str(error.value)
        assert "\n" not in str(error.value)
    assert not list(tmp_path.glob("merged*"))


@pytest.mark.parametrize("name", ["npy", "predictions"], indirect=True)
def test_faults_in_the_files_of_a_part_are_named(output: Output, tmp_path: Path) -> None:
    (out,) = make_parts(output, tmp_path, 1)
    manifest = out.with_name(f"{out.name}.json")
    content = manifest.read_bytes()

    def check(says: str, *, is_written_again: bool = True) -> None:
        merge = partial(bw.merge, [out], tmp_path / f"merged {output.name}")
        write = partial(output.write, out, TEXTS, part="1/1")
        for verb in [merge, write] if is_written_again else [merge]:
            with pytest.raises(BertworksError) as error:
                verb()
            assert str(error.value).startswith(says)

    manifest.write_bytes(content[:-9])
    check(f"{manifest}: is damaged, or ")
    manifest.unlink()
    check(f"{out}: is not a part, or its manifest is missing", is_written_again=False)
    manifest.mkdir()
    check(f"{manifest}: cannot be read (Is a directory)")
    manifest.rmdir()
    manifest.write_bytes(content)
    out.unlink()
    check(f"{out}: no such file", is_written_again=False)


@pytest.mark.long
def test_a_flipped_byte_of_a_part_is_named(output: Output, tmp_path: Path) -> None:
    parts = make_parts(output, tmp_path, 2)
    file = next(iter(data_files(parts[1])), parts[1])
    size = file.stat().st_size
    for position in range(0, size, size // 10):
        flip(file, position)
        with pytest.raises(BertworksError, match=rf"{file.name}: .*is damaged.*its checksum"):
            bw.merge(parts, tmp_path / f"merged {output.name}")
        flip(file, position)
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(BertworksError, match=rf"{file.name}: .*bytes instead of"):
        bw.merge(parts, tmp_path / f"merged {output.name}")


@pytest.mark.long
def test_a_job_without_finished_windows_is_forgotten(
    output: Output, whole: dict[str, bytes], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill may leave a journal without records; the next job may have other settings."""
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "remove", lambda _: None)
        stop(monkeypatch, output, folder / output.name, 1, is_recorded=False)
    assert journal_of(folder)
    name, value, _ = output.other_setting
    output.write(folder / output.name, TEXTS, part=output.part, **{name: value})
    output.write(folder / output.name, TEXTS, part=output.part, overwrite=True)
    assert contents(folder) == whole


def test_parts_that_cannot_be_are_refused(output: Output, tmp_path: Path) -> None:
    for part in ("0/2", "3/2", "1", "a/b", "1/0", "-1/2"):
        with pytest.raises(SettingsError, match=f"part='{part}' is not valid"):
            output.write(tmp_path / output.name, TEXTS, part=part)
    assert not list(tmp_path.iterdir())


@pytest.mark.long
@pytest.mark.parametrize("name", ["npy", "matrices", "predictions"], indirect=True)
def test_bytes_do_not_depend_on_workers(
    output: Output, whole: dict[str, bytes], folder: Path
) -> None:
    output.write(folder / output.name, TEXTS, part=output.part, workers=2)
    assert contents(folder) == whole


SCRIPT = """
import sys
from pathlib import Path
from bertworks.jobs.journal import Journal
from tests.jobs.outputs import OUTPUTS, TEXTS
output, append, num_made = OUTPUTS[sys.argv[1]], Journal.append, 0
def append_or_die(own, record):
    global num_made
    append(own, record)
    num_made += 1
    if num_made == 3:
        os.kill(os.getpid(), signal.SIGKILL)
import os, signal
Journal.append = append_or_die
output.write(Path(sys.argv[2], output.name), TEXTS, part=output.part)
"""


@pytest.mark.long
@pytest.mark.parametrize("name", ["npy", "corpus"], indirect=True)
def test_a_killed_process_is_resumed(
    output: Output,
    whole: dict[str, bytes],
    folder: Path,
    new_windows: list[int],
    name: str,
) -> None:
    command = [sys.executable, "-c", SCRIPT, name, str(folder)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    output.write(folder / output.name, TEXTS, part=output.part)
    assert new_windows == list(range(3, NUM_WINDOWS))
    assert contents(folder) == whole


@pytest.mark.parametrize("name", ["npy", "features"], indirect=True)
def test_texts_are_streamed(output: Output, folder: Path, new_windows: list[int]) -> None:
    """When text N is drawn, all windows before it are on the disk."""

    def texts() -> Iterator[str]:
        for at in range(20):
            assert at - 4 * len(new_windows) < 8
            yield "a b"

    output.write(folder / output.name, texts())
    assert len(new_windows) == 5


def test_many_missing_parts_are_counted(tmp_path: Path) -> None:
    begin = time.process_time()
    says = r"^missing 999,999 parts of 1,000,000: '1/1000000', '3/1000000', .*'13/1000000'\. Make"
    with pytest.raises(DataError, match=says):
        order_parts([(tmp_path, "2/1000000", {})])
    assert time.process_time() - begin < 1


def test_a_journal_is_removed_when_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows removes no open file."""
    unlink = Path.unlink
    with Journal(tmp_path / "journal", WindowRecord) as own:
        own.restart({})

        def check_closed(path: Path, **more: Any) -> None:
            assert own._file._file.closed
            unlink(path, **more)

        monkeypatch.setattr(Path, "unlink", check_closed)
        own.remove()
    assert not (tmp_path / "journal").exists()

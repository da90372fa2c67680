"""Outputs survive a crash whole, have one writer, and are never inputs."""

from __future__ import annotations

import ast
import errno
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

import bertworks
from bertworks.errors import BertworksWarning, DataError, OutputError
from bertworks.utils import atomic_writes, directories, line_files, locks
from bertworks.utils.atomic_writes import fsync, is_device, write_file
from bertworks.utils.directories import (
    LOCK_NAME,
    is_empty_directory,
    make_directory,
    new_directory,
    output_exists,
)
from bertworks.utils.json_files import read_json, write_json
from bertworks.utils.line_files import LineFile
from bertworks.utils.outputs import locked_output

from ..crashes import contents, crashing, needs_proc

pytestmark = pytest.mark.light

PACKAGE = Path(bertworks.__file__).parent


# --- What a crash of the machine leaves


OLD, NEW = b"old " * 1000, b"new " * 3000


def replace_file(root: Path) -> None:
    write_file(root / "a.bin", NEW)


def replace_model(root: Path) -> None:
    with new_directory(root / "m", replace=True, keep=lambda name: name == "mine") as new:
        (new / "a.bin").write_bytes(NEW)
        (new / "deep").mkdir()
        (new / "deep" / "b.bin").write_bytes(NEW)


def fill_directory(root: Path) -> None:
    with new_directory(root / "used", last="a.bin") as new:
        (new / "b.bin").write_bytes(NEW)
        (new / "a.bin").write_bytes(NEW)


def is_whole(root: Path) -> bool:
    """Whether each output is the old or the new one, in its place or where it is mended from."""
    files = contents(root)
    models = [
        {files.get(f"{name}/a.bin"), files.get(f"{name}/deep/b.bin")} for name in ("m", ".m.old")
    ]
    moved_files = [
        files.get(f"used/{at}{name}.bin") for name in "ab" for at in ("", ".bertworks.ready/")
    ]
    return (
        files.get("a.bin") in (OLD, NEW)
        and (models[0] in ({OLD}, {NEW}) or (not (root / "m").exists() and models[1] == {OLD}))
        and b"mine" in (files.get("m/mine"), files.get(".m.old/mine"))
        and files.get("used/other") == b"other"
        and [one for one in moved_files if one is not None] in ([], [NEW, NEW])
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a file, a directory that may be replaced, and one that somebody uses."""
    root = tmp_path / "root"
    for name in ("a.bin", "m/a.bin", "m/deep/b.bin"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(OLD)
    (root / "m" / "mine").write_bytes(b"mine")
    (root / "used").mkdir()
    (root / "used" / "other").write_bytes(b"other")
    return root


WRITERS = [replace_file, replace_model, fill_directory]


@needs_proc
@pytest.mark.parametrize("write", WRITERS)
def test_a_crash_leaves_the_old_or_the_new(
    monkeypatch: pytest.MonkeyPatch, root: Path, write: Callable[[Path], None]
) -> None:
    old_files = contents(root)
    with crashing(monkeypatch, root, is_whole) as disk:
        write(root)
        assert not disk.num_damaged
        assert disk.is_new()  # and a crash after the call changes nothing
    assert contents(root) != old_files
    assert old_files.keys() <= contents(root).keys()
    assert sorted(path.name for path in root.iterdir()) == ["a.bin", "m", "used"]


@needs_proc
@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("left_out", ["files", "directories"])
def test_a_missing_synchronisation_is_found(
    monkeypatch: pytest.MonkeyPatch, root: Path, write: Callable[[Path], None], left_out: str
) -> None:
    """The simulated disk finds what it is for."""

    def careless(path: Path) -> None:
        if path.is_dir() == (left_out == "files"):
            fsync(path)

    for module in (atomic_writes, directories):
        monkeypatch.setattr(module, "fsync", careless)
    with crashing(monkeypatch, root, is_whole) as disk:
        write(root)
        assert disk.num_damaged or not disk.is_new()
        # An old name that stays for a while is no damage to a single file.
        assert disk.num_damaged or (write, left_out) == (replace_file, "directories")


# --- Nobody else writes

WRITING_MODULES = [f"utils/{name}.py" for name in ("atomic_writes", "directories", "line_files")]
ALLOWED_WRITERS = {
    "inference/window_files.py": "writes heads of parts, and parts in order to a merged file",
    "jobs/resumable.py": "appends to a part, whose journal says where each window ends",
    "inference/vector_files.py": "writes the header of that part again",
    "inference/token_vectors.py": "writes to a path that `atomic_write` gave",
    "lab/tagging_probe.py": "maps a file that `atomic_write` gave",
    "inference/prediction_files.py": "writes to a path that `atomic_write` gave",
    "checkpoints/weights.py": "writes safetensors to a path that `atomic_write` gave",
    "checkpoints/bundle.py": "writes to a path that `atomic_write` gave",
    "data/merging.py": "copies into a directory that `new_directory` gave",
    "utils/remote.py": "copies to a cache, whose sizes are compared before it is used",
    "analysis/retrieval/index.py": "vectors in memory are first written to a temporary folder",
    "analysis/retrieval/store_files.py": "writes arrays into a directory that `new_directory` gave",
    "inference/merging.py": "copies parts to a temporary folder, and merges them there",
    "sklearn.py": "fits in a temporary folder, unless one is given",
    "cli/application.py": "`write_text` of click's formatter writes help, no file",
    "analysis/retrieval/cells.py": "writes Faiss's format to a path that `atomic_write` gave",
}
"""What opens files for writing outside of `WRITING_MODULES`, and why it may."""


def writes(source: str) -> list[str]:
    """The calls in a program that write, rename or lock files."""
    calls = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom | ast.Import):
            names = {alias.name for alias in node.names} | {getattr(node, "module", None)}
            calls += sorted(names & {"fcntl", "tempfile"})
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        owner = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        words = [str(arg.value) for arg in node.args if isinstance(arg, ast.Constant)]
        words += [str(kw.value.value) for kw in node.keywords if isinstance(kw.value, ast.Constant)]
        if (
            name in {"write_text", "write_bytes", "symlink_to", "link_to", "hardlink_to", "touch"}
            or name in {"save_file", "write_index", "ParquetWriter", "savez", "tofile", "fsync"}
            or (name == "save" and owner in {"np", "torch"})
            or (name == "open_memmap" and "w+" in words)
            or (name == "open" and any(set(word) & set("wax+") and len(word) < 4 for word in words))
            or (name in {"rename", "renames", "replace"} and owner == "os")
            or (name in {"move", "copy", "copy2", "copyfile", "copytree"} and owner == "shutil")
            # `Path.replace` has one argument, `str.replace` two; frames and families rename too.
            or (name == "replace" and owner and len(node.args) == 1 and not node.keywords)
            or (name == "rename" and owner != "self" and not node.keywords)
        ):
            calls.append(f"{owner}.{name}")
    return calls


@pytest.mark.parametrize(
    "source",
    [
        "os.replace(a, b)",
        "a.rename(b)",
        "a.replace(b)",
        "open(a, 'wb')",
        "a.open('w', encoding='utf-8')",
        "a.open(mode='a')",
        "a.write_text(b)",
        "np.save(a, b)",
        "import fcntl",
        "os.fsync(a)",
    ],
)
def test_calls_that_write_are_detected(source: str) -> None:
    assert writes(source)


@pytest.mark.parametrize("source", ["a.replace('x', 'y')", "replace(a, b=1)", "open(a, 'rb')"])
def test_other_calls_are_not_detected(source: str) -> None:
    assert not writes(source)


@pytest.mark.long
def test_all_writing_goes_through_few_modules() -> None:
    calls_by_file = {
        path.relative_to(PACKAGE).as_posix(): writes(path.read_text(encoding="utf-8"))
        for path in PACKAGE.rglob("*.py")
    }
    for name in WRITING_MODULES:
        assert calls_by_file.pop(name)
    assert set(calls_by_file.pop("utils/locks.py")) == {"fcntl", "path.open"}
    assert {name for name, calls in calls_by_file.items() if calls} == ALLOWED_WRITERS.keys()
    assert set(calls_by_file["analysis/retrieval/cells.py"]) == {"faiss.write_index"}
    assert set(calls_by_file["analysis/retrieval/index.py"]) == {"tempfile"}


# --- Files


def test_a_file_that_cannot_be_written_is_named_and_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    write_json(file, {"a": 1})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, limits[1]))
    try:
        with pytest.raises(OutputError, match=r"a\.json: cannot be written \(File too large\)\. M"):
            write_file(file, b"x" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert read_json(file, DataError) == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    with pytest.raises(OutputError, match=r"b\.json: cannot be written \(No such file or dir"):
        write_file(tmp_path / "no" / "b.json", "")


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff", b"[" * 200_000])
def test_json_that_is_none_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.json: (not valid JSON|the file must hold)"):
        read_json(tmp_path / "a.json", DataError)


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "far" / "file")
    write_file(tmp_path / "link", "x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "far" / "file").read_text() == "x"


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()))
    reader.start()
    with locked_output(tmp_path / "pipe"):
        write_file(tmp_path / "pipe", "x")
    reader.join()
    assert read == ["x"]
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_line_that_does_not_fit_leaves_nothing(tmp_path: Path) -> None:
    """A full disk takes a part of it; the next line would continue that."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with LineFile(tmp_path / "lines") as lines:
        lines.append(b"one\n")
        resource.setrlimit(resource.RLIMIT_FSIZE, (6, limits[1]))
        try:
            with pytest.raises(OutputError, match=r"lines: cannot be written \(File too large\)"):
                lines.append(b"two\n")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        lines.append(b"three\n")
        assert lines.read() == b"one\nthree\n"


@needs_proc
def test_synchronised_lines_survive_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint records the journal's length: so much of it must be on the disk before."""
    root = tmp_path / "root"
    root.mkdir()
    with (
        crashing(monkeypatch, root, lambda left: contents(left).get("lines") == b"one\n") as disk,
        LineFile(root / "lines") as lines,
    ):
        lines.append(b"one\n")
        assert not disk.is_new()
        assert lines.sync() == 4
        assert disk.is_new()
        lines.append(b"two\n")
        write_file(root / "checkpoint", b"4")  # the machine crashes before and after it is renamed
        assert not disk.num_damaged
        assert not disk.is_new()


@needs_proc
def test_line_file_that_cannot_be_created_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(line_files, "fsync", refuse)
    descriptors = os.listdir("/proc/self/fd")
    with pytest.raises(OutputError, match="Read-only") as error:
        LineFile(tmp_path / "lines")
    assert error.tb is not None  # which keeps the frames, and so an open file
    assert os.listdir("/proc/self/fd") == descriptors


def test_a_line_that_was_cut_short_is_removed(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"one\ntw")
    with LineFile(tmp_path / "lines") as lines:
        lines.append(b"three\n")
        assert lines.sync() == lines.size == 10
    assert (tmp_path / "lines").read_bytes() == b"one\nthree\n"


# --- Directories


def test_kill_between_two_renamings_is_repaired(root: Path) -> None:
    (root / "m").rename(root / ".m.old")
    replace_model(root)
    assert (root / "m" / "a.bin").read_bytes() == NEW
    assert (root / "m" / "mine").read_bytes() == b"mine"
    assert not (root / ".m.old").exists()


def test_an_interrupted_move_is_completed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = os.replace

    def kill(source: Path, target: Path) -> None:
        if Path(target).name == "a.bin":
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", kill)
        with pytest.raises(KeyboardInterrupt):
            fill_directory(root)
    assert not (root / "used" / "a.bin").exists()
    with locked_output(root / "used", kind="directory"):
        assert (root / "used" / "a.bin").read_bytes() == NEW
    assert sorted(path.name for path in (root / "used").iterdir()) == ["a.bin", "b.bin", "other"]


def test_a_failure_leaves_nothing(root: Path) -> None:
    names = sorted(path.name for path in root.rglob("*"))
    for name in ("m", "used", "fresh"):
        with pytest.raises(ZeroDivisionError), new_directory(root / name, replace=True):
            raise ZeroDivisionError
    assert sorted(path.name for path in root.rglob("*")) == names


def test_a_directory_that_another_program_makes_meanwhile_is_not_deleted(tmp_path: Path) -> None:
    out = tmp_path / "out"
    written = pytest.raises(OutputError, match=r"out: cannot be written \(Directory not empty\)")
    with written, new_directory(out):
        out.mkdir()
        (out / "a").write_text("another's")
    assert contents(tmp_path) == {"out/a": b"another's"}


def test_a_replaced_directory_is_kept_if_another_program_takes_its_name(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = directories.rename_durably

    def overtaken(source: Path, target: Path) -> None:
        rename(source, target)
        if target.name == ".m.old":
            (root / "m").mkdir()
            (root / "m" / "a").write_text("another's")

    monkeypatch.setattr(directories, "rename_durably", overtaken)
    with pytest.raises(OutputError, match=r"m: cannot be written \(Directory not empty\)"):
        replace_model(root)
    assert (root / "m" / "a").read_text() == "another's"
    assert (root / ".m.old" / "a.bin").read_bytes() == OLD


# --- Locks

HOLD = """
import sys, time
from bertworks.utils.outputs import locked_output
with locked_output(sys.argv[1], kind=sys.argv[2]):
    print("held", flush=True)
    time.sleep(60)
"""


@contextmanager
def holder(path: Path, kind: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that has claimed an output."""
    command = [sys.executable, "-c", HOLD, str(path), kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


KINDS: list[locks.OutputKind] = ["file", "directory", "whole directory"]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_second_writer_is_refused_with_the_first_one_s_process(
    tmp_path: Path, kind: locks.OutputKind
) -> None:
    out = tmp_path / "out"
    with holder(out, kind) as process:
        says = rf"out: is being written by process {process.pid} on \S+ since 20\d\d-.* \(-c /.*\)"
        with pytest.raises(OutputError, match=says), locked_output(out, kind=kind):
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
        begun = time.monotonic()
        with locked_output(out, kind=kind):  # free at once
            assert time.monotonic() - begun < 1
    assert not list(tmp_path.rglob("*/*"))
    assert not list(tmp_path.glob(".*"))


def test_directories_that_were_made_are_removed_if_nothing_is_in_them(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for fill in (False, True):
        with locked_output(tmp_path / "there" / "a" / "b", kind="directory"):
            assert is_empty_directory(tmp_path / "there" / "a" / "b")
            if fill:
                (tmp_path / "there" / "a" / "b" / "c").touch()
        assert (tmp_path / "there" / "a").exists() == fill
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b", "c", "there"]


def test_an_output_is_lent_to_one_callee_at_a_time(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with locked_output(out, lend=True):
        for _ in range(2):
            with (
                locked_output(out),
                pytest.raises(OutputError, match="being written"),
                locked_output(out),
            ):
                pass
        errors: list[Exception] = []

        def other() -> None:
            try:
                with locked_output(out):
                    pass
            except OutputError as error:
                errors.append(error)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert len(errors) == 1
    with locked_output(out), pytest.raises(OutputError, match="being written"), locked_output(out):
        pass
    assert not list(tmp_path.iterdir())


def test_unfinished_files_of_a_killed_process_are_no_output(tmp_path: Path) -> None:
    for name in (LOCK_NAME, ".vectors.npy.json.new", ".vectors.npy.lock"):
        (tmp_path / name).touch()
        assert not output_exists(tmp_path)
    (tmp_path / ".hidden").touch()
    assert output_exists(tmp_path)


def test_directory_that_vanishes_meanwhile_is_no_device(tmp_path: Path, monkeypatch) -> None:
    """It was written without a lock: two threads held one output."""
    out = tmp_path / "out"
    out.mkdir()
    look = os.stat

    def look_and_remove(path: Any, **more: Any) -> os.stat_result:
        result = look(path, **more)
        if path == out:
            out.rmdir()
        return result

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", look_and_remove)
        assert not is_device(out)
    assert not out.exists() and not is_device(out) and is_device("/dev/null")


@pytest.mark.long
def test_removed_lock_has_one_holder_at_a_time(tmp_path: Path) -> None:
    """Lock files are removed while others open them; two must never hold one output."""
    out, num_holders, most, got = tmp_path / "out", 0, 0, 0
    guard = threading.Lock()
    open_files: list[str] = []  # when two hold it: is a descriptor missing, which others closed?

    def work() -> None:
        nonlocal num_holders, most, got
        end = time.monotonic() + 1
        while time.monotonic() < end:
            with suppress(OutputError), locked_output(out, kind="directory"):
                with guard:
                    num_holders, got = num_holders + 1, got + 1
                    most = max(most, num_holders)
                    if num_holders > 1 and os.path.exists("/proc/self/fd"):
                        numbers = os.listdir("/proc/self/fd")
                        paths = [Path("/proc/self/fd", number) for number in numbers]
                        open_files.extend(str(path.resolve()) for path in paths)
                time.sleep(0.0005)
                with guard:
                    num_holders -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1, open_files
    assert got > 3
    assert not list(tmp_path.rglob("*/*"))  # a directory may stay, of one who was overtaken


def test_a_directory_that_another_removes_is_made_and_locked_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock next to it would not exclude a process that finds the directory."""
    out, calls = tmp_path / "out", 0

    def overtaken(path: Path) -> list[Path]:
        nonlocal calls
        new_directories = make_directory(path)
        if path == out:
            calls += 1
            if calls == 1:
                path.rmdir()
        return new_directories

    monkeypatch.setattr(locks, "make_directory", overtaken)
    with locked_output(out, kind="directory"):
        assert (out / LOCK_NAME).is_file()
        assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert calls == 2


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("second", ["directory", "whole directory"])
@pytest.mark.parametrize("first", ["directory", "whole directory"])
def test_a_directory_has_one_writer_of_any_kind(
    tmp_path: Path, first: locks.OutputKind, second: locks.OutputKind, exists: bool
) -> None:
    """Also where one fills it bit by bit, and the other is about to put a whole one there."""
    out = tmp_path / "out"
    if exists:
        out.mkdir()
    refused = pytest.raises(OutputError, match="being written")
    with locked_output(out, kind=first), refused, locked_output(out, kind=second):
        pass
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["out"] * exists


@pytest.mark.parametrize("second", ["directory", "whole directory"])
def test_a_directory_stays_locked_while_it_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: locks.OutputKind
) -> None:
    """The lock inside goes with the old directory, and between two renamings there is none."""
    out, num_attempts = tmp_path / "out", 0
    out.mkdir()
    (out / "a").write_text("old")
    rename = directories.rename_durably

    def rename_and_lock(source: Path, target: Path) -> None:
        nonlocal num_attempts
        rename(source, target)
        with pytest.raises(OutputError, match="being written"), locked_output(out, kind=second):
            pass
        num_attempts += 1

    with locked_output(out, kind="whole directory"), new_directory(out, replace=True) as new:
        (new / "a").write_text("new")
        monkeypatch.setattr(directories, "rename_durably", rename_and_lock)
    assert num_attempts == 2
    assert (out / "a").read_text() == "new"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "out"]


def test_a_directory_in_one_that_cannot_be_written_is_locked_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a mounted volume."""
    open_path = Path.open

    def refuse(path: Path, *args: Any, **more: Any) -> Any:
        if path.parent == tmp_path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return open_path(path, *args, **more)

    (tmp_path / "out").mkdir()
    monkeypatch.setattr(Path, "open", refuse)
    for kind in ("directory", "whole directory"):
        with locked_output(tmp_path / "out", kind=kind):
            assert (tmp_path / "out" / LOCK_NAME).is_file()
            with (
                pytest.raises(OutputError, match="being written"),
                locked_output(tmp_path / "out", kind=kind),
            ):
                pass
    with pytest.raises(OutputError, match="Permission denied"), locked_output(tmp_path / "file"):
        pass


def record(**values: Any) -> bytes:
    return json.dumps({**locks._own_identity(), **values}).encode()


@pytest.mark.long
@pytest.mark.parametrize("lives", [True, False])
@pytest.mark.parametrize("flock", [True, None])
def test_another_machine_is_looked_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lives: bool, flock: bool | None
) -> None:
    """Where `flock` says yes though another machine has the lock, or does not work at all."""
    monkeypatch.setattr(locks, "_WATCH", 0.4)
    monkeypatch.setattr(locks, "_try_lock", lambda handle: flock)
    lock = tmp_path / ".out.lock"
    lock.write_bytes(record(host="elsewhere", pid=7))
    stop = threading.Event()

    def beat() -> None:
        while lives and not stop.wait(0.05):
            os.utime(lock)

    beating = threading.Thread(target=beat)
    beating.start()
    says = "by process 7 on elsewhere"
    refused = pytest.raises(OutputError, match=says) if lives else nullcontext()
    with pytest.warns(BertworksWarning, match=says), refused, locked_output(tmp_path / "out"):
        assert locks._parse_holder(lock.read_bytes())["pid"] == os.getpid()
    stop.set()
    beating.join()


@pytest.mark.long
def test_another_machine_that_finishes_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "_WATCH", 2.0)
    lock = tmp_path / ".out.lock"
    lock.write_bytes(record(host="elsewhere", pid=7))
    ending = threading.Timer(0.3, lock.unlink)
    ending.start()
    with pytest.warns(BertworksWarning, match="elsewhere"), locked_output(tmp_path / "out"):
        assert locks._parse_holder(lock.read_bytes())["pid"] == os.getpid()
    ending.join()


@pytest.mark.long
def test_a_holder_gives_signs_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_BEAT", 0.02)
    with locked_output(tmp_path / "out"):
        lock = tmp_path / ".out.lock"
        before = lock.stat().st_mtime_ns
        time.sleep(0.2)
        assert lock.stat().st_mtime_ns > before


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pid": 1}'])
def test_a_lock_without_a_holder_is_free(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".lock").write_bytes(content)
    with locked_output(tmp_path, kind="directory"):
        pass
    assert not list(tmp_path.iterdir())


# --- Outputs and inputs


def test_an_output_is_no_input(tmp_path: Path) -> None:
    folder, file = tmp_path / "in", tmp_path / "in" / "a.tsv"
    folder.mkdir()
    file.write_text("x")
    (tmp_path / "soft").symlink_to(file)
    (tmp_path / "hard").hardlink_to(file)
    (tmp_path / "folder").symlink_to(folder)
    cases: list[tuple[Path, Path, locks.OutputKind, str]] = [
        (file, file, "file", "is an input"),
        (tmp_path / "soft", file, "file", "is an input"),
        (file, tmp_path / "soft", "file", "is an input"),
        (tmp_path / "hard", file, "file", "is an input"),
        (folder / ".." / "in" / "a.tsv", file, "file", "is an input"),
        (folder, folder, "directory", "is an input"),
        (tmp_path / "folder", folder, "whole directory", "is an input"),
        (folder, file, "directory", "contains the input"),
        (tmp_path, file, "whole directory", "contains the input"),
        (folder / "new", folder, "whole directory", "is inside the input"),
        (tmp_path / "folder" / "deep" / "new", folder, "directory", "is inside the input"),
    ]
    old_files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for out, source, kind, says in cases:
        with (
            pytest.raises(OutputError, match=says),
            locked_output(out, ["-", None, source], kind=kind),
        ):
            pass
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == old_files
    for out in (tmp_path / "in2", tmp_path / "a.tsv"):
        with locked_output(out, [folder, file, "bert-base-uncased", [{"text": "a row"}]]):
            pass


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="is a directory, not a file"), locked_output(tmp_path):
        pass
    with (
        pytest.raises(OutputError, match="is a file, not a directory"),
        locked_output(tmp_path / "file", kind="directory"),
    ):
        pass


@pytest.mark.parametrize("kind", ["directory", "whole directory"])
def test_the_lock_of_one_who_was_killed_after_the_renaming_is_removed(
    tmp_path: Path, kind: locks.OutputKind
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / ".out.lock").write_bytes(record(pid=7))
    with locked_output(tmp_path / "out", kind=kind):
        pass
    assert [path.name for path in tmp_path.rglob("*")] == ["out"]


def test_a_whole_directory_stays_locked_when_it_is_there(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with holder(out, "whole directory"):
        out.mkdir()
        with (
            pytest.raises(OutputError, match="being written"),
            locked_output(out, kind="directory"),
        ):
            pass
    assert not list(out.iterdir())


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (TimeoutError(), "TimeoutError"),
        (OSError(""), "OSError"),
        (OSError("\nlost\nat"), "lost"),
        (PermissionError(errno.EACCES, "denied", "file"), "denied"),
    ],
)
def test_a_failure_to_write_has_a_reason_even_without_a_message(
    error: OSError, reason: str
) -> None:
    says = rf"^file: cannot be written \({reason}\)$"
    with pytest.raises(OutputError, match=says), atomic_writes.writing("file"):
        raise error

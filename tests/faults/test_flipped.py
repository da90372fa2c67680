"""A flipped bit in an unfinished output is found and named, repaired, or without effect."""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from ..cli.conftest import World
from .commands import COMMANDS, left
from .conftest import tries
from .processes import Command, Fault, run
from .test_disk import inputs_of
from .test_kills import is_refused, reference_run

pytestmark = pytest.mark.slow

_NOT_READ_AGAIN = {"settings.yaml", "data.json", "journal.jsonl"}
"""Of a grid's finished run: what is read of it are its outcome and its evaluation."""

_LOG_FILES = {"sessions.jsonl", ".lock"}
"""Files that nothing depends on."""


def flip(file: Path, draw: random.Random) -> bytes:
    """Flip one bit of a file; what it held before."""
    original = file.read_bytes()
    content = bytearray(original)
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    file.unlink()  # it may be a part's too, by another name
    file.write_bytes(content)
    return original


def check(message: str, file: Path, root: Path) -> None:
    """See that an error names a file, or a directory that it is in (of a run: its checkpoint)."""
    names = [file.name, *(path.name for path in file.parents if path.is_relative_to(root))]
    assert any(name in message for name in names if name), (file, message)


@pytest.mark.parametrize("name", COMMANDS)
def test_flipped_bit_of_an_unfinished_output_is_named_or_has_no_effect(
    world: World, tmp_path: Path, draw: random.Random, tally: Callable[..., None], name: str
) -> None:
    expected, steps, _ = reference_run(world, name, world.vocab.with_name(f"whole {name}"))
    output, words = COMMANDS[name]
    for trial in range(tries(5, 100)):
        folder = tmp_path / str(trial)
        (folder / "out").mkdir(parents=True)
        command = words(world, folder / "out" / output)
        at = draw.randint(steps // 3, steps)
        Command(command, folder, Fault(at, signal.SIGKILL, folder / "out")).wait()
        files = [
            path
            for path in sorted((folder / "out").rglob("*"))
            if path.is_file()
            and path.stat().st_size
            and not path.name.endswith(tuple(_LOG_FILES))
            and path.parent.name != "model"  # a grid's finished run; it has no checksums
        ]
        if not files or (folder / "out" / output).is_file():
            continue  # nothing is there yet, or nothing is read again
        file = draw.choice(files)
        is_finished = name == "grid" and (file.parent / "outcome.json").exists()
        content = flip(file, draw)
        outcome = run(command, folder)
        if outcome.status == 0:
            is_old = "checkpoints" in file.parts and file.exists()  # of an earlier step, not read
            if is_old or (is_finished and file.name in _NOT_READ_AGAIN):
                file.write_bytes(content)
            assert left(folder / "out") == expected, file
        elif not is_refused(outcome):
            assert outcome.is_one_line(), (file, outcome.stderr)
            check(outcome.stderr, file, folder / "out")
        tally(no_effect=int(outcome.status == 0), named=int(outcome.status != 0))
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    "name", ["merge", "merge of vectors", "merge to Parquet", "merge of predictions", "pretrain"]
)
def test_flipped_bit_of_an_input_is_named_or_has_no_effect(
    world: World, tmp_path: Path, draw: random.Random, tally: Callable[..., None], name: str
) -> None:
    """Of what earlier commands wrote, whatever has a checksum."""
    expected, _, _ = reference_run(world, name, world.vocab.with_name(f"whole {name}"))
    output, words = COMMANDS[name]
    inputs = [path for path in inputs_of(world, name) if path.stat().st_size]
    for trial in range(tries(8, 200)):
        folder = tmp_path / str(trial)
        (folder / "out").mkdir(parents=True)
        file = draw.choice(inputs)
        content = flip(file, draw)
        try:
            outcome = run(words(world, folder / "out" / output), folder)
        finally:
            file.write_bytes(content)
        if outcome.status == 0:
            assert left(folder / "out") == expected, file
        else:
            assert outcome.is_one_line(), (file, outcome.stderr)
            check(outcome.stderr, file, file.parents[1])
        tally(no_effect=int(outcome.status == 0), named=int(outcome.status != 0))
        shutil.rmtree(folder)

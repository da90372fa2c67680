"""A damaged file of a run is an error of one line that names it, wherever it is read."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from bertworks.errors import BertworksError, CheckpointError, DataError, TrainingError
from bertworks.model import Model
from bertworks.reports.report import write_report
from bertworks.runs.run_directory import RunDirectory
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.checkpoint import ResumeWarning, list_checkpoints
from bertworks.tuning.results import GridResult
from bertworks.utils.json_files import verify_checksum, with_checksum

from ..training.letters import CONFIG, DEV, PIECES, TRAIN, run

FILES = (
    *("settings.yaml", "journal.jsonl", "sessions.jsonl", "data.json", "evaluation.json"),
    *("outcome.json", "samples.json"),
)
SHORT: dict[str, Any] = {"train": TRAIN[:32], "dev": DEV[:8], "epochs": 1}
SAMPLE = {"text": "a [MASK]", "answers": ["b"], "guesses": [[{"token": "b", "probability": 0.5}]]}
JUNK = (
    *(None, True, -1, 1.5, 10**30, "x", "", [], {}, [[[1]]], {"a": {"b": {"c": 1}}}),
    *(float("nan"), float("inf"), "\ud800"),
)


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.fresh(CONFIG, Tokenizer.from_vocabulary(PIECES))


@pytest.fixture(scope="module")
def whole(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; of its model only that there is one."""
    path = run(model, tmp_path_factory.mktemp("whole") / "run", **SHORT).run.path
    (path / "samples.json").write_text(json.dumps([SAMPLE]))
    return path


@pytest.fixture
def path(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something is in a tree."""
    yield path
    pairs: Iterable[tuple[Any, Any]] = ()
    if isinstance(tree, dict):
        pairs = tree.items()
    elif isinstance(tree, list):
        pairs = enumerate(tree)
    for key, value in pairs:
        yield from places(value, (*path, key))


def change_part(tree: Any, draw: random.Random) -> Any:
    """A tree of which one part is gone, or something else."""
    tree = deepcopy(tree)
    *parents, last = draw.choice([at for at in places(tree) if at])
    owner = tree
    for key in parents:
        owner = owner[key]
    if isinstance(owner, dict) and draw.random() < 0.3:
        del owner[last]
    else:
        owner[last] = draw.choice(JUNK)
    return tree


def damage_content(name: str, content: bytes, draw: random.Random) -> bytes:
    """Other content for a file: cut, overwritten, or of other types."""
    offset = draw.randrange(len(content))
    kinds: list[Callable[[], bytes]] = [
        lambda: content[:offset],
        lambda: content[:offset] + bytes([draw.randrange(256)]) + content[offset + 1 :],
        lambda: draw.randbytes(50),
        lambda: b"\xff\xfe" + content,
        lambda: b"[" * (1000 if name.endswith(".yaml") else 100_000),
        lambda: b"[]",
        lambda: b"3\n",
    ]
    if draw.random() < 0.3:
        return draw.choice(kinds)()
    if name.endswith(".yaml"):
        tree = change_part(yaml.safe_load(content), draw)
        return yaml.safe_dump(tree).encode("utf-8", "surrogatepass")
    if name.endswith(".jsonl"):
        lines = content.splitlines()
        offset = draw.randrange(len(lines))
        lines[offset] = json.dumps(change_part(json.loads(lines[offset]), draw)).encode()
        return b"\n".join(lines) + b"\n"
    return json.dumps(change_part(json.loads(content), draw)).encode()


def error_of(read: Callable[[], object]) -> str | None:
    """The message of the error; None if there is none."""
    try:
        read()
    except BertworksError as error:
        return str(error)
    return None


@pytest.mark.long
@pytest.mark.parametrize("name", FILES)
def test_a_report_says_which_file_is_damaged(path: Path, name: str) -> None:
    content, errors = (path / name).read_bytes(), []
    for seed in range(30):
        (path / name).write_bytes(damage_content(name, content, random.Random(f"{name} {seed}")))
        errors.append(error_of(lambda: (write_report(path), RunDirectory(path).outcome())))
    said = [error for error in errors if error is not None]
    assert [error for error in said if name not in error or "\n" in error] == []
    assert len(said) > 5, "some damage goes unnoticed, such as another number"


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("settings.yaml", b"", "should be a valid dictionary"),
        ("settings.yaml", b"\xff\x00", "invalid start byte"),
        ("settings.yaml", b"[" * 50_000, "nested too deeply"),
        ("settings.yaml", b"&a {x: *a}\n", "cyclic reference"),
        ("settings.yaml", b"task: 2026-01-01\n", "task"),
        ("journal.jsonl", b"\xff\x00", "invalid start byte"),
        ("journal.jsonl", b"[]\n", "should be a valid dictionary"),
        ("journal.jsonl", b'{"kind": "train"}\n', "step: Field required"),
        ("data.json", b"", "Expecting value"),
        ("data.json", b"[" * 100_000, "nested too deeply"),
        ("data.json", b'{"train": {}}', "rows: Field required"),
    ],
)
def test_resuming_says_which_file_is_damaged(
    model: Model, path: Path, name: str, content: bytes, message: str
) -> None:
    whole = (path / name).read_bytes()
    rest = whole[len(content) :] if name == "journal.jsonl" else b""  # as long as it was
    (path / name).write_bytes(content + rest)
    with pytest.raises(DataError, match=rf"{name}.*the file is damaged \(.*({message})"):
        run(model, path, **SHORT)
    (path / name).write_bytes(whole)
    assert run(model, path, **SHORT).best_step == 2, "nothing else was touched, and no lock is left"


@pytest.mark.long
def test_another_number_in_the_journal_is_found(model: Model, path: Path) -> None:
    journal = path / "journal.jsonl"
    content = journal.read_bytes()
    at = content.index(b'"loss"') + len(b'"loss": 0.')
    digit = b"1" if content[at : at + 1] != b"1" else b"2"
    journal.write_bytes(content[:at] + digit + content[at + 1 :])
    with pytest.raises(
        TrainingError, match=r"journal\.jsonl: the journal is damaged: its checksum"
    ):
        run(model, path, **SHORT)
    journal.write_bytes(content)
    assert run(model, path, **SHORT).best_step == 2


@pytest.mark.long
@pytest.mark.parametrize("content", [b"", b"\xff\x00", b"[" * 100_000, b"[]", b'"x"', b"null"])
@pytest.mark.parametrize("name", ["manifest.json", "state.json"])
def test_a_damaged_checkpoint_is_named(model: Model, path: Path, name: str, content: bytes) -> None:
    for checkpoint in list_checkpoints(path / "checkpoints"):
        (checkpoint / name).write_bytes(content)
    with (
        pytest.warns(ResumeWarning, match=r"step-00000002.* damaged"),
        pytest.raises(CheckpointError, match="every checkpoint is damaged"),
    ):
        run(model, path, **SHORT)


def test_the_best_weights_must_be_there(model: Model, path: Path) -> None:
    RunDirectory(path).best_weights(2).unlink()
    with pytest.raises(CheckpointError, match=r"step-00000002\.safetensors: cannot be read"):
        run(model, path, **SHORT)


def test_a_changed_byte_of_the_best_weights_is_named(model: Model, path: Path) -> None:
    file = RunDirectory(path).best_weights(2)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"step-00000002\.safetensors: is damaged"):
        run(model, path, **SHORT)


def test_an_outcome_of_another_evaluation_is_refused(path: Path) -> None:
    outcome = verify_checksum(json.loads((path / "outcome.json").read_bytes()))
    (path / "outcome.json").write_text(json.dumps(with_checksum({**outcome, "best_metric": "f2"})))
    with pytest.raises(DataError, match=r"evaluation\.json: has no 'f2', by which .*outcome\.json"):
        RunDirectory(path).outcome()


@pytest.mark.parametrize(
    ("name", "was", "now"),
    [("outcome.json", '"best_step": 2', '"best_step": 3'), ("evaluation.json", "0.", "1.")],
)
def test_a_changed_digit_of_an_outcome_or_evaluation_is_detected(
    path: Path, name: str, was: str, now: str
) -> None:
    content = (path / name).read_text()
    assert was in content
    (path / name).write_text(content.replace(was, now, 1))
    with pytest.raises(DataError, match=rf"{name}: .*checksum is wrong"):
        RunDirectory(path).outcome()


@pytest.mark.long
def test_leftovers_of_a_killed_process_are_deleted_by_the_next(model: Model, path: Path) -> None:
    checkpoints, best = path / "checkpoints", path / "best"
    existing_files = {*checkpoints.iterdir(), *best.iterdir()}
    kept = max(checkpoints.iterdir())
    shutil.copytree(kept, checkpoints / "step-00000000")
    shutil.copytree(kept, checkpoints / ".step-00000009.new")
    (best / "step-00000000.safetensors").write_bytes(b"beaten")
    run(model, path, **SHORT, keep_checkpoints=1)
    assert {*checkpoints.iterdir(), *best.iterdir()} == existing_files


_RUN = b'{"run": "a", "seed": 0, "metrics": {"mcc": 0.5}, "error": null, "notes": []}'
_WITHOUT_METRICS = (
    b'{"metric": "f1", "lower_is_better": false, "points": [{"settings": {}, "runs": [%s]}]}' % _RUN
)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"[" * 100_000, b'{"metric": "f1"}', _WITHOUT_METRICS]
)
def test_a_damaged_table_of_a_grid_is_named(tmp_path: Path, content: bytes) -> None:
    RunDirectory.open(tmp_path, {}).close()
    (tmp_path / "grid.json").write_bytes(content)
    with pytest.raises(DataError, match=r"grid\.json: the file is damaged"):
        GridResult.read(tmp_path)

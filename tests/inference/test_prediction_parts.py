"""Parts of predictions: merged they are the bytes of one run; mismatches are refused."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoints.test_store import tiny
from tests.tasks import test_edges

import bertworks as bw
from bertworks.data.tables import read_rows
from bertworks.errors import DataError, OutputError, SettingsError
from bertworks.inference import engine
from bertworks.tasks.classification import ClassificationTask
from bertworks.utils.json_files import verify_checksum, with_checksum

models = test_edges.models
WINDOW: Any = {"window_rows": 4, "precision": "fp32"}


def words(n: int) -> list[str]:
    return ["abcdefgh"[(at * at + n) % 8] for at in range(1 + n % 11)]


ROWS: dict[str, list[dict[str, Any]]] = {
    "classification": [{"text": " ".join(words(n)), "id": n, "note": "x"} for n in range(30)],
    "tagging": [{"words": words(n), "document": f"d{n // 7}"} for n in range(30)],
    "choice": [{"prompt": "a", "choices": [" ".join(words(n)), "c, d"]} for n in range(30)],
    "answering": [{"question": "a", "context": " ".join(words(n))} for n in range(30)],
}
ROWS["classification"][9].pop("note")  # a window later is a column empty


@pytest.fixture
def model() -> bw.Model:
    return tiny("classification")


def table(folder: Path, task: str = "classification") -> Path:
    file = folder / f"{task}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS[task]))
    return file


def make(
    model: bw.Model, data: Any, folder: Path, name: str, count: int, **more: Any
) -> list[Path]:
    """Parts, each in a folder of its own."""
    folders = [folder / f"{name} {number}" for number in range(1, count + 1)]
    for number, one in enumerate(folders, 1):
        one.mkdir()
        model.predict_to(one / name, data, part=f"{number}/{count}", **{**WINDOW, **more})
    return [one / name for one in folders]


@pytest.mark.long
@pytest.mark.parametrize(
    ("task", "name"),
    [
        *((task, "answers.tsv") for task in ROWS),
        *(("classification", f"answers.{kind}") for kind in ("csv", "jsonl")),
    ],
)
def test_parts_together_are_one_runs_bytes(models, task, name, tmp_path):
    own = models[task]
    if task == "tagging":
        values = {**own.task.to_dict(), "document_context": True}
        context = type(own.task).from_dict(values, own.tokenizer)
        own = bw.Model(own.tokenizer, context, own.network)
    data, whole = table(tmp_path, task), tmp_path / name
    assert own.predict_to(whole, data, **WINDOW) == 30
    parts = make(own, data, tmp_path, name, 3)
    output = tmp_path / f"merged {name}"
    assert bw.merge(parts[::-1], output) == 30
    for suffix in ("", ".json"):
        assert Path(f"{output}{suffix}").read_bytes() == Path(f"{whole}{suffix}").read_bytes()


@pytest.mark.parametrize("name", ["answers.tsv", "answers.csv", "answers.jsonl"])
def test_parts_of_a_table_without_rows_are_merged(model, name, tmp_path):
    (data := tmp_path / "rows.tsv").write_text("text\n")
    assert model.predict_to(whole := tmp_path / name, data, **WINDOW) == 0
    assert (
        bw.merge(make(model, data, tmp_path, name, 2), merged := tmp_path / f"merged {name}") == 0
    )
    assert merged.read_bytes() == whole.read_bytes()


def test_a_column_that_the_first_row_lacks_is_named_in_its_part(model, tmp_path):
    rows = [{"text": "a"}] * 9 + [{"text": "b", "more": 1}]
    with pytest.raises(DataError, match="columns that the first row does not have: 'more'"):
        model.predict_to(tmp_path / "2.tsv", rows, part="2/2", **WINDOW)
    assert not (tmp_path / "2.tsv").exists()


@pytest.mark.long
def test_parts_of_other_models_or_files_are_refused(model, tmp_path):
    data = table(tmp_path)
    one, _, three = make(model, data, tmp_path, "p.tsv", 3)
    head = tiny("classification")
    head.network.head.linear.weight.data[0] += 1
    labels = tiny("classification")
    values = {**labels.task.to_dict(), "labels": ["no", "maybe"]}
    labels = bw.Model(
        labels.tokenizer, ClassificationTask.from_dict(values, labels.tokenizer), labels.network
    )
    of_head = make(head, data, tmp_path, "head.tsv", 3)[1]
    of_labels = make(labels, data, tmp_path, "labels.tsv", 3)[1]
    as_json = make(model, data, tmp_path, "json.tsv", 3, json=True)[1]
    vectors = tmp_path / "v.npy"
    model.embed_to(vectors, data, part="2/3", **WINDOW)
    for part, says in (
        (of_head, "made with another model"),
        (of_labels, "made with labels="),
        (as_json, "made with format='jsonl', not 'tsv'"),
        (vectors, "the name does not end in .tsv"),
    ):
        with pytest.raises(DataError) as error:
            bw.merge([one, part, three], tmp_path / "out.tsv")
        assert str(error.value).startswith(f"{part}: ")
        assert says in str(error.value)


@pytest.mark.long
def test_a_part_is_made_again_by_its_command(model, tmp_path):
    data = table(tmp_path)
    one, two = make(model, data, tmp_path, "p.tsv", 2)
    content, manifest = two.read_bytes(), two.with_name("p.tsv.json")
    manifest.unlink()
    with pytest.raises(DataError, match="is not a part, or its manifest is missing"):
        bw.merge([one, two], tmp_path / "out.tsv")
    with pytest.raises(OutputError, match="already exists"):
        model.predict_to(two, data, part="2/2", **WINDOW)
    model.predict_to(two, data, part="2/2", overwrite=True, **WINDOW)
    assert two.read_bytes() == content
    bw.merge([one, two], tmp_path / "out.tsv")


@pytest.mark.long
def test_a_part_in_another_format_is_refused(model, tmp_path):
    data = table(tmp_path)
    one, two = make(model, data, tmp_path, "p.tsv", 2)
    manifest = two.with_name("p.tsv.json")
    tree = verify_checksum(json.loads(manifest.read_text()))
    manifest.write_text(json.dumps(with_checksum({**tree, "format_version": 1})))
    with pytest.raises(DataError) as error:
        bw.merge([one, two], tmp_path / "out.tsv")
    assert str(error.value) == (
        f"{manifest}: written in another format (1, not 3). "
        "Make its file again, with --overwrite (overwrite=True) under the same name."
    )
    model.predict_to(two, data, part="2/2", overwrite=True, **WINDOW)
    bw.merge([one, two], tmp_path / "out.tsv")


def test_parts_that_cannot_be(model, tmp_path):
    data = table(tmp_path)
    for out in ("-", "/dev/null"):
        with pytest.raises(DataError, match="a part is a file with a manifest next to it"):
            model.predict_to(out, data, part="1/2", json=True)
    with pytest.raises(DataError, match="can be read only once"):
        model.predict_to(tmp_path / "a.tsv", iter(ROWS["classification"]), part="1/2")
    assert [path.name for path in tmp_path.iterdir()] == [data.name]


def test_the_table_is_not_replaced_by_its_predictions(model, tmp_path):
    content = table(tmp_path).read_bytes()
    for part in (None, "1/2"):
        with pytest.raises(OutputError, match="is an input"):
            model.predict_to(table(tmp_path), table(tmp_path), part=part, **WINDOW)
    assert table(tmp_path).read_bytes() == content


class OwnTask(ClassificationTask):
    name = "own"


def test_workers_do_not_know_a_users_task(model, tmp_path):
    own = OwnTask.from_dict(model.task.to_dict(), model.tokenizer)
    mine = bw.Model(model.tokenizer, own, model.network)
    data = table(tmp_path)
    for use in (
        lambda: mine.predict_to(tmp_path / "a.tsv", data, workers=2),
        lambda: mine.evaluate_each([data], on="ray"),
    ):
        with pytest.raises(SettingsError, match="workers cannot load the file of the task OwnTask"):
            use()
    assert mine.predict_to(tmp_path / "a.tsv", data) == 30


def labelled(folder: Path) -> list[Path]:
    files = [folder / f"{number}.jsonl" for number in range(3)]
    for number, file in enumerate(files):
        rows = [
            {"text": row["text"], "label": ["no", "yes"][row["id"] % 2]}
            for row in ROWS["classification"]
        ]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows[number * 8 :]))
    return files


@pytest.mark.long
def test_each_of_several_tables_is_measured(model, tmp_path):
    files = labelled(tmp_path)
    found = model.evaluate_each(files, precision="fp32")
    assert [one.rows for one in found] == [30, 22, 14]
    assert found == [model.evaluate(file, precision="fp32") for file in files]


@pytest.mark.long
@pytest.mark.parametrize("task", test_edges.TASKS)
def test_a_worker_can_be_sent_every_task(models, task):
    rows = ROWS.get(task) or [{"text": "a b", "a": "a", "b": "b"}] * 3
    sent = pickle.loads(pickle.dumps((models[task].network, models[task].task)))
    found = [answer for _, answer in engine.predict(*sent, read_rows(rows))]
    assert found == models[task].predict(rows)


@pytest.mark.long
def test_answers_and_measures_do_not_depend_on_workers(model, tmp_path):
    data, files = table(tmp_path), labelled(tmp_path)
    for name, workers in (("1.tsv", 1), ("2.tsv", 2)):
        model.predict_to(tmp_path / name, data, part="2/3", workers=workers, **WINDOW)
    assert (tmp_path / "1.tsv").read_bytes() == (tmp_path / "2.tsv").read_bytes()
    assert model.evaluate_each(files, workers=2) == model.evaluate_each(files)

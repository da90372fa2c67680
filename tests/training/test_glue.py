"""GLUE from files of the official form: right columns, right metrics, answers that fit."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from bertworks.data.tables import read_rows
from bertworks.errors import BertworksError, TrainingError
from bertworks.lab.glue import GlueResult, glue
from bertworks.lab.glue.tasks import TASKS, folder_of, select_tasks
from bertworks.loading import load
from bertworks.model import Model
from bertworks.text.tokenizer import Tokenizer
from tests.training.letters import CONFIG, PIECES, Lines

# The official files' columns; CoLA's have no names.
TREES = "sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse"
MNLI = f"index promptID pairID genre {TREES}".split()
MNLI_DEV = ["label1", "label2", "label3", "label4", "label5", "gold_label"]
STSB = ["index", "genre", "filename", "year", "old_index", "source1", "source2"]
PAIR = ["sentence1", "sentence2"]
IDS = ["#1 ID", "#2 ID"]
STRINGS = ["#1 String", "#2 String"]
WORDS = ("entailment", "not_entailment")
THREE = ("entailment", "neutral", "contradiction")
QUESTIONS = ["question1", "question2"]

Form = tuple[list[str], list[str], list[str], tuple[str, ...]]
FORMS: dict[str, Form] = {  # dev's columns, the other columns of test, the texts, the labels
    "CoLA": (["", "label", "", "sentence"], ["index"], ["sentence"], ("0", "1")),
    "SST-2": (["sentence", "label"], ["index"], ["sentence"], ("0", "1")),
    "MRPC": (
        ["Quality", *IDS, *STRINGS],
        ["index", *IDS],
        STRINGS,
        ("0", "1"),
    ),
    "STS-B": ([*STSB, *PAIR, "score"], STSB, PAIR, ("0.000", "2.500", "5.000")),
    "QQP": (
        ["id", "qid1", "qid2", *QUESTIONS, "is_duplicate"],
        ["id"],
        QUESTIONS,
        ("0", "1"),
    ),
    "MNLI": ([*MNLI, *PAIR, *MNLI_DEV], MNLI, PAIR, THREE),
    "QNLI": (
        ["index", "question", "sentence", "label"],
        ["index"],
        ["question", "sentence"],
        WORDS,
    ),
    "RTE": (["index", *PAIR, "label"], ["index"], PAIR, WORDS),
    "WNLI": (["index", *PAIR, "label"], ["index"], PAIR, ("0", "1")),
}
LABELS = {"Quality", "is_duplicate", "gold_label", "label", "score"}
Rows = list[dict[str, str]]


def text(random: np.random.Generator) -> str:
    words = random.choice(list("abcdefgh"), random.integers(2, 6)).tolist()
    return " ".join(['"', *words])  # a quote that is never closed


def write_table(file: Path, columns: list[str], form: Form, count: int, *, header: bool) -> Rows:
    """Write a table, and return its texts and labels."""
    random = np.random.default_rng(len(str(file.name)) + count)
    _, _, texts, labels = form
    lines, rows = ["\t".join(columns)] if header else [], []
    for number in range(count):
        row = dict.fromkeys(columns, "filler")
        row |= {name: str(number) for name in columns if name in ("index", "id")}
        row |= {name: text(random) for name in texts}
        row |= {name: labels[number % len(labels)] for name in columns if name in LABELS}
        lines.append("\t".join(row[name] for name in columns))
        rows.append(row)
    file.parent.mkdir(parents=True, exist_ok=True)
    mark = "\ufeff" if file.parent.name == "MRPC" else ""
    file.write_text(mark + "\n".join(lines) + "\n", encoding="utf-8")
    return rows


def write_task(data: Path, name: str) -> dict[str, Rows]:
    """Write a task's files in the official form; their rows by the files' names."""
    form = FORMS[name]
    columns, others, texts, _ = form
    header = name != "CoLA"
    suffixes = ("_matched", "_mismatched") if name == "MNLI" else ("",)
    train = [column for column in columns if column not in MNLI_DEV[1:5]]
    files = {"train.tsv": write_table(data / name / "train.tsv", train, form, 12, header=header)}
    for number, suffix in enumerate(suffixes):
        for part, names in (("dev", columns), ("test", [*others, *texts])):
            file = f"{part}{suffix}.tsv"
            has_header = header or part == "test"
            path = data / name / file
            files[file] = write_table(path, names, form, 9 + number, header=has_header)
    return files


Run = Callable[..., GlueResult]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    config = CONFIG.with_values(initializer_range=1.0)  # answers differ from text to text
    tokenizer = Tokenizer.from_vocabulary(PIECES)

    def run(model_seed: int = 0, **changes: Any) -> GlueResult:
        model = Model.fresh(config, tokenizer, seed=model_seed)
        settings = {"learning_rate": 1e-2, "batch_size": 4, "epochs": 2, "max_seq_length": 32}
        return glue(model, tmp_path / "data", out=tmp_path / "out", **{**settings, **changes})

    return run


METRICS: dict[str, Callable[[list[str], list[str]], float]] = {
    "accuracy": accuracy_score,
    "f1": lambda known, told: f1_score(known, told, pos_label="1", zero_division=0.0),
    "matthews_correlation": matthews_corrcoef,
    "spearman": lambda known, told: spearmanr(*numbers(known, told)).statistic,
    "pearson": lambda known, told: pearsonr(*numbers(known, told)).statistic,
}


def numbers(*columns: list[str]) -> list[list[float]]:
    return [list(map(float, column)) for column in columns]


def predicted(model: Model, rows: Rows, texts: list[str]) -> list[Any]:
    """What the model says of the rows' texts alone."""
    pairs = [tuple(row[name] for name in texts) for row in rows]
    answers = model.predict([pair if len(pair) > 1 else pair[0] for pair in pairs])
    return [answer.get("label", answer.get("value")) for answer in answers]


@pytest.mark.long
def test_all_nine_tasks_are_trained_and_submitted(run: Run, tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    files = {name: write_task(data, name) for name in FORMS}
    ax = FORMS["MNLI"]
    files["MNLI"]["diagnostic"] = write_table(
        data / "diagnostic" / "diagnostic.tsv", ["index", *PAIR], ax, 7, header=True
    )
    qqp = data / "QQP" / "train.tsv"
    qqp.write_text(qqp.read_text() + "12\t1\t2\ta b\nc d ?\te f\t1\n")  # a row in two pieces
    lines = Lines()
    result = run(progress=lines)
    assert not result.missing
    assert any("QQP/train.tsv: 2 incomplete lines are left out" in line for line in lines.lines)
    learned = json.loads((out / "QQP" / result.best["QQP"] / "data.json").read_text())
    assert learned["train"]["rows"] == 12

    for score in result.scores:
        figure = score.figure
        name = figure.name.removesuffix("-m").removesuffix("-mm")
        texts = FORMS[name][2]
        rows = files[name][figure.file]
        (label,) = LABELS & set(rows[0])
        predictions = predicted(load(out / name), rows, texts)
        value = METRICS[figure.metric]([row[label] for row in rows], predictions)
        assert score.dev == pytest.approx(100 * value, abs=1e-4), figure

    parts = {"MNLI-m": "MNLI", "MNLI-mm": "MNLI", "AX": "MNLI"}
    names = [*(FORMS.keys() - {"MNLI"}), *parts]
    assert sorted(path.name for path in result.answers) == sorted(f"{n}.tsv" for n in names)
    file_names = {
        "MNLI-m": "test_matched.tsv",
        "MNLI-mm": "test_mismatched.tsv",
        "AX": "diagnostic",
    }
    for path in result.answers:
        name = parts.get(path.stem, path.stem)
        rows = files[name][file_names.get(path.stem, "test.tsv")]
        header, *answers = (line.split("\t") for line in path.read_text().splitlines())
        assert header == ["index", "prediction"]
        assert [index for index, _ in answers] == [str(at) for at in range(len(rows))]
        predictions = predicted(load(out / name), rows, FORMS[name][2])
        assert len(set(predictions)) > 1, name
        if name == "STS-B":
            assert all(re.fullmatch(r"[0-5]\.\d{3}", answer) for _, answer in answers)
            expected = np.clip(predictions, 0, 5)
            assert [float(answer) for _, answer in answers] == pytest.approx(expected, abs=6e-4)
        else:
            assert [answer for _, answer in answers] == predictions
            assert set(predictions) <= set(FORMS[name][3])

    *table, average = result.rows()
    assert [row[0] for row in table[:4]] == ["MNLI-m", "MNLI-mm", "QQP", "QQP"]
    compared = [float(row[2]) for row in table if row[4]]
    assert len(compared) == 9
    assert float(average[2]) == pytest.approx(np.mean(compared), abs=0.06)
    # The paper's own averages are those of its columns, with both halves of MNLI.
    for column in (4, 5):
        assert float(average[column]) == pytest.approx(
            np.mean([float(row[column]) for row in table if row[column]]), abs=0.06
        )
    assert "| MRPC | f1 |" in (out / "glue.md").read_text()
    saved = json.loads((out / "glue.json").read_text())
    assert [one["dev"] for one in saved["scores"]] == [score.dev for score in result.scores]


@pytest.mark.long
def test_the_table_keeps_what_was_learned_before(run: Run, tmp_path: Path) -> None:
    for name in ("MNLI", "QQP"):
        write_task(tmp_path / "data", name)
    first = run(tasks=["mnli"])
    both = run(tasks=["qqp"])
    assert [score.figure.name for score in both.scores] == ["MNLI-m", "MNLI-mm", "QQP", "QQP"]
    assert both.scores[:2] == first.scores
    assert both.best["MNLI"] == first.best["MNLI"]
    assert [path.name for path in both.answers] == ["QQP.tsv"]
    assert "| MNLI-mm | accuracy |" in (tmp_path / "out" / "glue.md").read_text()
    with pytest.raises(TrainingError, match="was trained from another model"):
        run(model_seed=1, tasks=["qqp"])


@pytest.mark.long
def test_tasks_are_run_once_and_missing_ones_are_reported(run: Run, tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    for name in ("MRPC", "SST-2", "QNLI"):
        write_task(data, name)
    (data / "SST-2").rename(data / "sst2")
    (data / "QNLI" / "train.tsv").unlink()
    (data / "MRPC" / "test.tsv").unlink()
    first = run(seeds=2)
    assert list(first.best) == ["SST-2", "MRPC"]
    assert first.missing["QNLI"] == "no train.tsv"
    assert first.missing["CoLA"] == "no folder"
    assert [path.name for path in first.answers] == ["SST-2.tsv"]
    assert "Missing: QNLI (no train.tsv)." in (out / "glue.md").read_text()
    means = {(score.figure.name, score.figure.metric): score for score in first.scores}
    runs = [
        json.loads(file.read_text()) for file in sorted((out / "MRPC").glob("*/evaluation.json"))
    ]
    for metric in ("f1", "accuracy"):
        values = [100 * one["metrics"][metric] for one in runs]
        score = means["MRPC", metric]
        assert (score.mean, score.spread) == (
            pytest.approx(np.mean(values)),
            pytest.approx(np.std(values, ddof=1)),
        )

    summary_files = [
        file for file in out.rglob("*") if file.parent.parent.parent == out and file.is_file()
    ]
    times = {file: file.stat().st_mtime_ns for file in summary_files}
    assert any(file.name == "journal.jsonl" for file in summary_files)
    assert run(seeds=2).scores == first.scores
    assert {file: file.stat().st_mtime_ns for file in summary_files} == times

    test = data / "sst2" / "test.tsv"
    answers = first.answers[0].read_text().splitlines()
    test.write_text(test.read_text() + "9\ta b\n")
    assert run(seeds=2).answers == first.answers
    more = first.answers[0].read_text().splitlines()
    assert (more[:-1], more[-1].partition("\t")[0]) == (answers, "9")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tasks": ["mrcp"]}, "GLUE has no task 'mrcp'. The nearest valid name is 'mrpc'"),
        ({"tasks": ["RTE", "cola"]}, r"data/CoLA: CoLA cannot be learned: no folder"),
        ({"text_column": "2"}, "text_column is set by each of GLUE's tasks"),
        ({"label_smoothing": 0.1}, "STS-B: unknown setting 'label_smoothing'"),
        ({"grid": {"label_smoothing": [0.1]}}, "unknown setting 'label_smoothing'"),
        ({"grid": "lr=1"}, "unknown setting 'lr'"),
        ({"seed": 3}, "seed is set by each"),
        ({"teacher": "model"}, "teacher is set by each"),
        ({"grid": {"teacher": ["a", "b"]}, "tasks": ["rte"]}, "teacher is set by each"),
        ({"both_orders": True}, "SST-2: both_orders is for pairs"),
        ({"grid": {"both_orders": [True, False]}}, "SST-2: both_orders is for pairs"),
    ],
)
def test_mistakes_are_found_before_a_run_begins(
    run: Run, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    for name in ("RTE", "SST-2", "STS-B"):
        write_task(tmp_path / "data", name)
    with pytest.raises(BertworksError, match=message):
        run(**settings)
    assert not (tmp_path / "out").exists()


def test_a_folder_without_tasks_is_refused(run: Run, tmp_path: Path) -> None:
    with pytest.raises(BertworksError, match="no such folder"):
        run()
    (tmp_path / "data").mkdir()
    with pytest.raises(BertworksError, match="no GLUE task found"):
        run()


COUNTS = {
    "CoLA": (8_551, 1_043, {"0", "1"}),
    "SST-2": (67_349, 872, {"0", "1"}),
    "MRPC": (3_668, 408, {"0", "1"}),
    "STS-B": (5_749, 1_500, None),
    "RTE": (2_490, 277, set(WORDS)),
}


@pytest.mark.long
@pytest.mark.parametrize("name", COUNTS)
def test_real_files_have_their_rows_and_labels(data_dir: Path, name: str) -> None:
    (task,) = select_tasks([name])
    folder, missing = folder_of(task, data_dir / "glue")
    assert missing is None
    for file, count in zip(task.files, COUNTS[name], strict=False):
        rows = list(read_rows(folder / file, header=task.settings["header"]))
        labels = {row.values[task.columns["label_column"]] for row in rows}
        assert len(rows) == count
        assert COUNTS[name][2] in (None, labels)
        if task.kind == "regression":
            assert all(0 <= float(label) <= 5 for label in labels)


def test_the_table_has_all_nine_and_the_papers_averages() -> None:
    assert {task.name for task in TASKS} == set(FORMS)
    figures = [figure for task in TASKS for figure in task.figures if figure.base]
    assert round(float(np.mean([figure.base for figure in figures if figure.base])), 1) == 79.6
    assert round(float(np.mean([figure.large for figure in figures if figure.large])), 1) == 82.1

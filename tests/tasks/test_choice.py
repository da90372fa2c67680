"""Multiple choice: its rows, its scores and its loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from bertworks.data.tables import read_rows
from bertworks.errors import DataError
from bertworks.nn.config import EncoderConfig
from bertworks.tasks.choice import USUAL_COLUMNS, ChoiceSettings, ChoiceTask
from bertworks.text.tokenizer import Tokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcd"]
TOKENIZER = Tokenizer.from_vocabulary(PIECES)
CONFIG = EncoderConfig(
    vocab_size=len(PIECES),
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=32,
)
ROWS = [
    {"prompt": "a b", "choices": ["c", "d a b"], "label": 1},
    {"prompt": "a", "choices": ["c c", "d", "a b"], "label": 0},
]


def make_task(**values):
    values = {**USUAL_COLUMNS, "first_number": 0, "max_seq_length": 16, **values}
    return ChoiceTask.from_dict(values, TOKENIZER)


def test_choices_of_a_prompt_are_scored_together():
    task = make_task()
    torch.manual_seed(0)
    network = task.network(CONFIG).double().eval()
    batch = task.collate(task.examples(ROWS, 5)).to("cpu")
    logits = network.predict(batch)["logits"]
    scores = []
    for row in ROWS:
        batches = [
            task.collate([task.example({**row, "choices": [text], "label": 0}, 0)]).to("cpu")
            for text in row["choices"]
        ]
        scores.append(torch.cat([network.predict(one)["logits"][0] for one in batches]))
    assert torch.allclose(logits[0, :2], scores[0])
    assert torch.allclose(logits[1], scores[1])
    assert logits[0, 2] == torch.finfo(logits.dtype).min
    expected = F.cross_entropy(scores[0], torch.tensor(1)) + F.cross_entropy(
        scores[1], torch.tensor(0)
    )
    assert network(batch)["choice"].item() == pytest.approx(expected.item())
    answers = task.decode({"logits": logits}, batch)
    for number, own in enumerate(scores, 5):
        assert answers[number]["probabilities"] == pytest.approx(torch.softmax(own, 0).tolist())
        best = int(own.argmax())
        assert answers[number]["choice"] == best
        assert answers[number]["text"] == ROWS[number - 5]["choices"][best]
    network(batch)["choice"].backward()
    assert all(torch.isfinite(p.grad).all() for p in network.parameters() if p.grad is not None)


def test_first_number_is_detected_or_required():
    def task_of(*labels, **options):
        rows = [{"prompt": "a", "choices": ["b", "c", "d"], "label": label} for label in labels]
        return ChoiceTask.from_table(TOKENIZER, read_rows(rows), ChoiceSettings(**options))

    assert task_of(1, 0).settings.first_number == 0
    assert task_of(1, 3).settings.first_number == 1
    assert task_of("B", "C").settings.first_number is None
    with pytest.raises(
        DataError, match=r"^rows in memory: cannot.*from 0 or from 1.*first_number=0"
    ):
        task_of(1, 2)
    with pytest.raises(
        DataError, match="not the number of one of the 3 choices, which count from 1"
    ):
        task_of(1, 4).example({"prompt": "a", "choices": ["b", "c", "d"], "label": 4}, 0)
    assert task_of(1, 2, first_number=0).settings.first_number == 0
    task = task_of(1, 3)
    row = {"prompt": "a", "choices": ["b", "c", "d"]}
    batch = task.collate([task.example(row, 0, labelled=False)])
    predicted = task.decode({"logits": torch.tensor([[0.0, 0.0, 1.0]])}, batch)
    assert (predicted[0]["choice"], predicted[0]["text"]) == (3, "d")


def test_numbered_columns_come_by_their_numbers():
    names = [f"option{number}" for number in (1, 10, 2, 3, 4, 5, 6, 7, 8, 9)]
    row = {"premise": "a", "question": "cause", **dict.fromkeys(names, "b"), "label": 10}
    found = ChoiceTask.from_table(TOKENIZER, read_rows([row]), ChoiceSettings())
    assert found.choice_columns == tuple(f"option{number}" for number in range(1, 11))
    assert found.column("prompt") == "premise"


def test_columns_are_named_or_guessed(tmp_path):
    file = tmp_path / "codah.tsv"
    file.write_text("x\ta b\tc\td\t2\nx\ta\td\tc\t1\n")
    options = ChoiceSettings(prompt_column=2, choice_columns="3, 4, ", label_column=5)
    rows = read_rows(file, columns=options.named_columns(), header=False)
    task = ChoiceTask.from_table(TOKENIZER, rows, options)
    assert (task.column("prompt"), task.choice_columns) == ("2", ("3", "4"))
    assert task.settings.first_number == 1
    assert [one.target for one in task.examples([row.values for row in rows], 0)] == [1, 0]
    as_list = ChoiceSettings(prompt_column=2, choice_columns=[3, 4], label_column=5)
    assert ChoiceTask.from_table(TOKENIZER, rows, as_list).columns == task.columns
    swag = read_rows([{"startphrase": "a", "ending0": "b", "ending1": "c", "label": 0}])
    guessed = ChoiceTask.from_table(TOKENIZER, swag, ChoiceSettings())
    assert guessed.choice_columns == ("ending0", "ending1")
    with pytest.raises(DataError, match="which column holds the choices; its only column"):
        ChoiceTask.from_table(TOKENIZER, read_rows([{"a": "b"}]), ChoiceSettings())


def test_letters_count_from_a_whether_or_not_it_occurs():
    rows = [{"prompt": "a", "choices": ["b", "c", "d"], "label": label} for label in "BC"]
    task = ChoiceTask.from_table(TOKENIZER, read_rows(rows), ChoiceSettings())
    assert [one.target for one in task.examples(rows, 0)] == [1, 2]
    # Also where numbers count from 1.
    numbered = read_rows([{**rows[0], "label": number} for number in (1, 3)])
    task = ChoiceTask.from_table(TOKENIZER, numbered, ChoiceSettings())
    assert [one.target for one in task.examples(rows, 0)] == [1, 2]


def test_labels_are_read_for_each_table():
    def rows_of(*labels):
        row = {"prompt": "a", "choices": ["b", "c", "d"]}
        return read_rows([{**row, "label": label} for label in labels])

    def targets(task, *labels):
        table = rows_of(*labels)
        reader = task.for_table(table, labelled=True)
        return [one.target for one in reader.examples([row.values for row in table], 0)]

    task = ChoiceTask.from_table(TOKENIZER, rows_of("B", "C"), ChoiceSettings())
    assert targets(task, 1, 3, 2) == [0, 2, 1]
    assert targets(task, 1, 0, 2) == [1, 0, 2]
    assert targets(task, "A", "c") == [0, 2]
    assert task.for_table(rows_of("A"), labelled=True) is task
    assert task.for_table(rows_of(1, 2), labelled=False) is task
    with pytest.raises(DataError, match=r"numbered from 0 or from 1.*first_number=0.*letters"):
        targets(task, 1, 2)
    with pytest.raises(DataError, match=r"label '2' .* counts from 0 or from 1: the labels before"):
        task.example(rows_of(2).sample[0], 0)
    said = ChoiceTask.from_table(TOKENIZER, rows_of("B"), ChoiceSettings(first_number=1))
    assert targets(said, 1, 2) == [0, 1]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (
            {**ROWS[0], "label": 2},
            "f:3: the label 2 .* is not the number of one of the 2 choices, which count from 0",
        ),
        ({**ROWS[0], "label": "x y"}, "f:3: the label 'x y' .* is not a number"),
        ({**ROWS[0], "choices": "a"}, "f:3: the column 'choices' holds no list of texts"),
        ({**ROWS[0], "choices": []}, "f:3: there are no choices"),
        ({**ROWS[0], "prompt": 5}, "f:3: the column 'prompt' holds 5"),
    ],
)
def test_bad_rows_are_refused(row, says):
    with pytest.raises(DataError, match=says):
        make_task().example(row, 0, where="f:3")


def test_a_text_alone_is_no_row():
    with pytest.raises(DataError, match="'a b': multiple choice takes rows of a prompt"):
        make_task().text_row("a b")


def test_the_questions_of_an_article_are_rows(tmp_path: Path) -> None:
    """RACE's own files: one article each, with lists of questions, options and answers."""
    article = {"article": "a b", "id": "high1.txt"}
    lists = {"questions": ["c", "d _"], "options": [["a", "b"], ["c", "d"]], "answers": ["B", "A"]}
    expected = [
        article | {"question": "c", "options": ["a", "b"], "answer": "B"},
        article | {"question": "d _", "options": ["c", "d"], "answer": "A"},
    ]
    (tmp_path / "1.txt").write_text(json.dumps(article | lists))
    (tmp_path / "1.json").write_text(json.dumps(article | lists, indent=1))
    (tmp_path / "all.json").write_text(json.dumps({"data": [article | lists]}))
    for table in (*tmp_path.iterdir(), [article | lists]):
        assert [row.values for row in read_rows(table)] == expected
    task = ChoiceTask.from_table(TOKENIZER, read_rows([article | lists]), ChoiceSettings())
    examples = [task.example(row.values, 0) for row in read_rows([article | lists])]
    assert [(example.texts, example.target) for example in examples] == [
        (("a b c", "a", "b"), 1),
        (("a b d _", "c", "d"), 0),
    ]
    (row, _) = read_rows([{**article, **lists, "answers": None}])  # a test set has none
    assert "answer" not in row.values
    for wrong in ({"answers": ["B"]}, {"answers": "BA"}, {"options": [["a", "b"]]}):
        with pytest.raises(DataError, match="row 1: questions, options, answers are not lists of"):
            list(read_rows([article | lists | wrong]))
    plain = {"prompt": "a", "questions": ["b"], "options": ["c", "d"], "label": 0}
    assert [row.values for row in read_rows([plain])] == [plain]


@pytest.mark.parametrize(
    ("row", "texts"),
    [
        pytest.param(
            {"article": "a b", "question": "c", "options": ["d", "b"], "answer": "B"},
            [("a b", "c d"), ("a b", "c b")],
            id="RACE",
        ),
        pytest.param(
            {"article": "a b", "question": "c_d __ d", "options": ["a", "b"], "answer": "B"},
            [("a b", "c_d a d"), ("a b", "c_d b d")],
            id="RACE with a blank",
        ),
        pytest.param(
            {"prompt": "a", "answer_a": "c", "answer_b": "d", "answers": "x", "label": 1},
            [("a", "c"), ("a", "d")],
            id="letters",
        ),
        pytest.param(
            {"context": "a", "question": "b", "answer0": "c", "answer1": "d", "label": 1},
            [("a", "b c"), ("a", "b d")],
            id="Cosmos QA",
        ),
        pytest.param(
            {"context": "a", "question": "b", "answerA": "c", "answerB": "d", "label": "2"},
            [("a", "b c"), ("a", "b d")],
            id="SocialIQA",
        ),
        pytest.param(
            {
                "id": "x",
                "question": "a",
                "choices": {"text": ["c", "d"], "label": ["1", "2"]},
                "answerKey": "2",
            },
            [("a", "c"), ("a", "d")],
            id="ARC",
        ),
        pytest.param(
            {"goal": "a", "sol1": "c", "sol2": "d", "label": 1}, [("a", "c"), ("a", "d")], id="PIQA"
        ),
        pytest.param(
            {"ctx": "a", "activity_label": "b", "endings": ["c", "d"], "label": 1},
            [("a", "c"), ("a", "d")],
            id="HellaSwag",
        ),
        pytest.param(
            {"premise": "a", "question": "b", "choice1": "c", "choice2": "d", "label": 1},
            [("a", "b c"), ("a", "b d")],
            id="COPA",
        ),
        pytest.param(
            {"startphrase": "a b", "sent1": "a", "sent2": "b", "ending0": "c", "ending1": "d"}
            | {"label": 1},
            [("a b", "c"), ("a b", "d")],
            id="SWAG",
        ),
    ],
)
def test_published_tables_are_read_whole(row: dict[str, Any], texts: list[tuple[str, str]]) -> None:
    """The right choice is the second; a question about a passage stands before each choice."""
    first = {} if "B" in row.values() else {"first_number": 1 if "2" in row.values() else 0}
    task = ChoiceTask.from_table(TOKENIZER, read_rows([row]), ChoiceSettings(**first))
    example = task.example(row, 0)
    assert example.target == 1
    expected = [TOKENIZER.encode(*pair).input_ids.tolist() for pair in texts]
    assert [sequence.input_ids.tolist() for sequence in example.sequences] == expected


def test_choices_have_labels_of_their_own() -> None:
    row = {"question": "a", "choices": {"text": ["c", "d"], "label": ["A", "B"]}, "answerKey": "B"}
    task = ChoiceTask.from_table(TOKENIZER, read_rows([row]), ChoiceSettings())
    assert task.settings.first_number is None
    with pytest.raises(DataError, match=r"the label 'C' \(column 'answerKey'\) is not one of"):
        task.example({**row, "answerKey": "C"}, 0)


def test_a_question_of_the_training_table_is_required() -> None:
    rows = [{"context": "a", "question": "b", "choices": ["c", "d"], "label": 0}]
    task = ChoiceTask.from_table(TOKENIZER, read_rows(rows), ChoiceSettings(first_number=0))
    assert task.settings.question_column == "question"
    with pytest.raises(DataError, match="question"):
        task.example({"context": "a", "choices": ["c", "d"], "label": 0}, 0)
    without = [{"context": "a", "choices": ["c", "d"], "label": 0}]
    with pytest.raises(DataError, match="there is no column of questions, such as 'question'"):
        task.for_table(read_rows(without), labelled=False)


def test_a_question_that_was_not_in_training_is_not_read() -> None:
    row = {"context": "a", "choices": ["c", "d"], "label": 0}
    settings = ChoiceSettings(first_number=0)
    task = ChoiceTask.from_table(TOKENIZER, read_rows([row]), settings)
    other = {**row, "question": "b"}
    assert task.for_table(read_rows([other]), labelled=True).settings.question_column is None
    published = task.settings.with_values(is_question_optional=True)
    task = ChoiceTask(TOKENIZER, published)
    assert task.for_table(read_rows([other]), labelled=True).settings.question_column == "question"


@pytest.mark.parametrize("blank", [None, float("nan"), "", " "])
def test_blank_columns_after_the_last_choice_are_no_choices(blank):
    columns = {"choice_columns": ["choice1", "choice2", "choice3"], "first_number": 1}
    task = make_task(**columns)
    row = {"prompt": "a", "choice1": "b", "choice2": "c", "choice3": blank, "label": 2}
    (example,) = task.examples([row], 0)
    assert example.texts == ("a", "b", "c")
    assert (len(example.sequences), example.target) == (2, 1)
    with pytest.raises(DataError, match=r"label 3 .* not the number of one of the 2 choices"):
        task.examples([{**row, "label": 3}], 0)
    with pytest.raises(DataError, match="choice in the column 'choice2' is blank, and others"):
        task.examples([{**row, "choice2": blank, "choice3": "c"}], 0)
    with pytest.raises(DataError, match="there are no choices"):
        task.examples([{**row, "choice1": blank, "choice2": blank}], 0)
    listed = make_task().example({"prompt": "a", "choices": ["b", ""], "label": 1}, 0)
    assert listed.texts == ("a", "b", "")  # in a list, an empty text is a choice

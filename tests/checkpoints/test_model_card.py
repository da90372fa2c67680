"""Model cards: what is written, what a user's edits keep; huggingface-hub reads them alike."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard as HubCard
from huggingface_hub import ModelCardData

from bertworks.checkpoints.card_training import DataFact, Results, describe_training, public_name
from bertworks.checkpoints.card_usage import read_card, write_card
from bertworks.checkpoints.model_card import ModelCard
from bertworks.utils.edits import is_edited
from bertworks.utils.output_names import foreign_file

RESULTS = Results("text-classification", "dev.tsv", {"accuracy": 0.5, "loss": float("nan")}, {})
ENTRIES = {
    "language": "no",
    "tags": ["bertworks"],
    "model-index": RESULTS.to_model_index("Tickets"),
}


def hub_data(text: str) -> ModelCardData:
    return HubCard(text).data


@pytest.fixture
def card() -> ModelCard:
    new = ModelCard().update(ENTRIES, {"training": "old\n", "use": "old use\n"})
    return new.with_title("Tickets")


def test_card_is_read_by_the_hub_as_written(card: ModelCard) -> None:
    data = hub_data(card.text)
    assert data.language == "no"
    assert data.tags == ["bertworks"]
    (result,) = data.eval_results or ()
    assert (result.task_type, result.dataset_name) == ("text-classification", "dev.tsv")
    assert (result.metric_type, result.metric_value) == ("accuracy", 0.5)
    assert card.metadata == ENTRIES
    assert HubCard(card.text).content == card.text
    assert not is_edited(card.text)


EDITS: Mapping[str, tuple[str, str]] = {
    "a changed entry": ("language: 'no'", "language: de  # not Norwegian"),
    "an entry with a comment": ("tags:\n- bertworks", "# mine\ntags:\n- bertworks\n- mine"),
    "a new entry": ("tags:\n", "license: mit\ntags:\n"),
    "the title": ("# Tickets\n", "# My tickets\n\nA word on them.\n"),
    "a section": ("old use\n", "my use\n"),
    "text between sections": ("<!-- bertworks: use -->", "Between.\n\n<!-- bertworks: use -->"),
    "text at the end": (" -->\n", " -->\nAt the end.\n"),
    "a removed section": ("<!-- bertworks: use -->\nold use\n<!-- bertworks: end -->\n", ""),
    "a removed entry": ("tags:\n- bertworks\n", ""),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_survives_an_update_of_the_rest(card: ModelCard, edit: str) -> None:
    old, new = EDITS[edit]
    start, _, end = card.text.rpartition(old)
    user_card = ModelCard(f"{start}{new}{end}")
    assert is_edited(user_card.text)
    entries = {"language": "en", "tags": ["other"], "license": "apache-2.0"}
    new_text = user_card.update(entries, {"training": "new\n", "use": "new use\n"}).text
    assert new.removeprefix(" -->\n") in new_text
    if not new:
        assert "other" not in new_text if "entry" in edit else "new use" not in new_text
    assert "old\n" not in new_text and "new\n" in new_text
    lines = [line for line in new_text.splitlines() if line not in card.text.splitlines()]
    assert lines, "the rest is rewritten"
    again = ModelCard(new_text).update(entries, {"training": "new\n", "use": "new use\n"})
    assert again.text == new_text, "an update is idempotent"
    hub_data(new_text)


def test_an_update_without_edits_equals_a_new_card(card: ModelCard) -> None:
    entries, sections = {"language": "en"}, {"training": "new\n"}
    assert "old\n" in card.text
    expected = ModelCard().update({**ENTRIES, **entries}, {"training": "new\n", "use": "old use\n"})
    assert card.update(entries, sections).text == expected.with_title("Tickets").text
    assert "model-index" not in card.update({"model-index": None}, {}).text


def test_a_card_of_somebody_else_is_extended_and_left_alone_in_its_place(tmp_path: Path) -> None:
    theirs = "---\nlicense: mit\nlibrary_name: other\n---\nTheir text"
    longer_card = ModelCard(theirs).update({"library_name": "mine", "tags": ["a"]}, {"use": "u\n"})
    assert longer_card.text.startswith(
        "---\nlicense: mit\nlibrary_name: other\ntags:\n- a\n---\nTheir"
    )
    (tmp_path / "model").mkdir()
    (tmp_path / "new").mkdir()
    (tmp_path / "model" / "README.md").write_text(theirs)
    write_card(tmp_path / "new", tmp_path / "model", longer_card, {}, "use\n")
    assert (tmp_path / "new" / "README.md").read_text() == theirs


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no front matter",
        "---\nno end",
        "---\n: [\n---\n",
        "---\n- a\n---\n",
        "---\n---\n",
        "\udcff",
    ],
)
def test_any_text_can_be_extended(text: str, tmp_path: Path) -> None:
    longer_card = ModelCard(text).update({"tags": ["a"]}, {"use": "new\n"}).with_title("T")
    assert text.removeprefix("---\n").removesuffix("---\n") in longer_card.text
    (tmp_path / "README.md").write_bytes(longer_card.text.encode("utf-8", "surrogateescape"))
    assert read_card(tmp_path) == longer_card
    assert ModelCard(text).metadata == {}


@pytest.mark.parametrize(("text", "gap"), [("text\n", "\n"), ("text\n\n", "")])
def test_a_new_section_follows_one_blank_line(text: str, gap: str) -> None:
    longer_card = ModelCard(text).update({}, {"use": "new\n"})
    assert f"{text}{gap}<!-- bertworks: use -->" in longer_card.text


def test_line_ends_of_windows_are_no_edit(card: ModelCard, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_bytes(card.text.replace("\n", "\r\n").encode())
    assert read_card(tmp_path) == card


def test_language_licence_and_name_of_a_model_on_the_hub_are_taken_over() -> None:
    theirs = ModelCard("---\nlicense: mit\nlanguage: [en, de]\ntags: [a]\n---\nText", "org/base")
    for is_same in (True, False):
        new_card = theirs.derive(is_same_model=is_same)
        assert new_card.metadata == {
            "language": ["en", "de"],
            "license": "mit",
            "base_model": "org/base",
        }
        assert "Text" not in new_card.text
    child = describe_training(new_card, "Child", "Trained", {})
    assert child.derive(is_same_model=False).metadata["base_model"] == "org/base"
    assert child.derive(is_same_model=True) == child


def test_a_training_names_no_folder_of_the_machine(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"teacher": f"{tmp_path}/big", "parts": [{"data": "a/b/c"}], "n": 1}
    settings |= {"train": [f"{tmp_path}/e.tsv", "d/d/f.tsv"]}
    settings["query_prompt"] = "Represent the query/question: "
    facts = [DataFact("train", public_name(tmp_path / "train.tsv"), "3 rows")]
    text = describe_training(None, "T", "Trained", settings, facts, RESULTS).text
    assert str(tmp_path) not in text and "a/b" not in text
    assert "- e.tsv" in text and "- f.tsv" in text and "Represent the query/question: " in text
    assert "teacher: big" in text and "data: c" in text and "| train | train.tsv | 3 rows |" in text
    assert "nan" not in text, "the hub takes finite numbers alone"
    assert public_name("mini") == "mini" and public_name("org/name") == "org/name"


def test_a_card_may_be_overwritten_with_its_model_but_not_edits_inside_a_run(
    card: ModelCard, tmp_path: Path
) -> None:
    (tmp_path / "config.json").touch()
    for text in (card.text, f"mine\n{card.text}"):
        (tmp_path / "README.md").write_text(text)
        assert foreign_file(tmp_path) is None
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "README.md").write_text(card.text)
    assert foreign_file(tmp_path) is None
    (tmp_path / "model" / "README.md").write_text(f"mine\n{card.text}")
    assert foreign_file(tmp_path) == "model/README.md"
    (tmp_path / "README.md").write_text("all mine")
    assert foreign_file(tmp_path) == "README.md"


@pytest.mark.parametrize("start", ["", "\n", "\ufeff\n\n"])
def test_a_licence_is_read_from_any_front_matter(start: str) -> None:
    text = f'{start}--- \n"license": other\nlicense_name: mine\nlanguage: no\n---\nText.\n'
    card = ModelCard(text)
    assert card.metadata["license"] == "other"
    derived = card.derive(is_same_model=False).metadata
    assert (derived["license"], derived["license_name"], derived["language"]) == (
        "other",
        "mine",
        "no",
    )
    updated = card.update({"license": "mit", "tags": ["bertworks"]}, {})
    assert updated.text.count("---") == 2  # not a second front matter
    assert updated.metadata["license"] == "other" and updated.metadata["tags"] == ["bertworks"]


def test_a_section_that_a_new_card_lacks_is_removed() -> None:
    """The training of the model that was there before is not that of the new one."""
    old = ModelCard("# Mine\n").update({"model-index": []}, {"training": "t\n", "use": "u\n"})
    new = ModelCard().update({"tags": ["a"]}, {"use": "other\n"})
    card = old.update_from(new)
    assert "training -->" not in card.text and "# Mine" in card.text
    assert "model-index" not in card.metadata and "other" in card.text
    edited = ModelCard(old.text.replace("t\n", "my words\n", 1)).update_from(new)
    assert "my words" in edited.text

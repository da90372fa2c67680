"""Settings: strict, from files and words, with errors that name the key."""

from __future__ import annotations

import pytest
from pydantic import Field, model_validator

from bertworks.errors import BertworksError, SettingsError, need
from bertworks.settings import Settings


class Inner(Settings):
    lr: float = Field(1e-4, gt=0)
    betas: tuple[float, float] = (0.9, 0.999)


class Outer(Settings):
    steps: int
    name: str = "run"
    optimizer: Inner = Inner()
    extra: Inner | None = None

    @model_validator(mode="after")
    def _even(self):
        if self.steps % 2:
            raise ValueError(f"steps={self.steps} is odd")
        return self


def test_words_win_over_values_over_the_file(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("steps: 2\nname: file\noptimizer: {lr: 0.5}\n")
    settings = Outer.resolve(file, ["optimizer.lr=1e-3", "steps=8"], name="value", steps=4)
    assert settings == Outer(steps=8, name="value", optimizer=Inner(lr=1e-3))


def test_what_is_written_is_read_again(tmp_path):
    settings = Outer(steps=6, optimizer=Inner(lr=0.25, betas=(0.5, 0.75)))
    file = tmp_path / "a.yaml"
    file.write_text(settings.to_yaml())
    assert Outer.resolve(file) == settings


@pytest.mark.parametrize("text", ["1", "yes", "|", " ", "010", "1_0", "#1 String", "a: b", "0x1"])
def test_text_is_taken_as_it_is_typed(text):
    class Texts(Outer):
        other: str | None = "other"

    found = Texts.resolve(None, ["steps=2", f"name={text}", f"other={text}"])
    assert (found.name, found.other) == (text, text)
    assert Texts.resolve(None, ["steps=2", "other=null", "name='a'"]).model_dump() == {
        **Texts(steps=2).model_dump(),
        "other": None,
        "name": "a",
    }


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["steps=2", "optimiser.lr=1"], "unknown setting 'optimiser'. The nearest valid name is"),
        (["steps=2", "optimizer.lrr=1"], "unknown setting 'optimizer.lrr'"),
        (["steps=2", "extra.lrr=1"], "The nearest valid name is 'lr'"),
        (["steps=2", "optimizer.lr=-1"], "optimizer.lr=-1: input should be greater than 0"),
        (["steps=two"], "steps='two'"),
        (["steps=3"], "steps=3 is odd"),
        ([], "the setting 'steps' is missing"),
        (["steps"], "'steps' is not of the form key=value"),
        (["steps=2", "optimizer=fast"], "optimizer='fast'"),
        (["steps=2", "name=a", "steps=4"], "steps is given twice"),
        (["steps=2", "optimizer={lr: 1}", "optimizer.lr=2"], "optimizer.lr is given twice"),
        (["steps=2", "optimizer={lr: 1, lr: 2}"], "the key 'lr' is given twice"),
        (["steps=2", "learning_rate=1"], "The setting is called 'optimizer.lr'"),
        (["steps=2", "optimizer.learning_rate=1"], "The setting is called 'lr'"),
        (["steps=2", "max_steps=1"], "The setting is called 'steps'"),
        (["steps=2", "num_workers=1"], "No workers are needed here"),
        (["steps=2", "patience=1"], "Valid: steps, name, optimizer, extra"),
        (["steps=2001-99-99"], "steps='2001-99-99'"),
    ],
)
def test_errors_name_the_key(words, says):
    with pytest.raises(SettingsError) as caught:
        Outer.resolve(None, words)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("steps: [", ":1"),
        ("- 1", "key: value"),
        ("steps: 2\nstep: 3", "'steps'"),
        ("steps: 2\noptimizer:\n  lr: 1\n  lr: 2\n", ":4: not valid YAML (the key 'lr' is given"),
        ("steps: 2001-99-99", "month must be in 1..12"),
    ],
)
def test_errors_name_the_file(tmp_path, text, says):
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        Outer.resolve(file)
    assert str(caught.value).startswith(str(file))
    assert says in str(caught.value)


def test_a_missing_file_is_said(tmp_path):
    with pytest.raises(SettingsError, match="no such file"):
        Outer.resolve(tmp_path / "none.yaml")


def test_words_of_one_group_and_the_file_are_no_repetition(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("steps: 2\n")
    words = ["steps=4", "optimizer={lr: 0.5}", "optimizer.betas=[0.5, 0.5]"]
    assert Outer.resolve(file, words).optimizer == Inner(lr=0.5, betas=(0.5, 0.5))


def test_replaced_values_are_checked_again():
    with pytest.raises(SettingsError, match="odd"):
        Outer(steps=2).with_values(steps=3)


def test_a_missing_extra_is_named():
    with pytest.raises(BertworksError, match=r'pip install "bertworks\[metrics\]"'):
        need("a_module_that_is_not_there", "metrics", "evaluation")
    assert need("json", "metrics", "evaluation").loads("1") == 1

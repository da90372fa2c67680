"""Settings: strict, from files and words, with errors that name the key."""

from __future__ import annotations

import math

import pytest
from pydantic import Field, model_validator

from bertworks.errors import BertworksError, SettingsError, import_optional
from bertworks.settings.base import Settings
from bertworks.settings.yaml_values import dump_yaml

pytestmark = pytest.mark.light


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


def test_written_settings_are_read_again(tmp_path):
    settings = Outer(steps=6, optimizer=Inner(lr=0.25, betas=(0.5, 0.75)))
    file = tmp_path / "a.yaml"
    file.write_text(dump_yaml(settings.model_dump(mode="json")))
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
        (["steps=2", "max_steps=1"], "The setting is called 'steps'"),
        (["steps=2", "num_workers=1"], "No workers are needed here"),
        (["steps=2", "patience=1"], "Valid: steps, name, optimizer, extra"),
        (["steps=2001-99-99"], "steps='2001-99-99'"),
    ],
)
def test_errors_name_the_key(words, says):
    with pytest.raises(SettingsError) as error:
        Outer.resolve(None, words)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


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
    with pytest.raises(SettingsError) as error:
        Outer.resolve(file)
    assert str(error.value).startswith(str(file))
    assert says in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SettingsError, match="no such file"):
        Outer.resolve(tmp_path / "none.yaml")


def test_errors_name_the_file_of_a_setting(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("steps: 3\noptimizer: {lr: -1}\n")
    with pytest.raises(SettingsError, match=r"mine\.yaml: optimizer\.lr=-1"):
        Outer.resolve(file, ["steps=2"])
    with pytest.raises(SettingsError, match=r"^optimizer\.lr=-2"):
        Outer.resolve(file, ["optimizer.lr=-2"])
    with pytest.raises(SettingsError, match=r"^optimizer\.lr=-2"):
        Outer.resolve(file, optimizer={"lr": -2})


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
        import_optional("a_module_that_is_not_there", "metrics", "evaluation")
    assert import_optional("json", "metrics", "evaluation").loads("1") == 1


class Numbers(Settings):
    one: float = 1.0
    maybe: float | None = None
    either: int | float = 1
    pair: tuple[float, float] = (0.0, 1.0)
    mapping: dict[str, float] | None = None
    count: int = 1
    inner: Inner = Inner()


@pytest.mark.parametrize(
    "key", ["one", "maybe", "either", "pair.1", "mapping.x", "count", "inner.lr"]
)
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, "inf", "nan", "1e999"])
def test_numbers_are_finite(key, value):
    name, _, part = key.partition(".")
    wrapped = {"1": [0, value], "x": {"x": value}, "lr": {"lr": value}}
    with pytest.raises(SettingsError) as error:
        Numbers.parse({name: wrapped.get(part, value)})
    assert str(error.value).startswith(f"{key}=")


@pytest.mark.parametrize("text", [".inf", "-.inf", ".nan", "1e999"])
def test_numbers_of_files_and_words_are_finite(tmp_path, text):
    file = tmp_path / "a.yaml"
    file.write_text(f"inner: {{lr: {text}}}\n")
    with pytest.raises(SettingsError, match=r"a\.yaml: inner\.lr="):
        Numbers.resolve(file)
    with pytest.raises(SettingsError, match=r"inner\.lr="):
        Numbers.resolve(None, [f"inner.lr={text}"])


def test_a_file_says_which_settings_must_be_given(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("steps: REQUIRED\noptimizer: {lr: REQUIRED}\n")
    with pytest.raises(SettingsError) as error:
        Outer.resolve(file)
    says = "the setting 'steps' must be given. Give it as steps=VALUE"
    assert str(error.value) == f"{file}: {says}"
    with pytest.raises(SettingsError, match=r"'optimizer\.lr' must be given"):
        Outer.resolve(file, ["steps=2"])
    with pytest.raises(SettingsError, match=r"'steps' must be given"):
        Outer.resolve(file, ["steps=REQUIRED", "optimizer.lr=1"])
    assert Outer.resolve(file, ["optimizer.lr=1"], steps=2).optimizer.lr == 1


DEEP = 1200
"""Brackets in each other, of which a YAML reader that calls itself for each runs out of calls.

It takes time that grows with their square.
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "text",
    [
        "steps: 2024-99-99",  # YAML takes it for a date
        f"steps: {'9' * 5000}",
        f"steps: {'[' * DEEP}",
        "steps: &a [*a]",
        "optimizer: &a {extra: *a}\nsteps: 2",
    ],
)
def test_odd_yaml_is_an_error_of_one_line(tmp_path, text):
    file = tmp_path / "a.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError) as error:
        Outer.resolve(file)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


@pytest.mark.long
@pytest.mark.parametrize("value", ["2024-99-99", "0b_", "9" * 5000, "[" * DEEP])
def test_odd_words_are_an_error_of_one_line(value):
    with pytest.raises(SettingsError, match="steps="):
        Outer.resolve(None, [f"steps={value}"])
    with pytest.raises(SettingsError, match=r"name.*string"):
        Outer.parse({"steps": 2, "name": 10**5000})


def test_a_long_quotation_is_cut():
    said = str(BertworksError("a" * 10**6, where="file", fix="Mend it."))
    assert said == f"file: {'a' * 2000}…. Mend it."

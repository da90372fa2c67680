"""Settings: strict, from files and words, with errors that name the key."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, model_validator

from bertworks.errors import BertworksError, SettingsError, import_optional
from bertworks.settings.base import Settings
from bertworks.settings.yaml_values import dump_yaml, load_yaml

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


@pytest.mark.parametrize(
    "text", ["", "1", "yes", "|", " ", "010", "1_0", "#1 String", "a: b", "0x1", "[a]"]
)
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


class Prompts(Settings):
    prompt: str | tuple[str, ...] = "none"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('["query: ", "title: "]', ("query: ", "title: ")),
        ("[ 'a, b' ]", ("a, b",)),
        ("[Q] ", "[Q] "),
        ('["Q"', '["Q"'),
        ("a, b", "a, b"),
        ("", ""),
    ],
)
def test_quoted_texts_in_brackets_are_a_list_where_one_is_allowed(
    text: str, expected: str | tuple[str, ...]
) -> None:
    assert Prompts.resolve(None, [f"prompt={text}"]).prompt == expected


class Sizes(Settings):
    count: int = 1
    rate: float = 1.0
    layers: tuple[int, ...] = ()
    level: int | Literal["auto"] | None = None
    start: bool = False
    stop: int | bool = False


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("010", 10),
        ("016", 16),
        ("08", 8),
        ("-07", -7),
        ("1_000", 1000),
        ("+3", 3),
    ],
)
def test_integers_are_decimal(text: str, expected: int, tmp_path: Path) -> None:
    file = tmp_path / "numbers.yaml"
    file.write_text(f"count: {text}\nlayers: [{text}, {text}]\n")
    for settings in (
        Sizes.resolve(None, [f"count={text}", f"layers={text},{text}"]),
        Sizes.resolve(file),
    ):
        assert (settings.count, settings.layers) == (expected, (expected, expected))


@pytest.mark.parametrize(
    ("text", "expected"), [("1e-4", 1e-4), ("5.", 5.0), (".5E+1", 5.0), ("2", 2.0), ("-0.5", -0.5)]
)
def test_rates_have_the_usual_forms(text: str, expected: float, tmp_path: Path) -> None:
    file = tmp_path / "numbers.yaml"
    file.write_text(f"rate: {text}\n")
    assert Sizes.resolve(None, [f"rate={text}"]).rate == expected
    assert Sizes.resolve(file).rate == expected


@pytest.mark.parametrize(
    "word",
    ["count=true", "count=yes", "rate=no", "layers=1,yes", "level=on", "count=1:30", "rate=.inf"],
)
def test_booleans_and_times_are_no_numbers(word: str) -> None:
    name = word.partition("=")[0]
    with pytest.raises(SettingsError, match=f"^{name}"):
        Sizes.resolve(None, [word])


def test_booleans_are_allowed_where_they_are_declared() -> None:
    settings = Sizes.resolve(None, ["start=yes", "stop=true"])
    assert settings.start is True and settings.stop is True


@given(
    st.one_of(
        st.text(st.characters(exclude_categories=["C"]), max_size=8),
        st.from_regex(r"[-+.]?[0-9_:.eExo+-]{1,8}", fullmatch=True),
        st.integers(),
        st.floats(allow_nan=False),
        st.booleans(),
        st.none(),
    )
)
def test_written_values_are_read_again_with_their_types(value: object) -> None:
    text = dump_yaml({"key": value})
    again = load_yaml(text)["key"]
    assert (type(again), again) == (type(value), value)
    assert yaml.safe_load(text)["key"] == value, "also by others"


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

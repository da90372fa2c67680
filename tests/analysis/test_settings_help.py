"""Help on settings describes the classes, and a written file can be read back."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
import yaml
from pydantic import Field

from bertworks.analysis.settings_help import commented_yaml, describe, help_text, settings_class
from bertworks.settings.base import Settings
from bertworks.settings.verbs import VERB_SETTINGS
from bertworks.tasks import LABELLED_TASKS
from bertworks.training.recipe import PretrainSettings

TASKS = LABELLED_TASKS
SCHEMAS: list[type[Settings]] = [
    *(settings_class("finetune", task) for task in TASKS),
    *(settings_class(verb) for verb in VERB_SETTINGS if verb != "finetune"),
]
REQUIRED_VALUES = {PretrainSettings: {"data": "prepared", "steps": 10}}


class Basic(Settings):
    """What all of them have."""

    seed: int = Field(0, ge=0, description="of all draws")


class Inner(Settings):
    """How long it takes."""

    length: int = Field(8, ge=1)


class Outer(Basic):
    """What one of them has. More is said of it here."""

    name: str
    seed: int = Field(1, ge=0, description="of all draws")
    kind: Literal["old", "new"] = "old"
    rates: tuple[float, float] = Field((0.5, 0.25), description="first and last")
    inner: Inner = Inner()
    parts: tuple[Inner, ...] = Field((Inner(length=2),), min_length=1)
    other: Inner | None = Field(None, description="instead of inner")


def test_each_setting_is_described_by_its_field() -> None:
    settings_by_key = {setting.key: setting for setting in describe(Outer)}
    assert list(settings_by_key) == [
        *("name", "kind", "rates", "other", "seed"),
        *("inner.length", "parts[].length", "other.length"),
    ]
    kinds = {key: setting.kind for key, setting in settings_by_key.items()}
    assert kinds["seed"] == "integer, ≥ 0"
    assert kinds["kind"] == "old | new"
    assert kinds["rates"] == "[number, number]"
    assert kinds["other"] == "group or null"
    assert settings_by_key["name"].required
    assert settings_by_key["name"].default_text == "required"
    assert settings_by_key["seed"].default_text == "1"
    assert settings_by_key["rates"].default_text == "[0.5, 0.25]"
    assert settings_by_key["rates"].description == "first and last"
    assert settings_by_key["seed"].group == "What all of them have", "where it was declared first"
    assert settings_by_key["name"].group == "What one of them has. More is said of it here"
    assert settings_by_key["inner.length"].group == "inner: How long it takes"
    assert settings_by_key["other.length"].group == "other: instead of inner"


@pytest.mark.long
def test_help_fits_its_width_and_names_every_setting() -> None:
    for width in (60, 80, 120):
        for kind in (Outer, *SCHEMAS):
            text = help_text(describe(kind), width)
            assert max(map(len, text.splitlines())) <= width
            keys = {line.split("=")[0].strip() for line in text.splitlines() if "=" in line}
            assert {setting.key for setting in describe(kind)} <= keys


def uncomment(text: str) -> str:
    """The file with every setting uncommented, and what must be given left out."""
    lines = (line.removeprefix("# ") for line in text.splitlines() if not line.startswith("##"))
    return "\n".join(line for line in lines if "REQUIRED" not in line and "---" not in line)


@pytest.mark.parametrize("kind", SCHEMAS)
def test_every_setting_has_a_description(kind: type[Settings]) -> None:
    assert [setting.key for setting in describe(kind) if not setting.description] == []


@pytest.mark.parametrize("kind", SCHEMAS)
def test_a_file_of_all_settings_is_accepted_and_changes_nothing(
    kind: type[Settings], tmp_path: Path
) -> None:
    required_values = REQUIRED_VALUES.get(kind, {})
    usual = kind.parse(required_values)
    text = commented_yaml(kind)
    assert yaml.safe_load(text) is None, "defaults are commented out"
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    assert kind.resolve(file, **required_values) == usual
    tree = yaml.safe_load(uncomment(text))
    assert tree.keys() | required_values.keys() == kind.model_fields.keys(), "each is there"
    # Groups that are left out as a whole, such as a teacher, are not the defaults.
    tree = {
        key: value for key, value in tree.items() if getattr(usual, key) is not None or not value
    }
    assert kind.parse(required_values | tree) == usual, "with its default"
    for key, value in tree.items():
        assert kind.parse({**required_values, key: value}) == usual, key

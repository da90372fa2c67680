"""What is given twice is an error: of two values, one would be lost in silence."""

from __future__ import annotations

from typing import Any

import pytest
from typer.main import get_command

from bertworks.analysis.settings_help import settings_class
from bertworks.cli import app
from bertworks.errors import SettingsError
from bertworks.settings.verbs import VERB_SETTINGS

from .conftest import bertworks, fails

VERB_TABLE: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
REPEATABLE = {
    ("vocab", "--exclude"),
    ("prepare", "--exclude"),
    ("evaluate", "--data"),
    ("evaluate", "--with"),
    ("search", "--with"),
    ("answer", "--with"),
    ("glue", "--grid"),
    ("finetune", "--grid"),
    ("finetune", "--train"),
}


@pytest.mark.parametrize("verb", VERB_TABLE)
def test_option_given_twice_is_an_error_unless_it_may_be_repeated(verb: str) -> None:
    for param in VERB_TABLE[verb].params:
        if param.param_type_name != "option" or param.name == "help":
            continue
        names = [*param.opts, *param.secondary_opts]
        says = f"error: {param.opts[0]} is given twice; {verb} takes it once."
        for first, last in zip(names, reversed(names), strict=True):
            words = [[first], [last]] if param.is_flag else [[first, "1"], [f"{last}=2"]]
            result = bertworks(verb, *words[0], *words[1])
            assert result.exit_code == 2, (verb, words, result.output)
            assert (says in result.stderr) != ((verb, param.opts[0]) in REPEATABLE), result.stderr


@pytest.mark.parametrize("verb", VERB_SETTINGS)
def test_setting_given_twice_is_an_error(verb: str) -> None:
    schema = settings_class(verb)
    for key in schema.model_fields:
        with pytest.raises(SettingsError, match=f"{key} is given twice"):
            schema.resolve(overrides=[f"{key}=1", f"{key}=2"])


@pytest.mark.parametrize("verb", VERB_SETTINGS)
def test_no_option_has_the_name_of_a_setting(verb: str) -> None:
    options = {param.name for param in VERB_TABLE[verb].params if param.name != "settings"}
    assert not options & set(settings_class(verb).model_fields)


def test_setting_given_in_two_spellings_is_an_error() -> None:
    words = ("predict", "mini-sentences", "a", "--labels", "a,b")
    fails(*words, "labels=[a, c]", says="labels is given twice")
    for more in (["coverage=0.8", "coverage=0.9"], ["coverage=0.8", "--coverage", "0.9"]):
        fails(*words, *more, says="coverage is given twice")

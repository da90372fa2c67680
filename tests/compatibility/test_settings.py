"""Settings as they were written down, and as they were typed, are still what they were."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from . import accepted, look
from .schemas import NEEDED, REFUSED_ALONE, RENAMED, VERBS, recipe, schema_of, value_of

RECIPES = json.loads((look.DIRECTORY / "recipes.json").read_bytes())
WORDS = json.loads((look.DIRECTORY / "words.json").read_bytes())
COMMANDS = json.loads((look.DIRECTORY / "commands.json").read_bytes())
WRITTEN = sorted(
    path.relative_to(look.DIRECTORY).as_posix()
    for path in (look.DIRECTORY / "runs").glob("**/settings.yaml")
    if "-seed0/" not in str(path) or "fine-tuned" in str(path)
)


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def check_values(verb: str, resolved: Any, tree: Mapping[str, Any]) -> None:
    """See that settings have the values of a tree of earlier keys."""
    for key, value in leaves(tree):
        now = value_of(resolved, RENAMED.get(f"{verb} {key}", key))
        assert now == value, f"{verb} {key}: {now!r}, and was {value!r}"


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_are_what_they_were(root: Path, name: str) -> None:
    file = root / "settings" / f"{name}.yaml"
    tree = yaml.safe_load(file.read_bytes())
    with accepted.deprecations():
        check_values("pretrain", recipe(str(file), []), tree)
        if name == "adapt":  # the geometry is the checkpoint's, which a run asks for it
            del tree["model"]
        check_values("pretrain", recipe(name, ["data=prepared", *RECIPES[name]]), tree)


@pytest.mark.parametrize("file", WRITTEN)
def test_settings_of_runs_load(root: Path, file: str) -> None:
    """As resuming reads them; `test_runs` sees to it that they are found to be the same."""
    tree = yaml.safe_load((look.DIRECTORY / file).read_bytes())
    name = Path(file).parts[1]
    verb = " ".join(COMMANDS[name][: 2 if COMMANDS[name][0] == "finetune" else 1])
    if "task" in tree:
        verb = f"finetune {tree['task']}"
    if verb in ("glue", "finetune classification") and "settings" in tree:  # of a grid
        tree = tree["settings"]
    beside = {"task", "model", "fingerprint", "train", "dev"} if verb != "pretrain" else set()
    tree = {key: value for key, value in tree.items() if key not in beside}
    assert tree
    with accepted.deprecations():
        resolved = recipe(str(root / file), []) if verb == "pretrain" else None
        check_values(verb, resolved or schema_of(verb).parse(tree), tree)


@pytest.mark.parametrize("verb", VERBS)
def test_every_word_is_accepted(verb: str) -> None:
    assert len(WORDS[verb]) > 15
    schema = schema_of(verb)
    with accepted.deprecations():
        for before, word, key, value in WORDS[verb]:
            needed = [one for one in before if one.partition("=")[0] != key]  # given once
            others = REFUSED_ALONE.get(f"{verb} {word}", ())
            resolved = schema.resolve(overrides=[*needed, *others, word])
            check_values(verb, resolved, {key: value})


def test_former_keys_are_former() -> None:
    """An entry of `RENAMED` is of a setting that had the one name and has the other."""
    known = {f"{verb} {key}" for verb in VERBS for _, _, key, _ in WORDS[verb]}
    for old, new in RENAMED.items():
        assert old in known
        verb = next(verb for verb in VERBS if old.startswith(f"{verb} "))
        value_of(schema_of(verb).resolve(overrides=NEEDED.get(verb, ())), new)

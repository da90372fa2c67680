"""A verb's options are its function's signature and docstring; its display prints text or JSON."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from bertworks import cli
from bertworks.cli.display import Display, JsonDisplay
from bertworks.cli.option_groups import OptionGroup, with_groups
from tests.conftest import needs_pytorch

from .conftest import json_of

pytestmark = pytest.mark.light


def _inner(*, depth: Annotated[int, typer.Option(min=1, max=9)] = 1) -> int:
    """Args are read with or without other text.

    Args:
        depth (N): How deep.
    """
    return depth


def _group(
    source: str, *, depth: Annotated[int, OptionGroup(_inner)], force: bool = False
) -> dict[str, Any]:
    """What several verbs have.

    Args:
        source (FROM): Where from, in words that need
            two lines.
        force: Do it.
    """
    return {"source": source, "depth": depth, "force": force}


def _verb(
    group: Annotated[dict[str, Any], OptionGroup(_group)],
    rest: list[str] | None = None,
    *,
    no_check: bool = False,
    display: JsonDisplay,
) -> None:
    """Do something.

    With care.

    Args:
        rest ([WORD]…): Words.
        no_check: Check nothing.
    """
    display.json({**group, "rest": rest, "no_check": no_check})
    display.text("as text")


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer(rich_markup_mode=None)
    app.command()(with_groups(_verb))
    return app


def test_options_are_read_from_signatures_and_docstrings(app: typer.Typer) -> None:
    shown = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["--help"]).stdout
    text, _, options = shown.partition("Options:")
    assert "Do something.\n\n  With care." in text
    assert "Args" not in text
    words = " ".join(text.partition("Arguments:")[2].split())
    assert words == (
        "FROM <str> Where from, in words that need two lines. [required] [WORD]… <list[str]> Words."
    )
    names = [line.split()[0] for line in options.splitlines() if line.startswith("  --")]
    assert names[:5] == ["--no-check", "--force", "--depth", "--json", "--install-completion"]
    assert "--no-force" not in options
    assert "--depth N" in options and "1<=x<=9" in options


def test_groups_get_their_options(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["here", "a", "b", "--depth", "3", "--no-check", "--json"])
    assert result.stdout == (
        '{"source": "here", "depth": 3, "force": false, "rest": ["a", "b"], "no_check": true}\n'
    )
    assert CliRunner().invoke(app, ["here"]).stdout == "as text\n"
    assert CliRunner().invoke(app, ["here", "--depth", "10"]).exit_code == 2


def test_a_display_prints_either_text_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    def show(display: Display) -> str:
        display.json([1])
        display.facts({"a": 1, "not known": None})
        display.table(("name", "value"), [("b", 0.5)], right="value")
        display.metrics({"c": 1.0})
        display.notes(["d"])
        return capsys.readouterr().out

    assert show(Display(as_json=True)) == "[1]\n"
    lines = [line.split() for line in show(Display()).splitlines()]
    assert lines[0] == ["a", "1"]
    assert ["b", "0.5000"] in lines and ["c", "1.0000"] in lines and lines[-1] == ["d"]
    assert ["not", "known", "None"] not in lines


@needs_pytorch
def test_claims_are_listed_as_json() -> None:
    claims = json_of("lab", "list")
    assert all(claim.keys() == {"name", "minutes", "says"} for claim in claims)
    assert "order" in {claim["name"] for claim in claims}


def test_every_option_has_a_help() -> None:
    verbs: dict[str, Any] = get_command(cli.app).commands  # type: ignore[attr-defined]
    options = {f"{verb} {one.name}": one.help for verb in verbs for one in verbs[verb].params}
    assert [name for name, text in options.items() if not text] == []

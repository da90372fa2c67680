"""Environment variables: unknown ones with the package's prefix are refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.main import get_command
from typer.testing import CliRunner

from bertworks.cli import app
from bertworks.cli.application import list_variables
from bertworks.errors import SettingsError
from bertworks.utils.environment import VARIABLES, check_environment

ROOT = Path(__file__).parents[2]
KUBERNETES = {
    "BERTWORKS_SERVICE_HOST": "10.0.0.1",
    "BERTWORKS_SERVICE_PORT": "8080",
    "BERTWORKS_SERVICE_PORT_HTTP": "8080",
    "BERTWORKS_PORT": "tcp://10.0.0.1:8080",
    "BERTWORKS_PORT_8080_TCP": "tcp://10.0.0.1:8080",
    "BERTWORKS_PORT_8080_TCP_PROTO": "tcp",
    "BERTWORKS_PORT_8080_TCP_PORT": "8080",
    "BERTWORKS_PORT_8080_TCP_ADDR": "10.0.0.1",
}


@pytest.mark.parametrize("name", VARIABLES)
def test_known_variables_are_accepted(name: str) -> None:
    check_environment({name: next(iter(VARIABLES[name]), "anything")})


@pytest.mark.long
@given(st.from_regex(r"(BERTWORKS|bertworks|BertWorks)_[A-Za-z_]{0,12}", fullmatch=True))
def test_any_other_variable_is_an_error_with_a_valid_name(name: str) -> None:
    if name in VARIABLES:
        return
    with pytest.raises(SettingsError, match=rf"variable {name} is unknown.*BERTWORKS_"):
        check_environment({"PATH": "/bin", name: "x"})


@pytest.mark.parametrize(
    ("name", "valid"),
    [
        ("BERTWORKS_API_KEY", "BERTWORKS_API_KEYS"),
        ("bertworks_api_keys", "BERTWORKS_API_KEYS"),
        ("BERTWORKS_KEYS", "BERTWORKS_API_KEYS"),
        ("BERTWORKS_NATVE", "BERTWORKS_NATIVE"),
    ],
)
def test_a_mistyped_variable_is_an_error_that_names_the_nearest(name: str, valid: str) -> None:
    with pytest.raises(
        SettingsError, match=f"{name} is unknown. The nearest valid name is.*{valid}"
    ):
        check_environment({name: "x"})


def test_a_switch_has_certain_values() -> None:
    with pytest.raises(SettingsError, match=r"BERTWORKS_NATIVE is 'off'\. Allowed values: 0, 1"):
        check_environment({"BERTWORKS_NATIVE": "off"})


@pytest.mark.parametrize("service", ["BERTWORKS", "BERTWORKS_EMBED"])
def test_variables_that_kubernetes_sets_for_a_service_are_no_settings(service: str) -> None:
    variables = {name.replace("BERTWORKS", service, 1): value for name, value in KUBERNETES.items()}
    check_environment(variables)
    del variables[f"{service}_SERVICE_HOST"]
    with pytest.raises(SettingsError, match="is unknown"):
        check_environment(variables)
    check_environment({})
    with pytest.raises(SettingsError, match="BERTWORKS_API_KEY "):
        check_environment({**KUBERNETES, "BERTWORKS_API_KEY": "x"})


@pytest.mark.long
def test_all_variables_of_the_repository_are_known() -> None:
    folders = ("src", "tests", "benchmarks", "examples")
    files = [*(file for folder in folders for file in (ROOT / folder).rglob("*.py"))]
    files = [file for file in files if file != Path(__file__)]
    read = re.compile(r"""(?:environ\S*|getenv|setenv|delenv)[(\[]"(BERTWORKS_\w+)""")
    names = {name for file in files for name in read.findall(file.read_text("utf-8"))}
    variables = {*VARIABLES, *list_variables(get_command(app).commands["serve"])}  # type: ignore[attr-defined]
    assert {"BERTWORKS_DATA", "BERTWORKS_NATIVE"} <= names <= variables


@pytest.mark.parametrize(
    "verb", [["tokenize", "mini", "a"], ["serve", "mini"], ["settings", "embed"]]
)
def test_every_verb_refuses_an_unknown_variable(
    verb: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTWORKS_API_KEY", "x" * 20)
    result = CliRunner().invoke(app, verb)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: the environment variable BERTWORKS_API_KEY is unknown")
    assert result.stderr.count("\n") == 1


@pytest.mark.long
def test_every_verb_knows_the_variables_of_serve() -> None:
    command = [sys.executable, "-m", "bertworks", "tokenize", "mini", "a"]
    for name, status in (("BERTWORKS_SERVE_PORT", 0), ("BERTWORKS_SERVE_PROT", 1)):
        result = subprocess.run(
            command, check=False, env={**os.environ, name: "1"}, capture_output=True
        )
        assert result.returncode == status, result.stderr
        assert (b"'BERTWORKS_SERVE_PORT'; unset this one" in result.stderr) == bool(status)

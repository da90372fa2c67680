"""`bertworks report-environment`."""

import json
import platform

from typer.testing import CliRunner

import bertworks
from bertworks.cli import app


def test_environment_is_reported_without_values_of_variables(monkeypatch):
    monkeypatch.setenv("BERTWORKS_API_KEYS", "a-secret-key")
    result = CliRunner().invoke(app, ["report-environment"])
    assert f"bertworks: {bertworks.__version__}" in result.stdout
    assert "BERTWORKS_API_KEYS" in result.stdout and "a-secret-key" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    facts = json.loads(CliRunner().invoke(app, ["report-environment", "--json"]).stdout)
    assert facts["Python"].startswith(platform.python_version())
    assert "numpy " in facts["packages"] and "pytest" not in facts["packages"]

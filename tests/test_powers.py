"""docs/powers.md: what its table names exists, and nothing public is missing from it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

import bertworks
from bertworks.cli import app
from bertworks.serving import dialects

PAGE = Path(__file__).resolve().parent.parent / "docs" / "powers.md"
SOURCES = Path(dialects.__file__).parent
# of `Model`: where it stands, what it is made of, and files
OTHERS = {"to", "save", "fresh", "fingerprint", "calibrate", "encoder", "embedder"}
OTHERS |= {"compares_queries", "similarity_function", "device_type", "num_bytes"}
OTHERS |= {"embed_defaults", "max_seq_length"}


def column(number: int) -> set[str]:
    rows = [line.split("|")[1:-1] for line in PAGE.read_text(encoding="utf-8").splitlines()]
    cells = [row[number] for row in rows if len(row) == 5][2:]
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_named_commands_are_there() -> None:
    assert column(1) <= {*get_command(app).commands}  # type: ignore[attr-defined]


def test_methods_of_models_are_all_there() -> None:
    assert column(2) == public(bertworks.Model) - OTHERS


@pytest.mark.parametrize("client", [bertworks.Client, bertworks.AsyncClient])
def test_methods_of_clients_are_all_there(client: type) -> None:
    assert column(3) == public(client) - {"close", "aclose"}


def test_named_routes_are_there() -> None:
    sources = "".join(file.read_text(encoding="utf-8") for file in SOURCES.glob("*.py"))
    routes = set(re.findall(r'"(/[a-z0-9_/-]+)"', sources)) | {"/"}
    assert column(4) <= routes and len(column(4)) > 15

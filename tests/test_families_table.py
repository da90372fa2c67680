"""The committed table of the families: complete, in the command's words, within the tolerances."""

from __future__ import annotations

import pytest

from bertworks.checkpoints.families import FAMILIES
from tests import families_table
from tests.families_table import COLUMNS, PAGE
from tests.text.peers import PEERS


@pytest.fixture(scope="module")
def page():
    return PAGE.read_text(encoding="utf-8")


def test_every_family_has_a_row(page):
    rows, _ = families_table.read_page(page)
    assert list(rows) == list(FAMILIES)


def test_the_page_is_what_the_command_writes(page):
    assert families_table.write_page(*families_table.read_page(page)) == page


@pytest.mark.parametrize("family", FAMILIES)
def test_every_figure_is_within_the_tolerance(page, family):
    rows, _ = families_table.read_page(page)
    for column, figures in zip(COLUMNS, rows[family], strict=True):
        if column.heading == "tokenizer" and family not in PEERS:
            assert figures == ()
        else:
            assert column.is_good(*figures), (column.heading, figures)


@pytest.mark.parametrize(
    ("heading", "bad"),
    [
        ("load", (40, 41, 0)),
        ("load", (41, 41, 1)),
        ("outputs, float64", (2e-10,)),
        ("gradients, float32", (2e-5,)),
        ("outputs, bfloat16", (0.01, 0.01, 1.2)),
        ("outputs, bfloat16", (0.05, 0.01, 0.9)),
        ("tokenizer", (0, 0, 0, 0)),
        ("tokenizer", (0, 10, 1, 10)),
        ("round trip", (1, 100, 0)),
        ("round trip", (0, 100, 1)),
        ("ONNX", (2e-4,)),
    ],
)
def test_figures_beyond_the_tolerance_are_seen(heading, bad):
    (column,) = (column for column in COLUMNS if column.heading == heading)
    assert not column.is_good(*bad)
    assert column.read(column.write(bad)) == bad


def test_a_cell_that_was_edited_is_seen():
    with pytest.raises(AssertionError, match="not what the command writes"):
        COLUMNS[1].read("about 3.1e-15")

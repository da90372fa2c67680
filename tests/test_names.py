"""Names say what a thing is: the number of bare participles and prepositions only goes down."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import names

MOST = {"src/bertworks": 22, "tests": 2, "benchmarks": 0}
"""How many bindings of each folder may have such a name. These numbers only go down."""

SOURCE = """
import json as given

class Seen:
    held: int

    def __init__(self):
        self.kept, self.rows = [], []

def read(told, rows, *asked):
    short = found = [row for row in rows if row]
    return found


def write(rows):
    made = 1
    seed = packed_rows = 2
    with open(rows) as written:
        print(seed)
        def inner():
            return made, [
                taken
                for taken in rows
            ]
        return (lambda shown: shown), packed_rows
    written.close()
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "source.py"
    file.write_text(SOURCE)
    return file


@pytest.mark.long
@pytest.mark.parametrize("folder", MOST)
def test_folder_has_no_more_bare_participles_and_prepositions(folder: str) -> None:
    root = names.ROOT / folder
    matches = [each for each in names.bindings([root]) if each.is_counted]
    worst = names.totals(matches, root)["file"].most_common(5)
    files = ", ".join(f"{file} ({count})" for file, count in worst)
    assert len(matches) <= MOST[folder], (
        f"{len(matches)} names are bare participles, prepositions or adverbs: at most "
        f"{MOST[folder]}. Name the thing (`rows`, `path`, `match`). "
        f"`python -m tests.names {folder}` lists all; files with the most: {files}"
    )


@pytest.mark.long
def test_test_names_of_this_project_have_a_subject_and_a_behaviour() -> None:
    tests = names.tests_of(names.bindings([names.ROOT / "tests"]))
    faults = [(each.name, fault) for each, fault in tests if fault]
    assert not faults, "name tests `test_<subject>_<behaviour>`, in plain words"


def test_variables_count_beyond_three_lines_and_all_else_always(source: Path) -> None:
    counted = {each.name: each.kind for each in names.bindings([source]) if each.is_counted}
    assert counted == {
        "given": "attribute",
        "Seen": "class",
        "held": "attribute",
        "kept": "attribute",
        "told": "parameter",
        "asked": "parameter",
        "made": "variable",
        "written": "variable",
    }


def test_lines_end_at_the_last_use_in_inner_functions(source: Path) -> None:
    lines = {each.name: each.lines for each in names.bindings([source])}
    assert (lines["found"], lines["made"], lines["written"]) == (2, 6, 9)


@pytest.mark.parametrize(
    ("name", "is_bare"),
    [
        ("found", True),
        ("_used", True),
        ("AT_ONCE", True),
        ("put", False),
        ("made_with", True),
        ("GivenBefore", True),
        ("last_thaw", True),
        ("found_rows", False),
        ("seed", False),
        ("packed", False),
        ("gold", False),
        ("_", False),
    ],
)
def test_bare_names_have_nothing_but_such_words_or_a_metaphor(name: str, is_bare: bool) -> None:
    assert names.is_bare(name) is is_bare


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("test_rows_keep_their_order", None),
        ("test_frozen_parts_keep_every_bit", None),
        ("test_what_does_not_fit_is_refused", "no subject"),
        ("test_killed_and_run_again", "no subject"),
        ("test_without_a_rank_there_is_nothing_to_set", "no subject"),
        ("test_a_bad_config", "no behaviour"),
        ("test_a_word_is_told", "dialect"),
    ],
)
def test_test_names_have_a_subject_and_a_behaviour(name: str, fault: str | None) -> None:
    assert names.find_test_name_fault(name) == fault

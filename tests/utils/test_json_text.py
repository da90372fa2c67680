"""JSON that others wrote: read as it is, or refused with a `ValueError`."""

from __future__ import annotations

import json
import time

import pytest

from bertworks.utils.json_files import MAX_DEPTH, RepeatedKeys, parse_json

pytestmark = pytest.mark.light


@pytest.mark.parametrize("text", ['{"a": [1, "é", null]}', "1", "[]", '"x"', "1e5"])
def test_values_are_those_of_the_library(text: str) -> None:
    assert parse_json(text) == parse_json(text.encode()) == json.loads(text)


def test_many_brackets_side_by_side_are_not_deep() -> None:
    values = [[[number]] for number in range(10 * MAX_DEPTH)]
    assert parse_json(json.dumps(values)) == values


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 900, 100_000])
@pytest.mark.parametrize(("start", "end"), [("[", "]"), ('{"a":', "}")])
def test_depth_is_bounded(depth: int, start: str, end: str) -> None:
    with pytest.raises(ValueError, match="nested more than 100 levels"):
        parse_json(start * depth + "1" + end * depth)
    assert parse_json(start * MAX_DEPTH + "1" + end * MAX_DEPTH) is not None


@pytest.mark.parametrize("text", ["", "[", '{"a": 1,}', b"\xff", "9" * 5000])
def test_invalid_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


@pytest.mark.parametrize(
    "text", ['{"a": 1, "b": {"c": 1}, "d": {"c": 2}}', '[{"a": 1}, {"a": 2}]', "{}"]
)
def test_keys_of_other_objects_are_distinct(text: str) -> None:
    value = parse_json(text, mark_repeated_keys=True)
    assert value == json.loads(text) and not isinstance(value, RepeatedKeys)


def test_object_with_a_repeated_key_is_marked() -> None:
    text = '{"b": {"a": 1, "c": 2, "a": 3}}'
    value = parse_json(text, mark_repeated_keys=True)
    assert value == json.loads(text)
    assert isinstance(value["b"], RepeatedKeys) and not isinstance(value, RepeatedKeys)
    assert str(value["b"].error("f")) == "f: the key 'a' occurs twice. Keep one of them."
    assert type(parse_json(text)["b"]) is dict


def test_repeated_key_of_a_large_object_is_found_in_linear_time() -> None:
    keys = [f'"{number}": 0' for number in range(100_000)]
    begin = time.process_time()
    value = parse_json(f"{{{', '.join([*keys, keys[-1]])}}}", mark_repeated_keys=True)
    assert value.key == "99999"
    assert time.process_time() - begin < 5  # minutes, when each key was compared with all others

"""Impossible geometries are refused: every check of `EncoderConfig` has a case here."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from bertworks.errors import SettingsError
from bertworks.nn import config_checks, part_settings
from bertworks.nn.config import EncoderConfig

GEOMETRY = {
    **{"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"intermediate_size": 32, "max_position_embeddings": 20},
}
DISENTANGLED_BIAS = {"kind": "disentangled"}
CASES: list[tuple[dict[str, Any], str]] = [
    ({"hidden_size": 18}, "hidden_size=18 is not divisible by num_attention_heads=4"),
    ({"bottleneck": {"size": 6}}, "bottleneck.size=6 is not divisible"),
    ({"num_key_value_heads": 3, "use_bias": False}, "is not divisible by num_key_value_heads=3"),
    ({"num_key_value_heads": 2}, "num_key_value_heads needs use_bias=false"),
    (
        {"num_key_value_heads": 4, "query_key_value_order": "head"},
        "query_key_value_order=head needs num_key_value_heads=null",
    ),
    ({"hidden_size": 20, "positions": "rotary"}, "over num_attention_heads=4 is odd"),
    ({"attention": "two-way", "num_attention_heads": 1}, "an even hidden_size and number of heads"),
    (
        {"attention": "two-way", "num_key_value_heads": 4},
        "attention=two-way needs num_key_value_heads=null",
    ),
    ({"position_offset": 20}, "leaves no position, since the first is number 20"),
    ({"num_hidden_groups": 3}, "num_hidden_groups=3 is more than num_hidden_layers=2"),
    ({"mlm_transform": False, "embedding_size": 8}, "embedding_size needs mlm_transform"),
    ({"norm": "rms"}, "norm=rms needs norm_bias=false"),
    ({"mixer": "lstm"}, "mixer=lstm needs attention=causal, or two-way"),
    ({"mixer": "lstm", "attention": "causal", "local_attention": 4}, "do nothing with mixer=lstm"),
    (
        {"mixer": "lstm", "attention": "causal", "positions": "rotary"},
        "do nothing with mixer=lstm",
    ),
    ({"attention": "two-way", "norm_first": True}, "attention=two-way needs norm_first=false"),
    ({"global_tokens": {}}, "global_tokens needs an even number for local_attention"),
    ({"global_tokens": {}, "local_attention": 5}, "needs an even number for local_attention"),
    (
        {"global_tokens": {}, "local_attention": 4, "attention": "causal"},
        "global_tokens needs the default of attention",
    ),
    (
        {"global_tokens": {}, "local_attention": 4, "positions": "rotary"},
        "global_tokens needs positions that are not rotary",
    ),
    ({"bottleneck": {"size": 8}, "norm_first": True}, "bottleneck needs the default of norm_first"),
    (
        {"bottleneck": {"size": 8}, "positions": "rotary"},
        "bottleneck needs positions that are not rotary",
    ),
    (
        {"bottleneck": {"size": 8, "shared_query_key": False}},
        "attention=false needs shared_query_key=true",
    ),
    (
        {"score_bias": {"kind": "alibi"}, "mixer": "lstm", "attention": "causal"},
        "score_bias needs mixer=attention",
    ),
    ({"score_bias": {"kind": "alibi"}, "attention": "two-way"}, "and not attention=two-way"),
    (
        {"score_bias": {"kind": "transformer-xl"}, "hidden_size": 5, "num_attention_heads": 1},
        "hidden_size=5 is odd; score_bias.kind=transformer-xl",
    ),
    (
        {"score_bias": DISENTANGLED_BIAS, "attention": "causal"},
        "score_bias.kind=disentangled needs attention=bidirectional",
    ),
    (
        {"score_bias": DISENTANGLED_BIAS, "num_key_value_heads": 2, "use_bias": False},
        "score_bias.kind=disentangled needs num_key_value_heads=null",
    ),
    (
        {
            "score_bias": {**DISENTANGLED_BIAS, "shared_maps": True},
            "query_key_value_order": "head",
        },
        "score_bias.shared_maps needs query_key_value_order=part",
    ),
    (
        {"score_bias": {**DISENTANGLED_BIAS, "key_bias": False}, "use_bias": False},
        "score_bias.key_bias=false needs use_bias=true",
    ),
    (
        {"score_bias": {"kind": "alibi", "key_bias": False}},
        "key_bias=false needs kind=disentangled and shared_maps=false",
    ),
    ({"score_bias": {**DISENTANGLED_BIAS, "terms": ["c2p", "c2p"]}}, "terms: one is given twice"),
    ({"score_bias": {"kind": "buckets", "num_buckets": 6}}, "num_buckets=6 is not a multiple of 4"),
    (
        {"score_bias": {"kind": "buckets", "num_buckets": 32, "max_distance": 9}},
        "max_distance=9: must be more than 9, since num_buckets=32 have one distance each up to 8",
    ),
    (
        {"score_bias": {**DISENTANGLED_BIAS, "num_buckets": 8, "max_distance": 5}},
        "max_distance=5: must be more than 5",
    ),
    ({"convolution": {"kernel_size": 2}}, "kernel_size=2 is not odd"),
    ({"convolution": {}, "attention": "causal"}, "convolution needs attention=bidirectional"),
    ({"convolution": {}, "num_hidden_layers": 0}, "convolution needs .* a layer"),
    ({"convolution": {"groups": 3}}, "convolution.groups=3 does not divide hidden_size=16"),
    (
        {"linear_groups": {"query_key_value": 2}, "num_key_value_heads": 2, "use_bias": False},
        "linear_groups.query_key_value needs num_key_value_heads=null",
    ),
    (
        {"linear_groups": {"output": 3}},
        "linear_groups.output=3 does not divide the map's width: 32 or 16",
    ),
    (
        {"linear_groups": {"intermediate": 16}, "intermediate_size": 24},
        "linear_groups.intermediate=16 does not divide the map's width: 16 or 24",
    ),
    ({"output_embedding_size": 8}, "output_embedding_size=8 is less than the width"),
    ({"word_map": {}}, "word_map needs embedding_size"),
    (
        {"word_map": {}, "embedding_size": 8, "zeroed_token_id": 1},
        "word_map needs zeroed_token_id=null",
    ),
    ({"zeroed_token_id": 50}, "zeroed_token_id=50 is not below vocab_size=50"),
]


def _error(values: dict[str, Any]) -> ValueError:
    """The error of an impossible geometry."""
    with pytest.raises(ValidationError) as caught:
        EncoderConfig.model_validate({**GEOMETRY, **values})
    (error,) = caught.value.errors()
    cause: ValueError = error["ctx"]["error"]
    return cause


@pytest.mark.parametrize(("values", "says"), CASES)
def test_impossible_geometries_are_refused(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        raise _error(values)


def test_every_check_of_a_geometry_has_a_case() -> None:
    lines_of_errors = set()
    for values, _ in CASES:
        traceback = _error(values).__traceback__
        while traceback is not None:
            last, traceback = traceback, traceback.tb_next
        lines_of_errors.add((last.tb_frame.f_code.co_filename, last.tb_lineno))
    checks = {
        (module.__file__, node.lineno): range(node.lineno, (node.end_lineno or node.lineno) + 1)
        for module in (config_checks, part_settings)
        for node in ast.walk(ast.parse(Path(module.__file__).read_text("utf-8")))
        if isinstance(node, ast.Raise)
        and isinstance(node.exc, ast.Call)
        and ast.unparse(node.exc.func) == "ValueError"
    }
    assert len(checks) > 30
    missing = [
        (file, line)
        for (file, line), lines in checks.items()
        if not lines_of_errors & {(file, one) for one in lines}
    ]
    assert not missing, f"lines without a case: {missing}"


def test_geometry_of_the_cases_is_possible() -> None:
    EncoderConfig.model_validate(GEOMETRY)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "5 is more than the 4 tokens that the encoder's max_position_embeddings=4 has room"),
        (
            {"max_position_embeddings": 9, "max_full_attention": 4},
            "5 is more than the 4 tokens that the encoder can read",
        ),
    ],
)
def test_length_above_the_limit_names_what_limits_it(values: dict[str, Any], says: str) -> None:
    config = EncoderConfig.from_size("tiny", vocab_size=9)
    config = config.with_values(**{"max_position_embeddings": 4, **values})
    config.check_length(4)
    with pytest.raises(SettingsError, match=says):
        config.check_length(5)

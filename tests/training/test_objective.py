"""A teacher and a student in a pre-training run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bertworks.errors import SettingsError
from bertworks.training.pretrain import PretrainResult

from .tiny_run import tiny_run

GEOMETRY = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


@pytest.fixture(scope="module")
def teacher(prepared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("teacher") / "run"
    tiny_run(prepared_data, out, steps=1, model={**GEOMETRY, "hidden_size": 16})
    return str(out)


def pretrain_student(data: Path, out: Path, *, width: int, **distillation: Any) -> PretrainResult:
    return tiny_run(
        data,
        out,
        steps=6,
        model={**GEOMETRY, "hidden_size": width},
        objective="distillation",
        distillation={"initialize": False, **distillation},
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("width", "cosine_weight", "losses"),
    [
        (16, 1.0, {"mlm", "soft", "nsp", "cosine"}),
        (8, 0.0, {"mlm", "soft", "nsp"}),
    ],
    ids=["as wide", "narrower"],
)
def test_a_student_of_any_width_learns(
    teacher: str,
    prepared_data: Path,
    tmp_path: Path,
    width: int,
    cosine_weight: float,
    losses: set[str],
) -> None:
    result = pretrain_student(
        prepared_data, tmp_path, width=width, teacher=teacher, cosine_weight=cosine_weight
    )
    assert result.steps == 6
    lines = [line for line in result.run.lines() if line["kind"] == "train"]
    assert lines[0]["losses"].keys() == losses


@pytest.mark.long
def test_a_teacher_must_have_room_for_the_phases(prepared_data: Path, tmp_path: Path) -> None:
    geometry = {**GEOMETRY, "hidden_size": 16, "max_position_embeddings": 24}
    phases = [{"max_seq_length": 24}]
    tiny_run(prepared_data, tmp_path / "short", steps=1, phases=phases, model=geometry)
    short = str(tmp_path / "short")
    with pytest.raises(SettingsError, match="max_seq_length=48 is longer than the 24 tokens that"):
        pretrain_student(prepared_data, tmp_path / "run", width=16, teacher=short)


@pytest.mark.long
def test_a_causal_teacher_is_refused(prepared_data: Path, tmp_path: Path) -> None:
    geometry = {**GEOMETRY, "hidden_size": 16, "attention": "causal"}
    causal = {"objective": "causal", "instances": {"format": "full-sentences"}}
    tiny_run(prepared_data, tmp_path / "causal", steps=1, model=geometry, **causal)
    with pytest.raises(SettingsError, match="the teacher is causal"):
        pretrain_student(
            prepared_data, tmp_path / "run", width=16, teacher=str(tmp_path / "causal")
        )

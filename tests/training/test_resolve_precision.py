"""A run is resumed in the precision it was started with, whatever the device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bertworks.errors import DataError, TrainingError
from bertworks.nn import device
from bertworks.runs.run_directory import RunDirectory
from bertworks.settings.base import RUN_FORMAT
from bertworks.training.precision import resolve_precision
from bertworks.training.settings import FinetuneSettings

CPU = torch.device("cpu")


@pytest.mark.parametrize(("fast", "usual"), [(True, "bf16"), (False, "fp32")])
def test_a_run_is_resumed_in_its_precision(fast, usual, tmp_path, monkeypatch):
    monkeypatch.setattr(device, "is_fast_at_bfloat16", lambda _: fast)
    assert resolve_precision("auto", tmp_path / "new", CPU) == usual
    for run_precision in ("fp32", "bf16", "auto"):
        settings = FinetuneSettings(precision=run_precision)
        with RunDirectory.open(tmp_path / run_precision, settings):
            pass
        assert resolve_precision("auto", tmp_path / run_precision, CPU) == run_precision
        for asked in ("fp32", "bf16"):
            assert resolve_precision(asked, tmp_path / run_precision, CPU) == asked
    (tmp_path / "group").mkdir()
    (tmp_path / "group" / "settings.yaml").write_text(
        f"format_version: {RUN_FORMAT}\nprecision: bf16\nfinetune:\n  precision: fp32"
    )
    assert resolve_precision("auto", tmp_path / "group", CPU) == "bf16"
    assert resolve_precision("auto", tmp_path / "group", CPU, "finetune") == "fp32"


def test_damaged_settings_are_refused(tmp_path: Path):
    (tmp_path / "settings.yaml").write_text("precision: [")
    with pytest.raises((DataError, TrainingError), match=r"settings\.yaml"):
        resolve_precision("auto", tmp_path, CPU)

"""Settings as keywords: the generated types are those of the fields, and type checkers use them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from .. import keywords

USES = """
from typing import Any

import bertworks as bw
from bertworks.tasks.labelled import LabelledTask

def right(model: bw.Model, task: type[LabelledTask[Any]], its_options: dict[str, Any]) -> None:
    bw.finetune(model, "tagging", train="f", out="d", learning_rate=1e-4, scheme="bioes")
    bw.finetune(model, task, train="f", out="d", learning_rate=1e-4, **its_options)
    bw.finetune_grid(model, train="f", dev=0.1, out="d", batch_size=8, grid={"epochs": [2, 3]})
    bw.pretrain("tiny", out="d", steps=8, model={"size": "mini"}, phases=[{"share": 1.0}])
    model.embed(["a"], pooling="cls", layers=[-2, -1], precision="bf16", header=True)
    model.predict("a", batch_tokens=512)
    model.generate("a", top_k=3)

def wrong(model: bw.Model) -> None:
    bw.finetune(model, "tagging", train="f", out="d", learning_rat=1e-4)
    bw.finetune(model, "tagging", train="f", out="d", learning_rate="fast")
    bw.finetune_grid(model, train="f", dev=0.1, out="d", batch_sizes=8)
    bw.pretrain("tiny", out="d", steps="many")
    bw.pretrain("tiny", out="d", model={"sizes": "mini"})
    model.embed(["a"], combine="avg")
    model.predict("a", pooling="cls")
    model.evaluate("f", precision="fp8")
    model.generate("a", top_q=3)
    model.embedd(["a"])
    bw.finetunes(model, "tagging", train="f", out="d")
"""

MODULES = [
    *("bertworks", "bertworks.model", "bertworks.settings.*", "bertworks.tuning.grid"),
    *("bertworks.inference.embedding_model", "bertworks.inference.task_model"),
    "bertworks.training.finetune",
    "bertworks.training.pretrain",
    *("bertworks.tasks.example", "bertworks.tasks.labelled", "bertworks.tasks.task"),
]
MYPY = f"""
[mypy]
strict = true
mypy_path = {Path(__file__).parents[2] / "src"}
follow_imports = skip
[mypy-{",".join(MODULES)}]
follow_imports = silent
"""
"""Only the modules that declare what is used are read: the whole package takes half a minute."""


def test_the_module_is_up_to_date() -> None:
    assert keywords.FILE.read_text(encoding="utf-8") == keywords.module_text(), (
        "run: python -m tests.keywords"
    )


@pytest.mark.long
def test_a_type_checker_rejects_wrong_settings_and_names(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api")
    file, config = tmp_path / "uses.py", tmp_path / "mypy.ini"
    file.write_text(USES)
    config.write_text(MYPY)
    actual, _, _ = api.run(["--config-file", str(config), "--cache-dir", os.devnull, str(file)])
    lines = USES.splitlines()
    start = next(number for number, line in enumerate(lines, 1) if "def wrong" in line)
    wrong = {number for number, line in enumerate(lines, 1) if number > start and line.strip()}
    reported = {int(number) for number in re.findall(r"uses\.py:(\d+): error", actual)}
    assert reported == wrong, actual

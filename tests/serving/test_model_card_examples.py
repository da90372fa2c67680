"""The examples in the model cards of every task run: in Python, by other tools, over HTTP."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

import bertworks as bw
from tests.serving.conftest import Running

LIBRARIES = {"encoder": "sentence-transformers"}
PIPELINES = {
    "encoder": "sentence-similarity",
    "pretrained": "fill-mask",
    "causal": "text-generation",
    "tagger": "token-classification",
    "answering": "question-answering",
    "choice": "multiple-choice",
    **dict.fromkeys(("classifier", "topics", "reranker"), "text-classification"),
}
NAMES = sorted(PIPELINES)


def run_block(code: str) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(code, {})
    return output.getvalue()


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_examples_give_output(name: str, directory: Callable[[str], Path], server: Running) -> None:
    text = (directory(name) / "README.md").read_text()
    blocks = re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL)
    programs = [
        code.replace("MODEL", str(directory(name))) for kind, code in blocks if kind == "python"
    ]
    assert len(programs) == 2
    for program in programs:
        assert run_block(program).strip()
    commands = [code for kind, code in blocks if kind == "sh"]
    assert commands[0] == "bertworks serve MODEL\n"
    call = re.search(r"localhost:8080(\S+) .*-d '(.*)'\n", commands[1], re.DOTALL)
    assert call is not None
    assert server.ask(call[1], {**json.loads(call[2]), "model": name})


@pytest.mark.parametrize("name", NAMES)
def test_metadata_are_the_hubs(name: str, directory: Callable[[str], Path]) -> None:
    data = ModelCard.load(directory(name) / "README.md").data
    assert data.library_name == LIBRARIES.get(name, "transformers")
    assert data.pipeline_tag == PIPELINES[name]
    assert data.tags == ["bertworks"]


def test_8_bit_weights_are_this_packages_alone(
    get_model: Callable[[str], bw.Model], tmp_path: Path
) -> None:
    get_model("classifier").save(tmp_path / "int8", precision="int8")
    card = ModelCard.load(tmp_path / "int8" / "README.md")
    assert card.data.library_name == "bertworks"
    assert "With transformers" not in card.text and "8-bit" in card.text


def test_edits_survive_saving_loading_and_another_precision(
    directory: Callable[[str], Path], tmp_path: Path
) -> None:
    model = bw.load(directory("classifier"), device="cpu")
    file = model.save(tmp_path / "a") / "README.md"
    file.write_text(file.read_text().replace("tags:", "license: mit\ntags:") + "Mine.\n")
    bw.load(tmp_path / "a", device="cpu").save(tmp_path / "b", precision="int8")
    model.save(tmp_path / "a", overwrite=True)
    file.write_text(file.read_text().replace("license: mit", "license: isc"))
    bw.load(tmp_path / "a", device="cpu").save(tmp_path / "b", precision="int8", overwrite=True)
    copy = tmp_path / "b" / "README.md"
    assert "license: isc" in copy.read_text()
    copy.write_text(copy.read_text().replace("license: isc", "license: 0bsd"))
    for _ in range(2):
        bw.load(tmp_path / "a", device="cpu").save(tmp_path / "b", precision="int8", overwrite=True)
        assert "license: 0bsd" in copy.read_text()
    unedited = bw.load(directory("classifier"), device="cpu").save(tmp_path / "c")
    bw.load(tmp_path / "a", device="cpu").save(unedited, overwrite=True)
    assert "license: isc" in (unedited / "README.md").read_text()
    for folder in ("a", "b"):
        text = (tmp_path / folder / "README.md").read_text()
        assert "license: " in text and "Mine." in text

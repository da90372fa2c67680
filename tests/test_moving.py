"""docs/how-to/move.md: in each pair of blocks, both programs have the same result."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

from bertworks.checkpoints.locate import locate

PAGE = Path(__file__).resolve().parent.parent / "docs" / "how-to" / "move.md"
_SECTIONS = re.findall(r"^## (.*)\n((?:(?!^## ).*\n)*)", PAGE.read_text(encoding="utf-8"), re.M)
PAIRS = {
    name: blocks
    for name, text in _SECTIONS
    if (blocks := re.findall(r"^```python\n(.*?)^```", text, re.M | re.S))
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The directories that the page's names stand for."""
    classifier = tmp_path_factory.mktemp("classifier")
    mini = locate("mini")
    tokenizer = BertTokenizer.from_pretrained(mini)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        num_labels=3,
    )
    BertForSequenceClassification(config).save_pretrained(classifier)
    tokenizer.save_pretrained(classifier)
    return {"ENCODER": locate("mini-sentences"), "CLASSIFIER": classifier, "BERT": mini}


def run(block: str, models: dict[str, Path]) -> Any:
    for name, path in models.items():
        block = block.replace(f'"{name}"', repr(str(path)))
    names: dict[str, Any] = {}
    exec(block, names)
    return names["result"]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # of the others
@pytest.mark.parametrize("section", PAIRS)
def test_blocks_of_a_section_have_the_same_result(section: str, models: dict[str, Path]) -> None:
    theirs, ours = (run(block, models) for block in PAIRS[section])
    assert ours == pytest.approx(theirs, abs=1e-5)


def test_page_has_pairs() -> None:
    assert len(PAIRS) == 3 and all(len(blocks) == 2 for blocks in PAIRS.values())

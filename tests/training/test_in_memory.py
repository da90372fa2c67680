"""Fine-tuning from rows in memory: any form of the same rows is the same run."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from bertworks.analysis.retrieval.index import Index
from bertworks.model import Model
from bertworks.text.tokenizer import Tokenizer
from tests.training.letters import CONFIG, DEV, PIECES, TRAIN, run


@pytest.mark.long
def test_every_form_resumes_the_same_run(tmp_path: Path) -> None:
    model = Model.fresh(CONFIG, Tokenizer.from_vocabulary(PIECES))
    frame, others = pd.DataFrame(TRAIN), pd.DataFrame(DEV)
    forms = [
        (TRAIN, DEV),
        (frame, others),
        (pa.Table.from_pandas(frame), pa.Table.from_pandas(others)),
        ((frame["text"], frame["label"]), list(zip(others["text"], others["label"], strict=True))),
        (frame.rename(columns={"text": "sentence"}), others),
    ]
    results = [
        run(model, tmp_path / "run", train=train, dev=dev, epochs=0.2) for train, dev in forms
    ]
    assert all(result.metrics == results[0].metrics for result in results)
    assert results[0].model.evaluate(others).metrics == results[0].metrics


def test_texts_of_a_frame_are_searched() -> None:
    model = Model.fresh(CONFIG, Tokenizer.from_vocabulary(PIECES))
    index = Index.open(model, pd.DataFrame({"id": [1, 2], "text": ["a b", "x y"]}), column="text")
    assert index.search("a b", top_k=1)[0][0].row == 0

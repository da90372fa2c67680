"""Meaningless numbers are refused before training: by the settings, or by the run's plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

import bertworks as bw
from bertworks.errors import SettingsError
from bertworks.lab.demo.cycle import run_demo
from bertworks.lab.tagging_probe import TaggingProbeSettings
from bertworks.nn.config import EncoderConfig
from bertworks.settings.base import Settings
from bertworks.tasks import find_labelled_task
from bertworks.tasks.pretraining.settings import SkipGramSettings
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.recipe import read_recipe
from bertworks.training.settings import OptimizerSettings, settings_of

from .letters import GEOMETRY, WORD_PIECES

MODEL = bw.Model.fresh(GEOMETRY, Tokenizer.from_vocabulary(WORD_PIECES))
TASKS = ("classification", "tagging", "answering", "choice", "retrieval", "translation")
HUGE = 10**18

# Settings that a huge number switches off ("never", "all in one"), or that are compared with the
# model, the data or the number of steps later.
MAY_BE_HUGE = {
    *("bucket_batches", "checkpoint_every", "early_stopping", "eval_every", "keep_checkpoints"),
    *("log_every", "max_grad_norm", "micro_batch_size", "micro_batch_tokens", "chunk_tokens"),
    *("max_line_bytes", "max_answer_tokens", "max_question_tokens", "n_best"),
    *("dev_seed", "seed", "local_attention", "global_attention_every"),
    *("freeze_layers", "reinitialize_layers", "unfreeze_epochs", "unfreeze_every"),
    *("max_seq_length", "stride", "subsample", "warmup"),
}


def _numbers(kind: type[Settings]) -> dict[str, type]:
    """Return the type of each setting that is a number."""
    peaks = {}
    for name, field in kind.model_fields.items():
        types = {field.annotation, *get_args(field.annotation)}
        if types & {int, float}:
            peaks[name] = int if int in types else float
    return peaks


@pytest.mark.parametrize(
    "kind",
    [
        *(EncoderConfig, TaggingProbeSettings, SkipGramSettings),
        *(settings_of(find_labelled_task(task)) for task in TASKS),
    ],
)
def test_huge_number_is_refused_where_it_has_no_meaning(kind: type[Settings]) -> None:
    for name, number in _numbers(kind).items():
        if name not in MAY_BE_HUGE:
            with pytest.raises(SettingsError, match=name):
                kind.parse({name: number(HUGE)})


def test_pretraining_has_a_most_of_steps() -> None:
    with pytest.raises(SettingsError, match="steps=1000000000000000000"):
        read_recipe("tiny", ["data=x", f"steps={HUGE}"])


@pytest.mark.parametrize("task", ["answering", "classification"])
def test_stride_longer_than_a_window_is_refused(task: str, tmp_path: Path) -> None:
    rows: Any = [{"text": f"text {n}", "label": n % 2, "question": "which?"} for n in range(4)]
    rows = [{**row, "context": "the first", "answers": "first"} for row in rows]
    windows: Any = {} if task == "answering" else {"truncation": "windows"}
    with pytest.raises(SettingsError, match="stride=33 is more than max_seq_length=32"):
        bw.finetune(
            MODEL, task, train=rows, out=tmp_path / "r", stride=33, max_seq_length=32, **windows
        )


def test_warmup_longer_than_the_run_is_refused(tmp_path: Path) -> None:
    rows: Any = [("a b", "x"), ("b c", "y")] * 4
    settings: Any = {
        "train": rows,
        "batch_size": 4,
        "epochs": 2,
        "max_seq_length": 32,
    }  # four steps
    with pytest.raises(SettingsError, match="warmup=5 is more than the 4 steps"):
        bw.finetune(MODEL, out=tmp_path / "r", warmup=5, **settings)
    assert not (tmp_path / "r").exists()
    bw.finetune(MODEL, out=tmp_path / "r", warmup=4, **settings)


@pytest.mark.parametrize(
    ("warmup", "is_reached"), [(9, True), (10, True), (11, False), (0.9, True)]
)
def test_warmup_is_refused_if_the_rate_is_never_reached(warmup: float, is_reached: bool) -> None:
    settings = OptimizerSettings(warmup=warmup)
    if is_reached:
        settings.check_warmup(10)
    else:
        with pytest.raises(SettingsError):
            settings.check_warmup(10)


def test_batches_of_one_query_are_refused_without_negatives(tmp_path: Path) -> None:
    rows: Any = [{"query": f"a {n}", "positive": f"b {n}"} for n in range(4)]
    settings: Any = {"task": "retrieval", "batch_size": 1, "epochs": 1, "max_seq_length": 32}
    with pytest.raises(SettingsError, match="batch_size=1: loss=in-batch"):
        bw.finetune(MODEL, train=rows, out=tmp_path / "a", **settings)
    with pytest.raises(SettingsError, match="batch_size=1: loss=in-batch"):  # one row in all
        bw.finetune(MODEL, train=rows[:1], out=tmp_path / "b", **{**settings, "batch_size": 8})
    rows = [{**row, "negative": "c"} for row in rows]
    bw.finetune(MODEL, train=rows, out=tmp_path / "c", **settings)


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_demo_checks_its_seed_before_it_begins(seed: int, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="seed="):
        run_demo(tmp_path / "demo", seed=seed)
    assert not (tmp_path / "demo").exists()

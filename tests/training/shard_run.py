"""A small BERT that is pre-trained by several processes, once with each keeping all of it, once
sharded.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertworks.inference.evaluate import evaluate
from bertworks.inference.settings import EngineSettings
from bertworks.nn.config import EncoderConfig
from bertworks.runs.run_directory import RunDirectory
from bertworks.tasks.best_metric import BestMetric
from bertworks.tasks.network import Network
from bertworks.tasks.pretraining.instances import InstanceSettings
from bertworks.tasks.pretraining.source import PretrainingExample
from bertworks.tasks.pretraining.task import PretrainingTask
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.checkpoint import ResumeWarning, save_weights
from bertworks.training.distributed import process_group
from bertworks.training.fit import fit
from bertworks.training.plan import Phase
from bertworks.training.row_source import RowSource
from bertworks.training.settings import FitSettings

from .letters import PIECES

CASES: dict[str, dict[str, Any]] = {
    # Adam makes steps of the rate's size of gradients that are zero but for rounding (of keys'
    # biases), so that a higher rate would compare roundings.
    "adamw": {"learning_rate": 1e-3, "ema": 0.9, "freeze_embeddings": True},
    "lamb": {
        "optimizer": "lamb",
        "learning_rate": 1e-2,
        "freeze_layers": 1,
        "gradient_checkpointing": True,
    },
    # The layers learn too, in whose matrices queries, keys and values are scaled each by itself.
    "lamb-layers": {"optimizer": "lamb", "learning_rate": 1e-3},
}
ALBERT = {"family": "albert", "num_hidden_groups": 1, "embedding_size": 8}


def config(case: str) -> EncoderConfig:
    return EncoderConfig.parse(
        {
            "vocab_size": len(PIECES),
            "hidden_size": 16,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "max_position_embeddings": 32,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            **(ALBERT if case == "lamb" else {}),
        }
    )


def settings(case: str, **values: Any) -> FitSettings:
    return FitSettings.parse(
        {
            "batch_size": 9,  # five for one rank, four for the other, in micro-batches of two
            "micro_batch_size": 2,
            "warmup": 2,
            "schedule": "constant",  # so that a run can be extended
            "log_every": 1,
            "eval_every": 5,
            "checkpoint_every": 100,  # at the end alone
            "precision": "fp32",
            "tensorboard": False,
            **CASES[case],
            **values,
        }
    )


def examples() -> list[PretrainingExample]:
    random = np.random.default_rng(0)
    return [
        PretrainingExample(
            random.integers(5, len(PIECES), random.integers(6, 30)),
            first_segment=4,
            next_sentence_label=key % 2,
            key=key,
        )
        for key in range(60)
    ]


def shard_run(out: Path, case: str, steps: int, **values: Any) -> None:
    tokenizer = Tokenizer.from_vocabulary(PIECES)
    task = PretrainingTask(tokenizer, InstanceSettings(max_seq_length=32))
    torch.manual_seed(0)
    network = task.network(config(case))
    fit_settings = settings(case, **values)
    engine = EngineSettings(precision="fp32", batch_tokens=60)
    with (
        process_group("cpu") as group,
        RunDirectory.open(out, fit_settings, is_main=group.is_main) as run,
    ):

        def measure(network: Network) -> dict[str, float]:
            return evaluate(network, task, examples()[:20], engine, group=group).metrics

        source = RowSource(examples(), seed=0, batch_size=9)
        result = fit(
            network,
            task,
            [Phase(source, steps)],
            settings=fit_settings,
            run=run,
            evaluate=measure,
            best=BestMetric("loss", lower_is_better=True),
        )
        if group.is_main:
            save_weights(out / f"after-{steps}.safetensors", network)
            print(case, values, "resumed from", result.resumed_step, flush=True)


def main(out: Path, case: str, steps: int) -> None:
    warnings.simplefilter("error")
    warnings.simplefilter("default", ResumeWarning)
    torch.set_num_threads(1)
    with process_group("cpu"):
        for sharding in ("none", "full"):
            shard_run(out / sharding, case, steps, sharding=sharding)

"""The peer: a Hugging Face model of the same task in a plain PyTorch loop.

It starts with the same encoder and has the same settings as a run of `bertworks finetune`: rows
shuffled each epoch, batches padded to their longest row, bfloat16 by autocast, fused AdamW, the
same learning rate at each step. It prints the metrics of the best evaluation, as ours.

    python benchmarks/finetuning/peer.py MODEL run/settings.yaml TRAIN DEV [--same-batches]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import AutoTokenizer

from bertworks.data.tables import read_rows
from bertworks.tasks import find_labelled_task
from bertworks.tasks.example import LabelledExample
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.optimizer import learning_rate, parameter_groups
from bertworks.training.row_source import RowSource
from bertworks.training.settings import settings_of

sys.path.insert(0, str(Path(__file__).parent))
from peer_tasks import PEERS

_OF_A_RUN = ("format_version", "task", "model", "fingerprint", "train", "dev")


def batches(features: Sequence[Any], size: int, same_as_seed: int | None) -> Iterator[list[Any]]:
    """Batches without end, the rows shuffled each epoch.

    Args:
        features: what is trained on.
        size: the rows of a batch.
        same_as_seed: the batches of a run of `bertworks finetune` with this seed, which run on over
            the border of two epochs; None: in an order drawn by torch, the last batch of an epoch
            smaller.
    """
    if same_as_seed is not None:
        examples = [LabelledExample(index=row, sequences=()) for row in range(len(features))]
        source = RowSource(examples, seed=same_as_seed, batch_size=size)
        rows = (
            features[example.index]
            for epoch in count()
            for block in range(source.num_blocks(epoch))
            for example in source.block(epoch, block)
        )
        while True:
            yield list(islice(rows, size))
    while True:
        order = torch.randperm(len(features)).tolist()
        for at in range(0, len(order), size):
            yield [features[row] for row in order[at : at + size]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("model", "settings", "train", "dev"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--same-batches", action="store_true", help="the batches of our run with the same seed"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    written = yaml.safe_load(options.settings.read_text(encoding="utf-8"))
    kind = find_labelled_task(written["task"])
    settings = settings_of(kind).parse({k: v for k, v in written.items() if k not in _OF_A_RUN})
    own = kind.user_settings_in(settings)
    tables = [read_rows(path, columns=own.named_columns()) for path in (options.train, options.dev)]
    ours = kind.from_table(Tokenizer.load(options.model), tables[0], own)
    train, dev = ([row.values for row in table] for table in tables)
    fit = settings.fit_settings(1)
    torch.manual_seed(settings.seed)
    metric = settings.best_metric or ours.best_metric
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    task = PEERS[kind.name](tokenizer, ours.settings)
    model = task.model(str(options.model))
    optimizer = torch.optim.AdamW(
        parameter_groups(model, settings.weight_decay),
        lr=settings.learning_rate,
        eps=fit.eps,
        fused=True,
    )
    features = task.features(train)
    size = settings.batch_size
    measure_every = settings.eval_every or math.ceil(len(features) / size)
    total = math.ceil(settings.epochs * len(features) / size)
    best = {metric: -math.inf}
    model.train()
    stream = batches(features, size, settings.seed if options.same_batches else None)
    for step, part in enumerate(islice(stream, total)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(fit, step, total)
        inputs = task.batch(part)
        with torch.autocast("cpu", torch.bfloat16, enabled=settings.precision == "bf16"):
            loss = model(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        num_steps = step + 1
        if num_steps % measure_every == 0 or num_steps == total:
            model.eval()
            with torch.no_grad():
                metrics = task.measure(model, dev)
            model.train()
            best = max(best, metrics, key=lambda one: one[metric])
            print(f"step {num_steps} of {total}: {metrics}", file=sys.stderr, flush=True)
    print(json.dumps(best))


if __name__ == "__main__":
    main()

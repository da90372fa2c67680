"""The peer: a Hugging Face model of the same task in a plain PyTorch loop.

It begins with the same encoder and has the same settings as a run of `bertworks finetune`: rows
shuffled each epoch, batches padded to their longest row, bfloat16 by autocast, fused AdamW, the
same learning rate at each step. What is told is the metric of the best evaluation, as ours.

    python benchmarks/finetuning/peer.py MODEL run/settings.yaml TRAIN DEV
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path

import torch
import yaml
from transformers import AutoTokenizer

from bertworks.tasks import labelled_task
from bertworks.tasks.rows import read_rows
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.finetune_settings import settings_of
from bertworks.training.optimizer import parameter_groups

sys.path.insert(0, str(Path(__file__).parent))
from peer_tasks import PEERS

_OF_A_RUN = ("task", "model", "fingerprint", "train", "dev")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("model", "settings", "train", "dev"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    written = yaml.safe_load(options.settings.read_text(encoding="utf-8"))
    kind = labelled_task(written["task"])
    settings = settings_of(kind).parse({k: v for k, v in written.items() if k not in _OF_A_RUN})
    own = kind.options.parse(settings.model_dump(include=set(kind.options.model_fields)))
    tables = [
        read_rows(path, columns=own.named_columns(), header=own.header)
        for path in (options.train, options.dev)
    ]
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
        eps=fit.optimizer.eps,
        fused=True,
    )
    features = task.features(train)
    size = settings.batch_size
    measure_every = settings.eval_every or math.ceil(len(features) / size)
    total = math.ceil(settings.epochs * len(features) / size)
    step = 0
    best = {metric: -math.inf}
    model.train()
    while step < total:
        order = torch.randperm(len(features)).tolist()
        for at in range(0, len(order), size):
            for group in optimizer.param_groups:
                group["lr"] = fit.optimizer.learning_rate(step, total)
            inputs = task.batch([features[row] for row in order[at : at + size]])
            with torch.autocast("cpu", torch.bfloat16, enabled=settings.precision == "bf16"):
                loss = model(**inputs).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            if step % measure_every == 0 or step == total:
                model.eval()
                with torch.no_grad():
                    found = task.measure(model, dev)
                model.train()
                best = max(best, found, key=lambda metrics: metrics[metric])
                print(f"step {step} of {total}: {found}", file=sys.stderr, flush=True)
            if step == total:
                break
    print(json.dumps(best))


if __name__ == "__main__":
    main()

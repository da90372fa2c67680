"""The peer: Hugging Face's `BertForSequenceClassification` in a plain PyTorch loop.

It begins with the same encoder and has the same settings as a run of `bertworks finetune`: rows
shuffled each epoch, batches padded to their longest row, bfloat16 by autocast, fused AdamW, the
same learning rate at each step. The accuracy told is that of the best evaluation, as ours.

    python benchmarks/finetuning/peer.py MODEL run/settings.yaml TRAIN.tsv DEV.tsv
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
import time
from pathlib import Path

import torch
import yaml
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BatchEncoding

from bertworks.tasks import labelled_task
from bertworks.training.finetune_settings import settings_of
from bertworks.training.optimizer import parameter_groups

_OF_A_RUN = ("task", "model", "train", "dev")


def read(path: Path) -> tuple[list[str], list[int]]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [row["sentence"] for row in rows], [int(row["label"]) for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("model", "settings", "train", "dev"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    written = yaml.safe_load(options.settings.read_text(encoding="utf-8"))
    settings = settings_of(labelled_task(written["task"]))
    resolved = settings.parse({k: v for k, v in written.items() if k not in _OF_A_RUN})
    fit = resolved.fit_settings(1)
    torch.manual_seed(resolved.seed)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForSequenceClassification.from_pretrained(options.model, num_labels=2)
    optimizer = torch.optim.AdamW(
        parameter_groups(model, resolved.weight_decay),
        lr=resolved.learning_rate,
        eps=fit.optimizer.eps,
        fused=True,
    )

    def encode(texts: list[str]) -> BatchEncoding:
        return tokenizer(
            texts,
            padding=True,
            truncation=True,
            max_length=resolved.max_seq_length,
            return_tensors="pt",
        )

    @torch.no_grad()
    def accuracy(texts: list[str], labels: list[int]) -> float:
        model.eval()
        right = 0
        for at in range(0, len(texts), 64):
            answers = model(**encode(texts[at : at + 64])).logits.argmax(-1)
            right += int((answers == torch.tensor(labels[at : at + 64])).sum())
        model.train()
        return right / len(texts)

    texts, labels = read(options.train)
    dev = read(options.dev)
    size = resolved.batch_size
    measure_every = resolved.eval_every or math.ceil(len(texts) / size)
    total = math.ceil(resolved.epochs * len(texts) / size)
    step, tokens, best, start = 0, 0, 0.0, time.perf_counter()
    training = 0.0
    while step < total:
        order = torch.randperm(len(texts)).tolist()
        for at in range(0, len(order), size):
            rows = order[at : at + size]
            for group in optimizer.param_groups:
                group["lr"] = fit.optimizer.learning_rate(step, total)
            inputs = encode([texts[row] for row in rows])
            with torch.autocast("cpu", torch.bfloat16, enabled=resolved.precision == "bf16"):
                wanted = torch.tensor([labels[row] for row in rows])
                loss = model(**inputs, labels=wanted).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), resolved.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step, tokens = step + 1, tokens + int(inputs["attention_mask"].sum())
            if step % measure_every == 0 or step == total:
                training += time.perf_counter() - start
                found = accuracy(*dev)
                best = max(best, found)
                print(f"step {step}: {found:.4f}", file=sys.stderr, flush=True)
                start = time.perf_counter()
            if step == total:
                break
    print(
        json.dumps(
            {
                "who": "peer",
                "seed": resolved.seed,
                "accuracy": best,
                "seconds": round(training, 1),
                "tokens_per_second": round(tokens / training),
            }
        )
    )


if __name__ == "__main__":
    main()

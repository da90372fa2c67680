"""The peer: Hugging Face's `BertForPreTraining` in a plain PyTorch loop.

It is given what ours is given: the settings and data of a run of `bertworks pretrain`, batch by
batch, the same held-out instances, bfloat16 by autocast, fused AdamW with the same groups, the same
learning rate at each step, gradients cut at the same norm. The batches are padded to their longest
sequence, as the usual collator does.

    python benchmarks/pretraining/peer.py run/settings.yaml peer/journal.jsonl --eval-every 50
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForPreTraining

from bertworks.checkpoints.bert import BERT
from bertworks.packed import Batch
from bertworks.tasks.pretraining.task import PretrainingTask
from bertworks.training.optimizer import parameter_groups
from bertworks.training.pretrain import PretrainingData
from bertworks.training.recipe import PretrainSettings
from bertworks.training.stream import stream


def padded(batch: Batch) -> dict[str, torch.Tensor]:
    """What `BertForPreTraining` takes: labels at all positions, -100 where nothing is asked."""
    packed = batch.packed
    ids, mask = packed.to_padded()
    types, _ = packed.to_padded(packed.token_type_ids)
    labels = torch.full((packed.num_tokens,), -100)
    labels[batch.targets["masked_positions"]] = batch.targets["masked_labels"]
    order = torch.argsort(packed.sequence_row, stable=True)
    return {
        "input_ids": ids,
        "attention_mask": mask.long(),
        "token_type_ids": types,
        "labels": packed.to_padded(labels, fill=-100)[0],
        "next_sentence_label": batch.targets["next_sentence_labels"][order],
    }


@torch.no_grad()
def evaluate(model: BertForPreTraining, batches: list[Batch], task: Any) -> dict[str, float]:
    model.eval()
    evaluator = task.evaluator()
    for batch in batches:
        inputs = padded(batch)
        labels = inputs.pop("labels")
        next_sentence = inputs.pop("next_sentence_label")
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(**inputs)
        asked = labels != -100
        found = {
            "mlm_logits": outputs.prediction_logits[asked],
            "nsp_logits": outputs.seq_relationship_logits,
        }
        targets = {"masked_labels": labels[asked], "next_sentence_labels": next_sentence}
        evaluator.add(found, Batch(batch.packed, targets))
    model.train()
    return evaluator.result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", type=Path, help="settings.yaml of our run")
    parser.add_argument("journal", type=Path)
    parser.add_argument("--eval-every", type=int, default=50)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    settings = PretrainSettings.resolve(options.settings)
    data = PretrainingData.open(settings)
    task = PretrainingTask(data.tokenizer, settings.instances, settings.masking)
    examples = list(data.held_out.examples(limit=settings.held_out.sequences))
    chunks = [examples[at : at + 64] for at in range(0, len(examples), 64)]
    held_out = [task.collate(chunk).to("cpu") for chunk in chunks]
    torch.manual_seed(settings.seed)
    config = settings.model.config(data.tokenizer.vocab_size)
    model = BertForPreTraining(BertConfig(**BERT.write_config(config))).train()
    optimizer_settings = settings.optimizer
    optimizer = torch.optim.AdamW(
        parameter_groups(model, optimizer_settings.weight_decay),
        lr=optimizer_settings.lr,
        betas=optimizer_settings.betas,
        eps=optimizer_settings.eps,
        fused=True,
    )
    total = sum(phase.steps for phase in data.phases)
    options.journal.parent.mkdir(parents=True, exist_ok=True)
    step = tokens = 0
    with options.journal.open("w") as journal:
        for phase in data.phases:
            batches = stream(phase.source, task.collate, phase.batch(settings))
            for _ in range(phase.steps):
                global_batch = next(batches)
                for group in optimizer.param_groups:
                    group["lr"] = optimizer_settings.learning_rate(step, total)
                (batch,) = global_batch.micro_batches
                with torch.autocast("cpu", torch.bfloat16):
                    loss = model(**padded(batch.to("cpu"))).loss
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                step, tokens = step + 1, tokens + global_batch.num_tokens
                if step % options.eval_every == 0:
                    metrics = evaluate(model, held_out, task)
                    line = {"kind": "eval", "step": step, "tokens": tokens, "metrics": metrics}
                    print(json.dumps(line), file=journal, flush=True)


if __name__ == "__main__":
    main()

"""Pre-training steps: ours and Hugging Face's `BertForPreTraining` in a plain PyTorch loop.

    python benchmarks/pretraining.py --sizes tiny mini small base --out pretraining.json
    python benchmarks/pretraining.py --sizes tiny --dropout 0 --steps 20 --rounds 9   # losses

Vocabulary of 30,522 pieces, sequences of up to 128 tokens, 32 a step (base: 8), dropout 0.1. Ours
is the loop of `bertworks pretrain`. The peer is given the same weights to begin with, the same
batches, padded, bfloat16 by autocast, fused AdamW with the same groups, the learning rate of each
step, and gradients clipped at the same norm. The losses of both are compared step by step; without
dropout they differ by rounding alone. On a processor without instructions for bfloat16 both
compute in float32 (`--precision fp32`).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from itertools import chain
from pathlib import Path
from typing import Any

from harness import DATA, Contestant, Pace, Target, Work, arguments, in_rounds, report
from models import fresh

OURS, PEER = "bertworks", "Hugging Face"
LEAST = {"tiny": (8.5, 10), "mini": (5, 6), "small": (3.3, 4), "base": (1.9, 2.3)}
MANY = 1 << 20  # steps of the schedule: more than are done


def settings(options: argparse.Namespace, size: str, work: Path) -> dict[str, Any]:
    """Those of both."""
    dropout = options.dropout
    return {
        "data": str(work / "data"),
        "init_checkpoint": str(work / size),
        "model": {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout},
        "steps": MANY,
        "batch_size": 8 if size == "base" else 32,
        "precision": options.precision,
        "learning_rate": 1e-4,
        "warmup": 10,
        "eval_every": MANY,
        "checkpoint_every": MANY,
        "tensorboard": False,
    }


def prepare(sizes: list[str], files: int, work: Path) -> None:
    """Some of the corpus as token ids, and fresh weights of each size."""
    import bertworks as bw

    models = [fresh(size, work / size) for size in sizes]
    corpus = sorted((DATA / "wiki").iterdir())[:files]
    bw.prepare(corpus, tokenizer=models[0], out=work / "data")


def ours(options: argparse.Namespace, size: str, work: Path) -> None:
    import bertworks as bw
    from bertworks.utils.progress import Progress

    pace = Pace(options.steps)

    class Steps(Progress):
        """Hands each step's loss to the harness."""

        def train(self, *_steps: int, loss: float, **_metrics: Any) -> None:
            pace.step({"loss": loss})

    bw.pretrain(out=work / f"run-{size}", progress=Steps(), **settings(options, size, work))


def peer(options: argparse.Namespace, size: str, work: Path) -> None:
    import torch
    from transformers import BertForPreTraining

    from bertworks.packed import Batch
    from bertworks.tasks.pretraining.task import PretrainingTask
    from bertworks.training.optimizer import learning_rate, parameter_groups
    from bertworks.training.plan import batch_of
    from bertworks.training.pretrain import PretrainingData
    from bertworks.training.recipe import PretrainSettings
    from bertworks.training.stream import stream

    def padded(batch: Batch) -> dict[str, torch.Tensor]:
        """The inputs of `BertForPreTraining`; labels are -100 where nothing is predicted."""
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

    pace = Pace(options.steps)
    run_settings = PretrainSettings.parse(settings(options, size, work))
    data = PretrainingData.open(run_settings)
    (phase,) = data.phases
    task = PretrainingTask(data.tokenizer, run_settings.instances, run_settings.masking)
    dropout = settings(options, size, work)["model"]
    model = BertForPreTraining.from_pretrained(work / size, **dropout).train()
    groups = parameter_groups(model, run_settings.weight_decay)
    betas, eps = run_settings.betas, run_settings.eps
    optimizer = torch.optim.AdamW(groups, betas=betas, eps=eps, fused=True)
    batches = stream(phase.source, task.collate, batch_of(phase, run_settings))
    for step, global_batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(run_settings, step, MANY)
        (batch,) = global_batch.micro_batches
        with torch.autocast("cpu", torch.bfloat16, enabled=options.precision == "bf16"):
            loss = model(**padded(batch.to("cpu"))).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), run_settings.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        pace.step({"loss": loss.item(), "tokens": global_batch.num_tokens})


def measure(options: argparse.Namespace, work: Path) -> list[Work]:
    prepare(options.sizes, options.files, work)
    works = []
    for size in options.sizes:
        command = [sys.executable, __file__, "--work", str(work), "--sizes", size]
        command += ["--steps", str(options.steps), "--dropout", str(options.dropout)]
        command += ["--precision", options.precision]
        pair = [
            Contestant(name, [*command, "--serve", name], options.threads) for name in (OURS, PEER)
        ]
        summaries = in_rounds(pair, size, options.rounds)
        for one in pair:
            one.close()
        steps = {name: list(chain(*answer["results"])) for name, answer in summaries.items()}
        tokens = sum(step["tokens"] for step in steps[PEER]) / options.rounds
        losses = [abs(a["loss"] - b["loss"]) for a, b in zip(steps[OURS], steps[PEER], strict=True)]
        last = steps[OURS][-1]["loss"], steps[PEER][-1]["loss"]
        note = f"loss {last[0]:.3f}, peer {last[1]:.3f}; at most {max(losses):.3f} apart"
        works.append(Work(size, summaries, "tokens", tokens, notes={OURS: note}))
    return works


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--sizes", nargs="+", default=list(LEAST))
    parser.add_argument("--steps", type=int, default=5, help="of a turn")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16", help="of both")
    parser.add_argument("--files", type=int, default=10, help="of the corpus")
    options = parser.parse_args()
    if options.serve:
        (ours if options.serve == OURS else peer)(options, options.sizes[0], options.work)
        return
    with tempfile.TemporaryDirectory() as work:
        works = measure(options, Path(work))
    report(works, [Target(size, OURS, PEER, *LEAST[size]) for size in options.sizes], options)


if __name__ == "__main__":
    main()

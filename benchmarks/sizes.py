"""The time of texts to vectors by text length, batch budget, and number of texts.

    python benchmarks/sizes.py MODEL --numbers 1000 10000 100000 1000000 --out sizes.json

Texts of one length, as many tokens of each; paragraphs of any length with budgets of tokens that go
through at once; and files of short texts, by the command line: the rate, and the peak memory, which
must not grow with their number.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from harness import Command, Contestant, Job, Work, arguments, in_rounds, report, serve
from inference import paragraphs

NAME = "bertworks"
LENGTHS = (16, 32, 64, 128, 256, 512)
BUDGETS = (256, 1024, 4096, 8192, 16384, 65536)


def jobs(model: Path, tokens: int) -> Mapping[str, Job]:
    """Texts of each length, and budgets."""
    import bertworks as bw

    encoder = bw.load(model, device="cpu")
    calls: dict[str, Job] = {}
    for length in LENGTHS:
        # A pack's vectors do not depend on the words, nor does its time.
        texts = [" ".join(["the"] * (length - 2))] * (tokens // length)
        calls[f"length {length}"] = partial(encoder.embed, texts, max_seq_length=length)
    mixed: list[str] = []
    count = 0
    for text in paragraphs():
        if count >= tokens:
            break
        mixed.append(text)
        count += encoder.tokenizer.encode_batch([text])[0].num_tokens
    for budget in BUDGETS:
        calls[f"budget {budget}"] = partial(encoder.embed, mixed, batch_tokens=budget)
    return {job: partial(_quietly, call) for job, call in calls.items()}


def _quietly(call: Job) -> None:
    call()


def measure(options: argparse.Namespace, work: Path) -> list[Work]:
    command = [sys.executable, __file__, str(options.model), "--tokens", str(options.tokens)]
    one = Contestant(NAME, [*command, "--serve", NAME], options.threads)
    works = [
        Work(job, in_rounds([one], job, options.rounds), "tokens", options.tokens)
        for job in [f"length {n}" for n in LENGTHS] + [f"budget {n}" for n in BUDGETS]
    ]
    one.close()
    for number in options.numbers:
        texts, out = work / "texts.txt", work / "vectors.npy"
        with texts.open("w") as file:
            file.writelines(f"text number {at} of a stream\n" for at in range(number))
        line = f'rm -f "{out}"*; exec "{sys.executable}" -m bertworks embed "{options.model}" '
        line += f'--data "{texts}" --out "{out}"'
        stream = Command(NAME, ["sh", "-c", line], options.threads)
        summaries = in_rounds([stream], "embed", 1, warm=False)
        works.append(Work(f"{number:,} short texts", summaries, "texts", number))
    return works


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("model", type=Path, help="a sentence encoder's directory")
    parser.add_argument("--tokens", type=int, default=16384, help="of a job")
    parser.add_argument("--numbers", type=int, nargs="*", default=[1000, 10_000, 100_000])
    options = parser.parse_args()
    if options.serve:
        serve(partial(jobs, options.model, options.tokens))
        return
    with tempfile.TemporaryDirectory() as work:
        works = measure(options, Path(work))
    report(works, [], options)


if __name__ == "__main__":
    main()

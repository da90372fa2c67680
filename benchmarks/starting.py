"""The time until the first answer: starting, loading, the first forward pass.

    python benchmarks/starting.py MODEL --out starting.json

- *start*: from the shell to a file with the vector of one text, next to sentence-transformers.
- *load*: a BERT-Large of random weights, 1.34 GB in float32, and a forward pass of eight tokens,
  next to Hugging Face's `from_pretrained`; each time in a fresh process, whose imports are not
  counted. Ours reads the tokenizer too, with the peer it is counted apart; `embed` also casts and
  packs the weights for the kernels of this machine.

The files lie in the operating system's cache: the first round, which is not counted, reads them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from harness import (
    Command,
    Fresh,
    Job,
    Target,
    Work,
    Worker,
    arguments,
    in_rounds,
    report,
    select_contestants,
    serve,
)
from models import fresh

OURS, PEER = "bertworks", "sentence-transformers"
LOADERS = ("bertworks.load", "bertworks.load, embed")
LOADERS += ("Hugging Face", "Hugging Face and tokenizer", "Hugging Face bf16 and tokenizer")
TEXT = "a text"
_PEER = """
import sys, numpy
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu")
numpy.save(sys.argv[2], model.encode([sys.argv[3]]))
"""


def loaders(name: str, model: Path) -> Mapping[str, Job]:
    import torch
    import transformers
    from transformers import BertForPreTraining  # noqa: F401

    import bertworks as bw

    ids = torch.arange(5, 13)[None]
    load, packed = bw.load, bw.Packed.from_arrays([ids[0].numpy()], [0 * ids[0].numpy()])

    @torch.inference_mode()
    def ours() -> None:
        loaded_model = load(model, device="cpu")
        loaded_model.network.mlm_head(loaded_model.encoder(packed.to("cpu")))  # type: ignore[union-attr]

    def embed() -> None:
        load(model, device="cpu").embed([TEXT])

    @torch.inference_mode()
    def peer(dtype: str, tokenizer: bool) -> None:
        if tokenizer:
            transformers.AutoTokenizer.from_pretrained(model)
        loaded_model = transformers.AutoModelForPreTraining.from_pretrained(model, dtype=dtype)
        loaded_model.eval()(ids)

    every: list[Job] = [
        ours,
        embed,
        partial(peer, "float32", False),
        partial(peer, "float32", True),
        partial(peer, "bfloat16", True),
    ]
    return {"load": dict(zip(LOADERS, every, strict=True))[name]}


def measure(options: argparse.Namespace, work: Path) -> list[Work]:
    out = work / "vectors.npy"
    embed = [sys.executable, "-m", "bertworks", "embed", str(options.model), TEXT]
    starts = {
        OURS: [*embed, "--out", str(out)],
        PEER: [sys.executable, "-c", _PEER, str(options.model), str(out), TEXT],
    }
    fresh_file = f'rm -f "{out}" "{out}.json"; exec "$@"'
    works = []
    commands: list[Worker] = [
        Command(name, ["sh", "-c", fresh_file, "sh", *starts[name]], options.threads)
        for name in select_contestants(starts, options)
    ]
    if commands:
        works.append(Work("start", in_rounds(commands, "start", options.rounds)))
    if names := select_contestants(LOADERS, options):
        large = fresh(options.size, work / "large")
        size = (large / "model.safetensors").stat().st_size / 1e9
        serving = [sys.executable, __file__, str(large), "--serve"]
        loading: list[Worker] = [Fresh(name, [*serving, name], options.threads) for name in names]
        works.append(Work("load", in_rounds(loading, "load", options.rounds), "GB", size))
    return works


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("model", type=Path, help="a sentence encoder's directory")
    parser.add_argument("--size", default="large", help="the released size that is loaded")
    options = parser.parse_args()
    if options.serve:
        serve(partial(loaders, options.serve, options.model))
        return
    with tempfile.TemporaryDirectory() as work:
        works = measure(options, Path(work))
    targets = [
        Target("start", OURS, PEER, 2, 3),
        Target("start", OURS, PEER, 1, 2, quantity="memory"),
        Target("load", LOADERS[0], "Hugging Face", 1 / 1.3, 1),
        Target("load", LOADERS[1], "Hugging Face bf16 and tokenizer", 1 / 1.3, 1),
        Target("load", LOADERS[0], "Hugging Face", 1, 2, quantity="memory"),
    ]
    report(works, targets, options)


if __name__ == "__main__":
    main()

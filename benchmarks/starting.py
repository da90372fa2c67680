"""The time until the first answer: starting, loading, the first forward pass.

    python benchmarks/starting.py MODEL --out starting.json
    python benchmarks/starting.py MODEL --light PYTHON --fastembed PYTHON --onnx DIR

- *start*: from the shell to a file with the vector of one text, next to sentence-transformers; with
  `--light`, also of an environment without PyTorch, by the command and in Python; with
  `--fastembed`, next to that library, which reads what `bertworks convert MODEL DIR --to onnx`
  writes, with the tokenizer's files.
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
from typing import Any

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

OURS, PEER, ONNX_PEER = "bertworks", "sentence-transformers", "fastembed"
LIGHT = f"{OURS} without PyTorch"
PYTHON_CALLS = f"{LIGHT}, in Python"
LOADERS: tuple[str, ...]
LOADERS = ("bertworks.load", "bertworks.load, embed")
LOADERS += ("Hugging Face", "Hugging Face and tokenizer", "Hugging Face bf16 and tokenizer")
TEXT = "a text"
_OURS = """
import sys, numpy, bertworks
numpy.save(sys.argv[2], bertworks.load(sys.argv[1]).embed([sys.argv[3]]))
"""
_PEER = """
import sys, numpy
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu")
numpy.save(sys.argv[2], model.encode([sys.argv[3]]))
"""
_ONNX_PEER = """
import sys, numpy
from fastembed import TextEmbedding
model = TextEmbedding("sentence-transformers/all-MiniLM-L6-v2", specific_model_path=sys.argv[1])
numpy.save(sys.argv[2], numpy.stack(list(model.embed([sys.argv[3]]))))
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
        network: Any = load(model, device="cpu").network
        network.mlm_head(network.encoder(packed.to("cpu")))

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
    embed = ["-m", "bertworks", "embed", str(options.model), TEXT, "--out", str(out)]
    files = [str(options.model), str(out), TEXT]
    starts = {
        OURS: [sys.executable, *embed],
        PEER: [sys.executable, "-c", _PEER, *files],
    }
    if options.light:
        starts[LIGHT] = [options.light, *embed]
        starts[PYTHON_CALLS] = [options.light, "-c", _OURS, *files]
    if options.fastembed:
        starts[ONNX_PEER] = [options.fastembed, "-c", _ONNX_PEER, options.onnx, *files[1:]]
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
    parser.add_argument("--light", metavar="PYTHON", help="of an environment without PyTorch")
    parser.add_argument("--fastembed", metavar="PYTHON", help="of an environment with fastembed")
    parser.add_argument("--onnx", metavar="DIR", help="the model that fastembed reads")
    options = parser.parse_args()
    if options.serve:
        serve(partial(loaders, options.serve, options.model))
        return
    with tempfile.TemporaryDirectory() as work:
        works = measure(options, Path(work))
    targets = [
        Target("start", OURS, PEER, 2, 3),
        Target("start", LIGHT, PEER, 15, 28),
        Target("start", LIGHT, ONNX_PEER, 2, 4),
        Target("start", OURS, PEER, 1, 2, quantity="memory"),
        Target("load", LOADERS[0], "Hugging Face", 1 / 1.3, 1),
        Target("load", LOADERS[1], "Hugging Face bf16 and tokenizer", 1 / 1.3, 1),
        Target("load", LOADERS[0], "Hugging Face", 1, 2, quantity="memory"),
    ]
    report(works, targets, options)


if __name__ == "__main__":
    main()

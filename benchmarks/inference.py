"""Texts to vectors on a CPU: ours and common libraries, in one run.

    python benchmarks/inference.py MODEL --out inference.json
    python benchmarks/inference.py --passages 384 --texts 24 --out passages.json

    BERTWORKS_NATIVE=avx2 ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 \\
        python benchmarks/inference.py MODEL --threads 1 --by processor --rounds 3 --texts 150 \\
        --only "bertworks fp32" "bertworks int8" "OpenVINO f32" "OpenVINO int8"

The last is as on a processor with AVX2 alone; ONNX Runtime cannot be told so.
MODEL is a sentence encoder's directory (all-MiniLM-L6-v2's, say). The texts are paragraphs of the
reference text that Python carries, of any length, or joined to passages of so many tokens; passages
are read by a network of BERT-base's geometry with random weights. Each contestant is a process that
is given texts and returns mean-pooled vectors of length 1, tokenising included; all use the same
number of threads. ONNX Runtime and OpenVINO get the texts sorted by length, in batches that hardly
need padding, and their graphs are optimised. OpenVINO's int8 is nncf's; it and ours are calibrated
by 300 other paragraphs. Cosines are to sentence-transformers' float32 vectors.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from harness import (
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
from models import fresh

Encode = Callable[[list[str]], np.ndarray]
ONE = "Where did they sell the fresh apples that we ate?"  # 13 pieces
CALLS = 21
BATCH_SIZE = 32
CALIBRATION = 300
MANY, SINGLE = "mixed lengths", "one text of 13 tokens"


def ours(
    settings: Mapping[str, Any], model: Path, work: Path, *, is_calibrated: bool = False
) -> Encode:
    import bertworks as bw

    encoder = bw.load(work / "bertworks-int8" if is_calibrated else model, device="cpu")
    return partial(encoder.embed, normalize=True, **settings)


def sentence_transformers(dtype: str, model: Path, _work: Path) -> Encode:
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(str(model), device="cpu", model_kwargs={"dtype": dtype})

    def encode(texts: list[str]) -> np.ndarray:
        tensor = encoder.encode(texts, batch_size=BATCH_SIZE, convert_to_tensor=True)
        vectors: np.ndarray = tensor.float().numpy()
        return vectors

    return encode


def padded(run: Callable[[dict[str, np.ndarray]], np.ndarray], model: Path) -> Encode:
    """Texts through an engine of padded batches, sorted by length, with little to pad."""
    rows_of = _tokenize(model)

    def encode(texts: list[str]) -> np.ndarray:
        rows = rows_of(texts)
        vectors = np.empty((len(texts), 0), np.float32)
        for indices in batches_of_like_length(rows):
            inputs = _batch([rows[index] for index in indices])
            mask = inputs["attention_mask"]
            hidden = run(inputs)
            means = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
            if not vectors.size:
                vectors = np.empty((len(texts), means.shape[1]), np.float32)
            vectors[indices] = means / np.linalg.norm(means, axis=1, keepdims=True)
        return vectors

    return encode


def _tokenize(model: Path) -> Callable[[list[str]], list[list[int]]]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.enable_truncation(_max_length(model))
    tokenizer.no_padding()
    return lambda texts: [row.ids for row in tokenizer.encode_batch(texts)]


def _batch(rows: list[list[int]]) -> dict[str, np.ndarray]:
    """Rows in order of length, padded."""
    ids = np.zeros((len(rows), len(rows[-1])), np.int64)
    mask = np.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
        mask[number, : len(row)] = 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def batches_of_like_length(rows: list[list[int]]) -> Iterator[list[int]]:
    """The indices of rows of similar length: the longest is at most 10 % longer."""
    part: list[int] = []
    for index in sorted(range(len(rows)), key=lambda index: len(rows[index])):
        if part and (len(part) == BATCH_SIZE or len(rows[index]) > 1.1 * len(rows[part[0]]) + 1):
            yield part
            part = []
        part.append(index)
    yield part


def _max_length(model: Path) -> int:
    file = model / "sentence_bert_config.json"
    return int(json.loads(file.read_text())["max_seq_length"]) if file.exists() else 512


def onnxruntime(name: str, model: Path, work: Path) -> Encode:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = int(os.environ["OMP_NUM_THREADS"])
    session = ort.InferenceSession(work / f"{name}.onnx", options, ["CPUExecutionProvider"])
    names = {one.name for one in session.get_inputs()}

    def run(inputs: dict[str, np.ndarray]) -> np.ndarray:
        feeds = {name: value for name, value in inputs.items() if name in names}
        outputs: np.ndarray = session.run(None, feeds)[0]
        return outputs

    return padded(run, model)


def openvino(weights: str, precision: str, model: Path, work: Path) -> Encode:
    import openvino as ov

    core = ov.Core()
    settings = {
        "INFERENCE_PRECISION_HINT": precision,
        "INFERENCE_NUM_THREADS": os.environ["OMP_NUM_THREADS"],
        "PERFORMANCE_HINT": "LATENCY",
    }
    graph = core.read_model(work / f"openvino-{weights}.xml")
    compiled = core.compile_model(graph, "CPU", settings)
    request = compiled.create_infer_request()
    names = {port.any_name for port in graph.inputs}

    def run(inputs: dict[str, np.ndarray]) -> np.ndarray:
        feeds = {name: value for name, value in inputs.items() if name in names}
        outputs: np.ndarray = request.infer(feeds)[0]
        return outputs

    return padded(run, model)


REFERENCE = "sentence-transformers"
CONTESTANTS: dict[str, Callable[[Path, Path], Encode]] = {
    REFERENCE: partial(sentence_transformers, "float32"),
    "bertworks": partial(ours, {}),
    "bertworks fp32": partial(ours, {"precision": "fp32"}),
    "bertworks bf16": partial(ours, {"precision": "bf16"}),
    "bertworks int8": partial(ours, {"precision": "int8"}, is_calibrated=True),
    "bertworks uncalibrated int8": partial(ours, {"precision": "int8"}),
    "sentence-transformers bf16": partial(sentence_transformers, "bfloat16"),
    "ONNX Runtime fp32": partial(onnxruntime, "fp32"),
    "ONNX Runtime int8": partial(onnxruntime, "int8"),
    "OpenVINO f32": partial(openvino, "f32", "f32"),
    "OpenVINO bf16": partial(openvino, "f32", "bf16"),
    "OpenVINO int8": partial(openvino, "int8", "bf16"),
}


def prepare(model: Path, work: Path, names: list[str], calibration: list[str]) -> None:
    """Write an optimised ONNX graph, OpenVINO's, and the int8 models of all."""
    import bertworks as bw

    calibrated_model = bw.load(model, device="cpu")
    calibrated_model.calibrate(calibration)
    calibrated_model.save(work / "bertworks-int8", precision="int8", overwrite=True)
    import onnx
    import openvino as ov
    import torch
    from onnxruntime.quantization import quantize_dynamic
    from onnxruntime.transformers.optimizer import optimize_model
    from transformers import AutoModel

    class Plain(torch.nn.Module):
        """The hidden states alone, from positional arguments."""

        def __init__(self, attention: str) -> None:
            super().__init__()
            self.model = AutoModel.from_pretrained(model, attn_implementation=attention).eval()

        def forward(self, *values: torch.Tensor) -> torch.Tensor:
            states = self.model(**dict(zip(inputs, values, strict=True)))
            hidden_states: torch.Tensor = states.last_hidden_state
            return hidden_states

    inputs = ["input_ids", "attention_mask"]
    plain = Plain("eager")
    if "token_type_ids" in inspect.signature(plain.model.forward).parameters:
        inputs.append("token_type_ids")
    ids = torch.ones(2, 8, dtype=torch.int64)
    example_inputs = (ids, ids, torch.zeros_like(ids))[: len(inputs)]
    dynamic = {name: {0: "rows", 1: "length"} for name in [*inputs, "last_hidden_state"]}
    torch.onnx.export(
        *(plain, example_inputs, str(work / "plain.onnx")),
        input_names=inputs,
        output_names=["last_hidden_state"],
        dynamic_axes=dynamic,
        dynamo=False,
    )
    config = plain.model.config
    optimizer = optimize_model(
        *(str(work / "plain.onnx"), "bert", config.num_attention_heads, config.hidden_size)
    )
    optimizer.save_model_to_file(str(work / "fp32.onnx"))
    # The optimised graph has operators whose types shape inference does not know.
    kinds = {"DefaultTensorType": onnx.TensorProto.FLOAT}
    quantize_dynamic(work / "fp32.onnx", work / "int8.onnx", extra_options=kinds)
    attention = "sdpa" if plain.model._supports_sdpa else "eager"
    graph = ov.convert_model(Plain(attention), example_input=example_inputs)
    for port, name in zip(graph.inputs, inputs, strict=True):
        port.get_tensor().set_names({name})
    ov.save_model(graph, work / "openvino-f32.xml", False)
    if "OpenVINO int8" in names:
        import nncf

        rows = [
            {name: values for name, values in _batch([row]).items() if name in inputs}
            for row in _tokenize(model)(calibration)
        ]
        eight = nncf.quantize(
            graph,
            nncf.Dataset(rows),
            subset_size=len(rows),
            model_type=nncf.ModelType.TRANSFORMER,
        )
        ov.save_model(eight, work / "openvino-int8.xml", False)


def jobs(name: str, model: Path, work: Path) -> Mapping[str, Job]:
    """The jobs of a contestant."""
    texts = json.loads((work / "texts.json").read_text())
    encode = CONTESTANTS[name](model, work)

    def single() -> None:
        for _ in range(CALLS):
            encode([ONE])

    return {MANY: lambda: np.save(work / f"{name}.npy", encode(texts)), SINGLE: single}


def cosines(work: Path, name: str) -> np.ndarray:
    """Of each vector with the reference's."""
    expected, vectors = (np.load(work / f"{who}.npy") for who in (REFERENCE, name))
    norms = np.linalg.norm(expected, axis=1) * np.linalg.norm(vectors, axis=1)
    similarities: np.ndarray = (expected * vectors).sum(1) / norms
    return similarities


def paragraphs() -> list[str]:
    """Those of Python's reference text, of any length, shuffled by a seed."""
    from bertworks.lab.demo.texts import topics

    every = [paragraph for document in topics() for paragraph in document]
    return random.Random(0).sample(every, len(every))


def passages(tokenizer: Any, texts: list[str], length: int) -> list[str]:
    """Texts joined, and truncated to so many tokens."""
    results, waiting = [], ""
    for text in texts:
        waiting = f"{waiting} {text}".strip()
        (row,) = tokenizer.encode_batch([waiting], max_length=1 << 20)
        if row.num_tokens >= length:
            results.append(waiting[: row.offsets[length - 2][1]])
            waiting = ""
    return results


def operations(model: Path, lengths: np.ndarray) -> float:
    """Of the matrix products of texts of these lengths."""
    config = json.loads((model / "config.json").read_text())
    width, inner = config["hidden_size"], config["intermediate_size"]
    linear = 2 * lengths.sum() * (4 * width**2 + 2 * width * inner)
    return float(config["num_hidden_layers"] * (linear + 4 * width * (lengths**2).sum()))


def measure(options: argparse.Namespace, work: Path) -> list[Work]:
    """All contestants on all jobs."""
    from bertworks import Tokenizer

    names = select_contestants(CONTESTANTS, options)
    model = options.model
    if options.passages:
        model = fresh("base", work / "base")
    every = paragraphs()
    tokenizer = Tokenizer.load(model)
    calibration, every = every[:CALIBRATION], every[CALIBRATION:]
    if options.passages:
        calibration, every = (
            passages(tokenizer, texts, options.passages) for texts in (calibration, every)
        )
    texts = every[: options.texts]
    (work / "texts.json").write_text(json.dumps(texts))
    lengths = np.array([len(row) for row in _tokenize(model)(texts)])
    prepare(model, work, names, calibration)
    command = [sys.executable, __file__, str(model), "--work", str(work), "--serve"]

    def start(name: str) -> Contestant:
        return Contestant(name, [*command, name], options.threads)

    if REFERENCE not in names:
        reference = start(REFERENCE)
        reference.run(MANY)
        reference.close()
    contestants = [start(name) for name in names]
    many = in_rounds(contestants, MANY, options.rounds)
    all_cosines = {name: cosines(work, name) for name in names}
    works = [
        Work(
            f"passages of {options.passages}" if options.passages else MANY,
            many,
            "tokens",
            float(lengths.sum()),
            operations=operations(model, lengths),
            notes={
                name: f"cosine {one.min():.5f} at worst, {one.mean():.5f} on average"
                for name, one in all_cosines.items()
            },
        )
    ]
    if not options.passages:
        works.append(Work(SINGLE, in_rounds(contestants, SINGLE, options.rounds), calls=CALLS))
    for contestant in contestants:
        contestant.close()
    return works


EIGHT = "bertworks int8"
TARGETS = [
    Target(MANY, "bertworks", REFERENCE, 3.5, 4.5),
    Target(MANY, "bertworks bf16", "OpenVINO bf16", 1.05, 1.2),
    Target(MANY, "bertworks bf16", "ONNX Runtime fp32", 1.9, 2.3),
    Target(MANY, EIGHT, "OpenVINO int8", 1.05, 1.3),
    Target(MANY, EIGHT, "ONNX Runtime int8", 1.15, 1.3),
    Target(MANY, "bertworks fp32", "OpenVINO f32", 1.0, 1.2),
    Target(MANY, "bertworks fp32", "ONNX Runtime fp32", 1.0, 1.2),
    Target(SINGLE, "bertworks", "OpenVINO bf16", 1.0, 1.0),
    Target(SINGLE, "bertworks", "ONNX Runtime int8", 1 / 1.3, 1.0),
    Target(SINGLE, "bertworks", "OpenVINO int8", 1 / 1.3, 1.0),
    Target(MANY, "bertworks", "OpenVINO bf16", 1.0, 2.0, quantity="memory"),
    Target("passages of 384", "bertworks bf16", "OpenVINO bf16", 1.0, 1.2),
    Target("passages of 384", EIGHT, "OpenVINO int8", 1.0, 1.2),
]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("model", type=Path, nargs="?", help="a sentence encoder's directory")
    parser.add_argument("--texts", type=int, default=2000, help="how many")
    parser.add_argument("--passages", type=int, help="tokens of each text, for random weights")
    options = parser.parse_args()
    if options.serve:
        serve(partial(jobs, options.serve, options.model, options.work))
        return
    if options.model is None and not options.passages:
        parser.error("give MODEL, or --passages")
    with tempfile.TemporaryDirectory() as work:
        works = measure(options, Path(work))
    report(works, TARGETS, options, _precisions())


def _precisions() -> dict[str, str]:
    """The precision of each contestant's products on this processor, for its share of the peak."""
    import torch

    from bertworks.nn.device import is_fast_at_bfloat16

    precision_of = {"int8": "int8"} if torch.cpu._is_vnni_supported() else {}
    if is_fast_at_bfloat16("cpu"):
        precision_of |= {"bf16": "bf16", "bertworks": "bf16"}
    return {name: precision_of.get(name.split()[-1], "fp32") for name in CONTESTANTS}


if __name__ == "__main__":
    main()

"""Texts to vectors on a CPU: ours beside what people use, in one run.

    python benchmarks/inference.py MODEL --out inference.json

MODEL is a sentence encoder's directory (all-MiniLM-L6-v2's, say). The texts are paragraphs of the
reference text that Python carries. Each contestant is a process that is given texts and returns
mean-pooled vectors of length 1, tokenising included; all use the same number of threads. ONNX
Runtime and OpenVINO get the texts sorted by length, in batches that hardly need padding, and their
graphs are optimised. Cosines are to sentence-transformers' float32 vectors.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from harness import Contestant, Job, in_rounds, machine, matmul_peaks, serve

Encode = Callable[[list[str]], np.ndarray]
ONE = "Where did they sell the fresh apples that we ate?"  # 13 pieces
AT_ONCE = 32
PACKAGES = ("torch", "transformers", "sentence-transformers", "onnxruntime", "openvino")


def ours(settings: Mapping[str, str], model: Path, _work: Path) -> Encode:
    import bertworks as bw

    held = bw.load(model, device="cpu")
    return partial(held.embed, normalize=True, **settings)


def sentence_transformers(dtype: str, model: Path, _work: Path) -> Encode:
    from sentence_transformers import SentenceTransformer

    held = SentenceTransformer(str(model), device="cpu", model_kwargs={"dtype": dtype})

    def encode(texts: list[str]) -> np.ndarray:
        found = held.encode(texts, batch_size=AT_ONCE, convert_to_tensor=True)
        return found.float().numpy()

    return encode


def padded(run: Callable[[dict[str, np.ndarray]], np.ndarray], model: Path) -> Encode:
    """Texts through an engine of padded batches, sorted by length, with little to pad."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.enable_truncation(_max_length(model))
    tokenizer.no_padding()

    def encode(texts: list[str]) -> np.ndarray:
        rows = [row.ids for row in tokenizer.encode_batch(texts)]
        vectors = np.empty((len(texts), 0), np.float32)
        for places in alike(rows):
            ids = np.zeros((len(places), len(rows[places[-1]])), np.int64)
            mask = np.zeros_like(ids)
            for number, at in enumerate(places):
                ids[number, : len(rows[at])] = rows[at]
                mask[number, : len(rows[at])] = 1
            hidden = run(
                {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
            )
            means = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
            if not vectors.size:
                vectors = np.empty((len(texts), means.shape[1]), np.float32)
            vectors[places] = means / np.linalg.norm(means, axis=1, keepdims=True)
        return vectors

    return encode


def alike(rows: list[list[int]]) -> Iterator[list[int]]:
    """The places of rows of much the same length: the longest is 10 % longer at most."""
    part: list[int] = []
    for at in sorted(range(len(rows)), key=lambda at: len(rows[at])):
        if part and (len(part) == AT_ONCE or len(rows[at]) > 1.1 * len(rows[part[0]]) + 1):
            yield part
            part = []
        part.append(at)
    yield part


def _max_length(model: Path) -> int:
    file = model / "sentence_bert_config.json"
    return int(json.loads(file.read_text())["max_seq_length"]) if file.exists() else 512


def onnxruntime(name: str, model: Path, work: Path) -> Encode:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = int(os.environ["OMP_NUM_THREADS"])
    session = ort.InferenceSession(work / f"{name}.onnx", options, ["CPUExecutionProvider"])
    known = {one.name for one in session.get_inputs()}

    def run(inputs: dict[str, np.ndarray]) -> np.ndarray:
        given = {name: value for name, value in inputs.items() if name in known}
        found: np.ndarray = session.run(None, given)[0]
        return found

    return padded(run, model)


def openvino(precision: str, model: Path, work: Path) -> Encode:
    import openvino as ov

    core = ov.Core()
    settings = {
        "INFERENCE_PRECISION_HINT": precision,
        "INFERENCE_NUM_THREADS": os.environ["OMP_NUM_THREADS"],
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled = core.compile_model(core.read_model(work / "openvino.xml"), "CPU", settings)
    request = compiled.create_infer_request()

    def run(inputs: dict[str, np.ndarray]) -> np.ndarray:
        found: np.ndarray = request.infer(inputs)[0]
        return found

    return padded(run, model)


CONTESTANTS: dict[str, Callable[[Path, Path], Encode]] = {
    "sentence-transformers": partial(sentence_transformers, "float32"),
    "bertworks": partial(ours, {}),
    "bertworks fp32": partial(ours, {"precision": "fp32"}),
    "bertworks bf16": partial(ours, {"precision": "bf16"}),
    "bertworks int8": partial(ours, {"precision": "int8"}),
    "sentence-transformers bf16": partial(sentence_transformers, "bfloat16"),
    "ONNX Runtime fp32": partial(onnxruntime, "fp32"),
    "ONNX Runtime int8": partial(onnxruntime, "int8"),
    "OpenVINO f32": partial(openvino, "f32"),
    "OpenVINO bf16": partial(openvino, "bf16"),
}


def prepare(model: Path, work: Path) -> None:
    """Make the peers' files: an optimised ONNX graph, its int8 form, and OpenVINO's."""
    import onnx
    import openvino as ov
    import torch
    from onnxruntime.quantization import quantize_dynamic
    from onnxruntime.transformers.optimizer import optimize_model
    from transformers import AutoModel

    class Plain(torch.nn.Module):
        """The tensor alone, from arguments by place."""

        def __init__(self, attention: str) -> None:
            super().__init__()
            self.held = AutoModel.from_pretrained(model, attn_implementation=attention).eval()

        def forward(
            self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor
        ) -> torch.Tensor:
            found = self.held(input_ids=ids, attention_mask=mask, token_type_ids=types)
            return found.last_hidden_state

    plain = Plain("eager")
    names = ["input_ids", "attention_mask", "token_type_ids"]
    ids = torch.ones(2, 8, dtype=torch.int64)
    given = (ids, ids, torch.zeros_like(ids))
    dynamic = {name: {0: "rows", 1: "length"} for name in [*names, "last_hidden_state"]}
    torch.onnx.export(
        *(plain, given, str(work / "plain.onnx")),
        input_names=names,
        output_names=["last_hidden_state"],
        dynamic_axes=dynamic,
        dynamo=False,
    )
    config = plain.held.config
    optimised = optimize_model(
        *(str(work / "plain.onnx"), "bert", config.num_attention_heads, config.hidden_size)
    )
    optimised.save_model_to_file(str(work / "fp32.onnx"))
    # The optimised graph has operators whose types shape inference does not know.
    kinds = {"DefaultTensorType": onnx.TensorProto.FLOAT}
    quantize_dynamic(work / "fp32.onnx", work / "int8.onnx", extra_options=kinds)
    graph = ov.convert_model(Plain("sdpa"), example_input=given)
    for place, name in zip(graph.inputs, names, strict=True):
        place.get_tensor().set_names({name})
    ov.save_model(graph, work / "openvino.xml", False)


def jobs(name: str, model: Path, work: Path) -> Mapping[str, Job]:
    """What a contestant is asked for."""
    texts = json.loads((work / "texts.json").read_text())
    encode = CONTESTANTS[name](model, work)

    def many() -> None:
        np.save(work / f"{name}.npy", encode(texts))

    def one(times: int = 21) -> tuple[float, float]:
        clock, processor = [], []
        for _ in range(times):
            start, used = time.perf_counter(), time.process_time()
            encode([ONE])
            clock.append(time.perf_counter() - start)
            processor.append(time.process_time() - used)
        return sorted(clock)[times // 2], sorted(processor)[times // 2]

    return {"many": many, "one": one}


def cosines(work: Path, name: str) -> np.ndarray:
    """Of each vector with the reference's."""
    expected, found = (np.load(work / f"{who}.npy") for who in (next(iter(CONTESTANTS)), name))
    norms = np.linalg.norm(expected, axis=1) * np.linalg.norm(found, axis=1)
    return (expected * found).sum(1) / norms


def paragraphs(count: int) -> list[str]:
    """So many of the paragraphs of Python's reference text, of any length, chosen by a seed."""
    from bertworks.demo.texts import topics

    every = [paragraph for document in topics() for paragraph in document]
    return random.Random(0).sample(every, min(count, len(every)))


def measure(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """All contestants on all jobs."""
    from bertworks import Tokenizer

    texts = paragraphs(options.texts)
    (work / "texts.json").write_text(json.dumps(texts))
    limit = _max_length(options.model)
    encoded = Tokenizer.load(options.model).encode_batch(
        texts, max_length=limit, truncation="longest_first"
    )
    tokens = sum(row.num_tokens for row in encoded)
    result: dict[str, Any] = {"machine": machine(), "texts": len(texts), "tokens": tokens}
    result["versions"] = {name: _version(name) for name in PACKAGES}
    result["peaks"] = matmul_peaks()
    prepare(options.model, work)
    command = [sys.executable, __file__, str(options.model), "--work", str(work), "--serve"]
    contestants = [
        Contestant(name, [*command, name], options.threads)
        for name in CONTESTANTS
        if not options.only or name in options.only or name == next(iter(CONTESTANTS))
    ]
    many = in_rounds(contestants, "many", options.rounds)
    one = in_rounds(contestants, "one", options.rounds)
    for contestant in contestants:
        contestant.close()
    result["contestants"] = {
        name: {
            "tokens_per_second": tokens / found["median"],
            "slowest": tokens / found["most"],
            "fastest": tokens / found["least"],
            "tokens_per_processor_second": tokens / found["processor"],
            "one_text_ms": 1000 * one[name]["told"][0],
            "one_text_processor_ms": 1000 * one[name]["told"][1],
            "worst_cosine": float(cosines(work, name).min()),
            "mean_cosine": float(cosines(work, name).mean()),
            "peak_mb": found["peak_mb"],
        }
        for name, found in many.items()
    }
    return result


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def table(result: Mapping[str, Any]) -> str:
    """The result for people."""
    lines = [
        "| | tokens/s (slowest–fastest round) | per processor second | one text (processor) "
        "| worst cosine | peak memory |",
        "|---|---|---|---|---|---|",
    ]
    for name, found in result["contestants"].items():
        speed, slowest, fastest = (
            f"{found[key]:,.0f}" for key in ("tokens_per_second", "slowest", "fastest")
        )
        lines.append(
            f"| {name} | {speed} ({slowest}–{fastest}) "
            f"| {found['tokens_per_processor_second']:,.0f} "
            f"| {found['one_text_ms']:.1f} ms ({found['one_text_processor_ms']:.1f}) | "
            f"{found['worst_cosine']:.5f} | {found['peak_mb']:.0f} MB |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="a sentence encoder's directory")
    parser.add_argument("--out", type=Path, help="JSON of all figures")
    parser.add_argument("--texts", type=int, default=2000, help="how many paragraphs")
    parser.add_argument("--rounds", type=int, default=5, help="that are measured")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", nargs="+", help="of the contestants")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--serve", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(partial(jobs, options.serve, options.model, options.work))
        return
    with tempfile.TemporaryDirectory() as work:
        result = measure(options, Path(work))
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))


if __name__ == "__main__":
    main()

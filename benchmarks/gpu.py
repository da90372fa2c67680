"""One graphics card: steps of training, encoding, texts; beside Hugging Face and its libraries.

    python benchmarks/gpu.py --out gpu.json                  # a few minutes on one card
    python benchmarks/gpu.py --device cpu --sizes tiny --tokens 256 --length 32  # tries the script

Random token ids and weights: nothing is downloaded. A step is forward, backward, the gradients'
norm and AdamW, with dropout 0.1, in bfloat16; for both, the weights are float32. "Mixed" are
lengths from a tenth of the maximum to the maximum, as many real tokens as of one length. Rates are
of real tokens. The share of the peak counts matrix products only, and compares them with a large
product measured on the same card.

The peer of steps and of encoding is Hugging Face's BERT with PyTorch's attention (`sdpa`), on
padded batches of the same rows; of texts, sentence-transformers with the same model.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertworks import load
from bertworks.model import Model
from bertworks.nn.config import EncoderConfig
from bertworks.nn.device import autocast_to
from bertworks.nn.encoder_graphs import TrainingGraphs
from bertworks.packed import Batch, Packed
from bertworks.tasks.classification import ClassificationSettings
from bertworks.tasks.network import Network
from bertworks.tasks.pretraining.network import PretrainingNetwork
from bertworks.tasks.text_network import ClassificationNetwork
from bertworks.training.operations import (
    encoder_flops,
    flops_of_batch,
    matmul_peak,
    synchronize,
)
from bertworks.training.precision import cuda_graphs
from serving import Server, Turn, start

PEER = "Hugging Face"
MASKED_SHARE = 0.15
FIRST_ID = 1000
SMALLEST_SHARE = 0.1
NUM_LABELS = 2
MINILM = {
    "num_hidden_layers": 6,
    "hidden_size": 384,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
}

Result = dict[str, Any]


@dataclass(frozen=True)
class Card:
    """Where and how often to measure."""

    device: torch.device
    rounds: int

    def median_seconds(self, work: Callable[[], Any]) -> float:
        """The median of some rounds, after two that are not counted."""
        times = []
        for number in range(self.rounds + 2):
            synchronize(self.device)
            start = time.perf_counter()
            work()
            synchronize(self.device)
            if number >= 2:
                times.append(time.perf_counter() - start)
        return statistics.median(times)


# ------------------------------------------------------------------------------------- rows


def draw_lengths(tokens: int, longest: int, is_mixed: bool) -> np.ndarray:
    """Lengths of rows with so many tokens, or a few less."""
    random = np.random.default_rng(0)
    shortest = max(2, int(SMALLEST_SHARE * longest)) if is_mixed else longest
    lengths = random.integers(shortest, longest + 1, tokens // shortest)
    return np.sort(lengths[np.cumsum(lengths) <= tokens])


def make_pack(lengths: np.ndarray, vocab_size: int) -> Packed:
    random = np.random.default_rng(1)
    return Packed.from_arrays([random.integers(FIRST_ID, vocab_size, size) for size in lengths])


def masked_batch(packed: Packed) -> Batch:
    count = int(MASKED_SHARE * packed.num_tokens)
    positions = np.sort(np.random.default_rng(2).permutation(packed.num_tokens)[:count])
    targets = {"masked_positions": positions, "masked_labels": packed.input_ids[positions]}
    return Batch(packed, targets, {"mlm": count})


def labelled_batch(packed: Packed) -> Batch:
    rows = len(packed.lengths)
    labels = np.random.default_rng(2).integers(0, NUM_LABELS, rows)
    return Batch(packed, {"labels": labels}, {"classification": rows})


def padded_inputs(batch: Batch) -> dict[str, np.ndarray]:
    """What the peer takes."""
    ids, mask = batch.packed.to_padded()
    inputs = {"input_ids": ids, "attention_mask": mask.astype(np.int64)}
    if "labels" in batch.targets:
        return {**inputs, "labels": batch.targets["labels"]}
    flat = np.full(batch.packed.num_tokens, -100)
    flat[batch.targets["masked_positions"]] = batch.targets["masked_labels"]
    return {**inputs, "labels": batch.packed.to_padded(flat, fill=-100)[0]}


# --------------------------------------------------------------------------------- training


def make_peer(name: str, config: EncoderConfig, card: Card) -> Any:
    """The peer with the same geometry; None if transformers is not installed."""
    try:
        import transformers
    except ImportError:
        return None
    own = transformers.BertConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        intermediate_size=config.intermediate_size,
        max_position_embeddings=config.max_position_embeddings,
        num_labels=NUM_LABELS,
        attn_implementation="sdpa",
    )
    with torch.device(card.device):
        return getattr(transformers, name)(own).train()


def make_step(network: torch.nn.Module, loss_of: Callable[[], Any]) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-5, fused=True)

    def step() -> None:
        loss_of().backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def measure_steps(network: Network, peer: Any, batch: Batch, card: Card) -> Iterator[Result]:
    """Steps of ours, with and without CUDA graphs where these apply, and of the peer."""
    is_small = batch.packed.num_tokens <= TrainingGraphs.max_tokens
    times: dict[str, float | None] = {}
    with autocast_to(network, torch.bfloat16):
        if is_small and card.device.type == "cuda":
            with cuda_graphs(network, True):
                times["bertworks"] = time_our_step(network, batch, card)
        name = "bertworks without graphs" if times else "bertworks"
        times[name] = time_our_step(network, batch, card)
    if peer is not None:
        times[PEER] = time_their_step(peer, batch, card)
    rate = flops_of_batch(network, batch) / matmul_peak(torch.bfloat16, card.device)
    for who, seconds in times.items():
        if seconds is None:
            yield {"who": who, "out of memory": True}
        else:
            tokens = batch.packed.num_tokens / seconds
            yield {"who": who, "tokens/s": tokens, "share of peak": rate / seconds}


def time_our_step(network: Network, batch: Batch, card: Card) -> float:
    (count,) = batch.counts.values()

    def loss_of() -> torch.Tensor:
        loss: torch.Tensor
        (loss,) = network(batch.to(card.device)).values()
        return loss / count

    return card.median_seconds(make_step(network.train(), loss_of))


def time_their_step(peer: Any, batch: Batch, card: Card) -> float | None:
    """The seconds of a step; None if the card's memory is too small."""
    inputs = padded_inputs(batch)

    def loss_of() -> torch.Tensor:
        tensors = {name: torch.from_numpy(one).to(card.device) for name, one in inputs.items()}
        with torch.autocast(card.device.type, torch.bfloat16):
            loss: torch.Tensor = peer(**tensors).loss
        return loss

    torch.cuda.empty_cache()
    try:
        return card.median_seconds(make_step(peer.train(), loss_of))
    except torch.OutOfMemoryError:
        return None


# --------------------------------------------------------------------------------- inference


def measure_encoding(network: Network, peer: Any, packed: Packed, card: Card) -> Iterator[Result]:
    """Vectors of tokens, in bfloat16 and float32."""
    encoder = network.encoder.eval()
    arrays = packed.to_padded()
    for dtype in (torch.bfloat16, torch.float32):
        name = str(dtype).removeprefix("torch.")
        with torch.inference_mode(), autocast_to(encoder, dtype):
            seconds = card.median_seconds(lambda: encoder(packed.to(card.device)))
        share = encoder_flops(encoder.config, packed) / seconds / matmul_peak(dtype, card.device)
        rate = packed.num_tokens / seconds
        yield {"who": "bertworks", "dtype": name, "tokens/s": rate, "share of peak": share}
        if peer is None:
            continue

        def encode(dtype: torch.dtype = dtype) -> None:
            ids, mask = (torch.from_numpy(one).to(card.device) for one in arrays)
            with torch.autocast(card.device.type, dtype, enabled=dtype is torch.bfloat16):
                peer.bert.eval()(ids, mask)

        with torch.inference_mode():
            rate = packed.num_tokens / card.median_seconds(encode)
        yield {"who": PEER, "dtype": name, "tokens/s": rate}


def draw_texts(count: int, words: list[str]) -> list[str]:
    random = np.random.default_rng(3)
    return [" ".join(random.choice(words, random.integers(5, 100))) for _ in range(count)]


def measure_texts(config: EncoderConfig, card: Card, count: int) -> Iterator[Result]:
    """Vectors of many texts, of one, and by a server; from strings to arrays, in bfloat16."""
    tokenizer = load("mini").tokenizer
    words = [piece for piece in tokenizer.pieces if piece.isalpha()]
    texts = draw_texts(count, words)
    model = Model.fresh(config.model_copy(update={"vocab_size": tokenizer.vocab_size}), tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        path = model.save(Path(folder) / "model")
        yield from measure_vectors(path, texts, card)
        yield from measure_serving(path, texts[:1000], card)


def measure_vectors(path: Path, texts: list[str], card: Card) -> Iterator[Result]:
    model, peer = load(path, device=str(card.device)), _sentence_transformer(path, card)
    count = len(texts)
    for batch_tokens in (8192, 32768):
        seconds = card.median_seconds(
            partial(model.embed, texts, precision="bf16", batch_tokens=batch_tokens)
        )
        yield {"who": "bertworks", "batch_tokens": batch_tokens, "texts/s": count / seconds}
    for batch_size in (32, 256) if peer is not None else ():
        seconds = card.median_seconds(partial(peer.encode, texts, batch_size=batch_size))
        who = "sentence-transformers"
        yield {"who": who, "batch_size": batch_size, "texts/s": count / seconds}
    single = [" ".join(texts[0].split()[:11])]
    seconds = card.median_seconds(lambda: model.embed(single, precision="bf16"))
    yield {"who": "bertworks", "one text, ms": 1000 * seconds}
    if peer is not None:
        seconds = card.median_seconds(lambda: peer.encode(single))
        yield {"who": "sentence-transformers", "one text, ms": 1000 * seconds}


def _sentence_transformer(path: Path, card: Card) -> Any:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        return None
    return SentenceTransformer(str(path), device=str(card.device)).to(torch.bfloat16)


def measure_serving(path: Path, texts: list[str], card: Card) -> Iterator[Result]:
    """Requests of one text, each client's after its last answer."""
    model, device = shlex.quote(str(path)), card.device.type
    command = f"{sys.executable} -m bertworks serve m={model} --port 8101 --log-level warning"
    running = start(
        Server("bertworks", 8101, "/v1/embeddings", f"{command} --device {device} precision=bf16")
    )
    try:
        for clients in (1, 64):
            figures = asyncio.run(Turn(running, texts, clients, size=1).run(card.rounds))
            yield {"who": "bertworks, served", "clients": clients, **figures}
    finally:
        running.process.terminate()
        running.process.wait(60)


# --------------------------------------------------------------------------------------- all


def measure_size(size: str, lengths: list[int], tokens: int, card: Card) -> Iterator[Result]:
    """Steps of pre-training and encoding of one size."""
    config = EncoderConfig.from_size(size)
    with torch.device(card.device):
        network = PretrainingNetwork(config, next_sentence=False)
    peer = make_peer("BertForMaskedLM", config, card)
    for length in lengths:
        for is_mixed in (False, True):
            packed = make_pack(draw_lengths(tokens, length, is_mixed), config.vocab_size)
            work = {"size": size, "length": length, "mixed": is_mixed}
            for one in measure_steps(network, peer, masked_batch(packed), card):
                yield {**work, "work": "pre-training", **one}
            for one in measure_encoding(network, peer, packed, card):
                yield {**work, "work": "encoding", **one}


def measure_fine_tuning(name: str, config: EncoderConfig, card: Card) -> Iterator[Result]:
    """Steps of a classifier: about 32 rows of up to 128 tokens."""
    with torch.device(card.device):
        network = ClassificationNetwork(
            config, ClassificationSettings(labels=tuple(map(str, range(NUM_LABELS))))
        )
    peer = make_peer("BertForSequenceClassification", config, card)
    batch = labelled_batch(make_pack(draw_lengths(2250, 128, True), config.vocab_size))
    for one in measure_steps(network, peer, batch, card):
        yield {"size": name, "length": 128, "mixed": True, "work": "fine-tuning", **one}


def measure_all(options: argparse.Namespace, card: Card) -> Iterator[Result]:
    for size in options.sizes:
        yield from measure_size(size, options.length, options.tokens, card)
    configs = {"minilm": EncoderConfig.parse(MINILM)}
    configs |= {size: EncoderConfig.from_size(size) for size in options.sizes}
    for name, config in configs.items():
        yield from measure_fine_tuning(name, config, card)
    few = Card(card.device, min(3, card.rounds))
    for name, config in list(configs.items())[:2]:
        for one in measure_texts(config, few, options.texts):
            yield {"size": name, "work": "texts", **one}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--sizes", nargs="+", default=["base", "large"])
    parser.add_argument("--tokens", type=int, default=32_768, help="of a batch")
    parser.add_argument("--length", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--texts", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    card = Card(torch.device(options.device), options.rounds)
    if card.device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("no GPU: nothing was measured")
    name = torch.cuda.get_device_name(0) if card.device.type == "cuda" else "CPU"
    peak = matmul_peak(torch.bfloat16, card.device)
    print(f"{name}, PyTorch {torch.__version__}, median of {card.rounds} rounds")
    print(f"a large product in bfloat16: {peak / 1e12:.3g} TFLOP/s")
    machine = {"device": name, "torch": torch.__version__, "rounds": card.rounds, "peak": peak}
    results = []
    for one in measure_all(options, card):
        print("  ".join(f"{key} {_format(value)}" for key, value in one.items()), flush=True)
        results.append(one)
        if options.out is not None:  # after each: what was measured before a failure is kept
            options.out.write_text(json.dumps({**machine, "results": results}, indent=1) + "\n")


def _format(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value > 100 else f"{value:.2f}"
    return str(value)


if __name__ == "__main__":
    main()

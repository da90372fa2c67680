"""One graphics card: steps of pre-training, encoding, one text; beside Hugging Face's BERT.

    python benchmarks/gpu.py --out gpu.json                  # a few minutes on one card
    python benchmarks/gpu.py --device cpu --sizes tiny --rows 8 --length 32     # tries the script

Random token ids and weights: nothing is read or downloaded. A step is forward, backward, the
gradients' norm and AdamW, with dropout 0.1, in bfloat16; for both, the weights are float32. "Mixed"
are lengths from a tenth of the maximum to the maximum. Rates are of real tokens. The share of the
peak counts matrix products only, and compares them with a large product measured on the same card.
The peer is `BertForMaskedLM` with PyTorch's attention (`sdpa`), on padded batches of the same rows.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertworks.nn.config import EncoderConfig
from bertworks.nn.device import autocast_to
from bertworks.nn.encoder import Encoder
from bertworks.packed import Batch, Packed
from bertworks.tasks.pretraining.network import PretrainingNetwork
from bertworks.training.operations import (
    encoder_flops,
    flops_of_batch,
    matmul_peak,
    synchronize,
)

PEER = "Hugging Face"
MASKED_SHARE = 0.15
FIRST_ID = 1000
SMALLEST_SHARE = 0.1


def draw_lengths(rows: int, longest: int, is_mixed: bool) -> np.ndarray:
    random = np.random.default_rng(0)
    shortest = max(2, int(SMALLEST_SHARE * longest)) if is_mixed else longest
    return np.sort(random.integers(shortest, longest + 1, rows))


def make_pack(lengths: np.ndarray, vocab_size: int) -> Packed:
    random = np.random.default_rng(1)
    return Packed.from_arrays([random.integers(FIRST_ID, vocab_size, size) for size in lengths])


def masked_batch(packed: Packed) -> Batch:
    count = int(MASKED_SHARE * packed.num_tokens)
    positions = np.sort(np.random.default_rng(2).permutation(packed.num_tokens)[:count])
    targets = {"masked_positions": positions, "masked_labels": packed.input_ids[positions]}
    return Batch(packed, targets, {"mlm": count})


def seconds_of(work: Callable[[], Any], device: torch.device, rounds: int) -> float:
    """The median of some rounds, after two that are not counted."""
    times = []
    for number in range(rounds + 2):
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        if number >= 2:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def make_optimizer(network: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(network.parameters(), lr=1e-5, fused=True)


def finish_step(network: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def time_our_step(config: EncoderConfig, batch: Batch, options: Any) -> tuple[float, float]:
    """The seconds of a step, and its floating-point operations."""
    network = PretrainingNetwork(config, next_sentence=False).to(options.device).train()
    optimizer, count = make_optimizer(network), batch.counts["mlm"]

    def step() -> None:
        losses = network(batch.to(options.device))
        (losses["mlm"] / count).backward()
        finish_step(network, optimizer)

    with autocast_to(network, torch.bfloat16):
        return seconds_of(step, options.device, options.rounds), flops_of_batch(network, batch)


def time_peers_step(config: EncoderConfig, batch: Batch, options: Any) -> float | None:
    """The seconds of a step; None without the peer."""
    model = make_peer("BertForMaskedLM", config, options)
    if model is None:
        return None
    optimizer = make_optimizer(model.train())
    ids, mask = batch.packed.to_padded()
    flat_labels = np.full(batch.packed.num_tokens, -100)
    flat_labels[batch.targets["masked_positions"]] = batch.targets["masked_labels"]
    labels, _ = batch.packed.to_padded(flat_labels, fill=-100)
    inputs = {"input_ids": ids, "attention_mask": mask.astype(np.int64), "labels": labels}

    def step() -> None:
        tensors = {name: torch.from_numpy(one).to(options.device) for name, one in inputs.items()}
        with torch.autocast(options.device.type, torch.bfloat16):
            loss = model(**tensors).loss
        loss.backward()
        finish_step(model, optimizer)

    return seconds_of(step, options.device, options.rounds)


def measure_steps(config: EncoderConfig, batch: Batch, options: Any) -> Iterator[dict[str, Any]]:
    peak = matmul_peak(torch.bfloat16, options.device)
    ours, flops = time_our_step(config, batch, options)
    for who, seconds in (("bertworks", ours), (PEER, time_peers_step(config, batch, options))):
        if seconds is not None:
            rate = batch.packed.num_tokens / seconds
            yield {"who": who, "tokens/s": rate, "share of peak": flops / seconds / peak}


def make_peer(name: str, config: EncoderConfig, options: Any) -> Any:
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
        attn_implementation="sdpa",
    )
    return getattr(transformers, name)(own).to(options.device)


def measure_encoding(config: EncoderConfig, packed: Packed, options: Any) -> list[dict[str, Any]]:
    """Mean vectors of rows, in bfloat16 and float32."""
    results = []
    encoder = Encoder(config).to(options.device).eval()
    ids, mask = packed.to_padded()
    peer = make_peer("BertModel", config, options)
    for dtype in (torch.bfloat16, torch.float32):
        with torch.inference_mode(), autocast_to(encoder, dtype):
            seconds = seconds_of(
                lambda: encoder(packed.to(options.device)), options.device, options.rounds
            )
        share = encoder_flops(config, packed) / seconds / matmul_peak(dtype, options.device)
        name = str(dtype).removeprefix("torch.")
        rate = packed.num_tokens / seconds
        results.append(
            {"who": "bertworks", "dtype": name, "tokens/s": rate, "share of peak": share}
        )
        if peer is None:
            continue
        peer.eval().to(dtype)

        def encode(model: Any = peer) -> None:
            tensors = [torch.from_numpy(one).to(options.device) for one in (ids, mask)]
            model(*tensors)

        with torch.inference_mode():
            seconds = seconds_of(encode, options.device, options.rounds)
        rate = packed.num_tokens / seconds
        results.append({"who": PEER, "dtype": name, "tokens/s": rate})
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--sizes", nargs="+", default=["base", "large"])
    parser.add_argument("--rows", type=int, help="of a batch; 32,768 tokens' worth if omitted")
    parser.add_argument("--length", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.device = torch.device(options.device)
    if options.device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("no GPU: nothing was measured")
    card = torch.cuda.get_device_name(0) if options.device.type == "cuda" else "CPU"
    print(f"{card}, PyTorch {torch.__version__}, median of {options.rounds} rounds")
    results: list[dict[str, Any]] = []
    for size in options.sizes:
        config = EncoderConfig.from_size(size)
        for length in options.length:
            for is_mixed in (False, True):
                rows = options.rows or 32_768 // length
                packed = make_pack(draw_lengths(rows, length, is_mixed), config.vocab_size)
                work = {"size": size, "length": length, "mixed": is_mixed}
                steps = list(measure_steps(config, masked_batch(packed), options))
                results += [{**work, "work": "step", **one} for one in steps]
                rates = measure_encoding(config, packed, options)
                results += [{**work, "work": "encode", **one} for one in rates]
        single = make_pack(np.array([13]), config.vocab_size)
        rates = measure_encoding(config, single, options)
        results += [{"size": size, "length": 13, "work": "one text", **one} for one in rates]
    for one in results:
        print("  ".join(f"{key} {_format(value)}" for key, value in one.items()))
    if options.out is not None:
        about = {"device": card, "torch": torch.__version__, "rounds": options.rounds}
        options.out.write_text(json.dumps({**about, "results": results}, indent=1) + "\n")


def _format(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value > 10 else f"{value:.2f}"
    return str(value)


if __name__ == "__main__":
    main()

"""The measured speed of training: tokens, operations and their peak."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertworks.nn.config import EncoderConfig
from bertworks.nn.encoder import Encoder
from bertworks.packed import Batch, Packed
from bertworks.runs.run_directory import RunDirectory
from bertworks.tasks.pretraining.network import PretrainingNetwork
from bertworks.training.fit import fit
from bertworks.training.machine import describe
from bertworks.training.operations import encoder_flops, flops_of_batch, matmul_peak
from bertworks.training.plan import Phase
from bertworks.training.recorder import Meter
from bertworks.training.row_source import RowSource
from bertworks.training.settings import FitSettings
from bertworks.utils.formatting import format_duration, format_number
from bertworks.utils.progress import Progress

from .letters import TASK, examples, letters_network


def test_numbers_and_durations_are_shortened() -> None:
    assert [format_number(n) for n in (950, 12_345, 1_204_000)] == ["950", "12.3k", "1.2M"]
    assert [format_duration(n) for n in (4.2, 48, 200, 7500)] == [
        "4.2 s",
        "48 s",
        "3 min 20 s",
        "2 h 05 min",
    ]


def test_the_meter_follows_the_speed() -> None:
    meter = Meter()
    for _ in range(100):
        meter.add(1000, 5e9, 0.5)
    assert meter.tokens_per_second == pytest.approx(2000)
    assert meter.flops_per_second == pytest.approx(1e10)
    for _ in range(100):
        meter.add(1000, 5e9, 1.0)
    assert meter.tokens_per_second == pytest.approx(1000, rel=0.01)


@pytest.mark.long
def test_operations_are_those_that_pytorch_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    # Those of padded attention are work, but not counted as such.
    monkeypatch.setattr("bertworks.nn.grouped_attention._CALL_COST", 0)
    config = EncoderConfig.from_size("tiny", vocab_size=500, hidden_dropout_prob=0.0)
    network = PretrainingNetwork(config)
    ids = [np.full(length, 7) for length in (20, 20, 33, 64)]
    packed = Packed.from_arrays(ids)
    targets = {
        "masked_positions": np.arange(0, 137, 7),
        "masked_labels": np.arange(20),
        "next_sentence_labels": np.zeros(4, np.int64),
    }
    batch = Batch(packed, targets, {"mlm": 20, "nsp": 4})
    with FlopCounterMode(display=False) as counter:
        losses = network(batch.to("cpu"))
        sum(losses.values()).backward()  # type: ignore[union-attr]
    assert flops_of_batch(network, batch) == pytest.approx(counter.get_total_flops(), rel=0.02)
    assert encoder_flops(config, packed) < flops_of_batch(network, batch) / 3
    for frozen in (network.encoder.embeddings, network.encoder.layers[0]):
        frozen.requires_grad_(False)
    with FlopCounterMode(display=False) as counter:
        losses = network(batch.to("cpu"))
        sum(losses.values()).backward()  # type: ignore[union-attr]
    # Counted, but not computed: the gradients of the first trained layer's input, and of the
    # head's matrix, which is that of the embeddings.
    unused = 2 * 3 * 137 * config.hidden_size**2 + 2 * 20 * config.vocab_size * config.hidden_size
    expected = counter.get_total_flops() + unused
    assert flops_of_batch(network, batch) == pytest.approx(expected, rel=0.02)
    forward = flops_of_batch(network.requires_grad_(False), batch)
    with FlopCounterMode(display=False) as counter:
        network(batch.to("cpu"))
    assert forward == pytest.approx(counter.get_total_flops(), rel=0.02), "a teacher's"


@pytest.mark.long
@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"gated": True},
        {"bottleneck": {"size": 32}},
        {"local_attention": 8, "global_tokens": {"position": "first"}},
        {"local_attention": 8, "global_tokens": {"position": "question", "separator_id": 9}},
        {"bottleneck": {"size": 32, "attention": True, "shared_query_key": False}},
        {"attention": "two-way"},
        {"attention": "causal", "mixer": "lstm", "positions": "none"},
        {"attention": "two-way", "mixer": "lstm", "positions": "none"},
    ],
    ids=str,
)
def test_each_matrix_multiplies_each_token_once(
    kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch counts attention's products; it does not see into an LSTM."""
    from torch.utils.flop_counter import FlopCounterMode

    monkeypatch.setattr("bertworks.nn.grouped_attention._CALL_COST", 0)  # without padding, as above
    config = EncoderConfig.from_size("tiny", vocab_size=500, hidden_dropout_prob=0.0, **kind)
    ids = [np.full(length, 7) for length in (20, 20, 33, 64)]
    ids[0][5] = ids[1][5] = ids[2][3] = 9  # the fourth is a question only
    packed = Packed.from_arrays(ids)
    encoder = Encoder(config, pooler=False)
    with FlopCounterMode(display=False) as counter:
        encoder(packed.to("cpu"))
    counts = counter.get_flop_counts()["Global"]
    attention = sum(counts.get(op, 0) for op in (torch.ops.aten.bmm, torch.ops.aten.baddbmm))
    matrices = sum(part.numel() for part in encoder.layers.parameters() if part.ndim == 2)
    assert encoder_flops(config, packed) == 2 * packed.num_tokens * matrices + attention


@pytest.mark.long
def test_no_step_is_faster_than_the_peak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peak that was measured while another process ran is not used."""
    monkeypatch.setattr("bertworks.training.operations.matmul_peak", lambda *_, **__: 1.0)
    settings = FitSettings(batch_size=4, log_every=1, tensorboard=False)
    run = RunDirectory.open(tmp_path / "run", settings)
    network, source = letters_network(), RowSource(examples(), seed=0, batch_size=4)
    stream = io.StringIO()
    fit(network, TASK, [Phase(source, 3)], settings=settings, run=run, progress=Progress(stream))
    run.close()
    for line in run.lines():
        clock = line["time"]
        assert line["tokens"] <= clock["tokens_per_second"] * (clock["seconds"] + 0.01)
    shares = [line["time"]["peak_share"] for line in run.lines()]
    assert all(0 < share <= 1 for share in shares)
    assert "peak" not in stream.getvalue()
    assert "-:-- left" in stream.getvalue(), "the first step says nothing of the others"


def test_measuring_draws_nothing() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    assert matmul_peak(torch.float32, "cpu", seconds=0.01) > 1e8
    assert torch.equal(before, torch.get_rng_state())
    assert describe("cpu")["threads"] == torch.get_num_threads()

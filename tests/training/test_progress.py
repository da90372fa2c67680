"""The progress display fits a terminal; its speed is right."""

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
from bertworks.training.fit import FitSettings, Phase, fit
from bertworks.training.labelled_data import RowSource
from bertworks.training.machine import describe
from bertworks.training.operations import encoder_flops, flops_of_batch, matmul_peak
from bertworks.training.progress import Progress
from bertworks.training.recorder import Meter
from bertworks.utils.formatting import format_duration, format_number

from .letters import TASK, examples, letters_network


def show_step(progress: Progress, step: int = 120_000) -> None:
    progress.train(
        step,
        1_000_000,
        phase="length 128",
        loss=10.312,
        tokens_per_second=123_456.0,
        seconds_left=90_061,
    )


def test_a_line_now_and_then_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    progress = Progress(stream, every=1000)
    show_step(progress)
    show_step(progress)
    progress.show_metrics(500, {f"some_metric_{i}": i / 7 for i in range(9)})
    show_step(progress, 1_000_000)
    progress.close()
    lines = stream.getvalue().splitlines()
    assert "120000/1000000" in lines[0]
    assert "loss 10.312 · 123k tok/s · 1d 01h left" in lines[0]
    assert lines[1].startswith("step 500: some_metric_0 0 · some_metric_1 0.1429")
    assert "1000000/1000000" in lines[-1], "the last step is always shown"
    assert all(len(line) <= 80 for line in lines)
    assert sum("length" in line for line in lines) == 2


def test_rows_are_counted_with_their_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("bertworks.training.progress.time.monotonic", lambda: now[0])
    stream = io.StringIO()
    update = Progress(stream, every=10).counter("teacher")
    for done in range(10_000, 12_500, 50):  # 10,000 by an earlier run; 50 a second
        update(done, 12_500)
        now[0] += 1
    update(12_500, 12_500)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 6, "one each ten seconds, and the last"
    assert lines[0].startswith("teacher 10,000/12,500 · 0 rows/s · -:-- left")
    assert lines[-1].startswith("teacher 12,500/12,500 · 50 rows/s · ")


def test_long_lines_are_wrapped_and_no_word_of_them_broken() -> None:
    stream = io.StringIO()
    path = "runs/" + "a-long-name/" * 8
    labels = ", ".join(f"'label {number}' 1,000 (3.2%)" for number in range(12))
    Progress(stream).note(f"{path}: 12 rows\n  labels: {labels}\n\nthe end")
    lines = stream.getvalue().splitlines()
    assert lines[0] == f"{path}:"
    assert lines[1] == "    12 rows"
    assert lines[2].startswith("  labels: 'label 0' 1,000")
    assert lines[3].startswith("      ")
    assert lines[-2:] == ["", "the end"]
    assert max(map(len, lines[1:])) <= 80
    assert " ".join(" ".join(lines[2:-2]).split()) == f"labels: {labels}"


def test_a_terminal_shows_one_live_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = io.StringIO()
    progress = Progress(stream)
    show_step(progress)
    progress.note("a line that stays")
    progress.close()
    assert "a line that stays" in stream.getvalue()
    assert "\x1b[2K" in stream.getvalue(), "the line is drawn again in its place"
    assert "…" in stream.getvalue(), "cut at the terminal's width"


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
    forward = flops_of_batch(network.requires_grad_(False), batch)
    with FlopCounterMode(display=False) as counter:
        network(batch.to("cpu"))
    assert forward == pytest.approx(counter.get_total_flops(), rel=0.02), "a teacher's"


@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"gated": True},
        {"bottleneck": {"size": 32}},
        {"local_attention": 8, "global_tokens": {"position": "first"}},
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
    packed = Packed.from_arrays([np.full(length, 7) for length in (20, 20, 33, 64)])
    encoder = Encoder(config, pooler=False)
    with FlopCounterMode(display=False) as counter:
        encoder(packed.to("cpu"))
    counts = counter.get_flop_counts()["Global"]
    attention = sum(counts.get(op, 0) for op in (torch.ops.aten.bmm, torch.ops.aten.baddbmm))
    matrices = sum(part.numel() for part in encoder.layers.parameters() if part.ndim == 2)
    assert encoder_flops(config, packed) == 2 * packed.num_tokens * matrices + attention


def test_no_step_is_faster_than_the_peak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peak that was measured while another process ran is not used."""
    monkeypatch.setattr("bertworks.training.operations.matmul_peak", lambda *_, **__: 1.0)
    settings = FitSettings(batch_size=4, log_every=1, tensorboard=False)
    run = RunDirectory.open(tmp_path / "run", settings)
    network, source = letters_network(), RowSource(examples(), seed=0, batch_size=4)
    stream = io.StringIO()
    fit(network, TASK, [Phase(source, 3)], settings=settings, run=run, progress=Progress(stream))
    run.close()
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

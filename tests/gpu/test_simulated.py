"""Training and inference on a simulated GPU: no mixed devices, no waiting, flash attention."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from bertworks.errors import SettingsError, TrainingError
from bertworks.inference.frozen_network import frozen_form
from bertworks.inference.generate import generate
from bertworks.inference.settings import EngineSettings, GenerationSettings
from bertworks.model import Model
from bertworks.nn import device as devices
from bertworks.nn import varlen_attention
from bertworks.nn.attention import attention, dense_attention
from bertworks.nn.device import resolve_auto
from bertworks.nn.encoder import BareEncoder, Encoder
from bertworks.nn.losses import _chunk_and_group, linear_cross_entropy
from bertworks.packed import Layout, Packed
from bertworks.tasks.pretraining.network import PretrainingNetwork
from bertworks.tasks.pretraining.task import PretrainingTask
from bertworks.text.tokenizer import Tokenizer
from bertworks.training import fit, loss_scaling
from bertworks.training.finetune import finetune
from bertworks.training.precision import determinism
from bertworks.training.sharding import shard
from tests.checkpoints.oracles import geometry
from tests.training.letters import GEOMETRY, WORD_PIECES
from tests.training.test_finetune_tasks import TASKS
from tests.training.tiny_run import StopAt, tiny_run

from .simulation import Counts, simulated_gpu


@pytest.fixture
def gpu() -> Iterator[Counts]:
    with simulated_gpu() as counts:
        yield counts


@pytest.fixture
def step_counts(gpu: Counts, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The counts of each step of a training."""
    steps: list[dict[str, Any]] = []
    update = fit._Loop.update

    def update_and_count(loop: Any, *args: Any) -> Any:
        gpu.clear()
        norm_sum = loop.state.recent.get("grad_norm", 0.0)
        result = update(loop, *args)
        steps.append(
            {
                "waits": dict(gpu.waits),
                "blocking copies": dict(gpu.blocking_copies),
                "dropouts": list(gpu.attention_dropouts),
                "norm": loop.state.recent["grad_norm"] - norm_sum,
            }
        )
        return result

    monkeypatch.setattr(fit._Loop, "update", update_and_count)
    return steps


@pytest.mark.long
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("task", TASKS)
def test_a_step_of_each_task_waits_once(
    task: str, dropout: float, step_counts: list[dict[str, Any]], tmp_path: Path
) -> None:
    make, _, _, settings = TASKS[task]
    random = np.random.default_rng(0)
    rows = [make(random) for _ in range(24)]
    config = GEOMETRY.with_values(attention_probs_dropout_prob=dropout, hidden_dropout_prob=dropout)
    model = Model.fresh(config, Tokenizer.from_vocabulary(WORD_PIECES))
    settings = {"max_seq_length": 32, **settings, "epochs": 1}
    finetune(
        model,
        task,
        train=rows,
        dev=rows[:6],
        out=tmp_path / "run",
        precision="bf16",
        device="cuda:0",
        batch_size=8,
        **settings,
    )
    check_steps(step_counts, {dropout})


def check_steps(steps: list[dict[str, Any]], dropouts: set[float]) -> None:
    """Each step waits for its loss alone, and calls the kernel with these dropouts."""
    assert steps
    for step in steps:
        assert sum(step["waits"].values()) == 1, step["waits"]
        assert not step["blocking copies"]
        assert set(step["dropouts"]) == dropouts
        assert step["norm"] > 0


TINY = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2} | {
    "intermediate_size": 32
}
FULL_SENTENCES = {"instances": {"format": "full-sentences"}}
OBJECTIVES: dict[str, dict[str, Any]] = {
    "mlm": {},
    "causal": FULL_SENTENCES,
    "replaced_tokens": {**FULL_SENTENCES, "model": {**TINY, "family": "electra"}},
    "masked_permutation": FULL_SENTENCES,
}


@pytest.mark.long
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_step_of_pretraining_waits_once(
    objective: str, step_counts: list[dict[str, Any]], prepared_data: Path, tmp_path: Path
) -> None:
    tiny_run(
        prepared_data,
        tmp_path / "run",
        objective=objective,
        steps=3,
        device="cuda:0",
        **OBJECTIVES[objective],
    )
    has_score_bias = objective == "masked_permutation"  # which the kernel does not take
    check_steps(step_counts, set() if has_score_bias else {0.1})


@pytest.mark.long
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_vectors_are_those_of_the_cpu(precision: str, gpu: Counts) -> None:
    texts = ["a b c", "x", "d e f g h a b", "c d"] * 3
    model = Model.fresh(GEOMETRY, Tokenizer.from_vocabulary(WORD_PIECES))
    expected = model.embed(texts, precision="fp32")
    model.network.to("cuda:0")
    vectors = model.embed(texts, precision=precision, batch_tokens=16)
    bound = 1e-5 if precision == "fp32" else 0.02
    assert np.abs(vectors - expected).max() < bound
    assert gpu.attention_dropouts
    assert not gpu.blocking_copies


def test_bits_that_do_not_depend_on_the_batch_are_refused(gpu: Counts) -> None:
    model = Model.fresh(GEOMETRY, Tokenizer.from_vocabulary(WORD_PIECES))
    model.network.to("cuda:0")
    with pytest.raises(SettingsError, match="on cuda a text's result depends on its batch"):
        model.embed(["a b c"], deterministic=True)


@pytest.mark.long
def test_batches_that_are_made_ahead_give_the_same_bits(
    gpu: Counts, prepared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread makes and pins them; the loop copies them without waiting."""
    threads = []
    collate = PretrainingTask.collate

    def collate_and_note(task: Any, examples: Any) -> Any:
        threads.append(threading.get_ident())
        return collate(task, examples)

    monkeypatch.setattr(PretrainingTask, "collate", collate_and_note)
    settings: dict[str, Any] = {"steps": 3, "device": "cuda:0", "eval_every": 10}
    weights = []
    for name in ("ahead", "in step"):
        run = tiny_run(prepared_data, tmp_path / name, **settings).run
        weights.append(load_file(run.model / "model.safetensors"))
        is_ahead = any(thread != threading.get_ident() for thread in threads)
        assert is_ahead == (name == "ahead")
        threads.clear()
        monkeypatch.setattr(fit, "prefetch", lambda batches: batches)
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())


def test_weights_that_were_edited_unnoticed_by_pytorch_are_noticed(gpu: Counts) -> None:
    """Such as through `.data`, which counts no version; they are read with one wait for all."""
    model = Model.fresh(GEOMETRY, Tokenizer.from_vocabulary(WORD_PIECES))
    model.network.to("cuda:0")
    vectors = model.embed(["a b c"], precision="bf16")
    gpu.clear()
    assert np.array_equal(model.embed(["a b c"], precision="bf16"), vectors)
    assert sum(gpu.waits.values()) <= 3, gpu.waits
    weight = model.encoder.layers[0].feed_forward.output.weight
    version = weight._version
    weight.values.mul_(-1)
    assert weight._version == version
    assert not np.allclose(model.embed(["a b c"], precision="bf16"), vectors, atol=1e-3)


CAUSAL = GEOMETRY.with_values(attention="causal", hidden_dropout_prob=0.0)


@pytest.mark.long
@pytest.mark.parametrize("num_prompts", [1, 2])
def test_generation_writes_keys_and_values_of_one_text_in_place(
    num_prompts: int, gpu: Counts
) -> None:
    network = PretrainingNetwork(CAUSAL, next_sentence=False).eval()
    prompts = [[5, 6, 7], [8, 9]][:num_prompts]
    settings, engine = GenerationSettings(max_new_tokens=12), EngineSettings(precision="fp32")
    expected = generate(network, prompts, settings, engine)
    network.to("cuda:0")
    gpu.clear()
    assert generate(network, prompts, settings, engine) == expected
    assert all(len(tokens) == 12 for tokens in expected)
    # Keys and values of two layers: copied as a whole when the buffer grows, from 3 to 6 and 12.
    num_copies = gpu.operators["aten.cat.default"]
    assert num_copies < 8 if num_prompts == 1 else num_copies >= 2 * 2 * 11


# ------------------------------------------------------------------------------------------ float16


def train_in_float16(data: Path, out: Path, **settings: Any) -> Any:
    usual = {"precision": "fp16", "device": "cuda:0", "steps": 4, "batch_size": 4, "log_every": 1}
    return tiny_run(data, out, **{**usual, "eval_every": 10, **settings})


def journal_of(result: Any) -> list[dict[str, Any]]:
    return [line for line in result.run.lines() if line["kind"] == "train"]


@pytest.mark.long
def test_float16_trains_like_float32(prepared_data: Path, tmp_path: Path) -> None:
    """Also on a card before Ampere, which has no flash attention, and where `auto` chooses it."""
    with simulated_gpu((7, 5)):
        varlen_attention._capability.cache_clear()
        runs = [
            train_in_float16(prepared_data, tmp_path / name, precision=name)
            for name in ("auto", "fp32")
        ]
    varlen_attention._capability.cache_clear()
    half_lines, single_lines = map(journal_of, runs)
    assert runs[0].run.settings()["precision"] == "fp16"
    assert {line["loss_scale"] for line in half_lines} == {2.0**16}
    for own, expected in zip(half_lines, single_lines, strict=True):
        assert own["loss"] == pytest.approx(expected["loss"], rel=2e-3)
        assert own["grad_norm"] == pytest.approx(expected["grad_norm"], rel=0.05)


@pytest.mark.long
def test_an_overflow_repeats_the_step_with_a_smaller_scale(
    gpu: Counts, prepared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_scaling.LossScale.__init__, "__defaults__", (2.0**30, 0, 0))
    large_lines = journal_of(train_in_float16(prepared_data, tmp_path / "large"))
    assert large_lines[0]["overflows"] >= 5
    assert large_lines[-1]["loss_scale"] == 2.0 ** (30 - large_lines[-1]["overflows"])
    assert [line["step"] for line in large_lines] == [1, 2, 3, 4]
    monkeypatch.setattr(loss_scaling.LossScale.__init__, "__defaults__", (2.0**12, 0, 0))
    small_lines = journal_of(train_in_float16(prepared_data, tmp_path / "small"))
    assert small_lines[-1]["overflows"] == 0
    assert [one["examples"] for one in large_lines] == [one["examples"] for one in small_lines]
    # Dropout differs where a step was repeated.
    for one, other in zip(large_lines, small_lines, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=0.05)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=0.3)


@pytest.mark.long
def test_a_resumed_run_has_the_scale_and_the_bits(
    gpu: Counts, prepared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scale doubles every three steps, also across the interruption."""
    monkeypatch.setattr(loss_scaling, "GROWTH_INTERVAL", 3)
    settings: dict[str, Any] = {"steps": 7, "checkpoint_every": 2}
    whole = train_in_float16(prepared_data, tmp_path / "whole", **settings)
    with pytest.raises(InterruptedError):
        train_in_float16(prepared_data, tmp_path / "parts", progress=StopAt(5), **settings)
    second_run = train_in_float16(prepared_data, tmp_path / "parts", **settings)
    assert second_run.resumed_step == 4
    lines = [[{**line, "time": None} for line in journal_of(run)] for run in (whole, second_run)]
    assert lines[0] == lines[1]
    exponents = [np.log2(line["loss_scale"]) for line in lines[0]]
    assert exponents == [16, 16, 17, 17, 17, 18, 18]
    weights = [load_file(run.run.model / "model.safetensors") for run in (whole, second_run)]
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())


@pytest.mark.long
@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_values_that_overflow_at_any_scale_end_the_run(
    what: str, gpu: Counts, prepared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = PretrainingNetwork.forward

    def forward_and_spoil(network: Any, batch: Any) -> dict[str, torch.Tensor]:
        losses = forward(network, batch)
        if what == "loss":
            return {name: loss * torch.inf for name, loss in losses.items()}
        for loss in losses.values():
            loss.register_hook(lambda gradient: gradient * torch.inf)
        return losses

    monkeypatch.setattr(PretrainingNetwork, "forward", forward_and_spoil)
    with pytest.raises(TrainingError, match=rf"the {what} of step 1 .*precision=fp32") as raised:
        train_in_float16(prepared_data, tmp_path / "run")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("growth", [1, 3])
def test_the_scale_is_that_of_pytorch(growth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_scaling, "GROWTH_INTERVAL", growth)
    peer = torch.amp.GradScaler("cpu", growth_interval=growth)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter])
    own = loss_scaling.LossScale()
    is_step_finite = np.random.default_rng(0).random(40) < 0.7
    for is_finite in is_step_finite:
        parameter.grad = torch.ones(1) if is_finite else torch.full((1,), torch.inf)
        peer.scale(torch.ones(1))
        peer.step(optimizer)
        peer.update()
        if is_finite:
            own.grow()
        else:
            assert own.shrink()
        assert own.value == peer.get_scale()
    assert own.num_overflows == np.sum(~is_step_finite)


def test_precisions_that_a_device_lacks_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "is_fast_at_bfloat16", devices.has_bfloat16)
    model = Model.fresh(GEOMETRY, Tokenizer.from_vocabulary(WORD_PIECES))
    rows = [{"text": "a b", "label": "x"}, {"text": "c d", "label": "y"}] * 4
    settings: dict[str, Any] = {"train": rows, "out": tmp_path / "run", "device": "cpu"}
    with pytest.raises(SettingsError, match="precision=fp16 is for CUDA, not for cpu"):
        finetune(model, "classification", precision="fp16", **settings)
    for name in ("fp16", "tf32"):
        with pytest.raises(SettingsError, match=f"precision={name} is for CUDA, not for cpu"):
            model.embed(["a b"], precision=name)
    with simulated_gpu((7, 5)):
        with pytest.raises(SettingsError, match=r"this card has no bfloat16 .*precision=fp16"):
            finetune(model, "classification", precision="bf16", **settings | {"device": "cuda:0"})
        with pytest.raises(SettingsError, match="this card has no TF32"):
            finetune(model, "classification", precision="tf32", **settings | {"device": "cuda:0"})
        assert resolve_auto("cuda:0") == "fp32"
        assert resolve_auto("cuda:0", training=True) == "fp16"
    with simulated_gpu((6, 1)):
        assert resolve_auto("cuda:0", training=True) == "fp32"
    with simulated_gpu((8, 0)):
        assert resolve_auto("cuda:0", training=True) == "bf16"
    assert not (tmp_path / "run").exists()


def test_int8_is_refused_on_a_gpu(gpu: Counts) -> None:
    """PyTorch's products of 8-bit integers there need kernels around them that it does not have."""
    model = Model.fresh(GEOMETRY, Tokenizer.from_vocabulary(WORD_PIECES))
    model.network.to("cuda:0")
    with pytest.raises(SettingsError, match="precision=int8 is for CPUs, not for cuda"):
        model.embed(["a b c"], precision="int8")


@pytest.mark.long
@pytest.mark.parametrize(("precision", "flag"), [("fp32", "none"), ("tf32", "tf32")])
def test_tf32_is_pytorchs_setting_while_a_call_computes(
    precision: str, flag: str, gpu: Counts, tmp_path: Path
) -> None:
    """In training, in its evaluations, and in every way of inference."""
    rows = [{"text": "a b", "label": "x"}, {"text": "c d", "label": "y"}] * 4
    settings: dict[str, Any] = {"train": rows, "dev": rows, "precision": precision, "epochs": 1}
    settings["max_seq_length"] = 8
    start = Model.fresh(GEOMETRY, Tokenizer.from_vocabulary(WORD_PIECES))
    gpu.clear()
    result = finetune(start, "classification", out=tmp_path, device="cuda:0", **settings)
    assert [*gpu.float32_products] == [flag]
    kinds = {session["computes in"] for session in result.run.sessions() if "device" in session}
    assert kinds == {"float32" + ", TF32 products" * (precision == "tf32")}
    assert result.run.settings()["precision"] == precision
    for compute in (result.model.embed, result.model.predict):
        gpu.clear()
        compute(["a b c"], precision=precision)
        assert [*gpu.float32_products] == [flag], compute
    assert torch.backends.cuda.matmul.fp32_precision == "none"


def test_the_last_block_restores_the_setting_of_tf32() -> None:
    matmul = torch.backends.cuda.matmul
    outer, inner = devices.tf32_products(True), devices.tf32_products(True)
    with outer:
        with inner, devices.tf32_products(False):
            assert matmul.fp32_precision == "tf32"
        assert matmul.fp32_precision == "tf32"
    assert matmul.fp32_precision == "none"


# ---------------------------------------------------------------------------------------- attention


def random_inputs(
    sizes: tuple[int, int, int], total: int, dtype: torch.dtype
) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    heads, size, value_size = sizes
    return tuple(
        torch.randn(total, heads, one, generator=generator).to(dtype)
        for one in (size, size, value_size)
    )


@pytest.mark.parametrize(
    ("dtype", "window"),
    [(torch.bfloat16, None), (torch.bfloat16, 2), (torch.float32, None)],
)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("size", "value_size"), [(8, 8), (26, 26), (12, 20)])
def test_kernels_compute_the_formula_for_any_head_size(
    size: int, value_size: int, causal: bool, dtype: torch.dtype, window: int | None, gpu: Counts
) -> None:
    """Also its gradients: head sizes are padded to those that the kernels take."""
    layout = Layout.from_lengths(np.array([3, 3, 7, 1]))
    inputs = random_inputs((2, size, value_size), 14, dtype)
    results = []
    for device, kind in (("cpu", torch.float32), ("cuda:0", dtype)):
        parts = [part.clone().to(device, kind).requires_grad_() for part in inputs]
        attend = dense_attention if device == "cpu" else attention
        output = attend(*parts, layout.to(device), causal=causal, window=window)
        weights = torch.linspace(-1, 1, output.numel()).view(output.shape).to(device, kind)
        (output * weights).sum().backward()
        results.append([one.cpu().float() for one in (output, *(part.grad for part in parts))])
    for expected, own in zip(*results, strict=True):
        bounds = (0.05, 0.02) if dtype == torch.bfloat16 else (1e-5, 1e-5)
        assert torch.allclose(own, expected, *reversed(bounds))
    assert gpu.attention_dropouts == [0.0]


def test_flash_attention_drops_the_same_weights_in_both_passes(gpu: Counts) -> None:
    """With equal scores and ones as gradient, a value's gradient is the sum of its weights."""
    length, dropout = 32, 0.25
    layout = Layout.from_lengths(np.array([length])).to("cuda:0")
    query = torch.zeros(length, 1, length, dtype=torch.bfloat16).to("cuda:0")
    value = torch.eye(length, dtype=torch.bfloat16)[:, None].to("cuda:0").requires_grad_()
    torch.manual_seed(0)
    weights = attention(query, query, value, layout, dropout=dropout)
    weights.sum().backward()
    columns = weights.detach().cpu().float().sum(0)[0]
    assert torch.allclose(value.grad.cpu().float()[:, 0, 0], columns, atol=0.02)
    is_dropped = weights.detach().cpu() == 0
    assert 0.2 < is_dropped.double().mean() < 0.3
    torch.manual_seed(0)
    again = attention(query, query, value, layout, dropout=dropout)
    assert torch.equal(again.cpu(), weights.detach().cpu())


@pytest.mark.parametrize(
    ("operator", "names"),
    [
        ("_flash_attention_forward", {"window_size_left", "window_size_right", "dropout_p"}),
        ("_efficient_attention_forward", {"compute_log_sumexp", "custom_mask_type", "dropout_p"}),
    ],
)
def test_operators_of_pytorch_take_what_the_package_passes(operator: str, names: set[str]) -> None:
    """They are not public: a new version of PyTorch may change them."""
    schema = getattr(torch.ops.aten, operator).default._schema
    assert {"scale", *names} <= {argument.name for argument in schema.arguments}


@pytest.mark.parametrize(
    ("dtype", "capability", "window", "kernel"),
    [
        (torch.float16, (8, 0), 2, "flash"),
        (torch.float16, (7, 5), None, "efficient"),
        (torch.float16, (7, 5), 2, None),
        (torch.bfloat16, (7, 5), None, None),
        (torch.float32, (8, 0), None, "efficient"),
        (torch.float64, (8, 0), None, None),
    ],
)
def test_the_card_decides_about_the_kernel(
    dtype: torch.dtype, capability: tuple[int, int], window: int | None, kernel: str | None
) -> None:
    with simulated_gpu(capability) as counts:
        varlen_attention._capability.cache_clear()
        layout = Layout.from_lengths(np.array([4])).to("cuda:0")
        parts = [part.to("cuda:0") for part in random_inputs((2, 8, 8), 4, dtype)]
        attention(*parts, layout, window=window)
        assert varlen_attention.choose_kernel(parts[0], parts[2], window) == kernel
        assert len(counts.attention_dropouts) == (kernel is not None)
    varlen_attention._capability.cache_clear()


LENGTH = 67
FIRST_TOKENS = {"position": "first"}
POSITION_TERMS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "bert": ("bert", {}, False),
    "rotary": ("esm", {}, False),
    "windows": ("modernbert", {}, False),
    "Longformer": ("longformer", {}, False),
    "Longformer, global tokens": ("longformer", {"global_tokens": FIRST_TOKENS}, True),
    "ALiBi": ("bert", {"positions": "none", "score_bias": {"kind": "alibi"}}, True),
    "T5's buckets": ("mpnet", {}, True),
    "DeBERTa": ("deberta", {}, True),
    "DeBERTa v3": ("deberta-v2", {}, True),
    "XLNet": ("xlnet", {}, True),
}
"""A family, its settings, and whether its attention needs matrices of pairs of tokens."""


@pytest.mark.long
@pytest.mark.parametrize("name", POSITION_TERMS)
def test_attention_has_matrices_only_where_the_kernel_lacks_a_term(name: str, gpu: Counts) -> None:
    """In bfloat16, forward and backward with dropout, and in inference; nothing waits."""
    family, values, has_matrices = POSITION_TERMS[name]
    values = {"num_hidden_layers": 2, "max_position_embeddings": 100, **values}
    values |= {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    network = BareEncoder(Encoder(geometry(family, **values)).to("cuda:0").train())
    lengths = (LENGTH, LENGTH, 40, 3)
    packed = Packed.from_arrays([np.arange(10, 10 + size) for size in lengths]).to("cuda:0")
    gpu.clear()
    with devices.autocast_to(network, torch.bfloat16):
        network.encoder(packed).float().sum().backward()
    assert not gpu.waits
    assert not gpu.blocking_copies
    sizes = [{*gpu.square_sizes.values()}]
    network.eval()
    with torch.inference_mode():
        form = frozen_form(network, "bf16")
        gpu.clear()
        form.encoder(packed)
    assert not gpu.waits
    sizes.append({*gpu.square_sizes.values()})
    assert [max(some, default=0) >= LENGTH for some in sizes] == [has_matrices] * 2
    assert gpu.attention_dropouts or has_matrices


# ----------------------------------------------------------------------------------------- training


def test_cublas_is_deterministic_from_its_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    with pytest.raises(SettingsError, match="used CUDA before"), determinism(True):
        pass
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    with determinism(True):
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_network_is_sharded_from_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch moves what it shards to the device: layers first, the rest at the end."""
    modules: list[torch.nn.Module] = []

    def shard_on_cpu(module: torch.nn.Module, mesh: object) -> None:
        assert all(parameter.device.type == "cpu" for parameter in module.parameters())
        modules.append(module)

    monkeypatch.setattr("torch.distributed.fsdp.fully_shard", shard_on_cpu)
    monkeypatch.setattr("torch.distributed.device_mesh.init_device_mesh", lambda *_: None)
    network = Model.fresh(GEOMETRY, Tokenizer.from_vocabulary(WORD_PIECES)).network
    copy = shard(network, torch.device("meta"), 2)
    assert modules == [*copy.encoder.layers, copy]


@pytest.mark.long
def test_the_loss_of_a_vocabulary_is_one_product_on_a_gpu(gpu: Counts) -> None:
    """On the CPU it is computed in chunks, which stay in its caches."""
    weight = torch.randn(30_000, 8).to("cuda:0")
    labels = torch.arange(3000).to("cuda:0")
    gpu.clear()
    loss = linear_cross_entropy(torch.randn(3000, 8).to("cuda:0"), weight, None, labels)
    assert gpu.operators["aten.mm.out"] == 1
    assert 8 < float(loss) / 3000 < 20
    assert _chunk_and_group(torch.empty(3000, 8), torch.empty(30_000, 8)) == (128, 128)

"""Replaced-token detection: the joint loss against Hugging Face's two models, draws, measures."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bertworks.checkpoints.families import FAMILIES
from bertworks.checkpoints.network_weights import load_weights
from bertworks.errors import SettingsError
from bertworks.inference.evaluate import evaluate
from bertworks.nn.heads import ReplacedTokenHead
from bertworks.packed import Batch, Padded
from bertworks.runs.run_directory import RunDirectory
from bertworks.tasks.pretraining.discriminator import (
    DRAW_BITS,
    DiscriminatorNetwork,
    derive_generator_config,
    read_shared_embeddings,
    sample_pieces,
    with_generator,
    write_shared_embeddings,
)
from bertworks.tasks.pretraining.evaluator import area_under_curve
from bertworks.tasks.pretraining.instances import InstanceSettings
from bertworks.tasks.pretraining.masking import MaskingSettings
from bertworks.tasks.pretraining.replaced_tokens import ReplacedTokensTask
from bertworks.tasks.pretraining.settings import ReplacedTokensSettings
from bertworks.tasks.pretraining.source import PretrainingExample
from bertworks.training.fit import fit
from bertworks.training.plan import Phase
from bertworks.training.row_source import RowSource
from bertworks.training.settings import FitSettings
from tests.checkpoints import oracles
from tests.checkpoints.oracles import error, geometry

ELECTRA = FAMILIES["electra"]
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
SETTINGS = ReplacedTokensSettings(generator_share=0.5)


def task(tokenizer, **masking):
    return ReplacedTokensTask(tokenizer, masking=MaskingSettings(**masking), max_length=40)


def instances(tokenizer, count=8):
    """Instances of many lengths, in order of length."""
    rng = np.random.default_rng(0)
    lengths = sorted(rng.integers(5, 38, count).tolist())
    rows = [rng.integers(200, tokenizer.vocab_size, length) for length in lengths]
    return [
        PretrainingExample(
            np.concatenate(([tokenizer.cls_id], row, [tokenizer.sep_id])), len(row) + 2, key=key
        )
        for key, row in enumerate(rows, 1000)
    ]


def hugging_face(config, dtype):
    """Their generator and discriminator, which share all embeddings but the projection."""
    small_config = derive_generator_config(config, SETTINGS)
    generator = oracles.theirs_of(small_config, "masked-lm", dtype)
    discriminator = oracles.theirs_of(config, "replaced-tokens", dtype)
    generator_embeddings, shared_embeddings = (
        generator.electra.embeddings,
        discriminator.electra.embeddings,
    )
    for name in ("word_embeddings", "position_embeddings", "token_type_embeddings", "LayerNorm"):
        setattr(generator_embeddings, name, getattr(shared_embeddings, name))
    generator.generator_lm_head.weight = shared_embeddings.word_embeddings.weight
    return generator, discriminator


def load_peer_weights(network, peer):
    tensors = {ELECTRA.normalize_name(k): v for k, v in peer.state_dict().items()}
    assert not load_weights(network, tensors, ELECTRA, "theirs").new_tensors


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("embedding_size", [24, None])
def test_joint_loss_and_gradients_are_those_of_transformers(
    tokenizer, dtype, embedding_size, monkeypatch
):
    config = geometry("electra", embedding_size=embedding_size, vocab_size=tokenizer.vocab_size)
    generator, discriminator = hugging_face(config, dtype)
    network = with_generator(DiscriminatorNetwork(config), SETTINGS).to(dtype).eval()
    load_peer_weights(network.discriminator, discriminator)
    load_peer_weights(network.generator, generator)
    batch = task(tokenizer).collate(instances(tokenizer)).to("cpu")
    # Rounding must not decide what is drawn, so that the two dtypes' draws are given.
    labels = batch.targets["masked_labels"]
    pieces = torch.where(torch.arange(len(labels)) % 3 == 0, labels, (labels + 7) % 1000)
    chunks = iter(pieces.split(256))
    monkeypatch.setattr(
        "bertworks.tasks.pretraining.discriminator.sample_pieces",
        lambda logits, draws: next(chunks),
    )
    losses = network(batch)
    assert losses.keys() == batch.counts.keys()
    total = sum(loss / batch.counts[name] for name, loss in losses.items())
    total.backward()

    generator, discriminator = generator.double(), discriminator.double()
    positions = batch.targets["masked_positions"]
    padded, mask = batch.packed.to_padded()
    inputs = {
        "attention_mask": mask.long(),
        "token_type_ids": batch.packed.to_padded(batch.packed.token_type_ids)[0],
    }
    mlm_labels = torch.full((batch.packed.num_tokens,), -100).index_copy(0, positions, labels)
    mlm = generator(
        padded, **inputs, labels=torch.full_like(padded, -100).masked_scatter(mask, mlm_labels)
    ).loss
    original_ids = batch.packed.input_ids.index_copy(0, positions, labels)
    new_ids = batch.packed.input_ids.index_copy(0, positions, pieces)
    is_replaced = original_ids != new_ids
    assert 0 < is_replaced.sum() < len(labels)
    logits = discriminator(padded.masked_scatter(mask, new_ids), **inputs).logits[mask]
    # Their own loss is rounded to float32.
    rtd = F.binary_cross_entropy_with_logits(logits, is_replaced.double())
    expected = mlm + SETTINGS.weight * rtd
    expected.backward()
    assert error(total.detach(), expected.detach()) <= TOLERANCE[dtype]
    peer_parameters = {
        "generator": dict(generator.named_parameters()),
        "discriminator": dict(discriminator.named_parameters()),
    }
    largest = max(p.grad.abs().max().item() for p in network.parameters())
    compared_ids = set()
    for name, parameter in network.named_parameters(remove_duplicate=False):
        part, _, rest = name.partition(".")
        for their_name, gradient in ELECTRA.keys.export({rest: parameter.grad}).items():
            if their_name == "generator_lm_head.weight":
                continue  # tied: compared as the embeddings
            other = peer_parameters[part][their_name]
            compared_ids.add(id(other))
            difference = (gradient.double() - other.grad).abs().max().item()
            share = difference / max(other.grad.abs().max().item(), 1e-30)
            # A bias of the keys has no gradient but rounding's.
            is_close = share <= TOLERANCE[dtype] or difference <= 0.1 * TOLERANCE[dtype] * largest
            assert is_close, (name, share)
    assert compared_ids == {
        id(p) for model in (generator, discriminator) for p in model.parameters()
    }


def test_embeddings_are_one():
    network = with_generator(DiscriminatorNetwork(geometry("electra")), SETTINGS)
    own, other = network.generator.encoder.embeddings, network.encoder.embeddings
    for name in ("word_embeddings", "position_embeddings", "token_type_embeddings", "norm"):
        assert getattr(own, name) is getattr(other, name)
    assert network.generator.mlm_head.decoder is other.word_embeddings.weight
    assert own.projection is not other.projection
    names = [name for name, _ in network.named_parameters()]
    assert len(names) == len({id(p) for p in network.parameters()})


@pytest.mark.parametrize(
    ("share", "hidden_size", "heads", "embedding_size"),
    [(0.25, 12, 1, 24), (0.5, 24, 2, None), (1.0, 48, 4, 24), (0.75, 36, 3, 24), (0.6, 29, 1, 24)],
)
def test_generator_has_a_share_of_the_size(share, hidden_size, heads, embedding_size):
    config = geometry("electra")
    own = derive_generator_config(config, ReplacedTokensSettings(generator_share=share))
    assert (own.hidden_size, own.num_attention_heads) == (hidden_size, heads)
    assert own.embedding_size == embedding_size
    assert own.embedding_width == config.embedding_width
    assert own.num_hidden_layers == config.num_hidden_layers
    shallow = ReplacedTokensSettings(generator_layers=0.34)
    assert derive_generator_config(config, shallow).num_hidden_layers == 1


def test_no_gradient_goes_through_the_draw(tokenizer):
    """The generator learns nothing of what the discriminator says."""
    config = geometry("electra", vocab_size=tokenizer.vocab_size)
    network = with_generator(DiscriminatorNetwork(config), SETTINGS)
    batch = task(tokenizer).collate(instances(tokenizer)).to("cpu")
    network(batch)["weighted_rtd"].backward()
    shared_ids = {id(parameter) for parameter in network.encoder.embeddings.parameters()}
    for name, parameter in network.generator.named_parameters():
        assert (parameter.grad is None) is (id(parameter) not in shared_ids), name


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_pieces_are_drawn_with_their_probabilities(dtype):
    """Draws at even distances hit each piece as often as its probability says, to one."""
    logits = torch.tensor([2.0, -30.0, 1.0, -torch.inf, 0.5, -2.0], dtype=dtype)
    count = 4096
    draws = torch.arange(count) * (2**DRAW_BITS // count)
    pieces = sample_pieces(logits.expand(count, -1), draws)
    counts = torch.bincount(pieces, minlength=len(logits))
    expected = torch.softmax(logits.double(), -1) * count
    assert (counts - expected).abs().max() <= 1
    assert counts[1] == counts[3] == 0
    last = torch.tensor([2**DRAW_BITS - 1])
    assert sample_pieces(logits[None], last).item() == 5, "the last draw is a piece too"
    assert sample_pieces(logits[:4][None], last).item() == 2, "and never an impossible one"


def test_draws_belong_to_the_instance_and_are_even(tokenizer):
    examples = instances(tokenizer, 400)
    rtd_task = task(tokenizer, mlm_probability=0.5)
    whole = rtd_task.collate(examples)
    assert len(np.unique(whole.targets["draws"])) == len(whole.targets["draws"])
    parts = [rtd_task.collate(examples[:150]), rtd_task.collate(examples[150:])]
    draws_of_parts = np.concatenate([part.targets["draws"] for part in parts])
    assert sorted(draws_of_parts) == sorted(whole.targets["draws"])
    shares = np.histogram(whole.targets["draws"], bins=16, range=(0, 2**DRAW_BITS))[0]
    expected = len(draws_of_parts) / 16
    assert ((shares - expected) ** 2 / expected).sum() < 37.7, "chi-square, 15 degrees, p = 0.001"
    # They tell nothing of what the masking drew from the same bits.
    is_masked = whole.packed.input_ids[whole.targets["masked_positions"]] == tokenizer.mask_id
    draws = whole.targets["draws"] / 2**DRAW_BITS
    assert abs(draws[is_masked].mean() - draws[~is_masked].mean()) < 0.05


@pytest.mark.long
def test_losses_add_up_and_evaluations_repeat(tokenizer):
    config = geometry("electra", vocab_size=tokenizer.vocab_size)
    rtd_task = task(tokenizer)
    network = with_generator(DiscriminatorNetwork(config), SETTINGS).double().eval()
    oracles.redraw(network)
    examples = instances(tokenizer, 12)
    with torch.no_grad():
        whole, *parts = (
            network(rtd_task.collate(part).to("cpu"))
            for part in (examples, examples[:5], examples[5:])
        )
    for name, loss in whole.items():
        assert sum(part[name] for part in parts).item() == pytest.approx(loss.item(), rel=1e-10)

    def evaluate_parts(*parts):
        evaluator = rtd_task.evaluator()
        for part in parts:
            batch = rtd_task.collate(part).to("cpu")
            with torch.no_grad():
                evaluator.add(network.predict(batch), batch)
        return evaluator.result()

    metrics, metrics_of_parts = evaluate_parts(examples), evaluate_parts(examples[7:], examples[:7])
    assert metrics == pytest.approx(metrics_of_parts)
    counts = rtd_task.collate(examples).counts
    assert metrics["mlm_loss"] == pytest.approx(whole["mlm"].item() / counts["mlm"], rel=1e-5)
    rtd = whole["weighted_rtd"].item() / counts["weighted_rtd"] / SETTINGS.weight
    assert metrics["rtd_loss"] == pytest.approx(rtd, rel=1e-5)
    assert metrics["loss"] == pytest.approx(metrics["mlm_loss"] + 50 * rtd, rel=1e-5)


@pytest.mark.long
def test_the_odd_one_out_is_found(tokenizer, tmp_path):
    """Runs of one piece each: what a generator that knows little puts into them is seen at once."""
    rng = np.random.default_rng(0)
    frame = [tokenizer.cls_id], [tokenizer.sep_id]
    rows = [np.full(rng.integers(8, 16), 200 + rng.integers(30)) for _ in range(256)]
    examples = [
        PretrainingExample(np.concatenate((frame[0], row, frame[1])), len(row) + 2, key=key)
        for key, row in enumerate(rows)
    ]
    config = geometry(
        "electra", vocab_size=tokenizer.vocab_size, num_hidden_layers=1, initializer_range=0.1
    )
    rtd_task = task(tokenizer)
    torch.manual_seed(0)
    network = with_generator(DiscriminatorNetwork(config), SETTINGS)
    settings = FitSettings(
        batch_size=32,
        learning_rate=5e-3,
        checkpoint_every=1000,
        eval_every=1000,
        tensorboard=False,
    )
    run = RunDirectory.open(tmp_path / "run", settings)
    source = RowSource(examples[64:], seed=0, batch_size=32)
    fit(network, rtd_task, [Phase(source, 120)], settings=settings, run=run)
    run.close()
    metrics = evaluate(network, rtd_task, examples[:64]).metrics
    assert metrics["rtd_auc"] > 0.8
    assert metrics["rtd_accuracy"] > metrics["rtd_majority"] + 0.05


def test_measures_are_scikit_learns():
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    is_positive = rng.random(500) < 0.2
    scores = np.round(rng.normal(size=500) + is_positive, 1)  # with ties
    expected = metrics.roc_auc_score(is_positive, scores)
    assert area_under_curve(scores, is_positive) == pytest.approx(expected)


def test_metrics_are_those_computed_by_hand(tokenizer):
    rtd_task = task(tokenizer)
    batch = rtd_task.collate(instances(tokenizer, 2)).to("cpu")
    num_masked, num_tokens = len(batch.targets["masked_labels"]), batch.packed.num_tokens
    is_replaced = torch.zeros(num_tokens, dtype=torch.bool)
    is_replaced[:8] = True
    logits = torch.full((num_tokens,), -3.0)
    logits[4:10] = 2.0
    evaluator = rtd_task.evaluator()
    outputs = {"rtd_logits": logits, "is_replaced": is_replaced}
    evaluator.add({**outputs, "mlm_logits": torch.zeros(num_masked, tokenizer.vocab_size)}, batch)
    metrics = evaluator.result()
    assert metrics["rtd_precision"] == pytest.approx(4 / 6)
    assert metrics["rtd_recall"] == pytest.approx(4 / 8)
    assert metrics["replaced_share"] == pytest.approx(8 / num_tokens)
    assert metrics["rtd_majority"] == pytest.approx(1 - 8 / num_tokens)
    assert metrics["rtd_accuracy"] == pytest.approx(1 - 6 / num_tokens)
    loss = F.binary_cross_entropy_with_logits(logits, is_replaced.float())
    assert metrics["rtd_loss"] == pytest.approx(loss.item())


def test_a_task_is_rebuilt_from_its_description(tokenizer):
    rtd_task = task(tokenizer, mask_ratio=0.85, random_ratio=0.0)
    rebuilt_task = ReplacedTokensTask.from_dict(rtd_task.to_dict(), tokenizer)
    assert rebuilt_task.to_dict() == rtd_task.to_dict()
    assert rebuilt_task.masked_lm.masking.mask_ratio == 0.85


def test_unsuitable_settings_are_errors(tokenizer):
    with pytest.raises(SettingsError, match="full-sentences or doc-sentences"):
        ReplacedTokensTask(tokenizer, InstanceSettings(format="segment-pair"))
    with pytest.raises(SettingsError, match="from both sides"):
        task(tokenizer).network(geometry("electra", attention="causal"))


DISENTANGLED_SETTINGS = ReplacedTokensSettings(
    generator_share=1.0, generator_layers=0.34, sharing="gradient-disentangled"
)


def test_disentangled_embeddings_have_the_gradients_of_the_formula(tokenizer, monkeypatch):
    """He et al. (2021), "DeBERTaV3", §3.2: the generator's without a gradient, plus a difference.

    The discriminator that is saved computes it with that sum as its table.
    """
    config = geometry("deberta-v2", vocab_size=tokenizer.vocab_size, positions="learned")
    discriminator = DiscriminatorNetwork(config).double()
    network = with_generator(discriminator, DISENTANGLED_SETTINGS).double().eval()
    oracles.redraw(network)
    batch = task(tokenizer).collate(instances(tokenizer)).to("cpu")
    labels = batch.targets["masked_labels"]
    pieces = torch.where(torch.arange(len(labels)) % 3 == 0, labels, (labels + 7) % 1000)
    monkeypatch.setattr(
        "bertworks.tasks.pretraining.discriminator._sample_in_chunks", lambda *_: pieces
    )
    losses = network(batch)
    sum(loss / batch.counts[name] for name, loss in losses.items()).backward()
    gradients = {name: p.grad.clone() for name, p in network.named_parameters()}
    outputs = network.predict(batch)
    network.zero_grad()

    mlm = network.generator(batch)["mlm"]
    (mlm / batch.counts["mlm"]).backward()
    tables, own = {}, {}
    for kind in ("word", "position"):
        name = f"encoder.embeddings.{kind}_embeddings"
        base = network.generator.get_submodule(name).weight
        assert torch.allclose(gradients[f"generator.{name}.weight"], base.grad)
        own[kind] = network.discriminator.get_submodule(name).difference
        tables[f"{name}.weight"] = base.detach() + own[kind]
    new_ids = batch.packed.input_ids.index_copy(0, batch.targets["masked_positions"], pieces)
    is_replaced = torch.zeros(len(new_ids), dtype=torch.bool)
    is_replaced[batch.targets["masked_positions"]] = pieces != labels
    replaced_batch = Batch(replace(batch.packed, input_ids=new_ids), {"is_replaced": is_replaced})
    loss = torch.func.functional_call(discriminator.eval(), tables, (replaced_batch,))["rtd"]
    assert torch.allclose(losses["weighted_rtd"], DISENTANGLED_SETTINGS.weight * loss)
    (DISENTANGLED_SETTINGS.weight * loss / batch.counts["weighted_rtd"]).backward()
    for kind, difference in own.items():
        name = f"discriminator.encoder.embeddings.{kind}_embeddings.difference"
        assert torch.allclose(gradients[name], difference.grad)
        assert gradients[name].abs().max() > 0

    write_shared_embeddings(network)
    assert torch.allclose(
        discriminator.predict(replaced_batch)["rtd_logits"], outputs["rtd_logits"]
    )


def test_disentangled_embeddings_start_from_tables(tokenizer):
    config = geometry("deberta-v2", vocab_size=tokenizer.vocab_size)
    discriminator = DiscriminatorNetwork(config)
    network = with_generator(discriminator, DISENTANGLED_SETTINGS)
    table = discriminator.encoder.embeddings.word_embeddings.weight
    base = network.generator.encoder.embeddings.word_embeddings.weight
    difference = network.encoder.embeddings.word_embeddings.difference
    assert torch.equal(table, base) and not difference.any()
    assert network.generator.mlm_head.decoder is base
    oracles.redraw(discriminator)
    before = base.detach().clone()
    read_shared_embeddings(network, keep_generator=True)
    assert torch.equal(base, before)
    assert torch.allclose(base + difference, table)
    read_shared_embeddings(network, keep_generator=False)
    assert torch.equal(base, table) and not difference.any()


def test_debertas_head_adds_the_first_token():
    """The original code's: dense(norm(first + token)), the activation, one logit."""
    config = geometry("deberta-v2")
    head = ReplacedTokenHead(config).double()
    oracles.redraw(head)
    packed = oracles.sequences(config)
    hidden = torch.randn(packed.num_tokens, config.hidden_size, dtype=torch.float64)
    expected = []
    for start, end in itertools.pairwise(packed.cu_seqlens.tolist()):
        total = hidden[start] + hidden[start:end]
        deviation = total - total.mean(-1, keepdim=True)
        total = deviation / (deviation.square().mean(-1, keepdim=True) + 1e-7).sqrt()
        total = total * head.norm.weight + head.norm.bias
        inner = F.gelu(total @ head.dense.weight.T + head.dense.bias)
        logits = inner @ head.dense_prediction.weight.T + head.dense_prediction.bias
        expected.append(logits.squeeze(-1))
    assert torch.allclose(head(hidden, packed), torch.cat(expected))
    ids, mask = packed.to_padded()
    padded = Padded.from_tensors(ids, mask)
    spread = packed.to_padded(hidden)[0].flatten(0, 1)
    assert torch.allclose(head(spread, padded)[mask.flatten()], torch.cat(expected))

"""Generated texts are the same without a key-value cache, and as Hugging Face's GPT."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.checkpoints import oracles

from bertworks.errors import CheckpointError, DataError, SettingsError
from bertworks.inference import generate as module
from bertworks.inference.generate import generate
from bertworks.inference.settings import EngineSettings, GenerationSettings
from bertworks.nn.kv_cache import KeyValueCache
from bertworks.packed import Batch, Packed
from bertworks.tasks.pretraining.network import PretrainingNetwork

ENGINE = EngineSettings()
PROMPTS = [[5, 9, 17], [3], [44, 45, 46, 47, 48, 49, 50], [8, 9, 10]]


@pytest.fixture(scope="module", params=["openai-gpt", "bert"])
def network(request):
    values = {"attention": "causal"} if request.param == "bert" else {}
    config = oracles.geometry(request.param, **values)
    network = PretrainingNetwork(config, next_sentence=False).eval()
    oracles.redraw(network)
    return network


def again_from_the_start(network, prompt, steps):
    """Greedy, every token computed anew at each step."""
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(steps):
            packed = Packed.from_arrays([torch.tensor(ids).numpy()]).to("cpu")
            logits = network.mlm_head(network.encoder(packed)[-1:])
            ids.append(int(logits.argmax()))
    return ids[len(prompt) :]


@pytest.mark.long
def test_a_memory_changes_nothing(network):
    found = generate(network, PROMPTS, GenerationSettings(max_new_tokens=12), ENGINE)
    assert found == [again_from_the_start(network, prompt, 12) for prompt in PROMPTS]


def test_a_memory_takes_several_tokens_at_a_time(network):
    rows = [torch.tensor(row).numpy() for row in ([1, 2, 3, 4, 5, 6], [7, 8, 9, 10])]
    cuts = (2, 3)
    whole = Packed.from_arrays(rows).to("cpu")
    memory = KeyValueCache()
    first = Packed.from_arrays([row[:cut] for row, cut in zip(rows, cuts, strict=True)]).to("cpu")
    rest = Packed.from_arrays([row[cut:] for row, cut in zip(rows, cuts, strict=True)]).to("cpu")
    shift = torch.tensor([2] * 4 + [3] * 1)
    object.__setattr__(rest, "position_ids", rest.position_ids + shift)
    with torch.no_grad():
        expected = network.encoder(whole)
        *_, one = network.encoder.hidden_states(first, memory)
        *_, two = network.encoder.hidden_states(rest, memory)
    together = torch.cat([one[:2], two[:4], one[2:], two[4:]])
    assert (together - expected).abs().max() < 1e-4 * expected.abs().max()


@pytest.mark.long
def test_texts_do_not_depend_on_each_other(network, monkeypatch):
    settings = GenerationSettings(max_new_tokens=10, temperature=1.0, top_k=20, top_p=0.9, seed=3)
    expected = generate(network, PROMPTS, settings, ENGINE)
    assert generate(network, PROMPTS[:2], settings, ENGINE) == expected[:2]
    other = settings.with_values(seed=4)
    assert generate(network, PROMPTS, other, ENGINE) != expected
    assert generate(network, PROMPTS[2:], settings, ENGINE) == expected[2:]
    few = ENGINE.with_values(batch_tokens=3)
    assert generate(network, PROMPTS, settings, few) == expected
    sizes = []
    with monkeypatch.context() as patch:
        cache_class = module.KeyValueCache

        class CountingCache(cache_class):
            def select(self, rows):
                super().select(rows)
                sizes.append(sum(map(int, self.lengths)))

        patch.setattr(module, "KeyValueCache", CountingCache)
        many = ENGINE.with_values(batch_tokens=60)
        assert generate(network, PROMPTS * 10, settings, many)[:4] == expected
    assert max(sizes) <= 60, "the tokens that are remembered, new ones included"
    several = generate(network, [PROMPTS[0]] * 3, settings, ENGINE)
    assert several[0] == expected[0]
    assert several[1] != several[0], "a repeated prompt is continued in another way"
    with pytest.raises(SettingsError, match="temperature=1 samples"):
        GenerationSettings.parse({"top_p": 0.9})
    narrow = settings.with_values(top_k=1)
    greedy = GenerationSettings(max_new_tokens=10)
    assert generate(network, PROMPTS, narrow, ENGINE) == generate(network, PROMPTS, greedy, ENGINE)


@pytest.mark.long
def test_interrupted_texts_continue_in_other_batches(network):
    """Others of other settings, which begin or have begun; with their memories or without."""
    drawn = GenerationSettings(max_new_tokens=11, temperature=0.7, top_k=20, seed=5)
    settings = [GenerationSettings(max_new_tokens=7), drawn, drawn.with_values(max_new_tokens=3)]
    limit = network.encoder.config.max_seqlen
    requests = [(tuple(prompt), how) for prompt in PROMPTS for how in settings]
    expected = [generate(network, [prompt], how, ENGINE)[0] for prompt, how in requests]
    for forgets in (False, True):
        texts = [module.start_continuation("", prompt, 0, how, limit) for prompt, how in requests]
        count = 0
        while not all(text.is_over for text in texts):
            count += 2
            part = module.continue_texts(
                network, texts[:count], EngineSettings(precision="fp32"), 3
            )
            assert all(text.is_over or text.memory is not None for text in part)
            if forgets:
                part = [dataclasses.replace(text, memory=None) for text in part]
            texts[:count] = part
        assert [list(text.new) for text in texts] == expected


@pytest.mark.long
def test_draws_follow_the_probabilities(network):
    """A chi-square test over the first token's draws."""
    with torch.no_grad():
        packed = Packed.from_arrays([torch.tensor([5, 9]).numpy()]).to("cpu")
        logits = network.mlm_head(network.encoder(packed)[-1:])[0].double()
    temperature = float(logits.std())
    chances = torch.softmax(logits / temperature, -1)
    settings = GenerationSettings(max_new_tokens=1, temperature=temperature)
    draws = 4000
    found = generate(network, [[5, 9]] * draws, settings, ENGINE)
    counts = torch.bincount(torch.tensor([row[0] for row in found]), minlength=len(chances))
    likely = chances * draws >= 5
    observed_counts = torch.cat([counts[likely], counts[~likely].sum()[None]]).double()
    expected = torch.cat([chances[likely], chances[~likely].sum()[None]]) * draws
    statistic = float(((observed_counts - expected) ** 2 / expected.clamp(min=1e-9)).sum())
    freedom = len(observed_counts) - 1
    assert statistic < freedom + 5 * (2 * freedom) ** 0.5


def test_generation_ends(network):
    likeliest = again_from_the_start(network, PROMPTS[0], 3)
    stop = GenerationSettings(max_new_tokens=8, stop_ids=(likeliest[2],))
    assert generate(network, PROMPTS[:1], stop, ENGINE) == [
        likeliest[: likeliest.index(likeliest[2])]
    ]
    full = generate(network, [[7] * 38], GenerationSettings(max_new_tokens=9), ENGINE)
    assert len(full[0]) == network.encoder.config.max_seqlen - 38
    with pytest.raises(DataError, match="prompt 2: 0 tokens"):
        generate(network, [[1], []], stop, ENGINE)


@pytest.mark.long
def test_continuation_equals_that_of_hugging_faces_gpt():
    config = oracles.geometry("openai-gpt")
    theirs = oracles.theirs_of(config, "masked-lm", torch.float32)
    ours = PretrainingNetwork(config, next_sentence=False)
    pair = oracles.pair(ours, theirs, config, torch.float32)
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        expected = theirs.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False
        )
        (found,) = generate(pair.ours, [prompt], GenerationSettings(max_new_tokens=12), ENGINE)
        assert found == expected[0, len(prompt) :].tolist()


def test_a_model_that_sees_both_sides_cannot():
    network = PretrainingNetwork(oracles.geometry("bert"), next_sentence=False)
    with pytest.raises(SettingsError, match="sees both sides"):
        generate(network, PROMPTS, GenerationSettings(), ENGINE)


def test_tokens_do_not_depend_on_later_tokens(network):
    rows = [torch.arange(5, 15).numpy()]
    other_row = rows[0].copy()
    other_row[6:] = 60
    with torch.no_grad():
        one = network.encoder(Packed.from_arrays(rows).to("cpu"))
        two = network.encoder(Packed.from_arrays([other_row]).to("cpu"))
    assert torch.equal(one[:6], two[:6])
    assert not torch.equal(one[6:], two[6:])


def test_the_loss_is_that_of_the_next_pieces(network):
    ids = torch.randint(3, 100, (9,), generator=torch.Generator().manual_seed(0))
    packed = Packed.from_arrays([ids[:5].numpy(), ids[5:].numpy()]).to("cpu")
    positions = torch.tensor([0, 1, 2, 3, 5, 6, 7])
    batch = Batch(
        packed, {"masked_positions": positions, "masked_labels": packed.input_ids[positions + 1]}
    )
    losses = network(batch)
    assert set(losses) == {"lm"}
    logits = network.mlm_head(network.encoder(packed))[positions]
    expected = torch.nn.functional.cross_entropy(
        logits, packed.input_ids[positions + 1], reduction="sum"
    )
    assert losses["lm"].item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_prompt_is_named_for_which_numbers_are_not_finite(network):
    positions = network.encoder.embeddings.position_embeddings.weight
    old_positions = positions.detach().clone()
    try:
        with torch.no_grad():
            positions[6] = 3e38  # of the longest prompt alone
        with pytest.raises(CheckpointError, match=r"^prompt 3: the model's output is not finite"):
            generate(network, PROMPTS, GenerationSettings(max_new_tokens=1), ENGINE)
    finally:
        with torch.no_grad():
            positions.copy_(old_positions)


@pytest.mark.long
def test_the_lowest_temperature_takes_the_likeliest_token(network):
    cold = GenerationSettings(max_new_tokens=5, temperature=5e-324)
    likeliest = GenerationSettings(max_new_tokens=5)
    assert generate(network, PROMPTS, cold, ENGINE) == generate(network, PROMPTS, likeliest, ENGINE)

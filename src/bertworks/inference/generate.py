"""Going on with texts, token by token: greedy, or drawn at random.

Each step runs one new token of each sequence; what came before is remembered (`model.memory`).
Sequences go through side by side, and what each becomes does not depend on the others: its draws
are a function of the seed, its number, and the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from ..errors import DataError, SettingsError
from ..model.memory import Memory
from ..packed import Packed
from ..settings import Settings
from ..tasks.pretraining import hashing
from ..tasks.pretraining.task import PretrainingNetwork
from .engine import EngineSettings, inference


class GenerationSettings(Settings):
    """How the next token is chosen."""

    max_new_tokens: int = Field(40, ge=1)
    temperature: float = Field(0.0, ge=0, description="0: always the likeliest token")
    top_k: int | None = Field(None, ge=1, description="only so many of the likeliest are drawn")
    top_p: float | None = Field(
        None, gt=0, le=1, description="only the likeliest that make up this share are drawn"
    )
    stop_ids: tuple[int, ...] = Field((), description="tokens that end a text")
    seed: int = 0


def generate(
    network: PretrainingNetwork,
    prompts: Sequence[Sequence[int]],
    settings: GenerationSettings,
    engine: EngineSettings,
) -> list[list[int]]:
    """The tokens that go on each prompt.

    Args:
        network: causal, with its language-model head.
        prompts: token ids, at least one each.
        settings: how tokens are chosen, and how many.
        engine: the precision.

    Raises:
        DataError: a prompt is empty, or leaves no position for a new token.
        SettingsError: the network is not causal.
    """
    config = network.encoder.config
    if config.attention != "causal":
        raise SettingsError(
            "the model sees both sides of a token, and cannot go on with a text",
            fix="Use fill-mask, or a model with attention=causal.",
        )
    for number, prompt in enumerate(prompts, 1):
        if not 0 < len(prompt) < config.max_seqlen:
            raise DataError(
                f"{len(prompt)} tokens; there must be one at least, and room for another below "
                f"{config.max_seqlen}",
                where=f"prompt {number}",
            )
    found: list[list[int]] = [[] for _ in prompts]
    # In order of length, so that attention's groups are large; they stay so, step by step.
    alive = sorted(range(len(prompts)), key=lambda number: len(prompts[number]))
    tokens = [list(prompts[number]) for number in alive]
    device = next(network.parameters()).device
    memory = Memory()
    with inference(network, engine.precision):
        while alive:
            packed = _next(tokens, memory).to(device)
            *_, hidden = network.encoder.hidden_states(packed, memory)
            logits = network.mlm_head(hidden[packed.last_tokens]).float().cpu()
            steps = [len(found[number]) for number in alive]
            chosen = _choose(logits, alive, steps, settings)
            kept: list[int] = []
            for place, (number, token) in enumerate(zip(alive, chosen, strict=True)):
                if token in settings.stop_ids:
                    continue
                found[number].append(token)
                full = memory.lengths[place] + 1 >= config.max_seqlen
                if len(found[number]) < settings.max_new_tokens and not full:
                    kept.append(place)
            tokens = [[chosen[place]] for place in kept]
            alive = [alive[place] for place in kept]
            if alive:
                memory.keep(kept)
    return found


def _next(tokens: list[list[int]], memory: Memory) -> Packed:
    """The next tokens of each sequence, their positions counted on."""
    packed = Packed.from_arrays([np.asarray(row, np.int64) for row in tokens])
    if not len(memory.lengths):
        return packed
    lengths = [len(row) for row in tokens]
    return replace(packed, position_ids=packed.position_ids + np.repeat(memory.lengths, lengths))


def _choose(
    logits: Tensor, numbers: Sequence[int], steps: Sequence[int], settings: GenerationSettings
) -> list[int]:
    """A token for each row of `[sequences, vocab_size]` logits."""
    if settings.temperature == 0:
        likeliest: list[int] = logits.argmax(-1).tolist()
        return likeliest
    scores, ids = (logits.double() / settings.temperature).sort(
        stable=True, dim=-1, descending=True
    )
    if settings.top_k is not None:
        scores = scores[:, : settings.top_k]
    chances = torch.softmax(scores, -1)
    if settings.top_p is not None:
        # The token with which the share is reached is still in.
        before = chances.cumsum(-1) - chances
        chances = chances.masked_fill(before >= settings.top_p, 0)
    ends = chances.cumsum(-1)
    keys = np.array(
        [hashing.key_of(settings.seed, n, step) for n, step in zip(numbers, steps, strict=True)],
        np.uint64,
    )
    draws = torch.from_numpy(hashing.uniform(hashing.mix(keys)))[:, None] * ends[:, -1:]
    places = torch.searchsorted(ends, draws, right=True).clamp(max=ends.shape[-1] - 1)
    drawn: list[int] = ids.gather(1, places)[:, 0].tolist()
    return drawn

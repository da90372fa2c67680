"""Going on with texts, token by token: greedy, or drawn at random.

Each step runs one new token of each sequence; what came before is remembered (`model.memory`).
Sequences go through side by side, and what each becomes does not depend on the others: its draws
are a function of the seed, the prompt (and how often it has come before), and the step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError, SettingsError
from ..model.memory import Memory
from ..packed import Packed
from ..tasks.pretraining import hashing
from ..tasks.pretraining.task import PretrainingNetwork
from .engine import by_tokens, check_finite
from .form import frozen_form
from .settings import EngineSettings, GenerationSettings


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
        engine: the precision, and how many tokens are held at a time, prompts and new ones.

    Raises:
        CheckpointError: what the network computes for a prompt is not finite.
        DataError: a prompt is empty, or leaves no position for a new token.
        SettingsError: the network is not causal.
    """
    config = network.encoder.config
    if config.attention != "causal":
        raise SettingsError(
            "the model sees both sides of a token, and cannot continue a text",
            fix="Use fill-mask, or a model with attention=causal.",
        )
    for number, prompt in enumerate(prompts, 1):
        if not 0 < len(prompt) < config.max_seqlen:
            raise DataError(
                f"{len(prompt)} tokens; there must be one at least, and room for another below "
                f"{config.max_seqlen}",
                where=f"prompt {number}",
            )
    seen: Counter[tuple[int, ...]] = Counter()
    texts = []
    for number, prompt in enumerate(prompts, 1):
        ids = tuple(prompt)
        most = min(len(ids) + settings.max_new_tokens, config.max_seqlen)
        key = hashing.key_of(settings.seed, seen[ids], *ids)
        texts.append(_Text(f"prompt {number}", ids, key, [], most))
        seen[ids] += 1
    form = frozen_form(network, engine.precision)
    with torch.inference_mode():
        for part in by_tokens(texts, engine.batch_tokens):
            # In order of length, so that attention's groups are large; they stay so, step by step.
            _go_on(form, sorted(part, key=lambda text: len(text.prompt)), settings)
    return [text.new for text in texts]


class _Text(NamedTuple):
    """A text that is gone on with.

    Attributes:
        place: what an error calls it.
        prompt: its beginning.
        key: what its draws are drawn from.
        new: the tokens that were added.
        num_tokens: as many as there may be in the end.
    """

    place: str
    prompt: tuple[int, ...]
    key: int
    new: list[int]
    num_tokens: int


def _go_on(
    network: PretrainingNetwork, alive: Sequence[_Text], settings: GenerationSettings
) -> None:
    """Add tokens to texts until each has ended."""
    device = next(network.parameters()).device
    tokens: list[Sequence[int]] = [text.prompt for text in alive]
    memory = Memory()
    while alive:
        packed = _next(tokens, memory).to(device)
        *_, hidden = network.encoder.hidden_states(packed, memory)
        logits = network.mlm_head(hidden[packed.last_tokens]).float().cpu()
        check_finite(logits, [text.place for text in alive].__getitem__)
        chosen = _choose(logits, alive, settings)
        kept: list[int] = []
        for place, (text, token) in enumerate(zip(alive, chosen, strict=True)):
            if token in settings.stop_ids:
                continue
            text.new.append(token)
            full = memory.lengths[place] + 1 >= network.encoder.config.max_seqlen
            if len(text.new) < settings.max_new_tokens and not full:
                kept.append(place)
        tokens = [[chosen[place]] for place in kept]
        alive = [alive[place] for place in kept]
        if alive:
            memory.keep(kept)


def _next(tokens: Sequence[Sequence[int]], memory: Memory) -> Packed:
    """The next tokens of each sequence, their positions counted on."""
    packed = Packed.from_arrays([np.asarray(row, np.int64) for row in tokens])
    if not len(memory.lengths):
        return packed
    lengths = [len(row) for row in tokens]
    return replace(packed, position_ids=packed.position_ids + np.repeat(memory.lengths, lengths))


def _choose(logits: Tensor, texts: Sequence[_Text], settings: GenerationSettings) -> list[int]:
    """A token for each row of `[sequences, vocab_size]` logits."""
    if settings.temperature == 0:
        likeliest: list[int] = logits.argmax(-1).tolist()
        return likeliest
    scores, ids = logits.double().sort(stable=True, dim=-1, descending=True)
    scores = (scores - scores[:, :1]) / settings.temperature  # at most 0, however low it is
    if settings.top_k is not None:
        scores = scores[:, : settings.top_k]
    chances = torch.softmax(scores, -1)
    if settings.top_p is not None:
        # The token with which the share is reached is still in.
        before = chances.cumsum(-1) - chances
        chances = chances.masked_fill(before >= settings.top_p, 0)
    ends = chances.cumsum(-1)
    keys = np.array([hashing.key_of(text.key, len(text.new)) for text in texts], np.uint64)
    draws = torch.from_numpy(hashing.uniform(hashing.mix(keys)))[:, None] * ends[:, -1:]
    places = torch.searchsorted(ends, draws, right=True).clamp(max=ends.shape[-1] - 1)
    drawn: list[int] = ids.gather(1, places)[:, 0].tolist()
    return drawn

"""Generate text, token by token: greedily, or by sampling.

Each step computes one new token of each sequence; keys and values of earlier tokens are kept
(`nn.kv_cache`). Sequences share batches, but the result of each does not depend on the others: its
random draws are a function of the seed, the prompt (and how often it occurred before), and the
step. So a sequence may be interrupted after any step and continued in another batch (Yu et al.
2022, Orca, §3.1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import DataError, SettingsError
from ..nn.kv_cache import KeyValueCache
from ..packed import Packed, by_tokens
from ..tasks.pretraining import hashing
from ..tasks.pretraining.network import PretrainingNetwork
from .frozen_network import inference
from .network_runner import check_finite
from .settings import EngineSettings, GenerationSettings


def generate(
    network: PretrainingNetwork,
    prompts: Sequence[Sequence[int]],
    settings: GenerationSettings,
    engine: EngineSettings,
    pieces: int | None = None,
) -> list[list[int]]:
    """Return the tokens that continue each prompt.

    Args:
        network: causal, with its language-model head.
        prompts: token ids, at least one each.
        pieces: see `continue_texts`.
        engine: the precision, and the maximum number of tokens per batch, prompts and new ones.

    Raises:
        CheckpointError: the network's output for a prompt is not finite.
        DataError: a prompt is empty, or leaves no position for a new token.
        SettingsError: the network is not causal.
    """
    config = network.encoder.config
    if not config.can_generate:
        why = "has LSTMs" if config.attention == "causal" else "sees both sides of a token"
        raise SettingsError(
            f"the model {why}, and cannot continue a text",
            fix="Use fill-mask, or a model with mixer=attention and attention=causal.",
        )
    for number, prompt in enumerate(prompts, 1):
        if not 0 < len(prompt) < config.max_seqlen:
            raise DataError(
                f"{len(prompt)} tokens; a prompt needs at least one, and room for another "
                f"below {config.max_seqlen}",
                where=f"prompt {number}",
            )
    counts: Counter[tuple[int, ...]] = Counter()
    texts = []
    for number, prompt in enumerate(prompts, 1):
        ids = tuple(prompt)
        texts.append(
            start_continuation(f"prompt {number}", ids, counts[ids], settings, config.max_seqlen)
        )
        counts[ids] += 1
    new: dict[Continuation, list[int]] = {}
    device = next(network.parameters()).device
    for part in by_tokens(texts, engine.max_batch_tokens(device.type)):
        ended = continue_texts(network, part, engine, pieces=pieces)
        new.update(zip(part, (list(text.new) for text in ended), strict=True))
    return [new[text] for text in texts]


@dataclass(frozen=True, eq=False)
class Continuation:
    """A text that is being continued.

    Attributes:
        place: its name in errors.
        prompt: its first tokens, at least one.
        key: the seed of its random draws.
        settings: how its tokens are chosen.
        num_tokens: the maximum number of its tokens, prompt included.
        new: the tokens added so far.
        memory: the keys and values of all tokens but the last; if None, all are computed again.
        is_over: whether the text is complete.
    """

    place: str
    prompt: tuple[int, ...]
    key: int
    settings: GenerationSettings
    num_tokens: int
    new: tuple[int, ...] = ()
    memory: KeyValueCache | None = None
    is_over: bool = False

    @property
    def tokens(self) -> tuple[int, ...]:
        """The prompt and the new tokens."""
        return self.prompt + self.new

    def with_token(self, token: int) -> Continuation:
        """The text with one more token; a stop token is not added, but ends the text."""
        if token in self.settings.stop_ids:
            return replace(self, is_over=True)
        is_over = len(self.tokens) + 1 >= self.num_tokens
        return replace(self, new=(*self.new, token), is_over=is_over)


def start_continuation(
    place: str, prompt: tuple[int, ...], copy: int, settings: GenerationSettings, max_seqlen: int
) -> Continuation:
    """A text without new tokens.

    Args:
        place: its name in errors.
        prompt: token ids: at least one, and fewer than `max_seqlen`.
        copy: how often the same prompt occurred before; each copy has different random draws.
        settings: how tokens are chosen.
        max_seqlen: of the network.
    """
    most = min(len(prompt) + settings.max_new_tokens, max_seqlen)
    return Continuation(
        place, prompt, hashing.derive_key(settings.seed, copy, *prompt), settings, most
    )


def continue_texts(
    network: PretrainingNetwork,
    texts: Sequence[Continuation],
    engine: EngineSettings,
    steps: int | None = None,
    *,
    pieces: int | None = None,
) -> list[Continuation]:
    """Add tokens to texts, in one batch.

    Args:
        network: causal, with its language-model head.
        texts: with or without memories; they are not changed.
        engine: the precision of the network.
        steps: maximum number of new tokens of each text; None: until all texts are complete.
        pieces: only the first `pieces` ids may be chosen; None: all rows of the embeddings, some of
            which may belong to no piece.

    Returns:
        The texts, in order. Those that are not complete have their memory.

    Raises:
        CheckpointError: the network's output for a text is not finite.
    """
    device = next(network.parameters()).device
    with inference(network, engine) as form:
        return _continue(form, texts, steps, pieces, device)


def _continue(
    form: PretrainingNetwork,
    texts: Sequence[Continuation],
    steps: int | None,
    pieces: int | None,
    device: torch.device,
) -> list[Continuation]:
    """Do as `continue_texts`, with a network's frozen form."""
    results = list(texts)
    alive = [index for index, text in enumerate(texts) if not text.is_over]
    # Sorted by length, for large groups in attention; each step keeps the order.
    alive.sort(key=lambda index: len(texts[index].tokens))
    memory = KeyValueCache.from_parts([texts[index].memory for index in alive])
    while alive and steps != 0:
        known = memory.lengths.tolist() or [0] * len(alive)
        unknown = [results[index].tokens[count:] for index, count in zip(alive, known, strict=True)]
        packed = _next(unknown, memory).to(device)
        *_, hidden = form.encoder.hidden_states(packed, memory)
        logits = form.mlm_head(hidden[packed.last_tokens])[:, :pieces].float().cpu()
        check_finite(logits, [results[index].place for index in alive].__getitem__)
        for index, token in zip(
            alive, _choose(logits, [results[index] for index in alive]), strict=True
        ):
            results[index] = results[index].with_token(token)
        remaining = [place for place, index in enumerate(alive) if not results[index].is_over]
        alive = [alive[place] for place in remaining]
        if alive:
            memory.select(remaining)
        steps = None if steps is None else steps - 1
    for index, part in zip(alive, memory.split() if alive else (), strict=True):
        results[index] = replace(results[index], memory=part)
    return results


def _next(tokens: Sequence[Sequence[int]], memory: KeyValueCache) -> Packed:
    """Pack the next tokens of each sequence, with positions that follow those in memory."""
    packed = Packed.from_arrays([np.asarray(row, np.int64) for row in tokens])
    if not len(memory.lengths):
        return packed
    lengths = [len(row) for row in tokens]
    return replace(packed, position_ids=packed.position_ids + np.repeat(memory.lengths, lengths))


def _choose(logits: Float[Tensor, "texts pieces"], texts: Sequence[Continuation]) -> list[int]:
    """Choose a token for each text, by its settings."""
    rows_by_settings: dict[tuple[object, ...], list[int]] = {}
    for row, text in enumerate(texts):
        settings = text.settings
        rows_by_settings.setdefault(
            (settings.temperature, settings.top_k, settings.top_p), []
        ).append(row)
    tokens = [0] * len(texts)
    for rows in rows_by_settings.values():
        for row, token in zip(
            rows, _draw(logits[rows], [texts[index] for index in rows]), strict=True
        ):
            tokens[row] = token
    return tokens


def _draw(logits: Float[Tensor, "texts pieces"], texts: Sequence[Continuation]) -> list[int]:
    """Choose a token for each of some texts, which have the same sampling settings."""
    settings = texts[0].settings
    if settings.temperature == 0:
        likeliest: list[int] = logits.argmax(-1).tolist()
        return likeliest
    scores, ids = logits.cpu().double().sort(stable=True, dim=-1, descending=True)
    scores = (scores - scores[:, :1]) / settings.temperature  # at most 0, for any temperature
    if settings.top_k is not None:
        scores = scores[:, : settings.top_k]
    probabilities = torch.softmax(scores, -1)
    if settings.top_p is not None:
        # The token with which the share is reached is kept.
        preceding = probabilities.cumsum(-1) - probabilities
        probabilities = probabilities.masked_fill(preceding >= settings.top_p, 0)
    ends = probabilities.cumsum(-1)
    keys = np.array([hashing.derive_key(text.key, len(text.new)) for text in texts], np.uint64)
    draws = torch.from_numpy(hashing.uniform(hashing.mix(keys)))[:, None] * ends[:, -1:]
    places = torch.searchsorted(ends, draws, right=True).clamp(max=ends.shape[-1] - 1)
    tokens: list[int] = ids.gather(1, places)[:, 0].tolist()
    return tokens

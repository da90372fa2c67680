"""What a network computes on the way: hidden states and attention weights; heads switched off.

For explanations alone. Attention is computed by its plain formula, so that its weights can be kept:
the numbers are those of the fast kernels but for rounding. The network is a twin of its frozen form
that shares all weights, made for one run; nothing that others use is changed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..errors import BertworksError
from ..model.attention import masked_pairs
from ..model.device import is_finite
from ..model.encoder import AttentionScope, Encoder, HasEncoder, SelfAttention
from ..model.layers import sinusoids
from ..model.memory import Memory
from ..packed import Batch, Packed, Sequences
from ..tasks.task import Network
from .engine import not_finite
from .form import frozen_form, twins_of

is_awaited: ContextVar[Callable[[], bool]] = ContextVar("is_awaited", default=lambda: True)
"""Whether anyone waits for what is computed; asked after each layer."""


class AbandonedError(BertworksError):
    """Nobody waits any more for what is computed."""


@dataclass
class Activations:
    """What was computed of a pack whose sequences have one length."""

    # `[sequences, length, hidden_size]`: the first layer's input, then each layer's output; with
    # `norm_first`, the final norm is part of the last
    states: list[Float[Tensor, "sequences length hidden_size"]] = field(default_factory=list)
    # of each layer `[sequences, heads, queries, keys]`; empty if it was not asked for
    attention: list[Float[Tensor, "sequences heads length length"]] = field(default_factory=list)
    # what `Network.predict` returns; empty for a bare encoder
    outputs: dict[str, Tensor] = field(default_factory=dict)


@torch.inference_mode()
def activations(
    network: HasEncoder,
    packed: Packed,
    targets: Mapping[str, Any] | None = None,
    *,
    attention: bool = False,
    off: Bool[Tensor, "layers sequences heads"] | None = None,
    layer: int = 0,
    hidden: Float[Tensor, "tokens hidden_size"] | None = None,
) -> Activations:
    """Run a network in float32, and keep what it computes.

    Args:
        network: a task's, or a bare encoder; neither it nor its modes are changed.
        packed: sequences of one length.
        targets: what the task's `predict` needs of a batch beside the pack; if left out, the
            encoder runs alone.
        attention: whether attention weights are kept.
        off: which heads are switched off for which sequence: their context vectors are zero before
            the output map (Michel et al. 2019, §2.2).
        layer: the first layer that is computed, from 0.
        hidden: its input; the embeddings of the pack, if left out.

    Raises:
        CheckpointError: a number is NaN or infinite.
        AbandonedError: nobody waits for it any more (`is_awaited`).
    """
    assert len(packed.groups) == 1, "sequences of one length"
    device = next(network.parameters()).device
    kept = Activations()
    twin = _twin(frozen_form(network), _Watch(kept, attention, off, layer, hidden))
    batch = Batch(packed, targets or {}).to(device)
    if targets is not None and isinstance(twin, Network):
        kept.outputs = twin.predict(batch)
    else:
        twin.encoder(batch.packed)
    if not all(map(is_finite, (*kept.states, *kept.outputs.values()))):
        raise not_finite("text")
    shape = (packed.num_sequences, packed.max_seqlen, -1)
    kept.states = [state.reshape(shape) for state in kept.states]
    return kept


def embedding_steps(encoder: Encoder, packed: Packed) -> dict[str, Tensor]:
    """The embeddings of a pack as they are added up, by name, without parts that a family lacks.

    Returns:
        `word`, `position`, `segment`, `task`: `[tokens, width]` each; `sum` of these; `norm`: after
        the layer norm; `projection`: widened to `hidden_size`.
    """
    embeddings = encoder.embeddings
    packed = packed.to(embeddings.word_embeddings.weight.device)
    with torch.inference_mode():
        found = {"word": embeddings.words(packed)}
        if embeddings.sinusoidal:
            found["position"] = sinusoids(packed.position_ids, found["word"])
        if embeddings.position_embeddings is not None:
            found["position"] = embeddings.position_embeddings(
                packed.position_ids + embeddings.position_offset
            )
        if embeddings.token_type_embeddings is not None:
            most = embeddings.token_type_embeddings.num_embeddings - 1
            found["segment"] = embeddings.token_type_embeddings(
                packed.token_type_ids.clamp(max=most)
            )
        if embeddings.task_type_embeddings is not None:
            found["task"] = embeddings.task_type_embeddings.weight[:1].expand_as(found["word"])
        total = found["sum"] = torch.stack(list(found.values())).sum(0)
        if embeddings.norm is not None:
            total = found["norm"] = embeddings.norm(total)
        if embeddings.projection is not None:
            found["projection"] = embeddings.projection(total)
    return {name: part.detach() for name, part in found.items()}


@dataclass
class _Watch:
    """What is kept of a run, which heads are off in it, and where it begins."""

    kept: Activations
    attention: bool
    off: Tensor | None
    layer: int
    hidden: Tensor | None


class _WatchedEncoder(Encoder):
    watch: _Watch

    def hidden_states(self, packed: Sequences, memory: Memory | None = None) -> Iterator[Tensor]:
        watch, waits = self.watch, is_awaited.get()
        states = super().hidden_states(packed, memory)
        if watch.hidden is not None:
            above = self.states_after(watch.hidden, packed, memory, watch.layer)
            states = itertools.chain([watch.hidden], above)
        for state in states:
            if not waits():
                raise AbandonedError("nobody waits for the answer any more")
            watch.kept.states.append(state)
            yield state


class _WatchedAttention(SelfAttention):
    watch: _Watch

    def context(self, hidden: Tensor, scope: AttentionScope) -> Tensor:
        """As `SelfAttention`'s, with the weights in memory."""
        length, watch = scope.packed.max_seqlen, self.watch
        query, key, value = self.query_key_value(hidden).view(-1, *self.heads_shape).unbind(1)
        if scope.rotation is not None:
            query, key = scope.rotation.turn(query), scope.rotation.turn(key)
        tokens = scope.packed.num_tokens  # rows of zeros may follow: see `cpu.align_rows`
        query, key, value = (
            part[:tokens].unflatten(0, (-1, length)).transpose(1, 2) for part in (query, key, value)
        )
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        masked = masked_pairs(length, length, scope.causal, scope.window, hidden.device)
        if masked is not None:
            scores = scores.masked_fill(masked, -math.inf)
        weights = torch.softmax(scores, -1)
        if watch.attention:
            watch.kept.attention.append(weights)
        context = weights @ value
        if watch.off is not None:
            off = watch.off[scope.layer].to(hidden.device)
            context = context.masked_fill(off[:, :, None, None], 0.0)
        rows = context.transpose(1, 2).flatten(0, 1).flatten(1)
        return F.pad(rows, (0, 0, 0, len(hidden) - len(rows)))


def _twin(form: HasEncoder, watch: _Watch) -> HasEncoder:
    """A network with the same tensors, whose encoder is watched."""
    watched = set(form.encoder.modules())

    def change(module: nn.Module, twin: nn.Module) -> None:
        for kind, own in ((Encoder, _WatchedEncoder), (SelfAttention, _WatchedAttention)):
            if module in watched and isinstance(twin, kind):
                twin.__class__ = own
                twin.__dict__["watch"] = watch

    return twins_of(form, change)

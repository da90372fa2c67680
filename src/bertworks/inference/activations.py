"""Hidden states and attention weights of a network, optionally with heads switched off.

For explanations only. Attention is computed by its plain formula, so that its weights can be kept;
the results equal those of the fast kernels except for rounding. Each run copies the network's
frozen form, sharing all weights, so nothing that others use is changed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..errors import not_finite_error
from ..nn.attention import repeat_heads
from ..nn.attention_masks import make_group_mask
from ..nn.device import is_finite
from ..nn.embeddings import sinusoids
from ..nn.encoder import Encoder, HasEncoder
from ..nn.encoder_layers import AttentionScope, SelfAttention
from ..nn.kv_cache import KeyValueCache
from ..nn.module_copies import copy_network
from ..nn.score_bias import scale_of
from ..packed import Batch, Group, Packed, Sequences
from ..tasks.network import Network
from .abandonment import AbandonedError, is_awaited
from .frozen_network import frozen_form


@dataclass
class Activations:
    """Results for a pack whose sequences all have the same length."""

    # `[sequences, length, hidden_size]`: the first layer's input, then each layer's output; with
    # `norm_first`, the final norm is part of the last
    states: list[Float[Tensor, "sequences length hidden_size"]] = field(default_factory=list)
    # of each layer `[sequences, heads, queries, keys]`; empty if not requested
    attention: list[Float[Tensor, "sequences heads length length"]] = field(default_factory=list)
    # the result of `Network.predict`; empty for an encoder without a task
    outputs: dict[str, Tensor] = field(default_factory=dict)


@torch.inference_mode()
def activations(
    network: HasEncoder,
    packed: Packed,
    targets: Mapping[str, Any] | None = None,
    *,
    attention: bool = False,
    ablated_heads: Bool[Tensor, "layers sequences heads"] | None = None,
    layer: int = 0,
    hidden: Float[Tensor, "tokens hidden_size"] | None = None,
) -> Activations:
    """Run a network in float32, and keep its hidden states and outputs.

    Args:
        network: of a task, or with an encoder only; neither its weights nor its modes change.
        packed: sequences of the same length.
        targets: the part of a batch that the task's `predict` needs in addition to the pack; if
            omitted, only the encoder runs.
        attention: whether to keep attention weights.
        ablated_heads: the heads to switch off for each sequence: their context vectors are set to
            zero before the output map (Michel et al. 2019, §2.2).
        layer: the first layer to compute, from 0; only used with `hidden`.
        hidden: the input of that layer; if omitted, the embeddings of the pack.

    Raises:
        CheckpointError: a number is NaN or infinite.
        AbandonedError: the caller no longer waits (`is_awaited`).
    """
    assert len(packed.groups) == 1, "sequences of one length"
    device = next(network.parameters()).device
    result = Activations()
    recorder = _Recorder(result, attention, ablated_heads, layer, hidden)
    copy = _recording_copy(frozen_form(network, native=False), recorder)
    batch = Batch(packed, targets or {}).to(device)
    if targets is not None and isinstance(copy, Network):
        result.outputs = copy.predict(batch)
    else:
        copy.encoder(batch.packed)
    if not all(map(is_finite, (*result.states, *result.outputs.values()))):
        raise not_finite_error("text")
    shape = (packed.num_sequences, packed.max_seqlen, -1)
    result.states = [state.reshape(shape) for state in result.states]
    return result


def embedding_steps(encoder: Encoder, packed: Packed) -> dict[str, Tensor]:
    """The embeddings of a pack step by step, by name, without steps that a family lacks.

    Returns:
        `word`, `position`, `segment`, `task`: `[tokens, width]` each; `sum` of these; `norm`: after
        the layer norm; `projection`: widened to `hidden_size`.
    """
    embeddings = encoder.embeddings
    packed = packed.to(embeddings.word_embeddings.weight.device)
    with torch.inference_mode():
        steps = {"word": embeddings.words(packed)}
        if embeddings.sinusoidal:
            steps["position"] = sinusoids(packed.position_ids, steps["word"])
        if embeddings.position_embeddings is not None:
            steps["position"] = embeddings.position_embeddings(
                packed.position_ids + embeddings.position_offset
            )
        if embeddings.token_type_embeddings is not None:
            most = embeddings.token_type_embeddings.num_embeddings - 1
            steps["segment"] = embeddings.token_type_embeddings(
                packed.token_type_ids.clamp(max=most)
            )
        if embeddings.task_type_embeddings is not None:
            steps["task"] = embeddings.task_type_embeddings.weight[:1].expand_as(steps["word"])
        total = steps["sum"] = torch.stack(list(steps.values())).sum(0)
        if embeddings.norm is not None:
            total = steps["norm"] = embeddings.norm(total)
        if embeddings.projection is not None:
            steps["projection"] = embeddings.projection(total)
    return {name: part.detach() for name, part in steps.items()}


@dataclass
class _Recorder:
    """Settings of a run, and its results."""

    result: Activations
    attention: bool  # whether to keep attention weights
    ablated_heads: Tensor | None
    layer: int
    hidden: Tensor | None


class _RecordingEncoder(Encoder):
    recorder: _Recorder

    def hidden_states(
        self, packed: Sequences, cache: KeyValueCache | None = None
    ) -> Iterator[Tensor]:
        recorder, waits = self.recorder, is_awaited.get()
        states = super().hidden_states(packed, cache)
        if recorder.hidden is not None:
            above = self.hidden_states_above(recorder.hidden, packed, cache, recorder.layer)
            states = itertools.chain([recorder.hidden], above)
        for state in states:
            if not waits():
                raise AbandonedError("nobody waits for the answer any more")
            recorder.result.states.append(state)
            yield state


class _RecordingAttention(SelfAttention):
    recorder: _Recorder

    def context(self, hidden: Tensor, scope: AttentionScope) -> Tensor:
        """The same as in `SelfAttention`, but with the attention weights in memory."""
        length, recorder = int(scope.packed.max_seqlen), self.recorder
        query, key, value = self.compute_heads(self.query_key_value(hidden))
        if scope.rotation is not None:
            query, key = scope.rotation.rotate(query), scope.rotation.rotate(key)
        query, key, bias = self.with_bias(query, key, scope)
        tokens = scope.packed.num_tokens  # rows of zeros may follow: see `cpu.align_rows`
        shape, heads = (tokens // length, length, query.shape[1]), query.shape[1]
        query, key, value = (
            repeat_heads(part[:tokens], heads).reshape(*shape, -1).transpose(1, 2)
            for part in (query, key, value)
        )
        scores = query @ key.transpose(-1, -2) * scale_of(query, bias)
        if bias is not None:
            scores = scores + bias.of_group(query, key)
        group, global_tokens = Group(0, len(query), length), scope.global_tokens
        is_global = None if global_tokens is None else global_tokens.mask
        masked = make_group_mask(group, group, scope.causal, scope.window, hidden.device, is_global)
        if masked is not None:
            scores = scores.masked_fill(masked, -math.inf)
        weights = torch.softmax(scores, -1)
        context = weights @ value
        if is_global is not None:
            weights, context = self._with_global_tokens(hidden, weights, context, is_global)
        if recorder.attention:
            recorder.result.attention.append(weights)
        if recorder.ablated_heads is not None:
            is_ablated = recorder.ablated_heads[scope.layer].to(hidden.device)
            context = context.masked_fill(is_ablated[:, :, None, None], 0.0)
        rows = context.transpose(1, 2).flatten(0, 1).flatten(1)
        return F.pad(rows, (0, 0, 0, len(hidden) - len(rows)))

    def _with_global_tokens(
        self, hidden: Tensor, weights: Tensor, context: Tensor, is_global: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Replace global tokens' weights and context; see `GlobalTokenAttention`."""
        make_heads = self.global_query_key_value
        assert isinstance(make_heads, nn.Module)
        sequences, heads, length, size = context.shape
        query, key, value = (
            part[: sequences * length].view(sequences, length, heads, size).transpose(1, 2)
            for part in self.split_heads(make_heads(hidden))
        )
        scores = query @ key.transpose(-1, -2) * scale_of(query, None)
        full = torch.softmax(scores, -1)
        by_row = is_global.view(sequences, 1, length, 1)
        return torch.where(by_row, full, weights), torch.where(by_row, full @ value, context)


def _recording_copy(form: HasEncoder, recorder: _Recorder) -> HasEncoder:
    """Return a copy with the same tensors, whose encoder records its states."""
    encoder_modules = set(form.encoder.modules())

    def kind_of(module: nn.Module) -> tuple[type[nn.Module], dict[str, Any]]:
        if module in encoder_modules:
            if isinstance(module, Encoder):
                return _RecordingEncoder, {"recorder": recorder}
            if isinstance(module, SelfAttention):
                return _RecordingAttention, {"recorder": recorder}
        return type(module), {}

    return copy_network(form, kind_of)

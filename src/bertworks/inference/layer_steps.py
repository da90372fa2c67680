"""The steps of one layer, by their plain formulas, so that each can be shown.

For explanations only. The input is a hidden state of the network itself, so errors do not add up
over layers: the last step equals the network's next hidden state except for rounding.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..nn.attention import repeat_heads
from ..nn.attention_masks import make_pair_mask
from ..nn.convolution import Convolution
from ..nn.encoder import Encoder
from ..nn.encoder_layers import Layer, SelfAttention
from ..nn.layers import GroupedLinear, LayerNorm, Linear, RMSNorm
from ..nn.score_bias import scale_of
from ..packed import Packed


@torch.inference_mode()
def layer_steps(
    encoder: Encoder, packed: Packed, number: int, hidden: Float[Tensor, "tokens hidden_size"]
) -> dict[str, Tensor]:
    """Compute a layer step by step (paper §3; Vaswani et al. 2017, §3.1 to §3.3).

    Args:
        encoder: with attention heads.
        packed: one sequence.
        number: the layer's number, from 0.
        hidden: the layer's input, as in `Activations.states`.

    Returns:
        The steps in their order, without those that the layer lacks; `[tokens, hidden_size]` each
        except where noted:

        - `input`; with `norm_first`, `attention_input`: normalised
        - `query`, `key`, `value` `[tokens, heads, head_size]`: shared keys and values once for each
          head; with rotary positions,
          `rotated_query` and `rotated_key`
        - `score_bias` `[tokens, heads, tokens]`, if there is one: what is added to the scores, for
          each query
        - `scores`, `weights` `[heads, tokens, tokens]`: before and after the softmax; a masked
          score is -inf
        - `context`: the heads' results, joined; `attention_output`: after the output map
        - `attention_sum`: plus the input
        - `feed_forward_input`: normalised
        - `intermediate` `[tokens, intermediate_size]`; `gate`, of the same shape, if gated;
          `activated`, of the same shape: after the activation and times the gate
        - `feed_forward_output`; `feed_forward_sum`: plus the feed-forward input or, with
          `norm_first`, plus the attention sum
        - with a convolution next to the layer, which must not be `norm_first`: `convolution_input`:
          normalised; `convolution` of the layer's input; `convolution_sum` of both
        - `output`: normalised; with `norm_first`, only after the last layer (by the final norm)
    """
    config, layer = encoder.config, layer_of(encoder, number)
    assert layer.attention is not None
    packed = packed.to(hidden.device)
    steps = {"input": hidden}
    if config.norm_first:
        hidden = steps["attention_input"] = layer.attention_norm(hidden)
    steps |= _attention(encoder, packed, number, hidden)
    total = steps["attention_sum"] = steps["input"] + steps["attention_output"]
    norm = layer.feed_forward_norm if config.norm_first else layer.attention_norm
    hidden = steps["feed_forward_input"] = norm(total)
    steps |= _feed_forward(layer, hidden)
    residual = total if config.norm_first else hidden
    result = steps["feed_forward_sum"] = residual + steps["feed_forward_output"]
    if (convolution := _convolution_of(encoder, number)) is not None:
        hidden = steps["convolution_input"] = layer.feed_forward_norm(result)
        steps["convolution"] = convolution.convolve(steps["input"], packed)
        result = steps["convolution_sum"] = hidden + steps["convolution"]
    last_norm = norms_of(encoder, number).get("output")
    steps["output"] = result if last_norm is None else last_norm(result)
    return steps


def _attention(
    encoder: Encoder, packed: Packed, number: int, hidden: Float[Tensor, "tokens hidden_size"]
) -> dict[str, Tensor]:
    """The steps from the three maps of the input to the output map."""
    attention = layer_of(encoder, number).attention
    assert attention is not None
    query, key, value = (
        repeat_heads(part, attention.num_heads[0])
        for part in attention.compute_heads(attention.query_key_value(hidden))
    )
    steps = {"query": query, "key": key, "value": value}
    scope = encoder.attention_scopes(packed, hidden)[number]
    if scope.rotation is not None:
        query = steps["rotated_query"] = scope.rotation.rotate(query)
        key = steps["rotated_key"] = scope.rotation.rotate(key)
    more_query, more_key, bias = attention.with_bias(query, key, scope)
    scale = scale_of(more_query, bias)
    scores = torch.einsum("qhd,khd->hqk", more_query, more_key) * scale
    if bias is not None:
        pair = (part.transpose(0, 1).unsqueeze(0) for part in (more_query, more_key))
        scores = scores + bias.of_group(*pair).squeeze(0)
        terms = scores - torch.einsum("qhd,khd->hqk", query, key) * scale
        steps["score_bias"] = terms.transpose(0, 1)
    length = len(hidden)
    masked = make_pair_mask(length, length, scope.causal, scope.window, hidden.device)
    steps["scores"] = scores if masked is None else scores.masked_fill(masked, -math.inf)
    steps["weights"] = torch.softmax(steps["scores"], -1)
    steps["context"] = torch.einsum("hqk,khd->qhd", steps["weights"], value).flatten(1)
    steps["attention_output"] = attention.output(steps["context"])
    return steps


def _feed_forward(layer: Layer, hidden: Float[Tensor, "tokens hidden_size"]) -> dict[str, Tensor]:
    """The steps from the first map to the second."""
    feed_forward = layer.feed_forward
    inner = feed_forward.intermediate(hidden)
    gate = None
    if feed_forward.gated:
        inner, gate = inner.chunk(2, -1)
    steps = {"intermediate": inner} | ({} if gate is None else {"gate": gate})
    activated = steps["activated"] = feed_forward.activation(inner) * (1 if gate is None else gate)
    steps["feed_forward_output"] = feed_forward.output(activated)
    return steps


def layer_of(encoder: Encoder, number: int) -> Layer:
    """Return the layer of a number; layers that share their weights are one module."""
    layer = encoder.layers[encoder.config.layer_groups[number]]
    assert isinstance(layer, Layer) and encoder.config.bottleneck is None
    return layer


def rope_theta(encoder: Encoder, number: int) -> float:
    """Return the base of a layer's rotations."""
    config = encoder.config
    return config.rotary.local_theta if config.is_local(number) else config.rotary.theta


def _convolution_of(encoder: Encoder, number: int) -> Convolution | None:
    """Return the convolution in parallel with a layer; only the first may have one."""
    return encoder.convolution if number == 0 else None


def norms_of(encoder: Encoder, number: int) -> dict[str, LayerNorm | RMSNorm]:
    """Return a layer's norms, by the steps that they compute."""
    layer = layer_of(encoder, number)
    is_last = number == encoder.config.num_hidden_layers - 1
    modules: dict[str, nn.Module | None] = {
        "feed_forward_input": layer.attention_norm,
        "output": layer.feed_forward_norm,
    }
    if (convolution := _convolution_of(encoder, number)) is not None:
        modules["convolution_input"], modules["output"] = modules["output"], convolution.norm
    if encoder.config.norm_first:
        modules = {
            "attention_input": layer.attention_norm,
            "feed_forward_input": layer.feed_forward_norm,
            "output": encoder.final_norm if is_last else None,
        }
    return {name: norm for name, norm in modules.items() if isinstance(norm, LayerNorm | RMSNorm)}


def matrices_of(
    encoder: Encoder, number: int
) -> dict[str, tuple[Float[Tensor, "outputs inputs"], Float[Tensor, " outputs"] | None]]:
    """Return the weights and biases of a layer's linear maps, by the steps that they compute.

    They are `query`, `key`, `value`, `attention_output`, `intermediate`, `gate` if it is gated, and
    `feed_forward_output`. Shared keys and values have their rows once for each head.
    """
    layer = layer_of(encoder, number)
    attention, feed_forward = layer.attention, layer.feed_forward
    assert attention is not None
    maps: list[tuple[Linear | GroupedLinear, list[str]]] = [
        (attention.output, ["attention_output"]),
        (feed_forward.intermediate, ["intermediate", "gate"][: 1 + feed_forward.gated]),
        (feed_forward.output, ["feed_forward_output"]),
    ]
    matrices = _input_matrices(attention)
    for linear, names in maps:
        weights = _whole_matrix(linear).detach().chunk(len(names))
        bias = linear.bias
        biases = [None] * len(names) if bias is None else bias.detach().chunk(len(names))
        matrices |= zip(names, zip(weights, biases, strict=True), strict=True)
    return matrices


def _input_matrices(attention: SelfAttention) -> dict[str, tuple[Tensor, Tensor | None]]:
    """The weights and biases of the maps to queries, keys and values."""
    linear, heads = attention.query_key_value, attention.num_heads[0]
    assert isinstance(linear, Linear | GroupedLinear)

    def split(rows: Tensor) -> list[Tensor]:
        columns = rows.detach().view(len(rows), -1).t().contiguous()
        parts = attention.split_heads(columns)  # of each input
        shape = (-1, *rows.shape[1:])
        return [repeat_heads(part, heads).flatten(1).t().reshape(shape) for part in parts]

    biases: list[Tensor | None] = [attention.query_bias, None, attention.value_bias]
    if linear.bias is not None:
        biases = [*split(linear.bias)]
    biases = [None if bias is None else bias.detach() for bias in biases]
    pairs = zip(split(_whole_matrix(linear)), biases, strict=True)
    return dict(zip(("query", "key", "value"), pairs, strict=True))


def _whole_matrix(linear: Linear | GroupedLinear) -> Float[Tensor, "outputs inputs"]:
    """The weight of a linear map, with zeros between its groups."""
    return linear.dense_weight if isinstance(linear, GroupedLinear) else linear.weight

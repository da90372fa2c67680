"""Which settings of an encoder fit together."""

from __future__ import annotations

from .encoder_geometry import EncoderGeometry


def check_config(config: EncoderGeometry) -> None:
    """Check that an encoder can have all of its settings.

    Raises:
        ValueError: it cannot; the message names them.
    """
    for check in _CHECKS:
        check(config)


def _check_heads(config: EncoderGeometry) -> None:
    heads = f"num_attention_heads={config.num_attention_heads}"
    if config.attention_width % config.num_attention_heads:
        name = "hidden_size" if config.bottleneck is None else "bottleneck.size"
        raise ValueError(f"{name}={config.attention_width} is not divisible by {heads}")
    if config.num_attention_heads % config.num_key_heads:
        keys = f"num_key_value_heads={config.num_key_value_heads}"
        raise ValueError(f"{heads} is not divisible by {keys}")
    if config.num_attention_heads != config.num_key_heads and config.use_bias:
        raise ValueError("num_key_value_heads needs use_bias=false")
    if config.num_key_value_heads is not None and config.query_key_value_order == "head":
        raise ValueError("query_key_value_order=head needs num_key_value_heads=null")
    if config.positions == "rotary" and config.head_size % 2:
        raise ValueError(
            f"hidden_size={config.hidden_size} over {heads} is odd, and cannot be rotated in pairs"
        )
    if config.attention == "two-way":
        if config.hidden_size % 2 or config.num_attention_heads % 2:
            raise ValueError("attention=two-way needs an even hidden_size and number of heads")
        if config.num_key_value_heads is not None:
            raise ValueError("attention=two-way needs num_key_value_heads=null")


def _check_parts(config: EncoderGeometry) -> None:
    if config.max_seqlen < 1:
        raise ValueError(
            f"max_position_embeddings={config.max_position_embeddings} leaves no position, since "
            f"the first is number {config.position_offset}"
        )
    groups = config.num_hidden_groups
    if groups is not None and groups > max(1, config.num_hidden_layers):
        raise ValueError(
            f"num_hidden_groups={groups} is more than num_hidden_layers={config.num_hidden_layers}"
        )
    if not config.mlm_transform and config.embedding_size is not None:
        raise ValueError("embedding_size needs mlm_transform, which maps back to it")
    if config.norm == "rms" and config.norm_bias:
        raise ValueError("norm=rms needs norm_bias=false")
    if config.mixer == "lstm":
        if config.attention == "bidirectional":
            raise ValueError("mixer=lstm needs attention=causal, or two-way")
        if config.local_attention is not None or config.positions == "rotary":
            raise ValueError("local_attention and positions=rotary do nothing with mixer=lstm")
    if config.attention == "two-way" and config.norm_first:
        # Its final norm would mix the two directions.
        raise ValueError("attention=two-way needs norm_first=false")


def _check_global_tokens(config: EncoderGeometry) -> None:
    if config.global_tokens is None:
        return
    if config.local_attention is None or config.local_attention % 2:
        raise ValueError("global_tokens needs an even number for local_attention")
    needs = {
        **{"mixer": "attention", "attention": "bidirectional", "num_key_value_heads": None},
        **{"query_key_value_order": "part", "score_bias": None, "bottleneck": None},
    }
    for name, value in needs.items():
        if getattr(config, name) != value:
            raise ValueError(f"global_tokens needs the default of {name}")
    if config.positions == "rotary":
        raise ValueError("global_tokens needs positions that are not rotary")


def _check_bottleneck(config: EncoderGeometry) -> None:
    if config.bottleneck is None:
        return
    needs = {
        **{"mixer": "attention", "attention": "bidirectional", "norm_first": False},
        **{"num_key_value_heads": None, "query_key_value_order": "part"},
        **{"linear_groups": None, "score_bias": None},
    }
    for name, value in needs.items():
        if getattr(config, name) != value:
            raise ValueError(f"bottleneck needs the default of {name}")
    if config.positions == "rotary":
        raise ValueError("bottleneck needs positions that are not rotary")


def _check_score_bias(config: EncoderGeometry) -> None:
    if config.score_bias is not None and not config.has_heads:
        raise ValueError("score_bias needs mixer=attention, and not attention=two-way")
    kind = "buckets" if config.score_bias is None else config.score_bias.kind
    if kind == "transformer-xl" and config.hidden_size % 2:
        raise ValueError(
            f"hidden_size={config.hidden_size} is odd; score_bias.kind={kind} has "
            "a sine and a cosine of each frequency"
        )
    if kind in ("disentangled", "transformer-xl"):
        if config.attention == "causal":
            raise ValueError(f"score_bias.kind={kind} needs attention=bidirectional")
        if config.num_key_heads != config.num_attention_heads:
            raise ValueError(f"score_bias.kind={kind} needs num_key_value_heads=null")
    if config.score_bias is not None:
        if config.score_bias.shared_maps and config.query_key_value_order == "head":
            raise ValueError("score_bias.shared_maps needs query_key_value_order=part")
        if not config.score_bias.key_bias and not config.use_bias:
            raise ValueError("score_bias.key_bias=false needs use_bias=true")


def _check_convolution(config: EncoderGeometry) -> None:
    if config.convolution is None:
        return
    if not config.has_heads or config.attention == "causal" or not config.num_hidden_layers:
        raise ValueError("convolution needs attention=bidirectional and a layer")
    if config.hidden_size % config.convolution.groups:
        raise ValueError(
            f"convolution.groups={config.convolution.groups} does not divide "
            f"hidden_size={config.hidden_size}"
        )


def _check_groups(config: EncoderGeometry) -> None:
    if config.groups.query_key_value > 1 and config.num_key_heads != config.num_attention_heads:
        raise ValueError("linear_groups.query_key_value needs num_key_value_heads=null")
    size, inner = config.hidden_size, config.intermediate_size * (1 + config.gated)
    widths = {
        "query_key_value": (size,),
        "attention_output": (size,),
        "intermediate": (size, inner),
        "output": (config.intermediate_size, size),
    }
    for name, groups in config.groups.model_dump().items():
        if any(width % groups for width in widths[name]):
            raise ValueError(
                f"linear_groups.{name}={groups} does not divide the map's width: "
                f"{' or '.join(map(str, widths[name]))}"
            )


def _check_tables(config: EncoderGeometry) -> None:
    if config.tie_word_embeddings and config.decoder_width < config.embedding_width:
        raise ValueError(
            f"output_embedding_size={config.output_embedding_size} is less than the width of the "
            f"embeddings, {config.embedding_width}, and needs tie_word_embeddings=false"
        )
    if config.word_map is not None and config.embedding_size is None:
        raise ValueError("word_map needs embedding_size")
    if config.word_map is not None and config.zeroed_token_id is not None:
        raise ValueError("word_map needs zeroed_token_id=null")
    if config.zeroed_token_id is not None and config.zeroed_token_id >= config.vocab_size:
        raise ValueError(
            f"zeroed_token_id={config.zeroed_token_id} is not below vocab_size={config.vocab_size}"
        )


_CHECKS = (
    _check_heads,
    _check_parts,
    _check_global_tokens,
    _check_bottleneck,
    _check_score_bias,
    _check_convolution,
    _check_groups,
    _check_tables,
)

"""Hugging Face's BERT as an oracle: a model with weights redrawn large, and packs to run it on."""

from __future__ import annotations

import numpy as np
import torch
from transformers import BertConfig, BertForPreTraining

from bertworks.checkpoints.bert import BERT
from bertworks.nn.config import EncoderConfig
from bertworks.packed import Packed

LENGTHS = (1, 2, 7, 7, 7, 12, 23, 32)


def config(hidden_act: str = "gelu") -> EncoderConfig:
    return EncoderConfig(
        vocab_size=101,
        hidden_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=96,
        max_position_embeddings=40,
        hidden_act=hidden_act,
        hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
    )


def oracle(own: EncoderConfig, dtype: torch.dtype, seed: int = 0) -> BertForPreTraining:
    """A `BertForPreTraining` whose every parameter is redrawn, so that none is 0 or 1.

    They are drawn large enough that the two forms of GELU give different results.
    """
    generator = torch.Generator().manual_seed(seed)
    config = BertConfig(**BERT.write_config(own), attn_implementation="eager")
    model = BertForPreTraining(config).to(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            scale = 1 + 0.3 * noise if "LayerNorm.weight" in name else 0.25 * noise
            parameter.copy_(scale)
    return model.eval()


def sequences(own: EncoderConfig, lengths: tuple[int, ...] = LENGTHS, seed: int = 0) -> Packed:
    rng = np.random.default_rng(seed)
    ids = [rng.integers(1, own.vocab_size, length) for length in lengths]
    types = [np.arange(length) >= length // 2 for length in lengths]
    return Packed.from_arrays(ids, types).to("cpu")

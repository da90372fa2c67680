"""The geometry of an encoder."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from ..errors import SettingsError, nearest
from ..settings import Settings

Activation = Literal["gelu", "gelu_new", "relu"]
"""`gelu` is the erf form (paper, Hugging Face); `gelu_new` the tanh form, which the original code
has used since February 2019."""

_GEOMETRIES = {  # layers, hidden size, heads; the feed-forward layer is four times as wide
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}


class EncoderConfig(Settings):
    """What an encoder is made of, in the names of `config.json`; the defaults are BERT-Base's.

    Source: paper §3, "Model Architecture", and the original release's `bert_config.json`.
    """

    vocab_size: int = Field(default=30522, ge=1)
    hidden_size: int = Field(default=768, ge=1)
    num_hidden_layers: int = Field(default=12, ge=0)
    num_attention_heads: int = Field(default=12, ge=1)
    intermediate_size: int = Field(default=3072, ge=1)
    hidden_act: Activation = "gelu"
    hidden_dropout_prob: float = Field(default=0.1, ge=0, lt=1)
    attention_probs_dropout_prob: float = Field(default=0.1, ge=0, lt=1)
    max_position_embeddings: int = Field(default=512, ge=1)
    type_vocab_size: int = Field(default=2, ge=1)
    initializer_range: float = Field(default=0.02, gt=0)
    layer_norm_eps: float = Field(default=1e-12, gt=0)

    @model_validator(mode="after")
    def _heads_divide_hidden_size(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} is not divisible by "
                f"num_attention_heads={self.num_attention_heads}"
            )
        return self

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @classmethod
    def of_size(cls, size: str, **values: Any) -> Self:
        """One of the released sizes: tiny, mini, small, medium, base, large.

        Args:
            size: the name of the size.
            values: settings that differ from the released ones, such as `vocab_size`.

        Raises:
            SettingsError: no such size, or a value is not valid.
        """
        if size not in _GEOMETRIES:
            raise SettingsError(f"no size is called {size!r}", fix=nearest(size, _GEOMETRIES))
        layers, hidden_size, heads = _GEOMETRIES[size]
        geometry = {
            "num_hidden_layers": layers,
            "hidden_size": hidden_size,
            "num_attention_heads": heads,
            "intermediate_size": 4 * hidden_size,
        }
        return cls.parse({**geometry, **values})

"""The geometry of an encoder: the settings that distinguish BERT and related models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, Unpack

from pydantic import model_validator

from ..errors import SettingsError, did_you_mean
from .config_checks import check_config
from .encoder_geometry import EncoderGeometry

if TYPE_CHECKING:
    from ..settings.keywords import EncoderKeywords

_GEOMETRIES = {  # layers, hidden size, heads; the feed-forward layer is four times as wide
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}

STATIC_SETTINGS = {
    **{"family": "bertworks", "num_hidden_layers": 0, "num_attention_heads": 1},
    **{"positions": "none", "type_vocab_size": 0, "embedding_norm": False},
    **{"hidden_dropout_prob": 0.0, "classifier": "none", "classifier_pooling": "mean"},
}
"""Settings of an encoder with static vectors: a piece has the same vector in every context."""


class EncoderConfig(EncoderGeometry):
    """An encoder's settings, which fit together, and what follows from them."""

    @model_validator(mode="after")
    def _settings_fit_together(self) -> Self:
        check_config(self)
        return self

    @classmethod
    def from_size(cls, size: str, **values: Unpack[EncoderKeywords]) -> Self:
        """Return the geometry of a released size: tiny, mini, small, medium, base, large.

        Args:
            size: the name of the size.
            values: settings that differ from the released ones, such as `vocab_size`.

        Raises:
            SettingsError: no such size, or a value is not valid.
        """
        if size not in _GEOMETRIES:
            raise SettingsError(f"no size is called {size!r}", fix=did_you_mean(size, _GEOMETRIES))
        layers, hidden_size, heads = _GEOMETRIES[size]
        geometry = {
            "num_hidden_layers": layers,
            "hidden_size": hidden_size,
            "num_attention_heads": heads,
            "intermediate_size": 4 * hidden_size,
        }
        return cls.parse({**geometry, **values})

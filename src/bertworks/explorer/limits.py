"""The limits of views, and the words that requests choose from."""

from __future__ import annotations

from typing import Literal

MAX_TOKENS = 128
"""The maximum number of tokens of a view: the size of the attention grows with its square."""

MAX_SENTENCES = 64
"""The maximum number of texts of a view, and of occurrences of a word in them."""

LIMITS = {"tokens": MAX_TOKENS, "sentences": MAX_SENTENCES}

Claim = Literal["previous", "next", "first", "same-word", "links"]

Matrix = Literal[
    "query", "key", "value", "attention_output", "intermediate", "gate", "feed_forward_output"
]
"""The maps of a layer, by the step that each computes; `gate` only where layers are gated."""

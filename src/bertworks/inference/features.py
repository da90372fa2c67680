"""Texts as vectors: an encoder's hidden states, one vector a text."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from ..checkpoints.sentence import Pooling, SentenceSettings
from ..errors import SettingsError
from ..model.encoder import Encoder
from ..packed import Packed
from ..text.encoding import Encoding
from ..text.tokenizer import Tokenizer
from .engine import EngineSettings, by_tokens, chunks, inference


class EmbedSettings(SentenceSettings):
    """How texts become vectors."""

    layers: tuple[int, ...] = Field(
        (-1,), min_length=1, description="whose vectors are laid side by side; 0: the embeddings"
    )
    truncation: Literal["cut", "error"] = Field(
        "cut", description="what becomes of longer texts; how many are cut is said"
    )


@dataclass(frozen=True)
class _Text:
    """A text as the engine batches it."""

    index: int
    encoding: Encoding

    @property
    def num_tokens(self) -> int:
        return self.encoding.num_tokens


def embed(
    network: nn.Module,
    encoder: Encoder,
    tokenizer: Tokenizer,
    texts: Iterable[str],
    settings: EmbedSettings,
    engine: EngineSettings,
) -> Iterator[NDArray[np.float32]]:
    """Vectors of texts, window by window, in the order of the texts.

    Args:
        network: what holds the encoder; it runs on the device where it is.
        encoder: whose hidden states are taken.
        tokenizer: the encoder's.
        texts: of any number.
        settings: layers, pooling, length.
        engine: batching and precision.

    Yields:
        float32 `[texts, len(layers) * hidden_size]`, up to `window_rows` texts at a time.

    Raises:
        DataError: a text has a lone surrogate, or is too long where `truncation` is "error".
        SettingsError: there is no such layer, or the limit is beyond the encoder's positions.
    """
    layers = _layers(settings.layers, encoder.config.num_hidden_layers)
    limit = settings.max_seq_length or encoder.config.max_seqlen
    if limit > encoder.config.max_seqlen:
        raise SettingsError(
            f"max_seq_length={limit} is more than the encoder's {encoder.config.max_seqlen}"
        )
    width = len(layers) * encoder.config.hidden_size
    device = next(network.parameters()).device
    cut = number = 0
    for window in chunks(texts, engine.window_rows):
        encodings = tokenizer.encode_batch(
            window,
            max_length=limit,
            truncation="error" if settings.truncation == "error" else "longest_first",
            where=[f"text {number + at + 1}" for at in range(len(window))],
        )
        cut += sum(encoding.truncated_tokens > 0 for encoding in encodings)
        number += len(window)
        found = np.empty((len(window), width), np.float32)
        rows = [_Text(at, encoding) for at, encoding in enumerate(encodings)]
        for part in by_tokens(rows, engine.batch_tokens):
            ordered = part[::-1]  # in order of length, which makes attention's groups large
            packed = Packed.from_arrays(
                [text.encoding.input_ids for text in ordered],
                [text.encoding.token_type_ids for text in ordered],
            ).to(device)
            with inference(network, engine.precision):
                vectors = _vectors(encoder, packed, layers, settings)
            found[[text.index for text in ordered]] = vectors.cpu().numpy()
        yield found
    if cut:
        warnings.warn(f"{cut} of {number} texts were cut at {limit} tokens", stacklevel=2)


def _layers(asked: Sequence[int], count: int) -> list[int]:
    """Numbers of hidden states, 0 for the embeddings up to `count`."""
    for layer in asked:
        if not -count - 1 <= layer <= count:
            raise SettingsError(f"there is no layer {layer}: the encoder has {count}")
    return [layer % (count + 1) for layer in asked]


def _vectors(
    encoder: Encoder, packed: Packed, layers: Sequence[int], settings: EmbedSettings
) -> Float[Tensor, "sequences width"]:
    pooled: dict[int, Tensor] = {}
    for number, hidden in enumerate(encoder.hidden_states(packed)):
        if number in layers:
            pooled[number] = pool(hidden.float(), packed, settings.pooling)
    vectors = torch.cat([pooled[layer] for layer in layers], -1)
    return torch.nn.functional.normalize(vectors, dim=-1) if settings.normalize else vectors


def pool(
    hidden: Float[Tensor, "tokens hidden_size"], packed: Packed, pooling: Pooling
) -> Float[Tensor, "sequences hidden_size"]:
    """One vector of each sequence, special tokens included, in the order of the pack.

    Args:
        hidden: the tokens' vectors.
        packed: where the sequences lie.
        pooling: the mean over a sequence's tokens, the first token's vector, the largest value of
            each feature, or the sum over the square root of the length.
    """
    if pooling == "cls":
        return hidden[packed.first_tokens]
    parts: list[Tensor] = []
    for start, count, length in packed.groups:
        own = hidden[start : start + count * length].view(count, length, -1)
        if pooling == "max":
            parts.append(own.amax(1))
        elif pooling == "mean":
            parts.append(own.mean(1))
        else:
            parts.append(own.sum(1) / length**0.5)
    return torch.cat(parts)

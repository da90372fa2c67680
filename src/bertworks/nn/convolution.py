"""A convolution over the tokens of each sequence, in parallel with the first layer: DeBERTa v2's.

    output = norm(layer(x) + activation(dropout(convolution(x))))

Source: He et al. (2021), "DeBERTa", §5.1 of the later version ("convolution layer"), and the code
of version 2.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from ..packed import Packed, Sequences, to_tensor
from .config import EncoderConfig
from .cpu import apply_in_whole_vectors
from .layers import ACTIVATIONS, Dropout, GroupedLinear, make_norm
from .part_settings import ConvolutionSettings

_NO_SEQUENCE = -1


class Convolution(nn.Module):
    """A convolution of the layer's input, added to its output, and a norm.

    Beyond both ends of a sequence there are zeros, also where another sequence follows in the pack.
    The convolution is a linear map of each token's window of neighbours, so that inference computes
    it as it does the other linear maps.
    """

    def __init__(self, config: EncoderConfig, settings: ConvolutionSettings) -> None:
        super().__init__()
        size, self.kernel_size = config.hidden_size, settings.kernel_size
        self.linear = GroupedLinear(
            size * self.kernel_size, size, groups=settings.groups, kernel_size=self.kernel_size
        )
        self.activation = ACTIVATIONS[settings.activation]
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.norm = make_norm(config, size)

    def forward(
        self,
        inputs: Float[Tensor, "rows hidden_size"],
        outputs: Float[Tensor, "rows hidden_size"],
        packed: Sequences,
    ) -> Float[Tensor, "rows hidden_size"]:
        """Return the layer's output with the convolution of its input.

        Args:
            inputs: the input of the layer.
            outputs: its output.
            packed: the sequences.
        """
        result: Tensor = self.norm(outputs + self.convolve(inputs, packed))
        return result

    def convolve(
        self, inputs: Float[Tensor, "rows hidden_size"], packed: Sequences
    ) -> Float[Tensor, "rows hidden_size"]:
        """Return the convolution of the layer's input, after the activation."""
        mixed = self.dropout(self.linear(self._windows(inputs, packed)))
        return apply_in_whole_vectors(self.activation, mixed)

    def _windows(
        self, inputs: Float[Tensor, "rows hidden_size"], packed: Sequences
    ) -> Float[Tensor, "rows columns"]:
        """Return each token's neighbours: for each feature, from the first to the last."""
        rows, half = inputs.shape[0], self.kernel_size // 2
        numbers = _sequence_numbers(packed, rows)
        padded = F.pad(inputs, (0, 0, half, half))
        padded_numbers = F.pad(numbers, (half, half), value=_NO_SEQUENCE)
        neighbours = [
            padded[first : first + rows].masked_fill(
                (padded_numbers[first : first + rows] != numbers).unsqueeze(1), 0
            )
            for first in range(self.kernel_size)
        ]
        return torch.stack(neighbours, -1).flatten(1)


def _sequence_numbers(packed: Sequences, rows: int) -> Int64[Tensor, " rows"]:
    """Return the number of each row's sequence; pad tokens and rows after the last have none."""
    if isinstance(packed, Packed):
        numbers = np.full(rows, _NO_SEQUENCE)
        numbers[: packed.num_tokens] = np.repeat(np.arange(packed.num_sequences), packed.lengths)
        result: Tensor = to_tensor(numbers, packed.input_ids.device)
        return result
    row = torch.arange(packed.mask.shape[0], device=packed.mask.device)
    return torch.where(packed.mask, row.unsqueeze(1), _NO_SEQUENCE).flatten()


def make_convolution(config: EncoderConfig) -> Convolution | None:
    """Return an encoder's convolution; None if it has none."""
    settings = config.convolution
    return None if settings is None else Convolution(config, settings)

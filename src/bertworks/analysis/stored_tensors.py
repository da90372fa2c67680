"""What the files of a checkpoint hold, by the names of their tensors; no network is built."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from ..checkpoints.families import family_of
from ..checkpoints.heads import HEADS
from ..checkpoints.weight_files import FLOATS
from ..inference.native_weights import FileArray, NativeWeights
from ..native.quantization import to_floats
from ..nn.config import EncoderConfig

_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I8": "int8"}
_DECODER, _WORDS = "mlm_head.decoder.weight", "encoder.embeddings.word_embeddings.weight"


@dataclass(frozen=True)
class StoredTensors:
    """The tensors of a checkpoint in safetensors files.

    Attributes:
        arrays: under their family's names.
        config: the geometry.
        own_heads: the heads that the files hold under their own names.
        architectures: the classes that config.json names, which tell heads of equal names apart.
    """

    arrays: Mapping[str, FileArray]
    config: EncoderConfig
    own_heads: Sequence[str] = ()
    architectures: Sequence[str] = ()

    @staticmethod
    def from_directory(
        directory: Path,
        config: EncoderConfig,
        own_heads: Sequence[str] = (),
        architectures: Sequence[str] = (),
    ) -> StoredTensors:
        """Read the headers of the files.

        Raises:
            NeedsPyTorchError: there are no safetensors files.
            CheckpointError: they are damaged, or the encoder in them has another geometry.
        """
        arrays = NativeWeights(directory, config).arrays
        return StoredTensors(arrays, config, own_heads, architectures)

    @cached_property
    def used_names(self) -> dict[str, str]:
        """The names of tensors that a network has, each with our name of it."""
        names: dict[str, str] = {}
        family = family_of(self.config)
        named_heads = tuple(
            f"{head.name}."
            for head in HEADS
            if family.classes.get(head.model_class) in self.architectures
        )
        rules = sorted(
            family.keys_for(self.config).rules,
            key=lambda rule: not rule.ours.startswith(named_heads),
        )
        for name in self.arrays:
            for rule in rules:
                if rule.theirs_pattern.fullmatch(name):
                    names[name] = rule.our_name(name)
                    break
            else:
                if name.partition(".")[0] in self.own_heads:
                    names[name] = name
        decoder = next((name for name, ours in names.items() if ours == _DECODER), None)
        words = next((name for name, ours in names.items() if ours == _WORDS), None)
        if decoder and words and self._are_equal(decoder, words):
            del names[decoder]
        return names

    def _are_equal(self, name: str, other: str) -> bool:
        return np.array_equal(self.arrays[name].read(), self.arrays[other].read())

    @property
    def drop_reasons(self) -> dict[str, str]:
        """The other tensors, and why no network has them."""
        family = family_of(self.config)
        return {
            name: family.drop_reason(name) or "equal to the embeddings, or not known"
            for name in self.arrays
            if name not in self.used_names
        }

    @property
    def heads(self) -> list[str]:
        """What the heads predict."""
        names = [*self.used_names.values()]
        titles = [
            head.title for head in HEADS if any(name.startswith(f"{head.name}.") for name in names)
        ]
        return [*titles, *self.own_heads]

    @property
    def dtypes(self) -> dict[str, int]:
        """The number of tensors of each dtype."""
        kinds = Counter(one.dtype for one in self.arrays.values())
        return {_DTYPES.get(kind, kind.lower()): count for kind, count in kinds.items()}

    def count_parameters(self) -> dict[str, int]:
        """The number of parameters by part."""
        counts: Counter[str] = Counter()
        for name, ours in self.used_names.items():
            size = math.prod(self.arrays[name].shape)
            counts["total"] += size
            if ours.startswith("encoder.embeddings."):
                counts["embeddings"] += size
            elif ours.startswith("encoder.layers."):
                counts["layers"] += size
                counts[f"layer {ours.split('.')[2]}"] += size
        last = f"layer {self.config.num_weighted_layers - 1}"
        each = {"each layer": counts[last]} if self.config.num_weighted_layers else {}
        heads = counts["total"] - counts["embeddings"] - counts["layers"]
        return {
            **{part: counts[part] for part in ("embeddings", "layers")},
            **each,
            "heads": heads,
            "total": counts["total"],
        }

    def count_non_finite(self) -> dict[str, int]:
        """The number of NaN and infinity in each tensor that has some."""
        counts = {
            name: int((~np.isfinite(to_floats(self.arrays[name].read()))).sum())
            for name in self.used_names
            if self.arrays[name].dtype in FLOATS
        }
        return {name: count for name, count in counts.items() if count}

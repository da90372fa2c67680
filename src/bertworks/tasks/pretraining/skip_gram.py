"""Skip-gram with negative sampling: static vectors, learned from what is near each word.

Of each token, and of each other one in a window around it, the token's vector has to distinguish
the other from drawn pieces:

    loss = softplus(-v·u) + Σ softplus(v·u')      v of the encoder's table, u of one for contexts

The encoder has neither layers nor positions, so that a token's vector is that of its piece.
Frequent pieces are left out at random, before windows are measured; the window of each token is
drawn, so that near ones are pairs more often; the pieces drawn are as frequent as in the corpus to
the power of 3/4. All draws are pure functions of a sequence's key and of places in it.

Source: Mikolov et al. (2013), "Distributed representations of words and phrases and their
compositionality", §2.2 and §2.3; where it leaves something open, their code.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64
from torch import Tensor, nn

from ...corpus.shards import Corpus
from ...model.config import EncoderConfig
from ...model.encoder import Encoder
from ...packed import Batch
from ...text.tokenizer import Tokenizer
from ..task import Network
from . import hashing
from .pairs import InstanceSettings
from .settings import SkipGramSettings
from .source import PretrainingExample
from .task import PretrainingEvaluator, PretrainingTask

_REACH = np.uint64(1 << 60)  # mixed into a token's bits, so that its window is drawn apart


class SkipGramNetwork(Network):
    """An encoder without layers, and the vectors of contexts, which begin as zeros."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.encoder = Encoder(config, pooler=False)
        self.contexts = nn.Embedding(config.vocab_size, config.hidden_size)
        nn.init.zeros_(self.contexts.weight)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The summed loss of all pairs: `skip_gram`. A drawn piece that is right does not count."""
        candidates, scores = batch.targets["candidates"], self._scores(batch)
        is_wrong = candidates[:, :-1] != candidates[:, -1:]
        drawn = (F.softplus(scores[:, :-1]) * is_wrong).sum()
        return {"skip_gram": F.softplus(-scores[:, -1]).sum() + drawn}

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """`mlm_logits` `[pairs, negatives + 1]`: the candidates' scores; the last is right."""
        return {"mlm_logits": self._scores(batch)}

    def _scores(self, batch: Batch) -> Float[Tensor, "pairs candidates"]:
        vectors = self.encoder(batch.packed).index_select(0, batch.targets["centres"])
        found = self.contexts(batch.targets["candidates"]).to(vectors.dtype)
        scores: Tensor = (vectors[:, None] * found).sum(-1, dtype=torch.float32)
        return scores


class SkipGramTask(PretrainingTask):
    """The pairs in instances that are cut as for language models. The pieces of `corpus`, which
    `prepare` made, are counted when the first batch is made."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        instances: InstanceSettings,
        settings: SkipGramSettings,
        corpus: str,
    ) -> None:
        super().__init__(tokenizer, instances, causal=True)
        self.settings, self.corpus = settings, corpus

    @cached_property
    def counts(self) -> Float64[np.ndarray, " pieces"]:
        """How often each piece is in the corpus; special ones count as none."""
        corpus, size = Corpus.open(self.corpus), self.tokenizer.vocab_size
        found = np.zeros(size)
        for number in range(corpus.num_documents):
            found += np.bincount(corpus.document(number)[0], minlength=size)
        found[self.tokenizer.special_ids] = 0
        return found

    @cached_property
    def _chances(self) -> tuple[np.ndarray, np.ndarray]:
        """Of each piece, how likely a token is kept; and up to which number below 1 it is drawn."""
        ratio = self.settings.subsample * self.counts.sum() / np.maximum(1, self.counts)
        drawn = np.cumsum(self.counts**0.75)
        return np.where(self.counts, np.sqrt(ratio) + ratio, 0.0), drawn / drawn[-1]

    def collate(self, examples: Sequence[PretrainingExample]) -> Batch:
        """`targets` are `centres` `[pairs]`, places in the pack; `candidates` `[pairs,
        negatives + 1]`, the pieces drawn and then the other token of each pair; and `masked_labels`
        `[pairs]`: which candidate is right, always the last."""
        packed, settings = super().collate(examples).packed, self.settings
        keeping, drawing = self._chances
        keys = np.array([examples[row].key for row in packed.sequence_row], np.uint64)
        bits = hashing.draw(np.repeat(keys, packed.lengths), packed.position_ids)
        kept = np.flatnonzero(hashing.uniform(bits) < keeping[packed.input_ids])
        sequence = np.repeat(np.arange(len(keys)), packed.lengths)[kept]
        reach = 1 + hashing.below(hashing.mix(bits[kept] ^ _REACH), settings.window)
        pairs = []
        for apart in range(1, settings.window + 1):
            first = np.arange(max(0, len(kept) - apart))
            first = first[sequence[first] == sequence[first + apart]]
            for centre, other in ((first, first + apart), (first + apart, first)):
                is_near = reach[centre] >= apart
                pairs.append(np.stack([kept[centre[is_near]], kept[other[is_near]]]))
        centres, others = np.concatenate(pairs, 1)
        places = packed.position_ids[others][:, None]
        counters = places * settings.negatives + np.arange(settings.negatives)
        drawn = hashing.uniform(hashing.draw(bits[centres][:, None], counters))
        pieces = np.searchsorted(drawing, drawn, side="right")
        candidates = np.concatenate([pieces, packed.input_ids[others][:, None]], 1)
        right = np.full(len(centres), settings.negatives)
        targets = {"centres": centres, "candidates": candidates, "masked_labels": right}
        return Batch(packed, targets, {"skip_gram": len(centres)})

    def evaluator(self) -> PretrainingEvaluator:
        """Of `skip_gram_…`: how well the other token is distinguished from the pieces drawn."""
        return PretrainingEvaluator("skip_gram")
